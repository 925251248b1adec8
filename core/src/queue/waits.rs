//! For which locks each owner waits, and with which requests.
//!
//! To find an owner takes constant time, and anything about one of its locks logarithmic
//! time in the number of these and in that of its requests there.

use std::collections::{BTreeMap, BTreeSet};

use super::{Waiter, WaiterId};
use crate::keys::{KeyBuf, KeyRef};
use crate::request::Owner;
use crate::sharded::Sharded;

/// What each owner waits for. Who waits for nothing takes no room.
#[derive(Clone, Debug, Default)]
pub(super) struct Waits(Sharded<Owner, Locks>);

/// The locks for which one owner waits, mostly a single one.
#[derive(Clone, Debug)]
#[expect(
    clippy::box_collection,
    reason = "else each would take the memory of many"
)]
enum Locks {
    One(KeyBuf, Requests),
    Many(Box<BTreeMap<KeyBuf, Requests>>),
}

/// The requests of one owner in one queue, mostly a single one.
#[derive(Clone, Debug)]
#[expect(clippy::box_collection, reason = "as above")]
pub(super) enum Requests {
    One(Kind, WaiterId),
    Many(Box<BTreeSet<(Kind, WaiterId)>>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Place,
    Blocked,
}

/// What a wait that has begun stands beside.
pub(super) enum Begun {
    /// The owner waits for no other lock, or has waited for this one already.
    Alike,
    /// The owner waits for several locks now. This one was the only one before, with the
    /// first request for it.
    Second(KeyBuf, WaiterId),
    /// The owner has waited for several others.
    OneMore,
}

/// What an owner waits for when one of its waits has ended.
pub(super) enum Left {
    /// For the same lock, with this request first.
    Here(WaiterId),
    /// For this lock alone, with this request first. It waited for two before.
    Elsewhere(KeyBuf, WaiterId),
    /// For nothing, or for several others.
    Other,
}

impl Kind {
    fn of(waiter: &Waiter) -> Self {
        match waiter.is_place() {
            true => Self::Place,
            false => Self::Blocked,
        }
    }
}

impl Requests {
    pub(super) fn place(&self) -> Option<WaiterId> {
        self.first_of(Kind::Place)
    }

    fn first_of(&self, kind: Kind) -> Option<WaiterId> {
        let (first, id) = match self {
            Self::One(only, id) => (*only, *id),
            Self::Many(all) => *all.range((kind, WaiterId(0))..).next()?,
        };
        (first == kind).then_some(id)
    }

    pub(super) fn first(&self) -> Option<WaiterId> {
        let firsts = [Kind::Place, Kind::Blocked].map(|kind| self.first_of(kind));
        firsts.into_iter().flatten().min()
    }

    fn insert(&mut self, kind: Kind, id: WaiterId) {
        match self {
            Self::One(other, before) => {
                let both = [(*other, *before), (kind, id)];
                *self = Self::Many(Box::new(both.into()));
            }
            Self::Many(all) => drop(all.insert((kind, id))),
        }
    }

    /// Returns whether any is left.
    fn remove(&mut self, kind: Kind, id: WaiterId) -> bool {
        let Self::Many(all) = self else {
            return false;
        };
        all.remove(&(kind, id));
        if let (1, Some(&(kind, id))) = (all.len(), all.first()) {
            *self = Self::One(kind, id);
        }
        true
    }
}

impl Waits {
    /// Whether this owner waits for anything.
    pub(super) fn contains(&self, owner: &Owner) -> bool {
        self.0.contains_key(owner)
    }

