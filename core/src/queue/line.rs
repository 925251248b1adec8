//! The queue of one lock.

use std::collections::BTreeMap;
use std::iter;
use std::ops::Bound;

use super::waiter::{Waiter, WaiterId};
use crate::bounds::WAITS_LOOKED_AT;
use crate::lock::Lock;
#[cfg(feature = "planted-faults")]
use crate::planted::Fault;
use crate::request::Owner;

/// Those who wait for one lock. Mostly it is one, and never nobody.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    pub(super) first: Waiter,
    behind: BTreeMap<WaiterId, Waiter>,
    pub(super) recheck_at_ms: Option<i64>,
    /// The lock as the last step has left it.
    pub(super) seen: Lock,
    /// The last waiter that was found to wait for long.
    pub(super) slow: Option<WaiterId>,
}

impl Queue {
    pub(super) fn of(first: Waiter) -> Self {
        Self {
            first,
            behind: BTreeMap::new(),
            recheck_at_ms: None,
            seen: Lock::default(),
            slow: None,
        }
    }

    pub(super) fn len(&self) -> usize {
        1 + self.behind.len()
    }

    pub(super) fn waiters(&self) -> impl DoubleEndedIterator<Item = &Waiter> {
        iter::once(&self.first).chain(self.behind.values())
    }

    /// Those who came later than this one, or all.
    pub(super) fn later_than(&self, id: Option<WaiterId>) -> impl Iterator<Item = &Waiter> {
        let first = iter::once(&self.first).filter(move |first| Some(first.id) > id);
        let later = (
            id.map_or(Bound::Unbounded, Bound::Excluded),
            Bound::Unbounded,
        );
        first.chain(self.behind.range(later).map(|(_, waiter)| waiter))
    }

    pub(super) fn waiter(&self, id: WaiterId) -> Option<&Waiter> {
        match self.first.id == id {
            true => Some(&self.first),
            false => self.behind.get(&id),
        }
    }

    pub(super) fn waiter_mut(&mut self, id: WaiterId) -> Option<&mut Waiter> {
        match self.first.id == id {
            true => Some(&mut self.first),
            false => self.behind.get_mut(&id),
        }
    }

    /// Who is to be served first.
    pub(super) fn next(&self) -> &Waiter {
        #[cfg(feature = "planted-faults")]
        let last = || self.waiters().next_back().unwrap_or(&self.first);
        #[cfg(feature = "planted-faults")]
        return Fault::LastInFirstOut.instead(&self.first, last);
        #[cfg(not(feature = "planted-faults"))]
        &self.first
    }

    pub(super) fn push(&mut self, waiter: Waiter) {
        self.behind.insert(waiter.id, waiter);
    }

    /// Removes a waiter, unless it is the only one.
    pub(super) fn remove(&mut self, id: WaiterId) -> Option<Waiter> {
        if self.first.id != id {
            return self.behind.remove(&id);
        }
        let (_, next) = self.behind.pop_first()?;
        Some(std::mem::replace(&mut self.first, next))
    }

    /// Whether another owner before this one, or anyone, asks for the lock all alone, as far
    /// as a look shows.
    pub(super) fn has_exclusive_before(&self, owner: &Owner, position: Option<WaiterId>) -> bool {
        let is_before = |one: &&Waiter| position.is_none_or(|position| one.id < position);
        let before = self.waiters().take(WAITS_LOOKED_AT).take_while(is_before);
        let mut others = before.filter(|one| one.request.owner != *owner);
        others.any(Waiter::is_exclusive)
    }
}
