//! The leases of holds that are bound to a connection.

use super::*;

#[track_caller]
fn check_keep(before: &Lock, name: &str, token: i64, kept: bool, effects: &[Effect]) {
    let lease = Lease::from_ms(LEASE_MS).unwrap();
    check(
        before,
        |lock, written| lock.keep(&owner(name), self::token(token), lease, NOW, written),
        kept,
        effects,
    );
}

#[test]
fn a_lease_that_would_end_sooner_is_moved() {
    let lock = held("a", 2, Some(7), Some(END - 1));
    check_keep(&lock, "a", 7, true, &[expires(END)]);
}

#[test]
fn a_lease_that_lasts_is_left_alone() {
    for end in [Some(END), Some(END + 1), None] {
        let lock = held("a", 2, Some(7), end);
        check_keep(&lock, "a", 7, true, &[]);
    }
}

#[test]
fn a_permit_is_kept_like_any_lease() {
    let b = permitted("b", 8, END + 5, Limit::SHARED);
    let [old, new] = [END - 1, END].map(|end| permitted("a", 7, end, Limit::SHARED));
    let lock = held_by([old.clone(), b.clone()]);
    check_keep(&lock, "a", 7, true, &[writes(&new, None)]);
    // With nobody else, the key is kept as well.
    let lock = held_by([old]);
    check_keep(&lock, "a", 7, true, &[writes(&new, None), expires(END)]);
    let lock = held_by([new, b]);
    check_keep(&lock, "a", 7, true, &[]);
    check_keep(&lock, "b", 8, true, &[]);
}

#[test]
fn only_the_very_hold_that_was_bound_is_kept() {
    let shared = held_by([
        permitted("a", 7, END - 1, Limit::SHARED),
        permitted("b", 8, END - 1, Limit::SHARED),
    ]);
    for (lock, name, token) in [
        (free(None), "a", 7),
        (free(Some(7)), "a", 7),
        (held("a", 1, Some(8), Some(END - 1)), "a", 7),
        (held("b", 1, Some(7), Some(END - 1)), "a", 7),
        // Redisson's scripts took it since.
        (held("a", 1, None, Some(END - 1)), "a", 7),
        (shared.clone(), "a", 8),
        (shared.clone(), "b", 7),
        (shared, "c", 7),
    ] {
        check_keep(&lock, name, token, false, &[]);
    }
}

#[test]
fn a_key_that_would_end_before_the_lease_is_kept_as_well() {
    let ends_at = |key_end| Lock {
        expires_at_ms: key_end,
        ..held_by([permitted("a", 7, END + 5, Limit::SHARED)])
    };
    let resent = AcquireRequest {
        hold: Some(hold_number(1)),
        ..acquire_as(Limit::SHARED, "a")
    };
    let early = ends_at(Some(END - 1));
    check_keep(&early, "a", 7, true, &[expires(END + 5)]);
    check_acquire(&early, &resent, granted(7), &[expires(END + 5)]);
    // It lasts as long as was asked.
    for key_end in [Some(END), Some(END + 1), None] {
        let lock = ends_at(key_end);
        check_keep(&lock, "a", 7, true, &[]);
        check_acquire(&lock, &resent, granted(7), &[]);
    }
}
