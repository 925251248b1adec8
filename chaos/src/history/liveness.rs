//! Everybody is answered, and no lock stays free while somebody waits for it.

use std::collections::HashMap;

use super::times::GrantTimes;
use super::waits::certain_wait;
use super::{Breach, Effect, History, MS, Nanos, Operation, Outcome, Promise, Tenancies};

/// How long a lock may stay free while the server and the waiter run.
const HAND_OFF_MARGIN: Nanos = 300 * MS;

/// A span longer than this is kept apart, so that the others are found fast.
const LONG: Nanos = 10_000 * MS;

/// Whoever is connected has an answer in the end.
pub(super) fn check_answers(history: &History, breaches: &mut Vec<Breach>) {
    for operation in &history.operations {
        if matches!(operation.outcome, Outcome::Silent | Outcome::Pending) {
            breaches.push(Breach::new(
                Promise::Liveness,
                "a connected client was not answered in time",
                [operation],
            ));
        }
    }
}

/// A time during which a lock may have had a holder.
struct Span<'o> {
    start: Nanos,
    end: Nanos,
    by: Option<&'o Operation>,
}

/// Spans, by their start.
#[derive(Default)]
struct Spans<'o> {
    short: Vec<Span<'o>>,
    long: Vec<Span<'o>>,
}

impl<'o> Spans<'o> {
    fn new(spans: Vec<Span<'o>>) -> Self {
        let (mut short, mut long): (Vec<_>, Vec<_>) = spans
            .into_iter()
            .partition(|span| span.end.saturating_sub(span.start) <= LONG);
        short.sort_by_key(|span| span.start);
        long.sort_by_key(|span| span.start);
        Self { short, long }
    }

    /// Those that overlap, as start and end, by their start.
    fn overlapping(
        &self,
        from: Nanos,
        until: Nanos,
        counts: impl Fn(&Span<'_>) -> bool,
    ) -> Vec<(Nanos, Nanos)> {
        let first = self.short.partition_point(|span| span.start + LONG < from);
        let short = self.short[first..]
            .iter()
            .take_while(|span| span.start <= until);
        let mut found: Vec<(Nanos, Nanos)> = short
            .chain(&self.long)
            .filter(|span| span.start <= until && span.end >= from && counts(span))
            .map(|span| (span.start, span.end))
            .collect();
        found.sort_unstable();
        found
    }
}

/// A lock that comes free, by whatever end, goes to a waiter promptly.
pub(super) fn check_hand_offs(
    history: &History,
    tenancies: &Tenancies<'_>,
    times: &GrantTimes,
    breaches: &mut Vec<Breach>,
) {
    let mut by_lock: HashMap<&str, (Vec<Span<'_>>, Vec<&Operation>)> = HashMap::new();
    for (&(lock, _), tenancy) in tenancies {
        let (spans, waiters) = by_lock.entry(lock).or_default();
        spans.extend(tenancy.possible.iter().map(|hold| {
            let token = hold.by.token();
            let start = token.map_or(0, |token| times.not_before(token));
            Span {
                start: hold.start.max(start),
                end: hold.end,
                by: Some(hold.by),
            }
        }));
        waiters.extend(tenancy.operations.iter().filter(|one| one.queued.is_some()));
    }
    for (lock, (mut spans, waiters)) in by_lock {
        let mut stops = Vec::new();
        for one in history
            .interferences
            .iter()
            .filter(|one| one.concerns(lock))
        {
            let (start, by) = (one.from, None);
            match one.effect {
                Effect::EndsHolds | Effect::ChangesLeases | Effect::BringsBack => {
                    let end = one.blocks_until();
                    spans.push(Span { start, end, by });
                }
                Effect::HoldsCommandsBack | Effect::StopsTheServer | Effect::StopsClients => {
                    let end = one.until;
                    stops.push(Span { start, end, by });
                }
                Effect::EndsWaits | Effect::EndsStalls => {}
            }
        }
        let (spans, stops) = (Spans::new(spans), Spans::new(stops));
        for waiter in waiters {
            if let Some(wait) = certain_wait(history, waiter)
                && let Some((start, end)) = free_for_long(&spans, &stops, waiter, wait)
            {
                let what = format!(
                    "a lock was free from {} to {} ms, and was not handed on",
                    start / MS,
                    end / MS
                );
                breaches.push(Breach::new(Promise::Liveness, &what, [waiter]));
            }
        }
    }
}

/// A time within the wait during which nobody can have held the lock.
fn free_for_long(
    spans: &Spans<'_>,
    stops: &Spans<'_>,
    waiter: &Operation,
    (from, until): (Nanos, Nanos),
) -> Option<(Nanos, Nanos)> {
    // Who was granted it after the waiter did not have it before.
    let counts = |span: &Span<'_>| {
        span.by.is_none_or(|by| {
            !std::ptr::eq(by, waiter)
                && (by.token().is_none() || waiter.token().is_none() || by.token() < waiter.token())
        })
    };
    let held = spans.overlapping(from, until, counts);
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
fn running(stops: &Spans<'_>, from: Nanos, until: Nanos) -> Nanos {
    let (mut at, mut time) = (from, 0);
    for (start, end) in stops.overlapping(from, until, |_| true) {
        time += start.min(until).saturating_sub(at);
        at = at.max(end.min(until));
    }
    time + until.saturating_sub(at)
}
