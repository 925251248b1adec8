//! A hold that was told is kept, and nobody is told of one that can't be.

use super::lock::{GrantTimes, Interferences, Lock, Tenancy};
use super::possible::may_hold_during;
use super::{Breaches, CertainHold, Effect, Operation, Outcome, Promise, Request};

pub(super) fn check(lock: &Lock<'_>, times: &GrantTimes, breaches: &mut Breaches) {
    for tenancy in lock.tenancies.values() {
        for operation in &tenancy.operations {
            let mut breach = |what, shown: &[&Operation]| {
                breaches.add(Promise::Possession, what, shown.iter().copied());
            };
            let looser = |other: &&Operation| other.limit() > operation.limit();
            if operation.outcome == Outcome::Error("UPGRADE".into())
                && !tenancy.operations.iter().any(looser)
            {
                let what = "the owner was told of a looser hold that it never asked for";
                breach(what, &[operation]);
            }
            if let Some(closed) = closed_before_grant(tenancy, operation, times) {
                let what = "a place was granted whose connection had ended with its session";
                breach(what, &[closed, operation]);
            }
            if denies(&lock.interferences, tenancy, operation)
                && let Some(hold) = covering(tenancy, operation, |hold| {
                    operation.fence().is_none() || operation.fence() == hold.token
                })
            {
                let what = "the owner lost a lock that it certainly held";
                breach(what, &[hold.shown_by, operation]);
            }
            if !confirms(operation) {
                continue;
            }
            if !may_hold_during(&tenancy.possible, operation) {
                let what = "the owner was told of a hold that it can't have had";
                breach(what, &[operation]);
            } else if let Some(fence) = operation.fence()
                && let Some(hold) = covering(tenancy, operation, |hold| {
                    hold.token.is_some_and(|token| token != fence)
                })
            {
                let what = "the hold of another token was taken for this one";
                breach(what, &[hold.shown_by, operation]);
            }
        }
    }
}

fn covering<'t, 'o>(
    tenancy: &'t Tenancy<'o>,
    operation: &Operation,
    suits: impl Fn(&CertainHold<'_>) -> bool,
) -> Option<&'t CertainHold<'o>> {
    let mut holds = tenancy.certain.iter();
    holds.find(|hold| hold.covers(operation) && suits(hold))
}

/// The operation that closed the connection of a place's session, if that was before the
/// grant that the place was told of.
fn closed_before_grant<'o>(
    tenancy: &Tenancy<'o>,
    told: &Operation,
    times: &GrantTimes,
) -> Option<&'o Operation> {
    let is_bound = told.is_told() && told.in_session() && tenancy.all_known();
    let token = told.token().filter(|_| is_bound)?;
    let granted = times.not_before(token);
    let mut operations = tenancy.operations.iter().copied();
    operations.find(|one| {
        one.request == Request::Close && one.shares_connection_with(told) && one.over_by(granted)
    })
}

/// Whether the answer says that the owner does not hold the lock, or not that often.
fn denies(interferences: &Interferences<'_>, tenancy: &Tenancy<'_>, operation: &Operation) -> bool {
    match &operation.outcome {
        Outcome::NotHeld | Outcome::NotAvailable => true,
        Outcome::Error(code) => {
            code == "HOLDCOUNT" && count_known(interferences, tenancy, operation)
        }
        _ => false,
    }
}

/// Whether the answer says that the owner held the lock. An owner without a hold is also
/// told that its first hold has ended.
fn confirms(operation: &Operation) -> bool {
    match (&operation.outcome, operation.request) {
        (Outcome::Released, Request::Release { hold, .. }) => hold != Some(1),
        (Outcome::Renewed | Outcome::StillHeld, _) => true,
        _ => false,
    }
}

/// Whether the owner must have counted its holds right: no outcome is unknown,
/// and nothing took a hold away without a word.
fn count_known(
    interferences: &Interferences<'_>,
    tenancy: &Tenancy<'_>,
    operation: &Operation,
) -> bool {
    let effects = [Effect::EndsHolds, Effect::ChangesLeases];
    let begun = tenancy.operations.first().map_or(0, |first| first.sent);
    let answered = operation.answered.unwrap_or(0);
    let mut harmed = interferences.during(&effects, begun, answered);
    harmed.next().is_none() && !tenancy.operations.iter().any(|one| one.unknown())
}
