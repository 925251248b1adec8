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
pub(super) struct WaitsByOwner(BTreeMap<(Owner, KeyBuf), WaiterId>);

impl WaitsByOwner {
    /// The locks for which this owner waits, in order.
    pub(super) fn keys<'w>(&'w self, owner: &'w Owner) -> impl Iterator<Item = &'w KeyBuf> {
        let from_first = self.0.range((owner.clone(), KeyBuf::least())..);
        let of_owner = from_first.take_while(move |((one, _), _)| one == owner);
        of_owner.map(|((_, key), _)| key)
    }

    /// With what this owner waits for this lock.
    pub(super) fn id(&self, owner: &Owner, key: &KeyBuf) -> Option<WaiterId> {
        self.0.get(&(owner.clone(), key.clone())).copied()
    }

    /// A wait begins.
    pub(super) fn insert(&mut self, waiter: &Waiter) {
        let wait = (waiter.request.owner.clone(), waiter.key.clone());
        self.0.insert(wait, waiter.id);
    }

    /// A wait has ended.
    pub(super) fn remove(&mut self, waiter: &Waiter) {
        let wait = (waiter.request.owner.clone(), waiter.key.clone());
        self.0.remove(&wait);
    }
}

#[cfg(test)]
impl WaitsByOwner {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether these are exactly the waits of these waiters.
    pub(super) fn agree<'w>(&self, waiters: impl Iterator<Item = &'w Waiter>) -> bool {
        let anew = waiters.map(|waiter| (&waiter.request.owner, &waiter.key, waiter.id));
        let known = self.0.iter().map(|((owner, key), id)| (owner, key, *id));
        known.collect::<BTreeSet<_>>() == anew.collect()
    }
}
