//! The times during which an owner held a lock for certain.

use super::lock::{GrantTimes, Interferences, Tenancy};
use super::{Effect, MS, Nanos, Operation, Outcome, Request};

/// A session outlives a stop of the server that is shorter than this.
const HARMLESS_STOP: Nanos = 100 * MS;

/// A time during which an owner held a lock for certain.
pub(super) struct CertainHold<'o> {
    /// The answer that shows it.
    pub(super) shown_by: &'o Operation,
    pub(super) token: Option<i64>,
    /// How many may hold the lock together, at most.
    pub(super) limit: usize,
    pub(super) start: Nanos,
    pub(super) end: Nanos,
}

impl CertainHold<'_> {
    /// Whether the owner held the lock all the time while this operation of
    /// its own was under way.
    pub(super) fn covers(&self, operation: &Operation) -> bool {
        !std::ptr::eq(self.shown_by, operation)
            && self.start <= operation.sent
            && operation.answered.is_some_and(|at| at <= self.end)
    }
}

/// The holds of one owner.
pub(super) fn holds<'o>(
    tenancy: &Tenancy<'o>,
    interferences: &Interferences<'_>,
    times: &GrantTimes,
    tolerance: Nanos,
) -> Vec<CertainHold<'o>> {
    let (operations, all_known) = (&tenancy.operations[..], tenancy.all_known());
    let mut holds: Vec<CertainHold<'o>> = Vec::new();
    for (index, &shown_by) in operations.iter().enumerate() {
        let (Some(answered), Some(lease_ms)) = (shown_by.answered, lease_shown(shown_by)) else {
            continue;
        };
        // The message may tell of a grant to an earlier request.
        if shown_by.is_told() && !all_known {
            continue;
        }
        // An owner that had been told of its grant before it renewed has held
        // the lock in between, unless it lost it and got it again unawares.
        let told = if shown_by.acquires() || !all_known {
            None
        } else {
            let earlier = operations[..index].iter().rev().copied();
            earlier
                .filter(|earlier| earlier.over_by(shown_by.sent))
                .find_map(Operation::token)
        };
        let start = told.map_or(answered, |_| shown_by.sent);
        // The lease of a grant after a wait began when the grant was made.
        let is_first = |token: &i64| {
            let mut earlier = operations[..index].iter();
            all_known && earlier.all(|one| one.token() != Some(*token))
        };
        let made = shown_by.token().filter(is_first);
        let since = made.map_or(0, |token| times.not_before(token));
        let lease_end = shown_by.sent.max(since) + (lease_ms * MS).saturating_sub(tolerance);
        let bindings = bindings(operations, shown_by, all_known);
        let kept_up = all_known
            && shown_by.in_session()
            && !shown_by.is_told()
            && bindings
                .iter()
                .all(|one| one.shares_connection_with(shown_by));
        let alive = bindings.iter().map(|one| last_known_alive(operations, one));
        let mut end = match alive.min() {
            None => lease_end,
            Some(alive) if kept_up => alive,
            Some(alive) => alive.min(lease_end),
        };
        for other in operations {
            // A request that was sent earlier, and whose outcome is unknown, may take
            // effect later.
            if std::ptr::eq(*other, shown_by) || other.over_by(shown_by.sent) || other.sent >= end {
                continue;
            }
            match other.request {
                Request::Release { .. }
                    if other.unknown() || other.outcome == Outcome::Released =>
                {
                    end = end.min(other.sent);
                }
                Request::Renew { lease_ms, .. }
                    if !kept_up && (other.unknown() || other.outcome == Outcome::Renewed) =>
                {
                    end = end.min(other.sent + (lease_ms * MS).saturating_sub(tolerance));
                }
                _ => {}
            }
        }
        // While it stands still the server can't keep up a lease.
        let stops = [Effect::HoldsCommandsBack, Effect::StopsTheServer];
        let stops = if kept_up { &stops[..] } else { &[] };
        let effects = [&[Effect::EndsHolds, Effect::ChangesLeases], stops].concat();
        for one in interferences.during(&effects, shown_by.sent + 1, end) {
            let is_stop = one.effect == Effect::StopsTheServer;
            if !is_stop || one.until - one.from > HARMLESS_STOP {
                end = end.min(one.from);
            }
        }
        if start < end {
            let token = shown_by.token().or(told);
            holds.push(CertainHold {
                shown_by,
                token,
                limit: limit(operations, token),
                start,
                end,
            });
        }
    }
    holds
}

/// The lease that an answer shows to run since the operation was sent, at least.
fn lease_shown(operation: &Operation) -> Option<u64> {
    match (operation.request, &operation.outcome) {
        (Request::Acquire(_), _) if operation.granted() => operation.first_lease_ms(),
        (Request::Renew { lease_ms, .. }, Outcome::Renewed) => Some(lease_ms),
        _ => None,
    }
}

/// How many may hold the lock with the owner, at most. Only the requests that
/// may have made the hold count: a re-entry changes nothing.
fn limit(operations: &[&Operation], token: Option<i64>) -> usize {
    let told = |one: &&&Operation| token.is_some() && one.token() == token;
    let first_told = operations.iter().find(told);
    let first_told = first_told.and_then(|first| first.answered);
    let may_have_made_it = |one: &&&Operation| match first_told {
        Some(told) => one.sent <= told && (one.unknown() || one.token() == token),
        None => true,
    };
    let makers = operations.iter().filter(may_have_made_it);
    let limits = makers.filter_map(|operation| operation.limit());
    limits.max().unwrap_or(1)
}

/// The requests that may have bound the hold, as this answer shows it, to a
/// connection that may still have lived when the answer was made.
fn bindings<'o>(
    operations: &[&'o Operation],
    shown_by: &Operation,
    all_known: bool,
) -> Vec<&'o Operation> {
    let over = |binding: &Operation| {
        let ends = |one: &&Operation| {
            let closes = one.request == Request::Close && one.shares_connection_with(binding);
            let gives_back = one.shows_no_hold() && binding.over_by(one.sent);
            one.over_by(shown_by.sent) && (closes || gives_back)
        };
        // Another request of a session moves the binding to its connection.
        let moved = all_known && shown_by.in_session() && binding.over_by(shown_by.sent);
        moved || operations.iter().any(ends)
    };
    operations
        .iter()
        .copied()
        .filter(|binding| binding.in_session() && (binding.unknown() || binding.granted()))
        .filter(|binding| shown_by.answered.is_some_and(|at| binding.sent <= at))
        .filter(|binding| !over(binding))
        .collect()
}

/// Until when the connection of a grant certainly lived: it has answered
/// something that was sent at this time.
fn last_known_alive(operations: &[&Operation], grant: &Operation) -> Nanos {
    let answered = operations.iter().filter(|other| {
        let closes = other.request == Request::Close;
        other.shares_connection_with(grant) && !other.unknown() && !closes
    });
    answered.map(|other| other.sent).max().unwrap_or(grant.sent)
}