    /// The locks for which this owner waits.
    pub(super) fn keys(&self, owner: &Owner) -> impl Iterator<Item = &KeyBuf> {
        let (one, many) = match self.0.get(owner) {
            None => (None, None),
            Some(Locks::One(key, _)) => (Some(key), None),
            Some(Locks::Many(many)) => (None, Some(many.keys())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The requests of this owner for this lock. `named` is asked for the key as it is in
    /// memory.
    pub(super) fn requests<'k>(
        &self,
        owner: &Owner,
        key: KeyRef<'_>,
        named: impl FnOnce() -> Option<&'k KeyBuf>,
    ) -> Option<&Requests> {
        match self.0.get(owner)? {
            Locks::One(only, requests) => (only.as_ref() == key).then_some(requests),
            Locks::Many(many) => many.get(named()?),
        }
    }

    /// A wait begins.
    pub(super) fn insert(&mut self, waiter: &Waiter) -> Begun {
        let (kind, id) = (Kind::of(waiter), waiter.id);
        let requests = Requests::One(kind, id);
        let owner = &waiter.request.owner;
        let Some(locks) = self.0.get_mut(owner) else {
            let only = Locks::One(waiter.key.clone(), requests);
            self.0.insert_new(owner.clone(), only);
            return Begun::Alike;
        };
        match locks {
            Locks::One(only, requests) if *only == waiter.key => {
                requests.insert(kind, id);
                Begun::Alike
            }
            Locks::One(only, before) => {
                let (only, before) = (only.clone(), before.clone());
                let first = before.first();
                let both = [(only.clone(), before), (waiter.key.clone(), requests)];
                *locks = Locks::Many(Box::new(both.into()));
                first.map_or(Begun::OneMore, |first| Begun::Second(only, first))
            }
            Locks::Many(many) => match many.get_mut(&waiter.key) {
                Some(requests) => {
                    requests.insert(kind, id);
                    Begun::Alike
                }
                None => {
                    many.insert(waiter.key.clone(), requests);
                    Begun::OneMore
                }
            },
        }
    }

    /// A wait has ended.
    pub(super) fn remove(&mut self, waiter: &Waiter) -> Left {
        let (kind, id, key) = (Kind::of(waiter), waiter.id, &waiter.key);
        let owner = &waiter.request.owner;
        let Some(locks) = self.0.get_mut(owner) else {
            return Left::Other;
        };
        let requests = match locks {
            Locks::One(_, requests) => Some(requests),
            Locks::Many(many) => many.get_mut(key),
        };
        if let Some(requests) = requests
            && requests.remove(kind, id)
        {
            return requests.first().map_or(Left::Other, Left::Here);
        }
        let Locks::Many(many) = locks else {
            self.0.remove(owner);
            return Left::Other;
        };
        many.remove(key);
        if many.len() > 1 {
            return Left::Other;
        }
        let Some((last, requests)) = many.pop_first() else {
            return Left::Other;
        };
        let first = requests.first();
        *locks = Locks::One(last.clone(), requests);
        first.map_or(Left::Other, |first| Left::Elsewhere(last, first))
    }
}

#[cfg(test)]
impl Waits {
    /// Whether these are exactly the waits of these waiters.
    pub(super) fn agree<'w>(&self, waiters: impl Iterator<Item = &'w Waiter>) -> bool {
        let mut anew = BTreeSet::new();
        anew.extend(waiters.map(|waiter| {
            let owner = waiter.request.owner.clone();
            (owner, waiter.key.clone(), Kind::of(waiter), waiter.id)
        }));
        let mut known = BTreeSet::new();
        for (owner, locks) in self.0.iter() {
            let (one, many) = match locks {
                Locks::One(key, requests) => (Some((key, requests)), None),
                Locks::Many(many) => (None, Some(many)),
            };
            for (key, requests) in one
                .into_iter()
                .chain(many.into_iter().flat_map(|many| many.iter()))
            {
                let all = match requests {
                    Requests::One(kind, id) => BTreeSet::from([(*kind, *id)]),
                    Requests::Many(all) => (**all).clone(),
                };
                known.extend(
                    all.into_iter()
                        .map(|(kind, id)| (owner.clone(), key.clone(), kind, id)),
                );
            }
        }
        known == anew
    }
}
