use super::*;

#[test]
fn a_renewed_lease_ends_exactly_then_even_if_that_is_earlier() {
    for end in [Some(END - 1), Some(END + 1), None] {
        for token in [None, Some(7)] {
            let lock = held("a", 2, Some(7), end);
            let effects = [expires(END)];
            check_renew(&lock, &renew("a", LEASE_MS, token), Some(7), &effects);
        }
    }
}

#[test]
fn a_hold_of_redisson_gets_its_token_on_renewal() {
    for (end, moves) in [(END - 1, &[expires(END)][..]), (END, &[])] {
        let lock = held("a", 2, None, Some(end));
        let effects = [&[sets("a", 2, Some(NEW))], moves].concat();
        check_renew(&lock, &renew("a", LEASE_MS, None), Some(NEW), &effects);
    }
}

#[test]
fn who_does_not_hold_the_lock_with_this_token_renews_nothing() {
    for (lock, token) in [
        (free(None), None),
        (free(Some(7)), Some(7)),
        (held("b", 1, Some(7), Some(END - 1)), None),
        (held("b", 1, Some(7), Some(END - 1)), Some(7)),
        (held("a", 1, Some(7), Some(END - 1)), Some(6)),
        (held("a", 1, Some(7), Some(END - 1)), Some(8)),
        (held("a", 1, None, Some(END - 1)), Some(7)),
    ] {
        check_renew(&lock, &renew("a", LEASE_MS, token), None, &[]);
    }
}
