//! The queue of one lock.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::ops::Bound;

use super::waiter::{Waiter, WaiterId};
use crate::bounds::few;
#[cfg(feature = "planted-faults")]
use crate::planted::Fault;
use crate::request::Owner;

/// Those who wait for one lock. Mostly it is one, and never nobody.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    pub(super) first: Waiter,
    behind: BTreeMap<WaiterId, Waiter>,
    /// Those that ask for the lock all alone. There while more than a few wait, and a
    /// while longer.
    exclusive: Option<BTreeSet<WaiterId>>,
    /// Of each owner that waits for other keys as well, its first request.
    pub(super) waiting_elsewhere: BTreeSet<WaiterId>,
    /// Who was granted the lock, and may have other requests here that were not
    /// served in the same step.
    pub(super) reentering: Option<Owner>,
    /// The last waiter that was found to wait for long.
    pub(super) slow: Option<WaiterId>,
    /// All up to this one were over at this time.
    pub(super) passed: Option<(WaiterId, i64)>,
    pub(super) recheck_at_ms: Option<i64>,
}

impl Queue {
    pub(super) const fn of(first: Waiter) -> Self {
        Self {
            first,
            behind: BTreeMap::new(),
            exclusive: None,
            waiting_elsewhere: BTreeSet::new(),
            reentering: None,
            slow: None,
            passed: None,
            recheck_at_ms: None,
        }
    }

    pub(super) fn len(&self) -> usize {
        1 + self.behind.len()
    }

    pub(super) fn waiters(&self) -> impl DoubleEndedIterator<Item = &Waiter> {
        iter::once(&self.first).chain(self.behind.values())
    }

    pub(super) fn waiter(&self, id: WaiterId) -> Option<&Waiter> {
        if self.first.id == id {
            return Some(&self.first);
        }
        self.behind.get(&id)
    }

    pub(super) fn behind_of(&self, id: WaiterId) -> impl Iterator<Item = &Waiter> {
        let behind = self.behind.range((Bound::Excluded(id), Bound::Unbounded));
        behind.map(|(_, waiter)| waiter)
    }

    pub(super) fn last(&self) -> &Waiter {
        let last = self.behind.last_key_value();
        last.map_or(&self.first, |(_, waiter)| waiter)
    }

    /// Who is to be served first.
    pub(super) fn next(&self) -> &Waiter {
        #[cfg(feature = "planted-faults")]
        return Fault::LastInFirstOut.instead(&self.first, || self.last());
        #[cfg(not(feature = "planted-faults"))]
        &self.first
    }

    pub(super) fn push(&mut self, waiter: Waiter) {
        if let Some(exclusive) = &mut self.exclusive
            && waiter.is_exclusive()
        {
            exclusive.insert(waiter.id);
        }
        self.behind.insert(waiter.id, waiter);
        if self.exclusive.is_none() && self.len() > few() {
            self.exclusive = Some(self.exclusive_waiters().collect());
        }
    }

    fn exclusive_waiters(&self) -> impl DoubleEndedIterator<Item = WaiterId> {
        let exclusive = self.waiters().filter(|waiter| waiter.is_exclusive());
        exclusive.map(|waiter| waiter.id)
    }

    /// Removes a waiter, unless it is the only one.
    pub(super) fn remove(&mut self, id: WaiterId) -> Option<Waiter> {
        let waiter = if self.first.id == id {
            let (_, next) = self.behind.pop_first()?;
            std::mem::replace(&mut self.first, next)
        } else {
            self.behind.remove(&id)?
        };
        if let Some(exclusive) = &mut self.exclusive {
            exclusive.remove(&id);
            if self.len() <= few() / 2 {
                self.exclusive = None;
            }
        }
        Some(waiter)
    }

    pub(super) fn waiter_mut(&mut self, id: WaiterId) -> Option<&mut Waiter> {
        if self.first.id == id {
            return Some(&mut self.first);
        }
        self.behind.get_mut(&id)
    }

    /// The next one that has not been found to wait for long.
    pub(super) fn next_not_slow(&self) -> Option<&Waiter> {
        let slow = self.slow.filter(|&slow| self.first.id <= slow);
        match slow {
            Some(slow) => self.behind_of(slow).next(),
            None => Some(&self.first),
        }
    }

    /// The last request for the lock all alone before this one, or of all.
    pub(super) fn last_exclusive_before(&self, position: Option<WaiterId>) -> Option<WaiterId> {
        let is_before = |id: &WaiterId| position.is_none_or(|position| *id < position);
        match (&self.exclusive, position) {
            (None, _) => self.exclusive_waiters().rev().find(is_before),
            (Some(exclusive), None) => exclusive.last().copied(),
            (Some(exclusive), Some(position)) => exclusive.range(..position).next_back().copied(),
        }
    }
}

#[cfg(test)]
impl Queue {
    /// Whether what is kept twice is the same.
    pub(super) fn agrees(&self) -> bool {
        let known = self.exclusive.as_ref();
        known.is_none_or(|known| known.iter().copied().eq(self.exclusive_waiters()))
    }
}
