//! Locks that several may hold together. Unless a test says otherwise, every
//! lease is longer than a new one would be, and so none is changed by re-entry.

use super::*;

const SHARED: Limit = Limit::SHARED;
const EXCLUSIVE: Limit = Limit::EXCLUSIVE;

/// A lease that ends after a new one would.
const LATER: i64 = END + 5;

/// What a newcomer gets: a token greater than any before, and a new lease.
fn newcomer(limit: Limit) -> Holder {
    permitted("new", NEW, END, limit)
}

fn twice(holder: &Holder) -> Holder {
    Holder {
        holds: 2,
        ..holder.clone()
    }
}

fn until(lease_end_ms: i64, holder: &Holder) -> Holder {
    Holder {
        lease_end_ms: Some(lease_end_ms),
        ..holder.clone()
    }
}

/// Two shared holders; the lease of the second is the last to end.
fn a_and_b() -> [Holder; 2] {
    [
        permitted("a", 7, LATER, SHARED),
        permitted("b", 8, LATER + 5, SHARED),
    ]
}

mod admitting {
    use super::*;

    #[test]
    fn one_holder_more_must_be_within_every_limit() {
        let present: [&[Limit]; 10] = [
            &[],
            &[EXCLUSIVE],
            &[SHARED],
            &[SHARED, SHARED],
            &[limit(2)],
            &[limit(2), SHARED],
            &[limit(3), limit(3)],
            &[limit(3), limit(2)],
            &[limit(5), limit(3)],
            &[limit(5), limit(4), limit(3)],
        ];
        let asked = [EXCLUSIVE, limit(1), limit(2), limit(3), limit(4), SHARED];
        let admitted = [
            [true, true, true, true, true, true],
            [false, false, false, false, false, false],
            [false, false, true, true, true, true],
            [false, false, false, true, true, true],
            [false, false, true, true, true, true],
            [false, false, false, false, false, false],
            [false, false, false, true, true, true],
            [false, false, false, false, false, false],
            [false, false, false, true, true, true],
            [false, false, false, false, false, false],
        ];
        for (limits, admitted) in present.iter().zip(admitted) {
            let mut lock = Lock::default();
            for (index, &limit) in limits.iter().enumerate() {
                let holder = permitted(&index.to_string(), 7, END, limit);
                lock.holders.push(holder);
            }
            for (&limit, admitted) in asked.iter().zip(admitted) {
                let case = format!("{limit:?} beside {limits:?}");
                assert_eq!(lock.admits(limit), admitted, "{case}");
                let (mut lock, mut effects) = (lock.clone(), Effects::new());
                let request = acquire_as(limit, "new");
                let tokens = &mut TokenClock::default();
                let acquired = lock.acquire(&request, None, true, NOW, tokens, &mut effects);
                let expected = if admitted { granted(NEW) } else { Ok(None) };
                assert_eq!(acquired, expected, "{case}");
                assert_eq!(effects.is_empty(), !admitted, "{case}");
            }
        }
    }

    #[test]
    fn a_limit_of_many_is_kept_to_the_last() {
        let mut lock = Lock::default();
        for holders in 0..100 {
            assert_eq!(lock.admits(limit(100)), holders < 100);
            assert_eq!(lock.admits(limit(50)), holders < 50);
            let name = holders.to_string();
            lock.holders.push(permitted(&name, 7, END, limit(100)));
        }
        assert!(!lock.admits(limit(100)) && !lock.admits(limit(101)) && !lock.admits(SHARED));
    }

    #[test]
    fn every_holder_has_a_token_and_a_lease_of_its_own() {
        for limit in [SHARED, limit(2)] {
            let first = newcomer(limit);
            let lock = free(None);
            let effects = [writes(&first, Some(NEW)), expires(END)];
            check_granted(&lock, limit, "new", NEW, &effects);
            let [present, second] = [permitted("a", 7, END - 5, limit), newcomer(limit)];
            let lock = held_by([present.clone()]);
            let effects = [writes(&second, Some(NEW)), expires(END)];
            check_granted(&lock, limit, "new", NEW, &effects);
        }
    }

    #[test]
    fn a_limit_of_one_is_exclusive() {
        let lock = free(None);
        check_granted(&lock, limit(1), "a", NEW, &[replaces("a", NEW, END)]);
    }

    #[test]
    fn a_new_token_is_greater_than_those_of_the_present_holders() {
        let present = permitted("a", NEW + 5, END, SHARED);
        let new = permitted("new", NEW + 6, END, SHARED);
        let lock = held_by([present]);
        let effects = [writes(&new, Some(NEW + 6))];
        check_granted(&lock, SHARED, "new", NEW + 6, &effects);
        let lock = held_by([permitted("a", TOKEN_MAX, END, SHARED)]);
        let exhausted = Err(Usage::TokensExhausted.into());
        check_acquire_in_vain(&lock, &acquire_as(SHARED, "new"), exhausted);
    }

