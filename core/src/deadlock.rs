//! Finds waits that could never end: cycles of owners that wait for each other.
//!
//! An owner that waits for a lock waits for everybody who holds it, and for
//! everybody who queued for it before. A new wait is a deadlock if one of those
//! waits, directly or through others, for the one who would wait. It is looked for once,
//! when the wait begins, and through a thousand waits at most.
//!
//! Whoever wants one of several permits waits for none of their holders in
//! particular: any of them may give one back. So a wait counts only if every
//! holder must be gone before it can end.
//!
//! The look follows holders that wait themselves, and those in front in a queue that wait
//! for another lock as well; for most, whoever is in front waits for nothing but the
//! holders, which are followed anyhow.

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::bounds::WAITS_LOOKED_AT;
use crate::cycle::WaitEdge;
use crate::keys::{KeyBuf, KeyRef};
use crate::lock::Lock;
use crate::queue::{WaitQueues, WaiterId};
use crate::request::{Limit, Owner};

/// A wait that may close a cycle.
#[derive(Clone, Debug)]
pub(crate) struct WaitFor {
    /// Who would wait.
    pub(crate) owner: Owner,
    /// For which lock.
    pub(crate) key: KeyBuf,
    /// With how many others it would hold the lock.
    pub(crate) limit: Limit,
    /// Its position in the queue, if it waits already; else it would be the last.
    pub(crate) position: Option<WaiterId>,
}

/// Locks that were looked at just now, without what is over. Others may have changed.
pub(crate) type Certain = HashMap<KeyBuf, Lock>;

/// Who waits for whom.
#[derive(Clone, Copy)]
pub(crate) struct Graph<'g> {
    pub(crate) queues: &'g WaitQueues,
    pub(crate) certain: &'g Certain,
    /// The lock of the step that asks.
    pub(crate) here: (KeyRef<'g>, &'g Lock),
    pub(crate) steady_ms: i64,
}

impl<'g> Graph<'g> {
    fn lock(self, key: &KeyBuf) -> Option<&'g Lock> {
        if key.as_ref() == self.here.0 {
            return Some(self.here.1);
        }
        let certain = self.certain.get(key);
        certain.or_else(|| self.queues.seen(key.as_ref()))
    }

    pub(crate) fn is_certain(self, key: &KeyBuf) -> bool {
        key.as_ref() == self.here.0 || self.certain.contains_key(key)
    }

    /// Whether this wait can end only when every holder is gone.
    fn every_holder_must_go(self, wait: &WaitFor) -> bool {
        let key = wait.key.as_ref();
        wait.limit == Limit::EXCLUSIVE
            || self
                .queues
                .last_exclusive_before(key, wait.position)
                .is_some()
            || self.lock(&wait.key).is_none_or(Lock::is_exclusive)
    }

    /// Whether its owner holds the lock already: it is served as soon as anybody is,
    /// and so waits for nobody.
    fn is_of_a_holder(self, wait: &WaitFor) -> bool {
        let lock = self.lock(&wait.key);
        lock.is_some_and(|lock| lock.holder(&wait.owner).is_some())
    }

    /// The last in front with whom this wait can't be let in together.
    fn last_in_front(self, wait: &WaitFor) -> Option<WaiterId> {
        let key = wait.key.as_ref();
        match wait.position {
            position if wait.limit != Limit::EXCLUSIVE => {
                self.queues.last_exclusive_before(key, position)
            }
            Some(WaiterId(position)) => position.checked_sub(1).map(WaiterId),
            None => Some(WaiterId(u64::MAX)),
        }
    }

    /// The first request of an owner for this key, unless it is over.
    fn wait_of(self, owner: &Owner, key: &KeyBuf) -> Option<WaitFor> {
        let id = self.queues.first_id_of(key.as_ref(), owner)?;
        let waiter = self.queues.waiter(key.as_ref(), id)?;
        if self.queues.is_over(waiter, self.steady_ms) {
            return None;
        }
        Some(WaitFor {
            owner: owner.clone(),
            key: key.clone(),
            limit: waiter.request.limit,
            position: Some(id),
        })
    }

    /// The cycle that this wait closes, if a look shows one. Its first edge is the wait
    /// itself.
    pub(crate) fn cycle_of(self, wait: &WaitFor) -> Option<Vec<WaitEdge>> {
        // One that waits there already will get both with one grant.
        let first = self.queues.first_id_of(wait.key.as_ref(), &wait.owner);
        if first != wait.position {
            return None;
        }
        let mut look = Look {
            graph: self,
            newcomer: &wait.owner,
            found_by: HashMap::new(),
            to_follow: VecDeque::new(),
            searched: HashMap::new(),
            waits_left: WAITS_LOOKED_AT,
        };
        if let Some(last) = look.follow(wait) {
            return Some(look.way_to(last));
        }
        while let Some(owner) = look.to_follow.pop_front() {
            for key in self.queues.waits_of(&owner) {
                if look.waits_left == 0 {
                    return None;
                }
                if let Some(wait) = self.wait_of(&owner, key)
                    && let Some(last) = look.follow(&wait)
                {
                    return Some(look.way_to(last));
                }
            }
        }
        None
    }
}

