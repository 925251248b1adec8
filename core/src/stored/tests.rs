use std::rc::Rc;

use proptest::prelude::*;

use super::*;
use crate::lock::tests::{free, held, held_by, limit, permitted, sorted, stored};
use crate::token::TOKEN_MAX;

/// When the key expires, in tests where that matters.
const END: i64 = 1_700_000_001_000;

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
    for fields in [fields, &reversed] {
        let lock = read(fields, expiry).map(sorted);
        assert_eq!(lock.as_ref(), Ok(expected));
    }
}

#[track_caller]
fn check_no_lock(fields: &[(&str, &str)]) {
    let reversed: Vec<_> = fields.iter().copied().rev().collect();
    for expiry in [None, Some(END)] {
        assert_eq!(read(fields, expiry), Err(LockError::NotALock));
        assert_eq!(read(&reversed, expiry), Err(LockError::NotALock));
    }
}

mod stored_hashes {
    use super::*;

    #[test]
    fn a_hash_is_the_lock_of_which_its_fields_tell() {
        let (redisson, longest) = ("b9834f1e-ab7d-4a0f-8a1c-0a6a1e3d0d52:1", "x".repeat(1024));
        let remembered = Lock {
            expires_at_ms: Some(END),
            ..free(Some(7))
        };
        let all: [(&[_], _); 9] = [
            (&[], free(None)),
            (
                &[("a", "2"), ("@fence", "7")],
                held("a", 2, Some(7), Some(END)),
            ),
            // Somebody persisted the key.
            (&[("a", "1"), ("@fence", "7")], held("a", 1, Some(7), None)),
            (&[(redisson, "3")], held(redisson, 3, None, Some(END))),
            (&[("@fence", "7")], free(Some(7))),
            (&[("@fence", "7")], remembered),
            (&[("@fence", "9007199254740991")], free(Some(TOKEN_MAX))),
            (
                &[("a", "9223372036854775807")],
                held("a", i64::MAX, None, Some(END)),
            ),
            (&[(&longest, "1")], held(&longest, 1, None, Some(END))),
        ];
        for (fields, lock) in all {
            check(fields, lock.expires_at_ms, &lock);
        }
    }

    #[test]
    fn any_other_hash_is_no_lock() {
        assert_eq!(read(&[("a", "3")], None), Err(LockError::NotALock));
        check_no_lock(&[("a", "1"), ("b", "1")]);
        check_no_lock(&[("a", "1"), ("b", "1"), ("@fence", "7")]);
        for name in ["@other", "@FENCE", "", &"x".repeat(1025)] {
            check_no_lock(&[(name, "1")]);
            check_no_lock(&[(name, "1"), ("@fence", "7")]);
        }
        for count in ["0", "-1", "", "01", "+1", " 1", "1 ", "1.0", "1e3", "x"] {
            check_no_lock(&[("a", count), ("@fence", "7")]);
        }
        check_no_lock(&[("a", "9223372036854775808"), ("@fence", "7")]);
        for token in ["0", "-1", "9007199254740992", "9223372036854775808", "07"] {
            check_no_lock(&[("a", "1"), ("@fence", token)]);
            check_no_lock(&[("@fence", token)]);
        }
    }

    #[test]
    fn an_owner_may_be_any_bytes() {
        let mut reader = Reader::default();
        reader.field(b"\0\xff", b"1");
        let lock = reader.finish(Some(END)).unwrap();
        assert_eq!(lock.holders()[0].owner.as_bytes(), b"\0\xff");
    }

    #[test]
    fn who_asks_shares_its_name_with_the_lock_it_holds() {
        let asker = Owner::new(b"a").unwrap();
        for (name, shared) in [("a", true), ("b", false)] {
            let mut reader = Reader::asked_by(Some(&asker));
            reader.field(name.as_bytes(), b"1");
            let lock = reader.finish(Some(END)).unwrap();
            let owner = &lock.holders()[0].owner;
            assert_eq!(owner.as_bytes(), name.as_bytes());
            assert_eq!(std::ptr::eq(owner.as_bytes(), asker.as_bytes()), shared);
        }
    }
}