    #[test]
    fn the_key_lives_as_long_as_the_last_lease() {
        let [a, b] = a_and_b();
        let new = newcomer(SHARED);
        let lock = held_by([a, b]);
        check_granted(&lock, SHARED, "new", NEW, &[writes(&new, Some(NEW))]);
    }

    #[test]
    fn a_persisted_key_gets_an_end_again_with_the_next_grant() {
        let [a, b] = a_and_b();
        let persisted = Lock {
            expires_at_ms: None,
            ..held_by([a, b])
        };
        let new = newcomer(SHARED);
        let effects = [writes(&new, Some(NEW)), expires(LATER + 5)];
        check_granted(&persisted, SHARED, "new", NEW, &effects);
    }

    #[test]
    fn who_is_not_in_turn_has_to_wait_even_for_a_free_lock() {
        for lock in [free(None), free(Some(7)), held_by(a_and_b())] {
            let mut tokens = TokenClock::default();
            check(
                &lock,
                |lock, written| {
                    let request = acquire_as(SHARED, "new");
                    lock.acquire(&request, None, false, NOW, &mut tokens, written)
                },
                Ok(None),
                &[],
            );
            assert_eq!(tokens.next(0, None), Ok(token(1)), "a token was used up");
        }
    }

    #[test]
    fn a_holder_is_always_in_turn() {
        let [a, b] = a_and_b();
        check(
            &held_by([a.clone(), b]),
            |lock, written| {
                let (request, tokens) = (acquire_as(SHARED, "a"), &mut TokenClock::default());
                lock.acquire(&request, None, false, NOW, tokens, written)
            },
            granted(7),
            &[writes(&twice(&a), None)],
        );
        check(
            &held("a", 1, Some(7), Some(LATER)),
            |lock, written| {
                let (request, tokens) = (acquire_as(EXCLUSIVE, "a"), &mut TokenClock::default());
                lock.acquire(&request, None, false, NOW, tokens, written)
            },
            granted(7),
            &[sets("a", 2, None)],
        );
    }

    #[test]
    fn a_newcomer_can_only_ask_for_its_first_hold() {
        for lock in [free(None), held_by(a_and_b())] {
            let request = AcquireRequest {
                limit: SHARED,
                ..acquire("new", LEASE_MS, Some(2))
            };
            check_acquire_in_vain(&lock, &request, hold_count(2, 0));
        }
    }

    #[test]
    fn permits_of_owners_that_somebody_removed_are_cleared_away() {
        let lock = Lock {
            leftovers: 1,
            expires_at_ms: Some(LATER),
            ..free(Some(NEW + 5))
        };
        let new = permitted("new", NEW + 6, END, SHARED);
        let effects = [Effect::Delete, writes(&new, Some(NEW + 6)), expires(END)];
        check_granted(&lock, SHARED, "new", NEW + 6, &effects);
        let effects = [replaces("new", NEW + 6, END)];
        check_granted(&lock, EXCLUSIVE, "new", NEW + 6, &effects);
        check_acquire_in_vain(&lock, &acquire("new", LEASE_MS, Some(2)), hold_count(2, 0));
        let exhausted = Lock {
            last_token: Some(token(TOKEN_MAX)),
            ..lock
        };
        let error = Err(Usage::TokensExhausted.into());
        check_acquire_in_vain(&exhausted, &acquire_as(SHARED, "new"), error);
    }
}

mod reentering {
    use super::*;

    #[test]
    fn a_stricter_mode_is_refused_even_to_the_only_holder() {
        for (has, asks) in [
            (SHARED, EXCLUSIVE),
            (SHARED, limit(1)),
            (SHARED, limit(2)),
            (SHARED, limit(TOKEN_MAX)),
            (limit(3), limit(2)),
            (limit(3), EXCLUSIVE),
        ] {
            let a = permitted("a", 7, END - 5, has);
            let b = permitted("b", 8, END - 5, has);
            for lock in [held_by([a.clone()]), held_by([a, b])] {
                check_acquire_in_vain(&lock, &acquire_as(asks, "a"), Err(LockError::Upgrade));
                // The hold that it has already is not of the mode it asks for.
                let again = AcquireRequest {
                    limit: asks,
                    ..acquire("a", LEASE_MS, Some(1))
                };
                check_acquire_in_vain(&lock, &again, Err(LockError::Upgrade));
            }
        }
    }