/// A look for a cycle that one wait closes.
struct Look<'g> {
    graph: Graph<'g>,
    newcomer: &'g Owner,
    /// How each owner was reached first.
    found_by: HashMap<Owner, WaitEdge>,
    to_follow: VecDeque<Owner>,
    /// Up to whom each queue has been searched.
    searched: HashMap<KeyBuf, Option<WaiterId>>,
    waits_left: usize,
}

impl Look<'_> {
    /// Follows one wait. Returns the edge that leads back to the newcomer, if
    /// there is one.
    fn follow(&mut self, wait: &WaitFor) -> Option<WaitEdge> {
        let graph = self.graph;
        self.waits_left = self.waits_left.saturating_sub(1);
        if graph.is_of_a_holder(wait) {
            return None;
        }
        let before = self.searched.get(&wait.key).copied();
        let last = graph.last_in_front(wait);
        if before.is_some_and(|searched| searched >= last) || !graph.every_holder_must_go(wait) {
            return None;
        }
        let edge = |blocker: &Owner, held| WaitEdge {
            waiter: wait.owner.clone(),
            key: wait.key.clone(),
            blocker: blocker.clone(),
            held,
        };
        if before.is_none() {
            let holders = graph.lock(&wait.key).map_or(&[][..], Lock::holders);
            if holders.iter().any(|holder| holder.owner == *self.newcomer) {
                return Some(edge(self.newcomer, true));
            }
            for holder in holders {
                if graph.queues.waits(&holder.owner) {
                    self.reach(&holder.owner, || edge(&holder.owner, true));
                }
            }
        }
        if let Some(last) = last {
            if wait.owner != *self.newcomer {
                let newcomer = graph.wait_of(self.newcomer, &wait.key);
                let newcomer = newcomer.and_then(|newcomer| newcomer.position);
                if newcomer.is_some_and(|id| id <= last) {
                    return Some(edge(self.newcomer, false));
                }
            }
            let from = before
                .flatten()
                .map_or(WaiterId(0), |WaiterId(id)| WaiterId(id + 1));
            let in_front = graph
                .queues
                .waiting_elsewhere(wait.key.as_ref(), from..=last);
            for (id, owner) in in_front.take(self.waits_left) {
                let waiter = graph.queues.waiter(wait.key.as_ref(), id);
                if waiter.is_some_and(|one| !graph.queues.is_over(one, graph.steady_ms)) {
                    self.reach(owner, || edge(owner, false));
                }
            }
        }
        // Where nobody is left to follow the look ends here.
        if !self.to_follow.is_empty() {
            self.searched.insert(wait.key.clone(), last);
        }
        None
    }

    /// Has an owner followed that waits itself, unless it was reached before.
    fn reach(&mut self, owner: &Owner, edge: impl FnOnce() -> WaitEdge) {
        if self.found_by.contains_key(owner) {
            return;
        }
        self.found_by.insert(owner.clone(), edge());
        self.to_follow.push_back(owner.clone());
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