#[test]
fn a_lock_that_its_asker_holds_alone_is_read_as_any_other() {
    let asker = Owner::new(b"a").unwrap();
    let (holds, tokens) = (["1", "3", "0", "-1", "01", "x", ""], ["7", "0", "x", ""]);
    let tokens = tokens.map(Some).into_iter().chain([None]);
    let all = tokens.flat_map(|token| holds.map(|holds| (holds, token)));
    for (holds, token) in all {
        for expires_at_ms in [Some(END), None] {
            let mut reader = Reader::default();
            reader.field(b"a", holds.as_bytes());
            if let Some(token) = token {
                reader.field(TOKEN_FIELD, token.as_bytes());
            }
            let held = HeldAlone::read(holds.as_bytes(), token.map(str::as_bytes));
            let lock = held.map_or(Err(LockError::NotALock), |held| {
                held.by(&asker, expires_at_ms)
            });
            assert_eq!(lock, reader.finish(expires_at_ms), "{holds} {token:?}");
        }
    }
}

mod permits {
    use super::*;

    const SHARED: Limit = Limit::SHARED;

    /// Two shared holders, with the newest token.
    const A_AND_B: [(&str, &str); 5] = [
        ("a", "1"),
        ("@permit:a", "0 7 1700000001000"),
        ("b", "1"),
        ("@permit:b", "0 8 1700000001005"),
        ("@fence", "8"),
    ];

    fn a_and_b() -> [Holder; 2] {
        [
            permitted("a", 7, END, SHARED),
            permitted("b", 8, END + 5, SHARED),
        ]
    }

    fn without(
        fields: &[(&'static str, &'static str)],
        name: &str,
    ) -> Vec<(&'static str, &'static str)> {
        let mut fields = fields.to_vec();
        fields.retain(|field| field.0 != name);
        fields
    }

    #[test]
    fn every_owner_with_a_permit_holds_the_lock() {
        check(&A_AND_B, Some(END + 5), &held_by(a_and_b()));
        let holder = Holder {
            holds: 3,
            ..permitted("a", 7, END, limit(5))
        };
        check(
            &[
                ("a", "3"),
                ("@permit:a", "5 7 1700000001000"),
                ("@fence", "7"),
            ],
            Some(END),
            &held_by([holder]),
        );
    }

    #[test]
    fn a_permit_has_an_end_whatever_the_expiry_of_the_key() {
        for expires_at_ms in [None, Some(END - 1), Some(END + 100)] {
            let lock = Lock {
                expires_at_ms,
                ..held_by(a_and_b())
            };
            check(&A_AND_B, expires_at_ms, &lock);
        }
    }

    #[test]
    fn the_newest_token_may_be_that_of_somebody_who_left() {
        let fields = [
            ("a", "1"),
            ("@permit:a", "0 7 1700000001000"),
            ("@fence", "9"),
        ];
        let lock = Lock {
            last_token: FencingToken::new(9).ok(),
            ..held_by([permitted("a", 7, END, SHARED)])
        };
        check(&fields, Some(END), &lock);
    }

    #[test]
    fn a_permit_without_its_owner_admits_nobody() {
        let expires_at_ms = Some(END + 5);
        let lock = Lock {
            last_token: FencingToken::new(8).ok(),
            expires_at_ms,
            leftovers: 1,
            ..held_by([permitted("a", 7, END, SHARED)])
        };
        check(&without(&A_AND_B, "b"), expires_at_ms, &lock);
        let nobody = Lock {
            expires_at_ms,
            leftovers: 2,
            ..free(Some(8))
        };
        check(
            &without(&without(&A_AND_B, "b"), "a"),
            expires_at_ms,
            &nobody,
        );
    }

