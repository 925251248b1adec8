//! The times during which a request waited for certain.

use super::{Effect, History, MS, Nanos, Operation, Outcome, ROUNDING};

/// From when to when this request was in the queue for certain, unless it was
/// granted. A client that was told that it waits no more may hear that late.
pub(super) fn certain_wait(history: &History, operation: &Operation) -> Option<(Nanos, Nanos)> {
    let block_ms = operation.asked()?.block_ms;
    let start = history.surely_queued(operation)?;
    let answered = operation.answered?;
    let timed_out = match block_ms? {
        0 => Nanos::MAX,
        block_ms => (operation.sent + block_ms * MS).saturating_sub(ROUNDING),
    };
    let unblocked = history
        .interferences
        .iter()
        .filter(|one| one.effect == Effect::EndsWaits && one.overlaps(start, answered))
        .map(|one| one.from)
        .min();
    match operation.outcome {
        Outcome::Granted(_) | Outcome::Told { .. } | Outcome::Silent => {
            Some((start, answered.min(timed_out)))
        }
        Outcome::NotAvailable if timed_out <= answered => {
            let end = unblocked.map_or(timed_out, |at| at.min(timed_out));
            (start < end).then_some((start, end))
        }
        _ => None,
    }
}
