use proptest::prelude::*;

use super::*;
use crate::lock::request::{HoldNumber, LEASE_MS_MAX, Lease, Owner};

type Parsed = Result<(AcquireRequest, Option<Timeout>), Usage>;

fn read(words: &[&str]) -> Parsed {
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    parse(Args::new(&words), || Ok(ClientId(1)))
}

/// The request of owner `me`.
fn asks(lease_ms: i64, timeout_ms: Option<i64>, hold: Option<i64>) -> Parsed {
    let request = AcquireRequest {
        owner: Owner::new(b"me")?,
        lease: Lease::from_ms(lease_ms)?,
        hold: hold.map(HoldNumber::new).transpose()?,
        limit: Limit::EXCLUSIVE,
        session: None,
    };
    Ok((request, timeout_ms.map(Timeout::from_ms).transpose()?))
}

#[track_caller]
fn check(options: &[&str], expected: Parsed) {
    let words = [&["me"], options].concat();
    assert_eq!(read(&words), expected, "{words:?}");
}

#[track_caller]
fn check_refused(options: &[&str], usage: Usage) {
    check(options, Err(usage));
}

#[test]
fn an_owner_alone_does_not_wait_and_gets_the_default_lease() {
    check(&[], asks(30_000, None, None));
}

#[test]
fn each_option_is_read() {
    check(&["LEASE", "5"], asks(5, None, None));
    check(&["BLOCK", "7"], asks(30_000, Some(7), None));
    check(&["HOLD", "3"], asks(30_000, None, Some(3)));
}

#[test]
fn an_unknown_option_is_a_syntax_error() {
    for name in [
        "NOPE",
        "FENCE",
        "ALL",
        "",
        "LEASE ",
        "LEAS",
        "5",
        "LEA\u{17f}E",
    ] {
        check_refused(&[name], Usage::Syntax);
        check_refused(&[name, "5"], Usage::Syntax);
        check_refused(&["LEASE", "5", name, "5"], Usage::Syntax);
    }
}

#[test]
fn a_repeated_option_is_a_syntax_error_even_with_the_same_value() {
    for name in ["LEASE", "BLOCK", "HOLD"] {
        check_refused(&[name, "5", name, "5"], Usage::Syntax);
        let lower = name.to_ascii_lowercase();
        check_refused(&[name, "5", &lower, "x"], Usage::Syntax);
    }
}

#[test]
fn an_unfinished_option_is_a_syntax_error() {
    for name in ["LEASE", "BLOCK", "HOLD"] {
        check_refused(&[name], Usage::Syntax);
        check_refused(&[name, "5", name], Usage::Syntax);
    }
    check_refused(&["LEASE", "5", "BLOCK"], Usage::Syntax);
}

#[test]
fn a_value_must_be_an_integer_as_redis_writes_it() {
    for word in [
        "",
        " 1",
        "1 ",
        "+1",
        "01",
        "-0",
        "1e3",
        "1.5",
        "x",
        "9223372036854775808",
    ] {
        check_refused(&["LEASE", word], Usage::NotAnInteger);
        check_refused(&["HOLD", word], Usage::NotAnInteger);
        check_refused(&["BLOCK", word], Usage::TimeoutOutOfRange);
    }
    // An option takes the next word, whatever it looks like.
    check_refused(&["LEASE", "BLOCK", "5"], Usage::NotAnInteger);
}

#[test]
fn a_lease_has_bounds() {
    for word in ["0", "-1", "315360000001", "9223372036854775807"] {
        check_refused(&["LEASE", word], Usage::LeaseOutOfRange);
    }
    check(&["LEASE", "1"], asks(1, None, None));
    check(&["LEASE", "315360000000"], asks(LEASE_MS_MAX, None, None));
}

#[test]
fn a_wait_may_be_endless_but_not_negative_nor_beyond_the_clock() {
    check(&["BLOCK", "0"], asks(30_000, Some(0), None));
    let longest = Timeout::MS_MAX;
    check(
        &["BLOCK", &longest.to_string()],
        asks(30_000, Some(longest), None),
    );
    for word in ["-1", "-9223372036854775808"] {
        check_refused(&["BLOCK", word], Usage::TimeoutNegative);
    }
    for word in ["9223372036854775807", &(longest + 1).to_string()] {
        check_refused(&["BLOCK", word], Usage::TimeoutOutOfRange);
    }
}

#[test]
fn holds_are_counted_from_one() {
    for word in ["0", "-1", "-9223372036854775808"] {
        check_refused(&["HOLD", word], Usage::HoldOutOfRange);
    }
    for n in [1, i64::MAX] {
        check(&["HOLD", &n.to_string()], asks(30_000, None, Some(n)));
    }
}

#[test]
fn an_owner_that_can_not_be_one_is_refused() {
    for (owner, usage) in [
        ("", Usage::OwnerEmpty),
        ("@", Usage::OwnerReserved),
        ("@fence", Usage::OwnerReserved),
        (&"x".repeat(1025), Usage::OwnerTooLong),
    ] {
        assert_eq!(read(&[owner]), Err(usage));
        assert_eq!(read(&[owner, "LEASE", "5"]), Err(usage));
    }
    assert!(read(&[&"x".repeat(1024)]).is_ok());
    assert_eq!(read(&[]), Err(Usage::Syntax));
}

#[test]
fn an_owner_may_look_like_an_option() {
    let (request, timeout) = read(&["BLOCK", "BLOCK", "7"]).unwrap();
    assert_eq!(request.owner.as_bytes(), b"BLOCK");
    assert_eq!(timeout, Some(Timeout::from_ms(7).unwrap()));
}

/// Words of which some mean something, so that a few of the lines do as well.
fn words() -> impl Strategy<Value = Vec<Vec<u8>>> {
    const KNOWN: &[&str] = &["lease", "LEASE", "Block", "hold", "0", "5", "-1", "@", ""];
    let word = prop_oneof![
        prop::sample::select(KNOWN).prop_map(|word| word.as_bytes().to_vec()),
        prop::collection::vec(any::<u8>(), 0..8),
    ];
    prop::collection::vec(word, 0..9)
}

proptest! {
    #[test]
    fn options_come_in_any_order_and_case(
        options in Just([["LEASE", "5"], ["BLOCK", "7"], ["HOLD", "3"]]).prop_shuffle(),
        in_capitals in any::<[[bool; 5]; 3]>(),
    ) {
        let mut words = vec!["me".to_owned()];
        for ([name, value], in_capitals) in options.into_iter().zip(in_capitals) {
            let mixed = name.chars().zip(in_capitals).map(|(letter, in_capitals)| {
                if in_capitals { letter } else { letter.to_ascii_lowercase() }
            });
            words.extend([mixed.collect(), value.to_owned()]);
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        prop_assert_eq!(read(&words), asks(5, Some(7), Some(3)));
    }

    #[test]
    fn no_words_make_it_panic(words in words()) {
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        if let Ok((request, _)) = parse(Args::new(&words), || Ok(ClientId(1))) {
            prop_assert_eq!(request.owner.as_bytes(), words[0]);
            prop_assert!(words.len() <= 7 && words.len() % 2 == 1);
        }
    }
}