    #[test]
    fn an_exclusive_holder_may_have_permits_of_others_beside_it() {
        let fields = without(&without(&A_AND_B, "a"), "@permit:b");
        for end_ms in [Some(END), None] {
            let lock = Lock {
                leftovers: 1,
                ..held("b", 1, Some(8), end_ms)
            };
            check(&fields, end_ms, &lock);
        }
    }

    #[test]
    fn a_permit_is_three_integers_in_their_ranges() {
        for text in [
            "",
            "0",
            "0 7",
            "0 7 5 1",
            "0 7 5 ",
            " 0 7 5",
            "0  7 5",
            "0\t7 5",
            "0,7,5",
            "00 7 5",
            "+2 7 5",
            "-0 7 5",
            "0 07 5",
            "0 7 5.0",
            "0 7 x",
            "0 7 ",
            // An exclusive holder has none.
            "1 7 5",
            "-1 7 5",
            "9007199254740992 7 5",
            "9223372036854775807 7 5",
            "0 0 5",
            "0 -7 5",
            "0 9007199254740992 5",
            "0 7 9223372036854775808",
        ] {
            check_no_lock(&[("a", "1"), ("@permit:a", text), ("@fence", "7")]);
            // Even where it admits nobody.
            check_no_lock(&[("@permit:a", text), ("@fence", "7")]);
            check_no_lock(&[("a", "1"), ("@permit:b", text), ("@fence", "7")]);
        }
        for (text, limit, end_ms) in [
            ("2 7 0", limit(2), 0),
            ("9007199254740991 7 5", limit(TOKEN_MAX), 5),
            ("0 7 9223372036854775807", SHARED, i64::MAX),
            ("0 7 -9223372036854775808", SHARED, i64::MIN),
        ] {
            let lock = Lock {
                expires_at_ms: Some(END),
                ..held_by([permitted("a", 7, end_ms, limit)])
            };
            let fields = [("a", "1"), ("@permit:a", text), ("@fence", "7")];
            check(&fields, Some(END), &lock);
        }
    }

    #[test]
    fn every_permit_but_one_that_is_left_behind_has_an_owner_a_count_and_a_token() {
        check_no_lock(&without(&A_AND_B, "@permit:a"));
        check_no_lock(&without(&A_AND_B, "@permit:b"));
        let without_a = without(&without(&A_AND_B, "a"), "@fence");
        check_no_lock(&without_a);
        check_no_lock(&without(&without_a, "@permit:a"));
        check_no_lock(&without(&without_a, "@permit:b"));
        for count in ["0", "-1", "", "01", "x"] {
            let permit = ("@permit:a", "0 7 1700000001000");
            check_no_lock(&[("a", count), permit, ("@fence", "7")]);
        }
    }

    #[test]
    fn a_permit_of_what_can_not_be_an_owner_makes_it_no_lock() {
        let too_long = format!("@permit:{}", "x".repeat(1025));
        for name in [
            "@permit:",
            "@permit:@a",
            &too_long,
            // And these are no permits.
            "@permit",
            "@permits:a",
            "@PERMIT:a",
            "@ permit:a",
        ] {
            check_no_lock(&[("a", "1"), (name, "0 7 1700000001000"), ("@fence", "7")]);
        }
    }

    #[test]
    fn a_field_that_no_lock_has_is_known_at_once() {
        let mut reader = Reader::default();
        reader.field(b"a", b"1");
        assert!(!reader.is_no_lock());
        reader.field(b"b", b"?");
        assert!(reader.is_no_lock());
        reader.field(b"@fence", b"7");
        assert!(reader.is_no_lock());
    }
}

mod round_trips {
    use super::*;

    type Fields = Vec<(Vec<u8>, Vec<u8>)>;

