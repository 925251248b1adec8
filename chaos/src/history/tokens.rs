//! Tokens rise with every new holding, and each belongs to one.

use std::collections::HashMap;

use super::lock::{FirstGrant, Interferences, Lock, Locks, Tenancy};
use super::{Breaches, CertainHold, Effect, Operation, Promise};

pub(super) fn check(lock: &Lock<'_>, breaches: &mut Breaches) {
    for tenancy in lock.tenancies.values() {
        check_re_entries(tenancy, breaches);
        check_new_holdings(&lock.interferences, tenancy, breaches);
    }
}

/// Tokens rise over all locks.
pub(super) fn check_rise(locks: &Locks<'_>, breaches: &mut Breaches) {
    let tenancies = locks.values().flat_map(|lock| lock.tenancies.values());
    let mut by_start: Vec<FirstGrant<'_>> = tenancies.flat_map(Tenancy::first_grants).collect();
    let mut owners: HashMap<i64, &Operation> = HashMap::new();
    for grant in &by_start {
        if let Some(other) = owners.insert(grant.token, grant.by) {
            let what = "one token, two holdings";
            breaches.add(Promise::Tokens, what, [other, grant.by]);
        }
    }
    by_start.sort_by_key(|grant| grant.not_before);
    let mut by_end: Vec<&FirstGrant<'_>> = by_start.iter().collect();
    by_end.sort_by_key(|grant| grant.not_after);
    let mut ended = by_end.into_iter().peekable();
    let mut greatest: Option<&FirstGrant<'_>> = None;
    for grant in &by_start {
        while let Some(earlier) = ended.next_if(|other| other.not_after < grant.not_before) {
            if greatest.is_none_or(|greatest| greatest.token < earlier.token) {
                greatest = Some(earlier);
            }
        }
        if let Some(greatest) = greatest
            && grant.token < greatest.token
        {
            let what = "a later holding has a smaller token";
            breaches.add(Promise::Tokens, what, [greatest.by, grant.by]);
        }
    }
}

fn check_re_entries(tenancy: &Tenancy<'_>, breaches: &mut Breaches) {
    for operation in &tenancy.operations {
        let Some(token) = operation.token() else {
            continue;
        };
        let other = |hold: &&CertainHold<'_>| {
            hold.covers(operation) && hold.token.is_some_and(|held| held != token)
        };
        if let Some(hold) = tenancy.certain.iter().find(other) {
            let what = "re-entry changed the token";
            breaches.add(Promise::Tokens, what, [hold.shown_by, operation]);
        }
    }
}

/// After an owner was told that it holds nothing, its next token is a new one.
fn check_new_holdings(
    interferences: &Interferences<'_>,
    tenancy: &Tenancy<'_>,
    breaches: &mut Breaches,
) {
    let mut told: HashMap<i64, &Operation> = HashMap::new();
    for &operation in &tenancy.operations {
        let (Some(token), Some(answered)) = (operation.token(), operation.answered) else {
            continue;
        };
        let first = *told.entry(token).or_insert(operation);
        let ended = tenancy.operations.iter().find(|one| {
            one.shows_no_hold() && first.over_by(one.sent) && one.over_by(operation.sent)
        });
        if let Some(ended) = ended {
            let mut brought_back =
                interferences.during(&[Effect::BringsBack], ended.sent, answered);
            if brought_back.next().is_none() {
                let what = "a new holding has an old token";
                breaches.add(Promise::Tokens, what, [first, ended, operation]);
            }
        }
    }
}
