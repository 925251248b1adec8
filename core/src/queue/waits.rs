//! For which locks each owner waits.
//!
//! Mostly it is a single one. What is asked of an owner takes logarithmic time, and a short
//! step for each of its own waits.

use std::collections::BTreeMap;
#[cfg(test)]
use std::collections::BTreeSet;

use smallvec::SmallVec;

use super::{Waiter, WaiterId};
use crate::keys::{KeyBuf, KeyRef};
use crate::request::Owner;

/// What each owner waits for. Who waits for nothing takes no room.
#[derive(Clone, Debug, Default)]
pub(super) struct WaitsByOwner(BTreeMap<Owner, SmallVec<[(KeyBuf, WaiterId); 1]>>);

impl WaitsByOwner {
    /// Whether this owner waits for anything.
    pub(super) fn contains(&self, owner: &Owner) -> bool {
        self.0.contains_key(owner)
    }

    /// The locks for which this owner waits.
    pub(super) fn keys(&self, owner: &Owner) -> impl Iterator<Item = &KeyBuf> {
        let waits = self.0.get(owner).into_iter().flatten();
        waits.map(|(key, _)| key)
    }

    /// With what this owner waits for this lock.
    pub(super) fn id(&self, owner: &Owner, key: KeyRef<'_>) -> Option<WaiterId> {
        let mut waits = self.0.get(owner)?.iter();
        let (_, id) = waits.find(|(of, _)| of.as_ref() == key)?;
        Some(*id)
    }

    /// A wait begins.
    pub(super) fn insert(&mut self, waiter: &Waiter) {
        let waits = self.0.entry(waiter.request.owner.clone()).or_default();
        waits.push((waiter.key.clone(), waiter.id));
    }

    /// A wait has ended.
    pub(super) fn remove(&mut self, waiter: &Waiter) {
        let owner = &waiter.request.owner;
        if let Some(waits) = self.0.get_mut(owner) {
            waits.retain(|(_, id)| *id != waiter.id);
            if waits.is_empty() {
                self.0.remove(owner);
            }
        }
    }
}

#[cfg(test)]
impl WaitsByOwner {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether these are exactly the waits of these waiters.
    pub(super) fn agree<'w>(&self, waiters: impl Iterator<Item = &'w Waiter>) -> bool {
        let anew = waiters.map(|waiter| (waiter.request.owner.clone(), waiter.id));
        let known = self.0.iter().flat_map(|(owner, waits)| {
            let ids = waits.iter().map(|(_, id)| *id);
            ids.map(|id| (owner.clone(), id))
        });
        known.collect::<BTreeSet<_>>() == anew.collect()
    }
}
