use super::*;

#[test]
fn a_free_lock_is_granted_with_a_new_token_and_a_lease() {
    for hold in [None, Some(1)] {
        let lock = free(None);
        let effects = [replaces("a", NEW, END)];
        check_acquire(&lock, &acquire("a", LEASE_MS, hold), granted(NEW), &effects);
    }
}

#[test]
fn a_new_token_is_greater_than_the_one_the_lock_remembers() {
    check_acquire(
        &free(Some(NEW + 5)),
        &acquire("a", LEASE_MS, None),
        granted(NEW + 6),
        &[replaces("a", NEW + 6, END)],
    );
}

#[test]
fn there_is_no_grant_without_a_greater_token() {
    check_acquire_in_vain(
        &free(Some(TOKEN_MAX)),
        &acquire("a", LEASE_MS, None),
        Err(Usage::TokensExhausted.into()),
    );
}

#[test]
fn reentry_counts_and_keeps_the_token() {
    let lock = held("a", 1, Some(7), Some(END - 1));
    let effects = [sets("a", 2, None), expires(END)];
    check_acquire(&lock, &acquire("a", LEASE_MS, None), granted(7), &effects);
}

#[test]
fn reentry_never_shortens_the_lease() {
    for end in [END, END + 1, i64::MAX] {
        let lock = held("a", 1, Some(7), Some(end));
        let effects = [sets("a", 2, None)];
        check_acquire(&lock, &acquire("a", LEASE_MS, None), granted(7), &effects);
    }
}

#[test]
fn a_hold_of_redisson_gets_its_token_on_reentry() {
    let lock = held("a", 1, None, Some(END + 1));
    let effects = [sets("a", 2, Some(NEW))];
    check_acquire(&lock, &acquire("a", LEASE_MS, None), granted(NEW), &effects);
    // The resent request changes no count, but its reply is a token all
    // the same, and that token must be the stored one.
    check_acquire(
        &held("a", 2, None, Some(END + 1)),
        &acquire("a", LEASE_MS, Some(2)),
        granted(NEW),
        &[sets("a", 2, Some(NEW))],
    );
}

#[test]
fn a_persisted_lock_keeps_having_no_end() {
    let lock = held("a", 1, Some(7), None);
    let effects = [sets("a", 2, None)];
    check_acquire(&lock, &acquire("a", LEASE_MS, None), granted(7), &effects);
}

#[test]
fn the_hold_that_comes_next_is_counted() {
    check_acquire(
        &held("a", 4, Some(7), Some(END)),
        &acquire("a", LEASE_MS, Some(5)),
        granted(7),
        &[sets("a", 5, None)],
    );
}

#[test]
fn a_resent_hold_changes_nothing_but_the_lease() {
    let lock = held("a", 5, Some(7), Some(END));
    check_acquire(&lock, &acquire("a", LEASE_MS, Some(5)), granted(7), &[]);
    check_acquire(
        &held("a", 5, Some(7), Some(END - 1)),
        &acquire("a", LEASE_MS, Some(5)),
        granted(7),
        &[expires(END)],
    );
}

#[test]
fn any_other_hold_is_refused() {
    let lock = held("a", 5, Some(7), Some(END - 1));
    for wanted in [1, 4, 7, i64::MAX] {
        let request = acquire("a", LEASE_MS, Some(wanted));
        check_acquire_in_vain(&lock, &request, hold_count(wanted, 5));
    }
    // A refused request uses up no token either, and gives none to a hold
    // of Redisson.
    let of_redisson = held("a", 5, None, Some(END - 1));
    let request = acquire("a", LEASE_MS, Some(2));
    check_acquire_in_vain(&of_redisson, &request, hold_count(2, 5));
}

#[test]
fn a_free_lock_has_only_a_first_hold_to_give() {
    for lock in [free(None), free(Some(7))] {
        let request = acquire("a", LEASE_MS, Some(2));
        check_acquire_in_vain(&lock, &request, hold_count(2, 0));
    }
}

#[test]
fn a_lock_of_another_owner_is_busy() {
    for lock in [
        held("b", 2, Some(7), Some(END)),
        held("b", 2, Some(7), None),
        held("b", 2, None, Some(END)),
        // The server alone decides when a lease is over.
        held("b", 2, Some(7), Some(NOW_MS - 1)),
    ] {
        for hold in [None, Some(1)] {
            let request = acquire("a", LEASE_MS, hold);
            check_acquire_in_vain(&lock, &request, Ok(None));
        }
        // Waiting would never make these fit, whatever the other owner has.
        for wanted in [2, 3] {
            let request = acquire("a", LEASE_MS, Some(wanted));
            check_acquire_in_vain(&lock, &request, hold_count(wanted, 0));
        }
    }
}

#[test]
fn a_hold_count_does_not_overflow() {
    let most = held("a", i64::MAX, Some(7), Some(END));
    let error = Err(Usage::TooManyHolds.into());
    check_acquire_in_vain(&most, &acquire("a", LEASE_MS, None), error);
    check_acquire(
        &most,
        &acquire("a", LEASE_MS, Some(i64::MAX)),
        granted(7),
        &[],
    );
}

#[test]
fn a_refused_grant_uses_up_no_token() {
    let mut tokens = TokenClock::default();
    let mut effects = Effects::new();
    let request = acquire("a", LEASE_MS, Some(2));
    let refused = free(None).acquire(&request, None, true, NOW, &mut tokens, &mut effects);
    assert_eq!(refused, hold_count(2, 0));
    assert_eq!(tokens.next(0, None), Ok(token(1)));
}
