//! First come, first served.

use super::lock::{FirstGrant, Lock};
use super::{Breaches, Nanos, Outcome, Promise};

pub(super) fn check(lock: &Lock<'_>, breaches: &mut Breaches) {
    let granted = lock.grants_in_turn();
    check_granted(lock, &granted, breaches);
    for waiter in lock.operations() {
        // Those that were granted the lock are told apart by their tokens.
        if !matches!(waiter.outcome, Outcome::NotAvailable | Outcome::Silent) {
            continue;
        }
        let Some((queued, until)) = lock.certain_wait(waiter) else {
            continue;
        };
        let first = granted.partition_point(|grant| grant.by.sent <= queued);
        let later = granted[first..].iter();
        let passed = later
            .take_while(|grant| grant.by.sent < until)
            .find(|grant| grant.by.owner != waiter.owner && grant.not_after < until);
        if let Some(passed) = passed {
            let what = "a waiter was passed by one that came later, and got nothing";
            breaches.add(Promise::Order, what, [waiter, passed.by]);
        }
    }
}

/// `granted` is sorted by the time of sending.
fn check_granted(lock: &Lock<'_>, granted: &[FirstGrant<'_>], breaches: &mut Breaches) {
    let mut queued: Vec<(Nanos, &FirstGrant<'_>)> = Vec::new();
    for grant in granted {
        queued.extend(lock.surely_queued(grant.by).map(|at| (at, grant)));
    }
    queued.sort_by_key(|&(at, _)| at);
    let mut before = queued.iter().peekable();
    let mut last: Option<&FirstGrant<'_>> = None;
    for grant in granted {
        while let Some((_, earlier)) = before.next_if(|&&(at, _)| at < grant.by.sent) {
            if last.is_none_or(|last| last.token < earlier.token) {
                last = Some(earlier);
            }
        }
        if let Some(earlier) = last
            && grant.token < earlier.token
        {
            let what = "a waiter was passed by one that came later";
            breaches.add(Promise::Order, what, [earlier.by, grant.by]);
        }
    }
}
