//! The times during which an owner may have held a lock.

use super::lock::{Interferences, Lock};
use super::{Acquire, Effect, Interference, MS, Nanos, Operation, Outcome, ROUNDING, Request};

/// How long after the end of its connection a request may take effect if nothing holds the
/// server up.
const LATE_MAX: Nanos = 100 * MS;

/// A time outside of which an answer can't have given an owner a lock.
pub(super) struct PossibleHold<'o> {
    /// The request that may have taken the lock, or renewed it.
    pub(super) by: &'o Operation,
    pub(super) start: Nanos,
    pub(super) end: Nanos,
}

/// The holds of one owner. `operations` are sorted by the time of sending.
pub(super) fn holds<'o>(
    operations: &[&'o Operation],
    interferences: &Interferences<'_>,
    tolerance: Nanos,
) -> Vec<PossibleHold<'o>> {
    let slack = tolerance + ROUNDING;
    let lease_max = lease_max(operations) * MS + slack;
    let mut holds: Vec<PossibleHold<'o>> = Vec::new();
    let hold = |by: &'o Operation, end| {
        let mut hold = PossibleHold {
            by,
            start: by.sent,
            end,
        };
        // A strange `PERSIST`, `PEXPIRE` or `RESTORE` may lengthen a lease.
        let lengthen = [Effect::ChangesLeases, Effect::BringsBack];
        let longer = |end| interferences.during(&lengthen, by.sent, end);
        let longer = |end| longer(end).map(Interference::blocks_until).max();
        while let Some(end) = longer(hold.end).filter(|end| *end > hold.end) {
            hold.end = end;
        }
        hold.end_where_known(operations, interferences, slack, lease_max);
        hold
    };
    let acquires = operations.iter().copied().filter(|one| one.acquires());
    for by in acquires.filter(|one| one.unknown() || one.granted()) {
        let end = if by.in_session() && !(by.is_told() && is_unclaimed(operations, by)) {
            session_end(operations, interferences, by, lease_max)
        } else {
            lease_end(by, interferences, slack)
        };
        holds.push(hold(by, end));
    }
    for &by in operations {
        if matches!(by.request, Request::Renew { .. })
            && (by.unknown() || by.outcome == Outcome::Renewed)
            && may_hold_during(&holds, by)
        {
            holds.push(hold(by, lease_end(by, interferences, slack)));
        }
    }
    holds
}

/// Whether the owner may have held the lock while this was under way.
pub(super) fn may_hold_during(holds: &[PossibleHold<'_>], operation: &Operation) -> bool {
    let answered = operation.answered.unwrap_or(Nanos::MAX);
    holds
        .iter()
        .any(|hold| hold.start <= answered && operation.sent <= hold.end)
}

/// A lock that several can't hold together is over for its holder when another
/// is granted it.
pub(super) fn shorten_by_later_grants(lock: &mut Lock<'_>) {
    let granted = lock.operations().filter(|one| one.acquires());
    let mut grants: Vec<&Operation> = granted.filter(|one| one.token().is_some()).collect();
    grants.sort_by_key(|grant| grant.token());
    for (&owner, tenancy) in &mut lock.tenancies {
        let lease_max = lease_max(&tenancy.operations) * MS + ROUNDING;
        for hold in &mut tenancy.possible {
            let (token, limit) = (hold.by.token(), hold.by.limit());
            if token.is_none() || limit.is_none() {
                continue;
            }
            let later = grants.partition_point(|grant| grant.token() <= token);
            let mut later = grants[later..].iter();
            let next = later.find(|grant| {
                grant.owner != owner && (limit == Some(1) || grant.limit() == Some(1))
            });
            if let Some(next) = next
                && let Some(answered) = next.answered
                && answered < hold.end
            {
                hold.shorten(answered, next.sent, &lock.interferences, lease_max);
            }
        }
    }
}

impl PossibleHold<'_> {
    /// Ends it if a later answer shows that it was over, or was to be soon.
    fn end_where_known(
        &mut self,
        operations: &[&Operation],
        interferences: &Interferences<'_>,
        slack: Nanos,
        lease_max: Nanos,
    ) {
        if self.by.unknown() {
            return;
        }
        let later = operations.iter().filter(|one| !one.unknown());
        for one in later.filter(|one| self.by.over_by(one.sent)) {
            let end = match one.answered {
                Some(answered) if one.shows_no_hold() => answered,
                _ if one.outcome == Outcome::Renewed && !self.by.in_session() => {
                    lease_end(one, interferences, slack)
                }
                _ => continue,
            };
            self.shorten(end, one.sent, interferences, lease_max);
        }
    }

    /// Notes that it was over, if nothing brought it back since.
    fn shorten(
        &mut self,
        end: Nanos,
        since: Nanos,
        interferences: &Interferences<'_>,
        lease_max: Nanos,
    ) {
        let brought_back = interferences.during(&[Effect::BringsBack], since, self.end);
        let ends = brought_back.map(|one| one.until.saturating_add(lease_max));
        let brought_back = ends.max();
        // A session that finds its hold again keeps it.
        if brought_back.is_none() || !self.by.in_session() {
            self.end = self.end.min(end.max(brought_back.unwrap_or(0)));
        }
    }
}

