use proptest::prelude::*;

use super::*;
use crate::lock::fence::FENCE_MAX;
use crate::lock::record::tests::{free, held};

/// When the key expires, in tests where that matters.
const END: i64 = 1_700_000_001_000;

mod stored_hashes {
    use super::*;

    fn read(fields: &[(&str, &str)], expiry: Option<i64>) -> Result<Lock, LockError> {
        let mut reader = Reader::default();
        for (name, value) in fields {
            reader.field(name.as_bytes(), value.as_bytes());
        }
        reader.finish(expiry)
    }

    /// The fields mean the same in whatever order the server lists them.
    #[track_caller]
    fn check(fields: &[(&str, &str)], expiry: Option<i64>, expected: &Lock) {
        let reversed: Vec<_> = fields.iter().copied().rev().collect();
        assert_eq!(read(fields, expiry).as_ref(), Ok(expected));
        assert_eq!(read(&reversed, expiry).as_ref(), Ok(expected));
    }

    #[track_caller]
    fn check_no_lock(fields: &[(&str, &str)]) {
        let reversed: Vec<_> = fields.iter().copied().rev().collect();
        for expiry in [None, Some(END)] {
            assert_eq!(read(fields, expiry), Err(LockError::NotALock));
            assert_eq!(read(&reversed, expiry), Err(LockError::NotALock));
        }
    }

    #[test]
    fn a_missing_key_is_a_free_lock() {
        check(&[], None, &free(None));
    }

    #[test]
    fn an_owner_with_a_token_holds_the_lock() {
        let fields = [("a", "2"), ("@fence", "7")];
        check(&fields, Some(END), &held("a", 2, Some(7), Some(END)));
    }

    #[test]
    fn a_persisted_lock_with_a_token_is_held_without_an_end() {
        check(
            &[("a", "1"), ("@fence", "7")],
            None,
            &held("a", 1, Some(7), None),
        );
    }

    #[test]
    fn a_hash_of_redisson_is_a_held_lock_without_a_token() {
        let name = "b9834f1e-ab7d-4a0f-8a1c-0a6a1e3d0d52:1";
        check(&[(name, "3")], Some(END), &held(name, 3, None, Some(END)));
    }

    #[test]
    fn a_single_number_without_an_expiry_is_somebody_elses_hash() {
        assert_eq!(read(&[("a", "3")], None), Err(LockError::NotALock));
    }

    #[test]
    fn a_token_alone_is_a_free_lock_that_remembers_it() {
        for expiry in [None, Some(END)] {
            let lock = Lock {
                expires_at_ms: expiry,
                ..free(Some(7))
            };
            check(&[("@fence", "7")], expiry, &lock);
        }
    }

    #[test]
    fn a_lock_has_one_owner() {
        check_no_lock(&[("a", "1"), ("b", "1")]);
        check_no_lock(&[("a", "1"), ("b", "1"), ("@fence", "7")]);
    }

    #[test]
    fn a_field_of_the_module_that_is_unknown_makes_it_no_lock() {
        check_no_lock(&[("@other", "1")]);
        check_no_lock(&[("@fence", "7"), ("@other", "1")]);
        check_no_lock(&[("a", "1"), ("@FENCE", "7")]);
    }

    #[test]
    fn a_hold_count_is_a_positive_integer_as_redis_writes_it() {
        for count in ["0", "-1", "", "01", "+1", " 1", "1 ", "1.0", "1e3", "x"] {
            check_no_lock(&[("a", count), ("@fence", "7")]);
        }
        check_no_lock(&[("a", "9223372036854775808"), ("@fence", "7")]);
        check(
            &[("a", "9223372036854775807")],
            Some(END),
            &held("a", i64::MAX, None, Some(END)),
        );
    }

    #[test]
    fn a_stored_token_is_between_1_and_the_greatest() {
        for token in ["0", "-1", "9007199254740992", "9223372036854775808", "07"] {
            check_no_lock(&[("a", "1"), ("@fence", token)]);
            check_no_lock(&[("@fence", token)]);
        }
        check(
            &[("@fence", "9007199254740991")],
            None,
            &free(Some(FENCE_MAX)),
        );
    }

    #[test]
    fn a_field_that_can_not_be_an_owner_makes_it_no_lock() {
        check_no_lock(&[("", "1"), ("@fence", "7")]);
        check_no_lock(&[(&"x".repeat(1025), "1"), ("@fence", "7")]);
        let longest = "x".repeat(1024);
        check(
            &[(&longest, "1")],
            Some(END),
            &held(&longest, 1, None, Some(END)),
        );
    }

    #[test]
    fn an_owner_may_be_any_bytes() {
        let mut reader = Reader::default();
        reader.field(b"\0\xff", b"1");
        let lock = reader.finish(Some(END)).unwrap();
        assert_eq!(lock.holders()[0].owner.as_bytes(), b"\0\xff");
    }
}

mod integers {
    use super::*;

    #[test]
    fn only_what_redis_would_write_is_an_integer() {
        for text in [
            "",
            "-",
            "-0",
            "+1",
            "01",
            "-01",
            "00",
            " 1",
            "1 ",
            "1\n",
            "1e3",
            "0x1",
            "1_000",
            "1.0",
            "--1",
            "９",
            "9223372036854775808",
            "-9223372036854775809",
            "99999999999999999999999999",
        ] {
            assert_eq!(parse_integer(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(parse_integer(b"1\0"), None);
        assert_eq!(parse_integer(b"1\xff"), None);
    }

    #[test]
    fn the_whole_range_is_read() {
        for n in [i64::MIN, i64::MIN + 1, -1, 0, 1, 9, 10, i64::MAX] {
            assert_eq!(parse_integer(n.to_string().as_bytes()), Some(n));
        }
    }

    proptest! {
        #[test]
        fn every_integer_is_read_as_it_was_written(n in any::<i64>()) {
            prop_assert_eq!(parse_integer(n.to_string().as_bytes()), Some(n));
        }

        #[test]
        fn an_integer_has_one_spelling(text in "[-+0-9e ]{0,21}") {
            if let Some(n) = parse_integer(text.as_bytes()) {
                prop_assert_eq!(n.to_string(), text);
            }
        }
    }
}
