//! Finds waits that could never end: cycles of owners that wait for each other.
//!
//! An owner that waits for a lock waits for everybody who holds it. A new wait is a deadlock
//! if one of those waits, directly or through others, for the one who would wait. The look
//! is made once, when the wait begins, and follows a thousand waits at most.
//!
//! Whoever stands in front in a queue adds nothing: an owner stands for one thread of work,
//! so it waits for this lock alone, and thus for the same holders. An owner that waits for
//! two locks at once, such as a place whose slot has moved away, is no link of a cycle.
//!
//! Whoever wants one of several permits waits for none of their holders in
//! particular: any of them may give one back. So a wait counts only if every
//! holder must be gone before it can end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::bounds::WAITS_LOOKED_AT;
use crate::cycle::WaitEdge;
use crate::keys::{KeyBuf, KeyRef};
use crate::lock::Lock;
use crate::queue::{WaitQueues, WaiterId};
use crate::request::{ClientId, Limit, Owner};

/// A wait that may close a cycle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitFor<'w> {
    /// Who would wait.
    pub(crate) owner: &'w Owner,
    /// For which lock.
    pub(crate) key: KeyRef<'w>,
    /// With how many others it would hold the lock.
    pub(crate) limit: Limit,
    /// Its position in the queue, if it waits already; else it would be the last.
    pub(crate) position: Option<WaiterId>,
}

/// Locks that were looked at just now, without what is over. Others may have changed.
pub(crate) type Certain = BTreeMap<KeyBuf, Lock>;

/// Who waits for whom.
#[derive(Clone, Copy)]
pub(crate) struct Graph<'g> {
    pub(crate) queues: &'g WaitQueues,
    pub(crate) certain: &'g Certain,
    /// The lock of the step that asks.
    pub(crate) here: (KeyRef<'g>, &'g Lock),
    pub(crate) steady_ms: i64,
    /// Clients whose connections have ended.
    pub(crate) ended: &'g BTreeSet<ClientId>,
}

impl<'g> Graph<'g> {
    fn lock(self, key: KeyRef<'_>) -> Option<&'g Lock> {
        if key == self.here.0 {
            return Some(self.here.1);
        }
        self.certain
            .get(key.to_bytes().as_slice())
            .or_else(|| self.queues.seen(key))
    }

    pub(crate) fn is_certain(self, key: &KeyBuf) -> bool {
        key.as_ref() == self.here.0 || self.certain.contains_key(key)
    }

    /// Whether this wait can end only when every holder is gone.
    fn every_holder_must_go(self, wait: WaitFor<'_>, lock: &Lock) -> bool {
        wait.limit == Limit::EXCLUSIVE
            || lock.is_exclusive()
            || self
                .queues
                .has_exclusive_before(wait.key, wait.owner, wait.position)
    }

    /// The wait of an owner for this key, unless it is over.
    fn wait_of<'w>(self, owner: &'w Owner, key: &'w KeyBuf) -> Option<WaitFor<'w>> {
        let key = key.as_ref();
        let waiter = self.queues.waiter_of(key, owner)?;
        if waiter.is_over(self.steady_ms, self.ended) {
            return None;
        }
        Some(WaitFor {
            owner,
            key,
            limit: waiter.request.limit,
            position: Some(waiter.id),
        })
    }

    /// The cycle that this wait closes, if a look shows one. Its first edge is the wait
    /// itself.
    pub(crate) fn cycle_of(self, wait: WaitFor<'_>) -> Option<Vec<WaitEdge>> {
        let mut look = Search {
            graph: self,
            newcomer: wait.owner,
            found_by: BTreeMap::new(),
            to_follow: VecDeque::new(),
            followed: BTreeSet::new(),
        };
        if let Some(last) = look.follow(wait) {
            return Some(look.way_to(last));
        }
        let mut waits_left = WAITS_LOOKED_AT - 1;
        while let Some(owner) = look.to_follow.pop_front() {
            for key in self.queues.waits_of(&owner) {
                waits_left = waits_left.checked_sub(1)?;
                if let Some(wait) = self.wait_of(&owner, key)
                    && let Some(last) = look.follow(wait)
                {
                    return Some(look.way_to(last));
                }
            }
        }
        None
    }
}

/// A look for a cycle that one wait closes.
struct Search<'g> {
    graph: Graph<'g>,
    newcomer: &'g Owner,
    /// How each owner was reached first.
    found_by: BTreeMap<Owner, WaitEdge>,
    to_follow: VecDeque<Owner>,
    /// The locks whose holders have been reached.
    followed: BTreeSet<KeyBuf>,
}

impl Search<'_> {
    /// Follows one wait to those who hold its lock. Returns the edge that leads back to the
    /// newcomer, if there is one.
    fn follow(&mut self, wait: WaitFor<'_>) -> Option<WaitEdge> {
        let graph = self.graph;
        let lock = graph.lock(wait.key)?;
        let blockers = || lock.holders().iter().map(|holder| &holder.owner);
        let edge = |blocker: &Owner| WaitEdge {
            waiter: wait.owner.clone(),
            key: wait.key.into(),
            blocker: blocker.clone(),
        };
        // Who holds the lock already is served as soon as anybody is.
        if self.followed.contains(wait.key.to_bytes().as_slice())
            || !blockers().any(|owner| owner == self.newcomer || graph.queues.waits(owner))
            || lock.holder(wait.owner).is_some()
            || !graph.every_holder_must_go(wait, lock)
        {
            return None;
        }
        if lock.holder(self.newcomer).is_some() {
            return Some(edge(self.newcomer));
        }
        for owner in blockers().filter(|owner| graph.queues.waits(owner)) {
            if !self.found_by.contains_key(owner) {
                self.found_by.insert(owner.clone(), edge(owner));
                self.to_follow.push_back(owner.clone());
            }
        }
        self.followed.insert(wait.key.into());
        None
    }

    /// The way from the newcomer to this edge, which leads back to it.
    fn way_to(&self, last: WaitEdge) -> Vec<WaitEdge> {
        let mut cycle = vec![last];
        while let Some(edge) = cycle
            .last()
            .and_then(|edge| self.found_by.get(&edge.waiter))
        {
            cycle.push(edge.clone());
        }
        cycle.reverse();
        cycle
    }
}
