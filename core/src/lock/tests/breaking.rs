use super::*;

#[track_caller]
fn check_break(before: &Lock, token: Option<i64>, broken: bool, effects: &[Effect]) {
    check(
        before,
        |lock, written| lock.break_holds(token.map(self::token), written).is_some(),
        broken,
        effects,
    );
}

#[test]
fn a_break_takes_the_lock_from_all_its_holders() {
    let shared = held_by([
        permitted("a", 7, END, Limit::SHARED),
        permitted("b", 8, END + 5, Limit::SHARED),
    ]);
    for (lock, newest) in [(held("a", 3, Some(8), Some(END)), 8), (shared, 8)] {
        for token in [None, Some(newest)] {
            check_break(&lock, token, true, &[Effect::Delete]);
        }
    }
}

#[test]
fn a_hold_of_redisson_is_broken_where_no_token_is_named() {
    let lock = held("a", 2, None, Some(END));
    check_break(&lock, None, true, &[Effect::Delete]);
    check_break(&lock, Some(7), false, &[]);
}

#[test]
fn a_token_that_is_not_the_newest_breaks_nothing() {
    let shared = held_by([
        permitted("a", 7, END, Limit::SHARED),
        permitted("b", 8, END, Limit::SHARED),
    ]);
    for lock in [held("a", 1, Some(8), Some(END)), shared] {
        for token in [7, 9] {
            check_break(&lock, Some(token), false, &[]);
        }
    }
}

#[test]
fn there_is_nothing_to_break_at_a_free_lock() {
    for token in [None, Some(7)] {
        check_break(&free(None), token, false, &[]);
        check_break(&free(Some(7)), token, false, &[]);
    }
}
