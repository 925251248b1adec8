//! For which locks each owner waits, and with which requests.
//!
//! To find an owner takes constant time, and anything about one of its requests logarithmic
//! time in the number of these.

use std::collections::BTreeSet;

use super::{Waiter, WaiterId};
use crate::keys::{KeyBuf, KeyRef};
use crate::request::Owner;
use crate::sharded::Sharded;

/// What each owner waits for. Who waits for nothing takes no room.
#[derive(Clone, Debug, Default)]
pub(super) struct Waits(Sharded<Owner, Requests>);

/// A request: its lock, whether it blocks its client, and its name.
type Request = (KeyBuf, bool, WaiterId);

/// The requests of one owner, mostly a single one.
#[derive(Clone, Debug)]
#[expect(
    clippy::box_collection,
    reason = "else each would take the memory of many"
)]
enum Requests {
    One(Request),
    Many(Box<BTreeSet<Request>>),
}

fn request_of(waiter: &Waiter) -> Request {
    (waiter.key.clone(), !waiter.is_place(), waiter.id)
}

impl Waits {
    /// Whether this owner waits for anything.
    pub(super) fn contains(&self, owner: &Owner) -> bool {
        self.0.contains_key(owner)
    }

    fn requests(&self, owner: &Owner) -> impl Iterator<Item = &Request> {
        let (one, many) = match self.0.get(owner) {
            None => (None, None),
            Some(Requests::One(only)) => (Some(only), None),
            Some(Requests::Many(many)) => (None, Some(many.iter())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// The locks for which this owner waits, in order.
    pub(super) fn keys(&self, owner: &Owner) -> impl Iterator<Item = &KeyBuf> {
        let mut last = None;
        let keys = self.requests(owner).map(|(key, ..)| key);
        keys.filter(move |key| last.replace(*key) != Some(*key))
    }

    /// The first request of this owner for this lock that blocks its client, or does not.
    /// `named` is asked for the key as it is in memory.
    pub(super) fn first<'k>(
        &self,
        owner: &Owner,
        blocks: bool,
        key: KeyRef<'_>,
        named: impl FnOnce() -> Option<&'k KeyBuf>,
    ) -> Option<WaiterId> {
        let (of, does_block, id) = match self.0.get(owner)? {
            Requests::One(only) => only,
            Requests::Many(many) => {
                let first = (named()?.clone(), blocks, WaiterId(0));
                many.range(first..).next()?
            }
        };
        (*does_block == blocks && of.as_ref() == key).then_some(*id)
    }

    /// A wait begins.
    pub(super) fn insert(&mut self, waiter: &Waiter) {
        let request = request_of(waiter);
        match self.0.get_mut(&waiter.request.owner) {
            None => {
                let owner = waiter.request.owner.clone();
                self.0.insert_new(owner, Requests::One(request));
            }
            Some(Requests::Many(many)) => _ = many.insert(request),
            Some(requests @ Requests::One(_)) => {
                let many = Requests::Many(Box::new(BTreeSet::from([request])));
                let before = std::mem::replace(requests, many);
                if let (Requests::One(only), Requests::Many(many)) = (before, requests) {
                    many.insert(only);
                }
            }
        }
    }

    /// A wait has ended.
    pub(super) fn remove(&mut self, waiter: &Waiter) {
        let owner = &waiter.request.owner;
        let Some(requests) = self.0.get_mut(owner) else {
            return;
        };
        let Requests::Many(many) = requests else {
            self.0.remove(owner);
            return;
        };
        many.remove(&request_of(waiter));
        if let 1 = many.len()
            && let Some(last) = many.pop_first()
        {
            *requests = Requests::One(last);
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
        let named = |waiter: &Waiter| (waiter.request.owner.clone(), request_of(waiter));
        let anew: BTreeSet<_> = waiters.map(named).collect();
        let owners = self.0.keys();
        let known = owners.flat_map(|owner| {
            let requests = self.requests(owner);
            requests.map(|request| (owner.clone(), request.clone()))
        });
        known.collect::<BTreeSet<_>>() == anew
    }
}
