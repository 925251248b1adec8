//! What happened to one lock, and when.

use std::collections::{BTreeMap, HashSet};

use super::{
    CertainHold, Effect, Interference, MS, Nanos, Operation, Outcome, PossibleHold, ROUNDING,
};

/// All locks, by their names.
pub(super) type Locks<'o> = BTreeMap<&'o str, Lock<'o>>;

/// All that happened to one lock.
pub(super) struct Lock<'o> {
    /// What each owner did to it.
    pub(super) tenancies: BTreeMap<&'o str, Tenancy<'o>>,
    /// What was done to it, or to all locks.
    pub(super) interferences: Interferences<'o>,
}

/// Everything that one owner did to one lock, in the order of sending.
#[derive(Default)]
pub(super) struct Tenancy<'o> {
    pub(super) operations: Vec<&'o Operation>,
    pub(super) certain: Vec<CertainHold<'o>>,
    pub(super) possible: Vec<PossibleHold<'o>>,
}

/// The first answer that told of a token.
pub(super) struct FirstGrant<'o> {
    pub(super) by: &'o Operation,
    pub(super) token: i64,
    pub(super) not_before: Nanos,
    pub(super) not_after: Nanos,
    /// No older request of the owner may have made it.
    pub(super) is_dated: bool,
    /// No older request of the owner was under way in vain when this one was sent, such as one
    /// whose client was killed in the turn of its grant.
    is_in_turn: bool,
}

impl<'o> Tenancy<'o> {
    /// Whether the outcome of each acquire is known.
    pub(super) fn all_known(&self) -> bool {
        let mut operations = self.operations.iter();
        !operations.any(|one| one.acquires() && one.unknown())
    }

    pub(super) fn first_grants(&self) -> Vec<FirstGrant<'o>> {
        let mut seen = HashSet::new();
        let (mut unknown_since, mut in_vain_until) = (Nanos::MAX, 0);
        let mut grants = Vec::new();
        for &by in &self.operations {
            if by.acquires() && by.unknown() {
                // A later request may be answered with this one's grant.
                unknown_since = unknown_since.min(by.sent);
            }
            if let (Some(token), Some(not_after)) = (by.token(), by.answered) {
                if seen.insert(token) {
                    grants.push(FirstGrant {
                        by,
                        token,
                        not_before: unknown_since.min(by.sent),
                        not_after,
                        is_dated: unknown_since == Nanos::MAX,
                        is_in_turn: in_vain_until <= by.sent,
                    });
                }
            } else if by.acquires() {
                in_vain_until = in_vain_until.max(by.answered.unwrap_or(0));
            }
        }
        grants
    }
}

impl<'o> Lock<'o> {
    /// The lock of this name, of which nobody has asked anything. All of this was done.
    pub(super) fn of(name: &str, all: &'o [Interference]) -> Self {
        let spans = all.iter().filter(|one| one.concerns(name)).map(|by| {
            let (start, end) = (by.from, by.until);
            Span { start, end, by }
        });
        Self {
            tenancies: BTreeMap::new(),
            interferences: Interferences(Spans::new(spans)),
        }
    }

