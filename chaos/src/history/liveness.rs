//! Everybody is answered, and no lock stays free while somebody waits for it.

use super::lock::{GrantTimes, Lock, Span, Spans};
use super::{Breaches, Effect, History, Interference, MS, Nanos, Operation, Outcome, Promise};

/// How long a lock may stay free while the server and the waiter run.
const HAND_OFF_MARGIN: Nanos = 300 * MS;

/// Every client that is connected has an answer in the end.
pub(super) fn check_answers(history: &History, breaches: &mut Breaches) {
    for operation in &history.operations {
        if matches!(operation.outcome, Outcome::Silent | Outcome::Pending) {
            let what = "a connected client was not answered in time";
            breaches.add(Promise::Liveness, what, [operation]);
        }
    }
}

/// A lock that comes free, by whatever end, goes to a waiter promptly.
pub(super) fn check_hand_offs(lock: &Lock<'_>, times: &GrantTimes, breaches: &mut Breaches) {
    let possible = lock
        .tenancies
        .values()
        .flat_map(|tenancy| &tenancy.possible);
    // The times during which it may have had a holder, and those when somebody stood still.
    let mut spans: Vec<_> = possible
        .map(|hold| {
            let start = (hold.by.token()).map_or(0, |token| times.not_before(token));
            Span {
                start: hold.start.max(start),
                end: hold.end,
                by: Some(hold.by),
            }
        })
        .collect();
    let held = [Effect::EndsHolds, Effect::ChangesLeases, Effect::BringsBack];
    let stopped = [
        Effect::HoldsCommandsBack,
        Effect::StopsTheServer,
        Effect::StopsClients,
    ];
    let span = |one: &Interference| {
        let (start, end, by) = (one.from, one.blocks_until(), None);
        Span { start, end, by }
    };
    let during = |effects| lock.interferences.during(effects, 0, Nanos::MAX).map(span);
    spans.extend(during(&held));
    let stops = during(&stopped);
    let (spans, stops) = (Spans::new(spans), Spans::new(stops));
    for waiter in lock.operations() {
        if let Some(wait) = lock.certain_wait(waiter)
            && let Some((start, end)) = free_for_long(&spans, &stops, waiter, wait)
        {
            let (start, end) = (start / MS, end / MS);
            let what = format!("a lock was free from {start} to {end} ms, and was not handed on");
            breaches.add(Promise::Liveness, &what, [waiter]);
        }
    }
}

/// When a lock may have had a holder, or somebody stood still, and by what if it was a request.
type Times<'o> = Spans<Option<&'o Operation>>;

/// These times by their start, and the end.
fn sorted<'s>(spans: impl Iterator<Item = &'s Span<Option<&'s Operation>>>) -> Vec<(Nanos, Nanos)> {
    let mut found: Vec<_> = spans.map(|span| (span.start, span.end)).collect();
    found.sort_unstable();
    found
}

/// A time within the wait during which nobody can have held the lock.
fn free_for_long(
    spans: &Times<'_>,
    stops: &Times<'_>,
    waiter: &Operation,
    (from, until): (Nanos, Nanos),
) -> Option<(Nanos, Nanos)> {
    // An owner that was granted it after the waiter did not have it before.
    let counts = |by: &Operation| {
        !std::ptr::eq(by, waiter)
            && (by.token().is_none() || waiter.token().is_none() || by.token() < waiter.token())
    };
    let held = spans.overlapping(from, until);
    let held = sorted(held.filter(|span| span.by.is_none_or(counts)));
    let end = (until, Nanos::MAX);
    let mut free_since = from;
    for (start, end) in held.into_iter().chain([end]) {
        let free_until = start.min(until);
        if free_until > free_since + HAND_OFF_MARGIN
            && running(stops, free_since, free_until) > HAND_OFF_MARGIN
        {
            return Some((free_since, free_until));
        }
        free_since = free_since.max(end);
        if free_since >= until {
            break;
        }
    }
    None
}

/// How much of this time the server and all clients ran.
fn running(stops: &Times<'_>, from: Nanos, until: Nanos) -> Nanos {
    let (mut at, mut time) = (from, 0);
    for (start, end) in sorted(stops.overlapping(from, until)) {
        time += start.min(until).saturating_sub(at);
        at = at.max(end.min(until));
    }
    time + until.saturating_sub(at)
}
