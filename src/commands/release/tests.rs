use proptest::prelude::*;

use super::*;
use redis_lock_core::request::{HoldNumber, Owner};
use redis_lock_core::token::{FencingToken, TOKEN_MAX};

type Parsed = Result<ReleaseRequest, Usage>;

fn read(words: &[&str]) -> Parsed {
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    parse(Args::new(&words))
}

/// The request of owner `me`.
fn gives_back(extent: ReleaseExtent, token: Option<i64>) -> Parsed {
    Ok(ReleaseRequest {
        owner: Owner::new(b"me")?,
        token: token.map(FencingToken::new).transpose()?,
        extent,
    })
}

fn hold(n: i64) -> ReleaseExtent {
    ReleaseExtent::Hold(HoldNumber::new(n).unwrap())
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
fn an_owner_alone_gives_back_one_hold() {
    check(&[], gives_back(ReleaseExtent::One, None));
}

#[test]
fn options_come_in_any_order_and_case() {
    check(&["FENCE", "7"], gives_back(ReleaseExtent::One, Some(7)));
    check(&["all"], gives_back(ReleaseExtent::All, None));
    check(&["HoLd", "3"], gives_back(hold(3), None));
    for options in [["fence", "7", "ALL"], ["All", "FENCE", "7"]] {
        check(&options, gives_back(ReleaseExtent::All, Some(7)));
    }
    for options in [["Fence", "7", "hold", "3"], ["HOLD", "3", "fENCE", "7"]] {
        check(&options, gives_back(hold(3), Some(7)));
    }
}

#[test]
fn one_hold_and_all_of_them_exclude_each_other() {
    check_refused(&["HOLD", "1", "ALL"], Usage::Syntax);
    check_refused(&["ALL", "HOLD", "1"], Usage::Syntax);
    check_refused(&["all", "fence", "7", "hold", "1"], Usage::Syntax);
}

#[test]
fn an_unknown_option_is_a_syntax_error() {
    for name in ["NOPE", "LEASE", "BLOCK", "", "ALL ", "FENC", "7"] {
        check_refused(&[name], Usage::Syntax);
        check_refused(&[name, "7"], Usage::Syntax);
        check_refused(&["FENCE", "7", name], Usage::Syntax);
    }
    check_refused(&["ALL", "7"], Usage::Syntax);
}

#[test]
fn a_repeated_option_is_a_syntax_error() {
    check_refused(&["ALL", "all"], Usage::Syntax);
    check_refused(&["FENCE", "7", "fence", "7"], Usage::Syntax);
    check_refused(&["HOLD", "7", "hold", "x"], Usage::Syntax);
}

#[test]
fn an_unfinished_option_is_a_syntax_error() {
    for name in ["FENCE", "HOLD"] {
        check_refused(&[name], Usage::Syntax);
        check_refused(&["ALL", name], Usage::Syntax);
        check_refused(&[name, "7", name], Usage::Syntax);
    }
}

#[test]
fn a_value_must_be_an_integer() {
    for name in ["FENCE", "HOLD"] {
        for word in ["", "+1", "x", "9223372036854775808"] {
            check_refused(&[name, word], Usage::NotAnInteger);
        }
    }
}

#[test]
fn a_token_and_a_hold_have_bounds() {
    for word in ["0", "-1", "9007199254740992", "9223372036854775807"] {
        check_refused(&["FENCE", word], Usage::TokenOutOfRange);
    }
    for word in ["0", "-1", "-9223372036854775808"] {
        check_refused(&["HOLD", word], Usage::HoldOutOfRange);
    }
    for token in [1, TOKEN_MAX] {
        let options = ["FENCE", &token.to_string()];
        check(&options, gives_back(ReleaseExtent::One, Some(token)));
    }
    for n in [1, i64::MAX] {
        check(&["HOLD", &n.to_string()], gives_back(hold(n), None));
    }
}

#[test]
fn an_owner_that_can_not_be_one_is_refused() {
    for (owner, usage) in [
        ("", Usage::OwnerEmpty),
        ("@fence", Usage::OwnerReserved),
        (&"x".repeat(1025), Usage::OwnerTooLong),
    ] {
        assert_eq!(read(&[owner]), Err(usage));
        assert_eq!(read(&[owner, "ALL"]), Err(usage));
    }
    assert!(read(&[&"x".repeat(1024)]).is_ok());
    assert_eq!(read(&[]), Err(Usage::Syntax));
}

/// Words of which some mean something, so that a few of the lines do as well.
fn words() -> impl Strategy<Value = Vec<Vec<u8>>> {
    const KNOWN: &[&str] = &["fence", "FENCE", "Hold", "all", "0", "5", "-1", "@", ""];
    let word = prop_oneof![
        prop::sample::select(KNOWN).prop_map(|word| word.as_bytes().to_vec()),
        prop::collection::vec(any::<u8>(), 0..8),
    ];
    prop::collection::vec(word, 0..9)
}

proptest! {
    #[test]
    fn no_words_make_it_panic(words in words()) {
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        if let Ok(request) = parse(Args::new(&words)) {
            prop_assert_eq!(request.owner.as_bytes(), words[0]);
            prop_assert!(words.len() <= 5);
        }
    }
}
