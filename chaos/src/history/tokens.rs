//! Tokens rise with every new holding, and each belongs to one.

use std::collections::{HashMap, HashSet};

use super::{Breach, CertainHold, Effect, History, Nanos, Operation, Promise, Tenancies, Tenancy};

/// The first that was heard of a token.
struct NewHolding<'o> {
    first: &'o Operation,
    token: i64,
    not_before: Nanos,
    not_after: Nanos,
}

fn new_holdings<'o>(tenancy: &Tenancy<'o>) -> Vec<NewHolding<'o>> {
    let mut seen = HashSet::new();
    let mut not_before = Nanos::MAX;
    let mut holdings = Vec::new();
    for &operation in &tenancy.operations {
        if operation.acquires() && operation.unknown() {
            // The grant may be this one's, and its answer a later one's.
            not_before = not_before.min(operation.sent);
        }
        if let (Some(token), Some(not_after)) = (operation.token(), operation.answered)
            && seen.insert(token)
        {
            holdings.push(NewHolding {
                first: operation,
                token,
                not_before: not_before.min(operation.sent),
                not_after,
            });
        }
    }
    holdings
}

pub(super) fn check(history: &History, tenancies: &Tenancies<'_>, breaches: &mut Vec<Breach>) {
    check_rise(tenancies, breaches);
    for tenancy in tenancies.values() {
        check_re_entries(tenancy, breaches);
        check_new_holdings(history, tenancy, breaches);
    }
}

fn check_rise(tenancies: &Tenancies<'_>, breaches: &mut Vec<Breach>) {
    let mut by_start: Vec<NewHolding<'_>> = tenancies.values().flat_map(new_holdings).collect();
    let mut owners: HashMap<i64, &Operation> = HashMap::new();
    for holding in &by_start {
        if let Some(other) = owners.insert(holding.token, holding.first) {
            breaches.push(Breach::new(
                Promise::Tokens,
                "one token, two holdings",
                [other, holding.first],
            ));
        }
    }
    by_start.sort_by_key(|holding| holding.not_before);
    let mut by_end: Vec<&NewHolding<'_>> = by_start.iter().collect();
    by_end.sort_by_key(|holding| holding.not_after);
    let mut ended = by_end.into_iter().peekable();
    let mut greatest: Option<&NewHolding<'_>> = None;
    for holding in &by_start {
        while let Some(earlier) = ended.next_if(|other| other.not_after < holding.not_before) {
            if greatest.is_none_or(|greatest| greatest.token < earlier.token) {
                greatest = Some(earlier);
            }
        }
        if let Some(greatest) = greatest
            && holding.token < greatest.token
        {
            breaches.push(Breach::new(
                Promise::Tokens,
                "a later holding has a smaller token",
                [greatest.first, holding.first],
            ));
        }
    }
}

fn check_re_entries(tenancy: &Tenancy<'_>, breaches: &mut Vec<Breach>) {
    for operation in &tenancy.operations {
        let Some(token) = operation.token() else {
            continue;
        };
        let other = |hold: &&CertainHold<'_>| {
            hold.covers(operation) && hold.token.is_some_and(|held| held != token)
        };
        if let Some(hold) = tenancy.certain.iter().find(other) {
            breaches.push(Breach::new(
                Promise::Tokens,
                "re-entry changed the token",
                [hold.shown_by, operation],
            ));
        }
    }
}

/// After an owner was told that it holds nothing, its next token is a new one.
fn check_new_holdings(history: &History, tenancy: &Tenancy<'_>, breaches: &mut Vec<Breach>) {
    let mut told: HashMap<i64, &Operation> = HashMap::new();
    for &operation in &tenancy.operations {
        let (Some(token), Some(answered)) = (operation.token(), operation.answered) else {
            continue;
        };
        let Some(first) = told.get(&token) else {
            told.insert(token, operation);
            continue;
        };
        let ended = tenancy.operations.iter().find(|one| {
            one.shows_no_hold() && first.over_by(one.sent) && one.over_by(operation.sent)
        });
        let Some(ended) = ended else {
            continue;
        };
        let brought_back = history.interferences.iter().any(|one| {
            one.effect == Effect::BringsBack
                && one.concerns(&operation.lock)
                && one.overlaps(ended.sent, answered)
        });
        if !brought_back {
            breaches.push(Breach::new(
                Promise::Tokens,
                "a new holding has an old token",
                [first, ended, operation],
            ));
        }
    }
}