/// Whether nobody can have claimed the grant that a message told of.
fn is_unclaimed(operations: &[&Operation], told: &Operation) -> bool {
    !operations.iter().any(|one| {
        let claims = matches!(one.request, Request::Renew { .. }) || one.acquires();
        let has_effect = one.unknown() || one.granted() || one.outcome == Outcome::Renewed;
        claims
            && has_effect
            && !std::ptr::eq(*one, told)
            && one.answered.is_none_or(|answered| answered > told.sent)
    })
}

fn lease_max(operations: &[&Operation]) -> u64 {
    let lease_ms = |one: &&Operation| match one.request {
        Request::Acquire(Acquire { lease_ms, .. }) | Request::Renew { lease_ms, .. } => {
            Some(lease_ms)
        }
        _ => None,
    };
    operations.iter().filter_map(lease_ms).max().unwrap_or(0)
}

/// When the lease of a hold that this took or renewed is over at the latest.
fn lease_end(by: &Operation, interferences: &Interferences<'_>, slack: Nanos) -> Nanos {
    let Some(answered) = by.answered else {
        return Nanos::MAX;
    };
    let (lease_ms, block_ms) = match by.request {
        Request::Acquire(asked) => (
            by.first_lease_ms().unwrap_or(0),
            asked.block_ms.unwrap_or(0),
        ),
        Request::Renew { lease_ms, .. } => (lease_ms, 0),
        _ => return answered,
    };
    let in_force = match by.outcome {
        Outcome::Lost => in_force_by(answered, interferences),
        // The server may not know that the client waits no more.
        Outcome::GivenUp => in_force_by(answered, interferences) + block_ms * MS,
        Outcome::Pending | Outcome::Silent => return Nanos::MAX,
        _ => answered,
    };
    in_force + lease_ms * MS + slack
}

/// When requests that reached the server by this time have taken effect at the latest.
fn in_force_by(time: Nanos, interferences: &Interferences<'_>) -> Nanos {
    let effects = [Effect::HoldsCommandsBack, Effect::StopsTheServer];
    let mut latest = time + LATE_MAX;
    let stopped = |until| interferences.during(&effects, time, until);
    let stopped = |until| stopped(until).map(|stop| stop.until + LATE_MAX).max();
    while let Some(later) = stopped(latest).filter(|later| *later > latest) {
        latest = later;
    }
    latest
}

/// When a hold that may be bound to the connection of this grant is over at the
/// latest.
fn session_end(
    operations: &[&Operation],
    interferences: &Interferences<'_>,
    grant: &Operation,
    lease_max: Nanos,
) -> Nanos {
    let ends = operations
        .iter()
        .filter(|one| one.shares_connection_with(grant) && one.sent >= grant.sent);
    let closed = |one: &&Operation| {
        let answered = one.answered?;
        match one.outcome {
            Outcome::Done if one.request == Request::Close => Some(answered),
            Outcome::Lost => Some(in_force_by(answered, interferences)),
            Outcome::GivenUp => {
                let ends = interferences.during(&[Effect::EndsStalls], answered, Nanos::MAX);
                let mut ends = ends.filter(|end| end.from >= answered);
                Some(in_force_by(ends.next()?.until, interferences))
            }
            _ => None,
        }
    };
    let Some(closed) = ends.filter_map(closed).min() else {
        return Nanos::MAX;
    };
    // A server that took over meanwhile knows of no session.
    let effects = [Effect::HoldsCommandsBack, Effect::BringsBack];
    let mut disturbed = interferences.during(&effects, grant.sent, closed + lease_max);
    if disturbed.next().is_some() || grant.unknown() {
        closed + lease_max
    } else {
        closed
    }
}
