//! Holds that are over, because a connection has ended.

use super::*;

#[track_caller]
fn check_leave(before: &Lock, name: &str, holds: i64, effects: &[Effect]) {
    check(
        before,
        |lock, written| lock.leave(&owner(name), holds, written),
        (),
        effects,
    );
}

#[test]
fn who_is_left_some_holds_keeps_token_and_lease() {
    for left in [1, 2] {
        let lock = held("a", 3, Some(7), Some(END));
        check_leave(&lock, "a", left, &[sets("a", left, None)]);
    }
}

#[test]
fn who_is_left_all_its_holds_keeps_them_without_a_write() {
    let lock = held("a", 2, Some(7), Some(END));
    for left in [2, 3] {
        check_leave(&lock, "a", left, &[]);
    }
}

#[test]
fn who_is_left_no_hold_frees_the_lock() {
    let lock = held("a", 2, Some(7), Some(END));
    check_leave(&lock, "a", 0, &[Effect::Delete]);
    check_leave(&lock, "b", 0, &[]);
    check_leave(&free(Some(7)), "a", 0, &[]);
}

#[test]
fn a_permit_that_is_over_leaves_the_others() {
    let [a, b] = [("a", 7, END + 5), ("b", 8, END)]
        .map(|(name, token, end)| permitted(name, token, end, Limit::SHARED));
    let twice = Holder {
        holds: 2,
        ..a.clone()
    };
    let lock = held_by([twice, b]);
    check_leave(&lock, "a", 1, &[writes(&a, None)]);
    check_leave(&lock, "a", 0, &[removes("a"), expires(END)]);
}
