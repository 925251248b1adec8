use proptest::prelude::*;

use super::*;
use crate::manager::PlaceTime;
use redis_lock_core::request::{HoldNumber, LEASE_MS_MAX, Lease, Owner, Timeout};
use redis_lock_core::token::TOKEN_MAX;

type Parsed = Result<(AcquireRequest, Option<Timeout>), Usage>;

/// The connection of whoever asks.
const CLIENT: ClientId = ClientId(17);

fn read(words: &[&str]) -> Parsed {
    read_from(words, || Ok(CLIENT))
}

fn read_from(words: &[&str], connection: impl FnOnce() -> Result<ClientId, Usage>) -> Parsed {
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    let (request, patience) = parse(Args::new(&words), connection)?;
    match patience {
        Patience::None => Ok((request, None)),
        Patience::Block(timeout) => Ok((request, Some(timeout))),
        Patience::Queue(_) => panic!("{words:?} ask for a place"),
    }
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

/// The same with another limit, or bound to the connection.
fn with(asked: Parsed, limit: Limit, session: Option<ClientId>) -> Parsed {
    let (request, timeout) = asked?;
    let request = AcquireRequest {
        limit,
        session,
        ..request
    };
    Ok((request, timeout))
}

fn asks_as(limit: Limit) -> Parsed {
    with(asks(30_000, None, None), limit, None)
}

fn asks_in_session(limit: Limit) -> Parsed {
    with(asks(30_000, None, None), limit, Some(CLIENT))
}

fn limit(count: i64) -> Limit {
    Limit::from_count(count).unwrap()
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
    check(&["SHARED"], asks_as(Limit::SHARED));
    check(&["LIMIT", "3"], asks_as(limit(3)));
    check(&["SESSION"], asks_in_session(Limit::EXCLUSIVE));
    check(&["SHARED", "SESSION"], asks_in_session(Limit::SHARED));
    check(&["SESSION", "LIMIT", "3"], asks_in_session(limit(3)));
}

#[test]
fn a_limit_of_one_is_exclusive() {
    check(&["LIMIT", "1"], asks(30_000, None, None));
}

#[test]
fn limits_have_bounds() {
    for word in ["0", "-1", "9007199254740992", "9223372036854775807"] {
        check_refused(&["LIMIT", word], Usage::LimitOutOfRange);
    }
    for count in [1025, TOKEN_MAX] {
        check_refused(&["LIMIT", &count.to_string()], Usage::LimitTooGreat);
    }
    for count in [1, 2, 1024] {
        check(&["LIMIT", &count.to_string()], asks_as(limit(count)));
    }
}

#[test]
fn shared_and_limited_exclude_each_other() {
    check_refused(&["SHARED", "LIMIT", "3"], Usage::Syntax);
    check_refused(&["LIMIT", "3", "SHARED"], Usage::Syntax);
    check_refused(&["LIMIT", "1", "LEASE", "5", "SHARED"], Usage::Syntax);
    // What comes first is told first.
    check_refused(&["SHARED", "LIMIT", "0"], Usage::LimitOutOfRange);
}

#[test]
fn a_flag_has_no_value() {
    for flag in ["SHARED", "SESSION"] {
        for value in ["1", "yes", "", "0"] {
            check_refused(&[flag, value], Usage::Syntax);
            check_refused(&["LEASE", "5", flag, value], Usage::Syntax);
        }
    }
}

#[test]
fn only_a_session_asks_for_the_connection() {
    let no_connection = || panic!("it was asked for");
    for words in [
        vec!["me"],
        vec!["me", "SHARED", "LEASE", "5", "BLOCK", "0", "HOLD", "1"],
        vec!["me", "LIMIT", "3"],
        vec!["SESSION"],
    ] {
        assert!(read_from(&words, no_connection).is_ok(), "{words:?}");
    }
    // Nor do words that are refused anyway.
    for words in [
        vec!["me", "SESSION", "SESSION"],
        vec!["me", "SESSION", "NOPE"],
        vec!["me", "SESSION", "LEASE", "0"],
        vec!["me", "SESSION", "SHARED", "LIMIT", "3"],
        vec!["", "SESSION"],
    ] {
        assert!(read_from(&words, no_connection).is_err(), "{words:?}");
    }
}

#[test]
fn a_session_without_a_connection_is_refused() {
    for words in [
        vec!["me", "SESSION"],
        vec!["me", "session", "LIMIT", "3"],
        vec!["me", "LEASE", "5", "SESSION", "SHARED"],
    ] {
        let parsed = read_from(&words, || Err(Usage::NoSession));
        assert_eq!(parsed, Err(Usage::NoSession), "{words:?}");
    }
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
    for name in ["LEASE", "BLOCK", "HOLD", "LIMIT"] {
        check_refused(&[name, "5", name, "5"], Usage::Syntax);
        let lower = name.to_ascii_lowercase();
        check_refused(&[name, "5", &lower, "x"], Usage::Syntax);
    }
    for flag in ["SHARED", "SESSION"] {
        check_refused(&[flag, flag], Usage::Syntax);
        check_refused(
            &[flag, "LEASE", "5", &flag.to_ascii_lowercase()],
            Usage::Syntax,
        );
    }
}

#[test]
fn an_unfinished_option_is_a_syntax_error() {
    for name in ["LEASE", "BLOCK", "HOLD", "LIMIT"] {
        check_refused(&[name], Usage::Syntax);
        check_refused(&[name, "5", name], Usage::Syntax);
    }
    check_refused(&["LEASE", "5", "BLOCK"], Usage::Syntax);
}

#[test]
fn a_value_must_be_an_integer() {
    for word in ["", "+1", "x", "9223372036854775808"] {
        for name in ["LEASE", "HOLD", "LIMIT"] {
            check_refused(&[name, word], Usage::NotAnInteger);
        }
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
fn a_place_is_for_the_first_hold_and_is_kept_for_a_day_at_most() {
    for (ms, hold) in [("1", None), ("86400000", Some(2))] {
        let mut words = vec![&b"me"[..], b"queue", ms.as_bytes(), b"channel"];
        words.extend(hold.map(|_| [&b"HOLD"[..], b"2"]).into_iter().flatten());
        let (request, patience) = parse(Args::new(&words), || Ok(CLIENT)).unwrap();
        let place = PlaceTime {
            ms: ms.parse().unwrap(),
            channel: b"channel",
        };
        assert_eq!(patience, Patience::Queue(place));
        let hold = HoldNumber::new(hold.unwrap_or(1)).unwrap();
        assert_eq!(request.hold, Some(hold));
    }
    for ms in ["0", "-1", "86400001"] {
        check_refused(&["QUEUE", ms, "channel"], Usage::QueueOutOfRange);
    }
    check_refused(&["QUEUE", "x", "channel"], Usage::NotAnInteger);
    check_refused(&["QUEUE", "5", &"c".repeat(1025)], Usage::ChannelTooLong);
    for words in [
        &["QUEUE"][..],
        &["QUEUE", "5"],
        &["QUEUE", "5", "a", "QUEUE", "5", "a"],
        &["QUEUE", "5", "a", "BLOCK", "5"],
    ] {
        check_refused(words, Usage::Syntax);
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
    const KNOWN: &[&str] = &[
        "lease", "LEASE", "Block", "queue", "hold", "SHARED", "Limit", "session", "0", "5", "-1",
        "@", "",
    ];
    let word = prop_oneof![
        3 => prop::sample::select(KNOWN).prop_map(|word| word.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..8),
    ];
    prop::collection::vec(word, 0..11)
}

fn mixed_case(name: &str, in_capitals: [bool; 7]) -> String {
    let letters = name.chars().zip(in_capitals);
    letters
        .map(|(letter, in_capitals)| {
            if in_capitals {
                letter
            } else {
                letter.to_ascii_lowercase()
            }
        })
        .collect()
}

proptest! {
    #[test]
    fn options_come_in_any_order_and_case(
        options in Just([
            ("LEASE", Some("5")),
            ("BLOCK", Some("7")),
            ("HOLD", Some("3")),
            ("SHARED", None),
            ("LIMIT", Some("4")),
            ("SESSION", None),
        ]).prop_shuffle(),
        left_out in prop::sample::select(&["SHARED", "LIMIT"][..]),
        in_capitals in any::<[[bool; 7]; 6]>(),
    ) {
        let mut words = vec!["me".to_owned()];
        for ((name, value), in_capitals) in options.into_iter().zip(in_capitals) {
            if name != left_out {
                words.push(mixed_case(name, in_capitals));
                words.extend(value.map(str::to_owned));
            }
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let limit = if left_out == "LIMIT" { Limit::SHARED } else { limit(4) };
        prop_assert_eq!(read(&words), with(asks(5, Some(7), Some(3)), limit, Some(CLIENT)));
    }

    #[test]
    fn no_words_make_it_panic(words in words()) {
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        if let Ok((request, patience)) = parse(Args::new(&words), || Ok(CLIENT)) {
            prop_assert_eq!(request.owner.as_bytes(), words[0]);
            let is = |word: &&[u8], name: &[u8]| word.eq_ignore_ascii_case(name);
            let mut options = words[1..].to_vec();
            if let Some(at) = options.iter().position(|word| is(word, b"queue")) {
                // A channel may have any name.
                options.remove(at + 2);
            }
            let has = |name: &[u8]| options.iter().any(|word| is(word, name));
            prop_assert!(request.session.is_none() || has(b"session"));
            let waits = matches!(patience, Patience::Block(_));
            prop_assert!(!waits || has(b"block"));
            let is_place = matches!(patience, Patience::Queue(_));
            prop_assert!(!is_place || has(b"queue"));
            prop_assert!(request.hold.is_none() || is_place || has(b"hold"));
            prop_assert_eq!(request.limit == Limit::SHARED, has(b"shared"));
            prop_assert!(!(has(b"shared") && has(b"limit")));
        }
    }
}
