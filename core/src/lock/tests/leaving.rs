//! Holds that are over, because a connection has ended.

use super::*;

#[track_caller]
fn check_leave(before: &Lock, name: &str, holds: i64, effects: &[Effect], after: &Lock) {
    check(
        before,
        |lock, written| lock.leave(&owner(name), holds, written),
        (),
        effects,
        after,
    );
}

#[test]
fn who_is_left_some_holds_keeps_token_and_lease() {
    for left in [1, 2] {
        check_leave(
            &held("a", 3, Some(7), Some(END)),
            "a",
            left,
            &[sets("a", left, None)],
            &held("a", left, Some(7), Some(END)),
        );
    }
}

#[test]
fn who_is_left_all_its_holds_keeps_them_without_a_write() {
    let lock = held("a", 2, Some(7), Some(END));
    for left in [2, 3] {
        check_leave(&lock, "a", left, &[], &lock);
    }
}

#[test]
fn who_is_left_no_hold_frees_the_lock() {
    let lock = held("a", 2, Some(7), Some(END));
    check_leave(&lock, "a", 0, &[Effect::Delete], &free(Some(7)));
    check_leave(&lock, "b", 0, &[], &lock);
    check_leave(&free(Some(7)), "a", 0, &[], &free(Some(7)));
}

#[test]
fn a_permit_that_is_over_leaves_the_others() {
    let [a, b] = [("a", 7, END + 5), ("b", 8, END)]
        .map(|(name, token, end)| permitted(name, token, end, Limit::SHARED));
    let twice = Holder {
        holds: 2,
        ..a.clone()
    };
    let lock = held_by([twice, b.clone()]);
    let one_left = held_by([a.clone(), b.clone()]);
    check_leave(&lock, "a", 1, &[writes(&a, None)], &one_left);
    check_leave(&lock, "a", 0, &[removes("a"), expires(END)], &held_by([b]));
}