    fn owners(count: impl Into<prop::collection::SizeRange>) -> impl Strategy<Value = Vec<Owner>> {
        let name = prop_oneof![
            "[ab]{1,2}".prop_map(String::into_bytes),
            "(permit:|token)".prop_map(String::into_bytes),
            prop::collection::vec(any::<u8>(), 1..9),
        ];
        let owner = name.prop_filter_map("reserved", |name| Owner::new(&name).ok());
        prop::collection::btree_set(owner, count).prop_map(|owners| owners.into_iter().collect())
    }

    fn token() -> impl Strategy<Value = FencingToken> {
        (1..=TOKEN_MAX).prop_map(|token| FencingToken::new(token).unwrap())
    }

    fn nobody() -> impl Strategy<Value = Lock> {
        (token(), any::<Option<i64>>()).prop_map(|(token, expires_at_ms)| Lock {
            expires_at_ms,
            ..free(Some(token.get()))
        })
    }

    /// One without a token was taken by Redisson's scripts, and has an end.
    fn exclusive() -> impl Strategy<Value = Lock> {
        let of_redisson = any::<i64>().prop_map(|end_ms| (None, Some(end_ms)));
        let of_ours = (token().prop_map(Some), any::<Option<i64>>());
        (owners(1), 1..=i64::MAX, prop_oneof![of_redisson, of_ours]).prop_map(
            |(owners, holds, (token, lease_end_ms))| Lock {
                holders: owners
                    .into_iter()
                    .map(|owner| Holder {
                        owner,
                        holds,
                        token,
                        lease_end_ms,
                        limit: Limit::EXCLUSIVE,
                    })
                    .collect(),
                last_token: token,
                expires_at_ms: lease_end_ms,
                leftovers: 0,
            },
        )
    }

    fn shared_or_limited() -> impl Strategy<Value = Lock> {
        let limit = prop_oneof![Just(Limit::SHARED), (2..=TOKEN_MAX).prop_map(limit)];
        let permits = prop::collection::vec((1..=i64::MAX, token(), any::<i64>(), limit), 5);
        (owners(1..=5), permits, token(), any::<Option<i64>>()).prop_map(
            |(owners, permits, newest, expires_at_ms)| Lock {
                holders: owners
                    .into_iter()
                    .zip(permits)
                    .map(|(owner, (holds, token, end_ms, limit))| Holder {
                        owner,
                        holds,
                        token: Some(token),
                        lease_end_ms: Some(end_ms),
                        limit,
                    })
                    .collect(),
                last_token: Some(newest),
                expires_at_ms,
                leftovers: 0,
            },
        )
    }

    fn lock_and_its_fields() -> impl Strategy<Value = (Lock, Fields)> {
        let lock = prop_oneof![1 => nobody(), 2 => exclusive(), 4 => shared_or_limited()];
        lock.prop_flat_map(|lock| {
            let fields: Fields = Rc::unwrap_or_clone(stored(&lock).fields)
                .into_iter()
                .collect();
            (Just(lock), Just(fields).prop_shuffle())
        })
    }

    proptest! {
        #[test]
        fn a_lock_is_read_as_it_was_written((lock, fields) in lock_and_its_fields()) {
            let mut reader = Reader::default();
            for (name, value) in &fields {
                reader.field(name, value);
            }
            let read = reader.finish(lock.expires_at_ms).map(sorted);
            prop_assert_eq!(read, Ok(sorted(lock)));
        }

        #[test]
        fn no_fields_make_it_panic(
            fields in prop::collection::vec((
                prop_oneof![Just("a"), Just("b"), Just("@permit:a"), Just("@permit:"), Just("@fence")],
                "[0-9 -]{0,12}",
            ), 0..6),
            expires_at_ms in any::<Option<i64>>(),
        ) {
            let mut reader = Reader::default();
            for (name, value) in &fields {
                reader.field(name.as_bytes(), value.as_bytes());
            }
            let no_lock = reader.is_no_lock();
            let read = reader.finish(expires_at_ms);
            prop_assert!(!no_lock || read.is_err());
        }
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
