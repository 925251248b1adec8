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
    /// None where there is nothing to say of others.
    rest: Option<Box<BehindFirst>>,
    pub(super) recheck_at_ms: Option<i64>,
    /// The lock as the last step has left it.
    pub(super) seen: Lock,
}

/// What few queues have, and much of the memory that a queue takes.
#[derive(Clone, Debug, Default)]
struct BehindFirst {
    behind: BTreeMap<WaiterId, Waiter>,
    /// The last waiter that was found to wait for long.
    slow: Option<WaiterId>,
}

impl BehindFirst {
    fn is_needless(&self) -> bool {
        self.behind.is_empty() && self.slow.is_none()
    }
}

impl Queue {
    pub(super) fn of(first: Waiter) -> Self {
        Self {
            first,
            rest: None,
            recheck_at_ms: None,
            seen: Lock::default(),
        }
    }

    fn rest_mut(&mut self) -> &mut BehindFirst {
        self.rest.get_or_insert_default()
    }

    fn give_rest_back(&mut self) {
        self.rest.take_if(|rest| rest.is_needless());
    }

    fn behind(&self) -> impl DoubleEndedIterator<Item = &Waiter> {
        self.rest.iter().flat_map(|rest| rest.behind.values())
    }

    pub(super) fn len(&self) -> usize {
        1 + self.rest.as_ref().map_or(0, |rest| rest.behind.len())
    }

    pub(super) fn waiters(&self) -> impl DoubleEndedIterator<Item = &Waiter> {
        iter::once(&self.first).chain(self.behind())
    }

    pub(super) fn waiter(&self, id: WaiterId) -> Option<&Waiter> {
        if self.first.id == id {
            return Some(&self.first);
        }
        self.rest.as_ref()?.behind.get(&id)
    }

    pub(super) fn behind_of(&self, id: WaiterId) -> impl Iterator<Item = &Waiter> {
        let later = (Bound::Excluded(id), Bound::Unbounded);
        let rest = self.rest.iter();
        rest.flat_map(move |rest| rest.behind.range(later).map(|(_, waiter)| waiter))
    }

    #[cfg(feature = "planted-faults")]
    fn last(&self) -> &Waiter {
        self.behind().next_back().unwrap_or(&self.first)
    }

    /// Who is to be served first.
    pub(super) fn next(&self) -> &Waiter {
        #[cfg(feature = "planted-faults")]
        return Fault::LastInFirstOut.instead(&self.first, || self.last());
        #[cfg(not(feature = "planted-faults"))]
        &self.first
    }

    pub(super) fn push(&mut self, waiter: Waiter) {
        self.rest_mut().behind.insert(waiter.id, waiter);
    }

    /// Removes a waiter, unless it is the only one.
    pub(super) fn remove(&mut self, id: WaiterId) -> Option<Waiter> {
        let rest = self.rest.as_mut()?;
        let waiter = if self.first.id == id {
            let (_, next) = rest.behind.pop_first()?;
            std::mem::replace(&mut self.first, next)
        } else {
            rest.behind.remove(&id)?
        };
        self.give_rest_back();
        Some(waiter)
    }

    pub(super) fn waiter_mut(&mut self, id: WaiterId) -> Option<&mut Waiter> {
        if self.first.id == id {
            return Some(&mut self.first);
        }
        self.rest.as_mut()?.behind.get_mut(&id)
    }

    /// This waiter, and all before it, have been found to wait for long.
    pub(super) fn note_slow(&mut self, id: WaiterId) {
        self.rest_mut().slow = Some(id);
    }

    /// The next one that has not been found to wait for long.
    pub(super) fn next_not_slow(&self) -> Option<&Waiter> {
        let slow = self.rest.as_ref().and_then(|rest| rest.slow);
        let slow = slow.filter(|&slow| self.first.id <= slow);
        match slow {
            Some(slow) => self.behind_of(slow).next(),
            None => Some(&self.first),
        }
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
