//! First come, first served.

use std::collections::{HashMap, HashSet};

use super::waits::certain_wait;
use super::{Breach, History, Nanos, Operation, Outcome, Promise, Tenancies};

pub(super) fn check(history: &History, tenancies: &Tenancies<'_>, breaches: &mut Vec<Breach>) {
    let mut new_grants = new_grants(tenancies);
    for granted in new_grants.values_mut() {
        granted.sort_by_key(|(operation, _)| operation.sent);
        check_granted(history, granted, breaches);
    }
    for waiter in &history.operations {
        // Those that were granted the lock are told apart by their tokens.
        if !matches!(waiter.outcome, Outcome::NotAvailable | Outcome::Silent) {
            continue;
        }
        let Some(granted) = new_grants.get(waiter.lock.as_str()) else {
            continue;
        };
        let Some((queued, until)) = certain_wait(history, waiter) else {
            continue;
        };
        let first = granted.partition_point(|(operation, _)| operation.sent <= queued);
        let passed = granted[first..]
            .iter()
            .map(|&(operation, _)| operation)
            .take_while(|operation| operation.sent < until)
            .find(|operation| {
                operation.owner != waiter.owner
                    && operation.answered.is_some_and(|answered| answered < until)
            });
        if let Some(passed) = passed {
            breaches.push(Breach::new(
                Promise::Order,
                "a waiter was passed by one that came later, and got nothing",
                [waiter, passed],
            ));
        }
    }
}

/// The first grants of each token, by lock. Who may have been granted the lock
/// by an older request of its own says nothing of the order.
fn new_grants<'o>(tenancies: &Tenancies<'o>) -> HashMap<&'o str, Vec<(&'o Operation, i64)>> {
    let mut new_grants: HashMap<&str, Vec<(&Operation, i64)>> = HashMap::new();
    for (&(lock, _), tenancy) in tenancies {
        let mut seen = HashSet::new();
        let mut in_vain_until = 0;
        for &operation in &tenancy.operations {
            if operation.acquires() && operation.unknown() {
                break;
            }
            if let Some(token) = operation.token() {
                if seen.insert(token) && in_vain_until <= operation.sent {
                    new_grants.entry(lock).or_default().push((operation, token));
                }
            } else if operation.acquires() {
                // Such as one whose client was killed in the turn of its grant.
                in_vain_until = in_vain_until.max(operation.answered.unwrap_or(0));
            }
        }
    }
    new_grants
}

/// `granted` is sorted by the time of sending.
fn check_granted(history: &History, granted: &[(&Operation, i64)], breaches: &mut Vec<Breach>) {
    let mut queued: Vec<(Nanos, &Operation, i64)> = granted
        .iter()
        .filter_map(|&(operation, token)| {
            let queued = history.surely_queued(operation)?;
            Some((queued, operation, token))
        })
        .collect();
    queued.sort_by_key(|&(at, ..)| at);
    let mut before = queued.iter().peekable();
    let mut last: Option<(&Operation, i64)> = None;
    for &(operation, token) in granted {
        while let Some(&(_, earlier, token)) = before.next_if(|&&(at, ..)| at < operation.sent) {
            if last.is_none_or(|(_, greatest)| greatest < token) {
                last = Some((earlier, token));
            }
        }
        if let Some((earlier, earlier_token)) = last
            && token < earlier_token
        {
            breaches.push(Breach::new(
                Promise::Order,
                "a waiter was passed by one that came later",
                [earlier, operation],
            ));
        }
    }
}
