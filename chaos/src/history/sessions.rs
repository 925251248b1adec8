//! Holds that last as long as a connection.

use super::{Breach, Effect, History, MS, Mode, Nanos, Operation, Outcome, Promise, Request};

/// How long after the end of a session its lock may stay without a new holder.
const HAND_OFF_MARGIN: Nanos = 400 * MS;

/// How long a request whose client is gone may keep a lock.
const UNKNOWN_HOLD_MAX: Nanos = 5000 * MS;

/// Until when the connection of a grant certainly lived: it has answered
/// something that was sent at this time.
pub(super) fn last_known_alive(operations: &[&Operation], grant: &Operation) -> Nanos {
    operations
        .iter()
        .filter(|other| {
            (other.client, other.connection) == (grant.client, grant.connection)
                && !other.unknown()
                && other.request != Request::Close
        })
        .map(|other| other.sent)
        .max()
        .unwrap_or(grant.sent)
}

/// When a session that had a lock to itself is over, whoever waits gets it.
pub(super) fn check_ends(history: &History, breaches: &mut Vec<Breach>) {
    for closing in &history.operations {
        if closing.request == Request::Close
            && let Some(closed) = closing.answered
            && let Some(grant) = grant_of(history, closing)
        {
            check_end(history, grant, closing, closed, breaches);
        }
    }
}

/// The grant of an exclusive hold that ends with this connection.
fn grant_of<'o>(history: &'o History, closing: &Operation) -> Option<&'o Operation> {
    let mut acquires = history.operations.iter().filter(|other| {
        other.acquires() && other.lock == closing.lock && other.owner == closing.owner
    });
    let of_this_connection = |other: &Operation| {
        (other.client, other.connection) == (closing.client, closing.connection)
            && matches!(
                other.request,
                Request::Acquire {
                    mode: Mode::Exclusive,
                    session: true,
                    ..
                }
            )
    };
    let first = acquires.next()?;
    (of_this_connection(first) && acquires.all(of_this_connection)).then_some(first)
}

fn check_end(
    history: &History,
    grant: &Operation,
    closing: &Operation,
    closed: Nanos,
    breaches: &mut Vec<Breach>,
) {
    let Some(token) = grant.token() else {
        return;
    };
    let due = closed + HAND_OFF_MARGIN;
    // A server that took over meanwhile knows of no session.
    let disturbed = history
        .interferences
        .iter()
        .any(|one| one.effect != Effect::EndsHolds && one.overlaps(grant.sent, due));
    if disturbed {
        return;
    }
    let on_this_lock = |other: &&Operation| other.acquires() && other.lock == closing.lock;
    let acquires = || history.operations.iter().filter(on_this_lock);
    let waited_on = |waiter: &&Operation| {
        waiter.owner != closing.owner
            && history
                .surely_queued(waiter)
                .is_some_and(|queued| queued <= closing.sent)
            && waiter.answered.is_some_and(|answered| answered > due)
            && !matches!(waiter.outcome, Outcome::Lost | Outcome::Pending)
    };
    for waiter in acquires().filter(waited_on) {
        let may_have_had_it = |other: &Operation| {
            if std::ptr::eq(other, waiter) || other.sent > due {
                return false;
            }
            match other.token() {
                Some(of_other) => {
                    of_other > token && waiter.token().is_none_or(|granted| of_other < granted)
                }
                None => {
                    other.unknown()
                        && other
                            .answered
                            .is_none_or(|gone| gone + UNKNOWN_HOLD_MAX >= closing.sent)
                }
            }
        };
        if !acquires().any(may_have_had_it) {
            breaches.push(Breach::new(
                Promise::Liveness,
                "a session ended, and its lock was not handed on",
                [closing, waiter],
            ));
        }
    }
}
