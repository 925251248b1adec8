//! For which locks each owner waits.
//!
//! Everything takes logarithmic time, and a step for each wait that is shown.

use std::collections::BTreeMap;
#[cfg(test)]
use std::collections::BTreeSet;

use super::{Waiter, WaiterId};
use crate::keys::KeyBuf;
use crate::request::Owner;

/// What each owner waits for.
#[derive(Clone, Debug, Default)]
pub(super) struct WaitsByOwner {
    by_owner: BTreeMap<(Owner, KeyBuf), WaiterId>,
    /// Comes before every key.
    least: KeyBuf,
}

impl WaitsByOwner {
    /// The locks for which this owner waits, in order.
    pub(super) fn keys<'w>(&'w self, owner: &'w Owner) -> impl Iterator<Item = &'w KeyBuf> {
        let first = (owner.clone(), self.least.clone());
        let from_first = self.by_owner.range(first..);
        let of_owner = from_first.take_while(move |((one, _), _)| one == owner);
        of_owner.map(|((_, key), _)| key)
    }

    /// With what this owner waits for this lock.
    pub(super) fn id(&self, owner: &Owner, key: &KeyBuf) -> Option<WaiterId> {
        self.by_owner.get(&(owner.clone(), key.clone())).copied()
    }

    /// A wait begins.
    pub(super) fn insert(&mut self, waiter: &Waiter) {
        let wait = (waiter.request.owner.clone(), waiter.key.clone());
        self.by_owner.insert(wait, waiter.id);
    }

    /// A wait has ended.
    pub(super) fn remove(&mut self, waiter: &Waiter) {
        let wait = (waiter.request.owner.clone(), waiter.key.clone());
        self.by_owner.remove(&wait);
    }
}

#[cfg(test)]
impl WaitsByOwner {
    pub(super) fn len(&self) -> usize {
        self.by_owner.len()
    }

    /// Whether these are exactly the waits of these waiters.
    pub(super) fn agree<'w>(&self, waiters: impl Iterator<Item = &'w Waiter>) -> bool {
        let anew = waiters.map(|waiter| (&waiter.request.owner, &waiter.key, waiter.id));
        let known = self
            .by_owner
            .iter()
            .map(|((owner, key), id)| (owner, key, *id));
        known.collect::<BTreeSet<_>>() == anew.collect()
    }
}