    #[test]
    fn who_asks_for_a_looser_mode_keeps_the_one_it_has() {
        for (has, asks) in [
            (limit(2), limit(2)),
            (limit(2), limit(3)),
            (limit(2), SHARED),
            (SHARED, SHARED),
        ] {
            let a = permitted("a", 7, LATER, has);
            let lock = held_by([a.clone()]);
            check_granted(&lock, asks, "a", 7, &[writes(&twice(&a), None)]);
        }
        for asks in [limit(2), SHARED] {
            let lock = held("a", 1, Some(7), Some(LATER));
            check_granted(&lock, asks, "a", 7, &[sets("a", 2, None)]);
        }
    }

    #[test]
    fn a_hold_of_redisson_stays_exclusive() {
        let lock = held("a", 1, None, Some(LATER));
        check_granted(&lock, SHARED, "a", NEW, &[sets("a", 2, Some(NEW))]);
    }

    #[test]
    fn a_lease_that_gets_longer_is_written_and_moves_the_key_only_if_it_is_the_last() {
        let [a, b] = a_and_b();
        let before = until(END - 1, &a);
        let after = twice(&until(END, &a));
        let lock = held_by([before.clone(), b.clone()]);
        check_granted(&lock, SHARED, "a", 7, &[writes(&after, None)]);
        let b = until(END - 2, &b);
        let lock = held_by([before, b]);
        check_granted(&lock, SHARED, "a", 7, &[writes(&after, None), expires(END)]);
    }

    #[test]
    fn a_resent_hold_changes_nothing_but_the_lease() {
        let [a, b] = a_and_b();
        let again = AcquireRequest {
            limit: SHARED,
            ..acquire("a", LEASE_MS, Some(1))
        };
        for a in [&a, &until(END, &a)] {
            let lock = held_by([a.clone(), b.clone()]);
            check_acquire(&lock, &again, granted(7), &[]);
        }
        let lock = held_by([until(END - 1, &a), b]);
        check_acquire(&lock, &again, granted(7), &[writes(&until(END, &a), None)]);
    }

    #[test]
    fn any_other_hold_is_refused() {
        let [a, b] = a_and_b();
        let lock = held_by([until(END - 1, &twice(&a)), b]);
        for wanted in [1, 4, i64::MAX] {
            let request = AcquireRequest {
                limit: SHARED,
                ..acquire("a", LEASE_MS, Some(wanted))
            };
            check_acquire_in_vain(&lock, &request, hold_count(wanted, 2));
        }
        let most = Holder {
            holds: i64::MAX,
            ..a
        };
        let error = Err(Usage::TooManyHolds.into());
        check_acquire_in_vain(&held_by([most]), &acquire_as(SHARED, "a"), error);
    }
}

mod releasing {
    use super::*;

    #[test]
    fn a_hold_that_is_not_the_last_leaves_permit_and_lease_as_they_are() {
        let [a, b] = a_and_b();
        check_release(
            &held_by([twice(&a), b]),
            &release("a", Some(7), ReleaseExtent::One),
            Ok(Released::StillHeld),
            &[writes(&a, None)],
        );
    }

    #[test]
    fn who_is_not_the_last_takes_its_fields_along() {
        let [a, b] = a_and_b();
        for extent in [ReleaseExtent::One, ReleaseExtent::All, hold(1)] {
            check_release(
                &held_by([a.clone(), b.clone()]),
                &release("a", None, extent),
                Ok(Released::LastHold),
                &[removes("a")],
            );
            // The lease that ended last is gone; the newest token is not.
            check_release(
                &held_by([a.clone(), b.clone()]),
                &release("b", None, extent),
                Ok(Released::LastHold),
                &[removes("b"), expires(LATER)],
            );
        }
    }

    #[test]
    fn the_last_one_frees_the_lock() {
        for limit in [SHARED, limit(2)] {
            let a = permitted("a", 7, END, limit);
            check_release(
                &held_by([twice(&a)]),
                &release("a", Some(7), ReleaseExtent::All),
                Ok(Released::LastHold),
                &[Effect::Delete],
            );
        }
    }

    #[test]
    fn the_token_of_another_holder_releases_nothing() {
        let lock = held_by(a_and_b());
        for (name, token) in [("a", 8), ("b", 7), ("c", 7), ("c", 8)] {
            for extent in [ReleaseExtent::One, ReleaseExtent::All] {
                let request = release(name, Some(token), extent);
                check_release_in_vain(&lock, &request, Ok(Released::NotHeld));
            }
        }
    }

