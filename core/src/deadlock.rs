//! Finds waits that could never end: cycles of owners that wait for each other.
//!
//! An owner that waits for a lock waits for all who hold it. A new wait is a deadlock if
//! one of those waits, directly or through others, for the owner of the new wait. The look
//! is made once, when the wait begins, and follows a thousand waits at most. It begins anew
//! where a lock turns out to have changed, until it has come by ten thousand holders in all.
//!
//! Waiters in front in a queue add nothing: an owner stands for one thread of work, so
//! each of them waits for this lock alone, and thus for the same holders.
//!
//! An owner that wants one of several permits waits for no holder in particular: any of them
//! may give one back. So a wait counts only if every holder must be gone before it can end.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;

use crate::bounds::WAITS_LOOKED_AT;
use crate::cycle::WaitEdge;
use crate::keys::{AnyKey, KeyBuf, KeyRef};
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

/// The edges of a cycle, if there is one.
pub(crate) type Cycle = Option<Vec<WaitEdge>>;

/// Locks that were read just now, without what is over. Other locks may have changed.
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
            .get(&key as &dyn AnyKey)
            .or_else(|| self.queues.seen(key))
    }

    pub(crate) fn is_certain(self, key: &KeyBuf) -> bool {
        key.as_ref() == self.here.0 || self.certain.contains_key(key)
    }

    /// The lock of this wait, if all who hold it have to let go before the wait can end.
    fn blocked_by(self, wait: WaitFor<'_>, left: &Cell<usize>) -> Option<&'g Lock> {
        let (lock, queues) = (self.lock(wait.key)?, self.queues);
        // An owner that holds the lock already is served as soon as anybody is.
        let is_blocked = lock.holder(wait.owner).is_none()
            && (wait.limit == Limit::EXCLUSIVE
                || lock.is_exclusive()
                || queues.has_exclusive_before(wait.key, wait.owner, wait.position, left));
        is_blocked.then_some(lock)
    }

    /// The waits of this owner that are not over.
    fn waits_of(self, owner: &'g Owner) -> impl Iterator<Item = WaitFor<'g>> {
        let waiters = self.queues.waits_of(owner);
        let waiters = waiters.filter(move |one| !one.is_over(self.steady_ms, self.ended));
        waiters.map(|waiter| WaitFor {
            owner: &waiter.request.owner,
            key: waiter.key.as_ref(),
            limit: waiter.request.limit,
            position: Some(waiter.id),
        })
    }

    /// The cycle that this wait closes, if a look at so many holders shows one. Its first edge
    /// is the wait itself.
    pub(crate) fn cycle_of(self, newcomer: WaitFor<'g>, left: &mut usize) -> Cycle {
        let (mut waits, mut next) = (SmallVec::<[_; 1]>::from_buf([newcomer]), 0);
        // For each owner, the wait by which it was reached first.
        let mut reached_by: BTreeMap<&Owner, WaitFor<'_>> = BTreeMap::new();
        let (mut followed, waits_left) = (BTreeSet::new(), Cell::new(WAITS_LOOKED_AT));
        while let Some(&wait) = waits.get(next) {
            next += 1;
            let key = (wait.key.db, wait.key.name);
            if followed.contains(&key) {
                continue;
            }
            let Some(lock) = self.blocked_by(wait, &waits_left) else {
                continue;
            };
            for holder in lock.holders() {
                let blocker = &holder.owner;
                *left = left.checked_sub(1)?;
                if blocker == newcomer.owner {
                    return Some(way(&reached_by, wait, blocker));
                }
                if !reached_by.contains_key(blocker) {
                    let (before, room) = (waits.len(), WAITS_LOOKED_AT - waits.len());
                    waits.extend(self.waits_of(blocker).take(room));
                    if waits.len() > before {
                        reached_by.insert(blocker, wait);
                    }
                }
            }
            // After the last wait nobody asks.
            if next < waits.len() {
                followed.insert(key);
            }
        }
        None
    }
}

/// The way from the newcomer to this wait, which leads back to it.
fn way(
    reached_by: &BTreeMap<&Owner, WaitFor<'_>>,
    last: WaitFor<'_>,
    newcomer: &Owner,
) -> Vec<WaitEdge> {
    let edge = |wait: WaitFor<'_>, blocker: &Owner| WaitEdge {
        waiter: wait.owner.clone(),
        key: wait.key.into(),
        blocker: blocker.clone(),
    };
    let mut cycle = vec![edge(last, newcomer)];
    let mut owner = last.owner;
    while let Some(&wait) = reached_by.get(owner) {
        cycle.push(edge(wait, owner));
        owner = wait.owner;
    }
    cycle.reverse();
    cycle
}
