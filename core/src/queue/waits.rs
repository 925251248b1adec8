//! For which locks each owner waits.
//!
//! Everything takes logarithmic time.

use std::collections::BTreeMap;
#[cfg(test)]
use std::collections::BTreeSet;

use super::{Waiter, WaiterId};
use crate::keys::{KeyBuf, KeyRef};
use crate::request::Owner;

/// What each owner waits for. Who waits for nothing takes no room.
#[derive(Clone, Debug, Default)]
pub(super) struct Waits(BTreeMap<Owner, OfOwner>);

/// The waits of one owner, mostly a single one.
#[derive(Clone, Debug)]
#[expect(
    clippy::box_collection,
    reason = "else each would take the memory of many"
)]
enum OfOwner {
    One(KeyBuf, WaiterId),
    Many(Box<BTreeMap<KeyBuf, WaiterId>>),
}

impl Waits {
    /// Whether this owner waits for anything.
    pub(super) fn contains(&self, owner: &Owner) -> bool {
        self.0.contains_key(owner)
    }

    fn all(&self, owner: &Owner) -> impl Iterator<Item = (&KeyBuf, &WaiterId)> {
        let (one, many) = match self.0.get(owner) {
            None => (None, None),
            Some(OfOwner::One(key, id)) => (Some((key, id)), None),
            Some(OfOwner::Many(many)) => (None, Some(many.iter())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// The locks for which this owner waits, in order.
    pub(super) fn keys(&self, owner: &Owner) -> impl Iterator<Item = &KeyBuf> {
        self.all(owner).map(|(key, _)| key)
    }

    /// With what this owner waits for this lock.
    pub(super) fn id(&self, owner: &Owner, key: KeyRef<'_>) -> Option<WaiterId> {
        match self.0.get(owner)? {
            OfOwner::One(of, id) => (of.as_ref() == key).then_some(*id),
            OfOwner::Many(many) => many.get(key.to_bytes().as_slice()).copied(),
        }
    }

    /// A wait begins.
    pub(super) fn insert(&mut self, waiter: &Waiter) {
        let (key, id) = (waiter.key.clone(), waiter.id);
        match self.0.get_mut(&waiter.request.owner) {
            None => {
                let owner = waiter.request.owner.clone();
                self.0.insert(owner, OfOwner::One(key, id));
            }
            Some(OfOwner::Many(many)) => _ = many.insert(key, id),
            Some(of_owner) => {
                let many = OfOwner::Many(Box::new(BTreeMap::from([(key, id)])));
                let before = std::mem::replace(of_owner, many);
                if let (OfOwner::One(key, id), OfOwner::Many(many)) = (before, of_owner) {
                    many.insert(key, id);
                }
            }
        }
    }

    /// A wait has ended.
    pub(super) fn remove(&mut self, waiter: &Waiter) {
        let owner = &waiter.request.owner;
        let Some(of_owner) = self.0.get_mut(owner) else {
            return;
        };
        let OfOwner::Many(many) = of_owner else {
            self.0.remove(owner);
            return;
        };
        many.remove(&waiter.key);
        if let 1 = many.len()
            && let Some((key, id)) = many.pop_first()
        {
            *of_owner = OfOwner::One(key, id);
        }
    }
}

#[cfg(test)]
impl Waits {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether these are exactly the waits of these waiters.
    pub(super) fn agree<'w>(&self, waiters: impl Iterator<Item = &'w Waiter>) -> bool {
        let named = |waiter: &Waiter| (waiter.request.owner.clone(), waiter.key.clone(), waiter.id);
        let anew: BTreeSet<_> = waiters.map(named).collect();
        let owners = self.0.keys();
        let known = owners.flat_map(|owner| {
            let all = self.all(owner);
            all.map(|(key, id)| (owner.clone(), key.clone(), *id))
        });
        known.collect::<BTreeSet<_>>() == anew
    }
}