    #[test]
    fn named_holds_are_counted_for_each_owner() {
        let [a, b] = a_and_b();
        let lock = held_by([a, twice(&b)]);
        check_release_in_vain(&lock, &release("a", None, hold(3)), hold_count(3, 1));
        check_release_in_vain(&lock, &release("c", None, hold(2)), hold_count(2, 0));
        let resent = release("b", None, hold(3));
        check_release_in_vain(&lock, &resent, Ok(Released::StillHeld));
        let resent = release("c", None, hold(1));
        check_release_in_vain(&lock, &resent, Ok(Released::LastHold));
    }
}

mod ending_leases {
    use super::*;

    #[track_caller]
    fn check_end(before: &Lock, effects: &[Effect]) {
        let ended = match effects {
            [Effect::Delete] => before.holders().len(),
            removed => removed.len(),
        };
        let end = |lock: &mut Lock, written: &mut Effects| lock.end_leases(NOW, written).len();
        check(before, end, ended, effects);
    }

    #[test]
    fn a_lease_is_over_a_millisecond_after_its_end_as_a_key_is() {
        let [a, b] = a_and_b();
        let lock = held_by([until(NOW_MS, &a), b.clone()]);
        check_end(&lock, &[]);
        let lock = held_by([until(NOW_MS - 1, &a), b]);
        check_end(&lock, &[removes("a")]);
    }

    #[test]
    fn those_whose_leases_last_stay() {
        let [a, b] = a_and_b();
        let c = permitted("c", 9, NOW_MS - 7, limit(5));
        let d = permitted("d", 10, LATER, limit(5));
        let lock = held_by([until(1, &a), b, c, d]);
        check_end(&lock, &[removes("a"), removes("c")]);
    }

    #[test]
    fn a_lock_whose_leases_are_all_over_is_free() {
        let [a, b] = a_and_b();
        let lock = held_by([until(NOW_MS - 2, &a), until(NOW_MS - 1, &b)]);
        check_end(&lock, &[Effect::Delete]);
        // Somebody persisted the key.
        let persisted = Lock {
            expires_at_ms: None,
            ..held_by([until(NOW_MS - 1, &a)])
        };
        check_end(&persisted, &[Effect::Delete]);
    }

    #[test]
    fn the_server_alone_ends_an_exclusive_lease() {
        for lock in [
            held("a", 1, Some(7), Some(NOW_MS - 1)),
            held("a", 1, None, Some(0)),
            held("a", 1, Some(7), None),
            free(None),
            free(Some(7)),
        ] {
            check_end(&lock, &[]);
        }
    }

    #[test]
    fn the_next_end_is_that_of_the_first_lease_or_of_the_key() {
        let [a, b] = a_and_b();
        assert_eq!(held_by([b, a]).next_lease_end_ms(), Some(LATER));
        let held_for_long = held("a", 1, Some(7), Some(END));
        assert_eq!(held_for_long.next_lease_end_ms(), Some(END));
        assert_eq!(held("a", 1, Some(7), None).next_lease_end_ms(), None);
        assert_eq!(free(Some(7)).next_lease_end_ms(), None);
        let cut_short = Lock {
            expires_at_ms: Some(END),
            ..held_by(a_and_b())
        };
        assert_eq!(cut_short.next_lease_end_ms(), Some(END));
    }
}

mod renewing {
    use super::*;

    #[test]
    fn a_renewed_lease_ends_exactly_then_and_the_key_with_the_last() {
        let [a, b] = a_and_b();
        for token in [None, Some(7)] {
            let lock = held_by([a.clone(), b.clone()]);
            let effects = [writes(&until(END, &a), None)];
            check_renew(&lock, &renew("a", LEASE_MS, token), Some(7), &effects);
        }
        // The last lease becomes shorter than the other one, then the longer again.
        let lock = held_by([a.clone(), b.clone()]);
        let effects = [writes(&until(END, &b), None), expires(LATER)];
        check_renew(&lock, &renew("b", LEASE_MS, None), Some(8), &effects);
        let lock = held_by([a.clone(), until(END, &b)]);
        let effects = [writes(&until(END + 9, &b), None), expires(END + 9)];
        check_renew(&lock, &renew("b", LEASE_MS + 9, None), Some(8), &effects);
        let lock = held_by([until(END, &a), b]);
        check_renew(&lock, &renew("a", LEASE_MS, None), Some(7), &[]);
    }

    #[test]
    fn who_does_not_hold_the_lock_with_this_token_renews_nothing() {
        let lock = held_by(a_and_b());
        for (name, token) in [("a", Some(8)), ("b", Some(7)), ("c", None), ("c", Some(7))] {
            check_renew(&lock, &renew(name, LEASE_MS, token), None, &[]);
        }
    }
}
