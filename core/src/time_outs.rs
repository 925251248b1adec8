//! When waits end that the server does not end by itself: those for a place in a queue,
//! and those for replicas.
//!
//! Everything takes logarithmic time.

use std::collections::BTreeSet;

#[cfg(test)]
use crate::explore::form::Form;
use crate::queue::{Waiter, WaiterId};

/// The ends of waits, in milliseconds of the steady clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct TimeOuts(BTreeSet<(i64, WaiterId)>);

impl TimeOuts {
    /// Has this wait end here.
    pub(crate) fn insert(&mut self, id: WaiterId, until_ms: i64) {
        self.0.insert((until_ms, id));
    }

    /// This wait does not end here any more.
    pub(crate) fn remove(&mut self, id: WaiterId, until_ms: i64) {
        self.0.remove(&(until_ms, id));
    }

    /// A waiter is answered, or has left.
    pub(crate) fn forget(&mut self, waiter: &Waiter) {
        if let Some(until_ms) = waiter.until_ms
            && !self.0.is_empty()
        {
            self.remove(waiter.id, until_ms);
        }
    }

    /// When a wait ends next.
    pub(crate) fn next_ms(&self) -> Option<i64> {
        self.0.first().map(|&(at_ms, _)| at_ms)
    }

    /// Takes a wait whose time is over.
    pub(crate) fn take(&mut self, now_ms: i64) -> Option<WaiterId> {
        let &(at_ms, id) = self.0.first()?;
        (at_ms <= now_ms).then(|| self.0.pop_first())?;
        Some(id)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Writes down what decides what will happen.
    #[cfg(test)]
    pub(crate) fn take_down(&self, form: &mut Form<'_>) {
        form.count(self.0.len());
        for &(at_ms, id) in &self.0 {
            form.time(Some(at_ms));
            form.waiter(Some(id));
        }
    }
}