    pub(super) fn operations(&self) -> impl Iterator<Item = &'o Operation> {
        let tenancies = self.tenancies.values();
        tenancies.flat_map(|tenancy| tenancy.operations.iter().copied())
    }

    /// The first grants of each token that say something of the order, by the time of sending.
    pub(super) fn grants_in_turn(&self) -> Vec<FirstGrant<'o>> {
        let all = self.tenancies.values().flat_map(Tenancy::first_grants);
        let mut grants: Vec<_> = all.filter(|one| one.is_dated && one.is_in_turn).collect();
        grants.sort_by_key(|one| one.by.sent);
        grants
    }

    /// When the operation was seen in a queue, and not just held back.
    pub(super) fn surely_queued(&self, operation: &Operation) -> Option<Nanos> {
        let queued = operation.queued?;
        let until = match operation.request.is_for_place() {
            // A server that took over forgot it, and its client has asked again.
            true => operation.answered.unwrap_or(Nanos::MAX),
            false => queued,
        };
        let effects = [Effect::HoldsCommandsBack];
        let mut doubts = (self.interferences).during(&effects, operation.sent, until);
        doubts.next().is_none().then_some(queued)
    }

    /// From when to when this request was in the queue for certain, unless it was
    /// granted. A client that was told that it waits no more may hear that late.
    pub(super) fn certain_wait(&self, operation: &Operation) -> Option<(Nanos, Nanos)> {
        let block_ms = operation.asked()?.block_ms;
        let start = self.surely_queued(operation)?;
        let answered = operation.answered?;
        let timed_out = match block_ms? {
            0 => Nanos::MAX,
            block_ms => (operation.sent + block_ms * MS).saturating_sub(ROUNDING),
        };
        match operation.outcome {
            Outcome::Granted(_) | Outcome::Told { .. } | Outcome::Silent => {
                Some((start, answered.min(timed_out)))
            }
            Outcome::NotAvailable if timed_out <= answered => {
                let effects = [Effect::EndsWaits];
                let unblocked = (self.interferences).during(&effects, start, answered);
                let unblocked = unblocked.map(|one| one.from).min();
                let end = unblocked.map_or(timed_out, |at| at.min(timed_out));
                (start < end).then_some((start, end))
            }
            _ => None,
        }
    }
}

/// Some of the things that were done to the server.
pub(super) struct Interferences<'o>(Spans<&'o Interference>);

impl<'o> Interferences<'o> {
    /// Those with one of these effects in this time.
    pub(super) fn during(
        &self,
        effects: &[Effect],
        from: Nanos,
        until: Nanos,
    ) -> impl Iterator<Item = &'o Interference> {
        let all = self.0.overlapping(from, until).map(|span| span.by);
        all.filter(move |one| effects.contains(&one.effect))
    }
}

/// When a grant was made, by its token: after all those with smaller tokens.
pub(super) struct GrantTimes(Vec<(i64, Nanos)>);

impl GrantTimes {
    pub(super) fn new(locks: &Locks<'_>) -> Self {
        let tenancies = locks.values().flat_map(|lock| lock.tenancies.values());
        let grants = tenancies.flat_map(Tenancy::first_grants);
        let dated = grants.filter(|one| one.is_dated);
        let mut sent: Vec<_> = dated.map(|one| (one.token, one.by.sent)).collect();
        sent.sort_unstable();
        let mut latest = 0;
        for (_, sent) in &mut sent {
            latest = latest.max(*sent);
            *sent = latest;
        }
        Self(sent)
    }

    pub(super) fn not_before(&self, token: i64) -> Nanos {
        let smaller = self.0.partition_point(|&(other, _)| other < token);
        smaller.checked_sub(1).map_or(0, |last| self.0[last].1)
    }
}

/// A span longer than this is kept apart, so that the others are found fast.
const LONG: Nanos = 10_000 * MS;

/// A time, and what happened then.
pub(super) struct Span<T> {
    pub(super) start: Nanos,
    pub(super) end: Nanos,
    pub(super) by: T,
}

/// Spans, by their start.
pub(super) struct Spans<T> {
    short: Vec<Span<T>>,
    long: Vec<Span<T>>,
}

impl<T> Spans<T> {
    pub(super) fn new(spans: impl IntoIterator<Item = Span<T>>) -> Self {
        let is_short = |span: &Span<T>| span.end.saturating_sub(span.start) <= LONG;
        let (mut short, long): (Vec<_>, Vec<_>) = spans.into_iter().partition(is_short);
        short.sort_by_key(|span| span.start);
        Self { short, long }
    }

    /// Those that overlap.
    pub(super) fn overlapping(&self, from: Nanos, until: Nanos) -> impl Iterator<Item = &Span<T>> {
        let first = self.short.partition_point(|span| span.start + LONG < from);
        let short = self.short[first..].iter();
        let short = short.take_while(move |span| span.start <= until);
        let all = short.chain(&self.long);
        all.filter(move |span| span.start <= until && span.end >= from)
    }
}
