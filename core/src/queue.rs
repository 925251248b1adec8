//! Who waits for which lock, in which order, and when to look again.
//!
//! # A waiter's life
//! `LOCK.ACQUIRE ... BLOCK` that finds the lock taken puts a [`Waiter`] at the
//! end of the key's queue. It leaves in one of two ways: it is *taken* from the
//! front because the lock is its to have (or because its owner holds the lock
//! already), or it is *removed* because its client timed out, was unblocked or
//! went away. Whoever takes it answers it; whoever removes it need not.
//!
//! # Fairness
//! First come, first served, for each lock by itself. A newcomer never passes a
//! queue: it may take a lock at once only where nobody waits for it. There is
//! one exception, which delays nobody: requests of an owner that holds the lock
//! are re-entries, and a re-entry never waits.
//!
//! # When to look again
//! A lock can come free without a command of ours: its lease ends, or somebody
//! deletes the key. Each contended key therefore has a time at which it must be
//! looked at again, at the latest: at the end of the lease and every so often
//! before, "now" as soon as the server tells that something happened to the
//! key. A look that comes too early costs a look; the time is never moved back,
//! so none can come too late.
//!
//! # What it costs
//! Everything about one waiter or one key takes logarithmic time, however many wait.
//! A queue, its indices and its planned look go with its last waiter, and the memory
//! of a crowd with the crowd. To have all keys looked at again takes constant time, or
//! that of a look at each while others of such looks are left.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, RangeBounds};

use hashbrown::HashMap;

use crate::error::LockError;
#[cfg(test)]
use crate::explore::form::Form;
use crate::keys::{KeyBuf, KeyRef, KeySets, give_memory_back};
#[cfg(feature = "planted-faults")]
use crate::planted::Fault;
use crate::request::{AcquireRequest, ClientId, Limit, Owner};

/// How a client would wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The client.
    pub client: ClientId,
    /// When it gives up, in milliseconds since 1970, if ever.
    pub until_ms: Option<i64>,
}

/// Names a waiter; later waiters have greater ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaiterId(pub(crate) u64);

/// A request in a queue.
#[derive(Clone, Debug)]
pub struct Waiter {
    /// Its name.
    pub id: WaiterId,
    /// What it asks for.
    pub request: AcquireRequest,
    /// Since when it has waited, in microseconds since 1970.
    pub since_us: i64,
    /// The client that waits.
    pub client: ClientId,
    /// When it gives up, in milliseconds since 1970, if ever.
    pub until_ms: Option<i64>,
}

#[derive(Clone, Debug, Default)]
struct Queue {
    waiters: BTreeMap<WaiterId, Waiter>,
    by_owner: BTreeSet<(Owner, WaiterId)>,
    /// Those that ask for the lock all alone.
    exclusive: BTreeSet<WaiterId>,
    /// Of each owner that waits for other keys as well, its first request.
    waiting_elsewhere: BTreeSet<WaiterId>,
    /// Who was granted the lock, and may have other requests here that were not
    /// served in the same step.
    reentering: Option<Owner>,
    /// The last waiter that was found to wait for long.
    slow: Option<WaiterId>,
    recheck_at_ms: Option<i64>,
}

impl Queue {
    fn insert(&mut self, id: WaiterId, waiter: Waiter) {
        self.by_owner.insert((waiter.request.owner.clone(), id));
        if waiter.request.limit == Limit::EXCLUSIVE {
            self.exclusive.insert(id);
        }
        self.waiters.insert(id, waiter);
    }

    fn remove(&mut self, id: WaiterId) -> Option<Waiter> {
        let waiter = self.waiters.remove(&id)?;
        self.by_owner.remove(&(waiter.request.owner.clone(), id));
        self.exclusive.remove(&id);
        Some(waiter)
    }

    fn first_id_of(&self, owner: &Owner) -> Option<WaiterId> {
        let mut from_its_first = self.by_owner.range((owner.clone(), WaiterId(0))..);
        let (next, id) = from_its_first.next()?;
        (next == owner).then_some(*id)
    }
}

/// How much there is to remember. All are zero while nobody waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Clients that wait.
    pub waiters: usize,
    /// Keys that somebody waits for.
    pub contended_keys: usize,
    /// Keys with a time at which they must be looked at.
    pub planned_rechecks: usize,
}

/// All queues of a server. A key has one exactly while somebody waits for it.
#[derive(Clone, Debug, Default)]
pub struct WaitQueues {
    by_key: HashMap<KeyBuf, Queue>,
    /// Everybody who waits, and so in the order in which they began.
    by_id: BTreeMap<WaiterId, KeyBuf>,
    rechecks: BTreeSet<(i64, KeyBuf)>,
    /// Looks that were planned for these times before all keys were to be looked at.
    overdue: BTreeSet<(i64, KeyBuf)>,
    /// When those are due at the latest.
    overdue_at_ms: i64,
    /// The keys for which each owner waits, each once.
    waits: KeySets<Owner>,
    next_id: u64,
}

impl WaitQueues {
    fn queue(&self, key: KeyRef<'_>) -> Option<&Queue> {
        self.by_key.get(&key)
    }

    fn queue_mut(&mut self, key: KeyRef<'_>) -> Option<&mut Queue> {
        self.by_key.get_mut(&key)
    }

    /// Counts what is remembered.
    pub fn counts(&self) -> Counts {
        Counts {
            waiters: self.by_id.len(),
            contended_keys: self.by_key.len(),
            planned_rechecks: self.rechecks.len() + self.overdue.len(),
        }
    }

    /// Whether nobody waits for anything.
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// The key of a queue, as it is remembered.
    pub(crate) fn key_buf(&self, key: KeyRef<'_>) -> Option<&KeyBuf> {
        Some(self.by_key.get_key_value(&key)?.0)
    }

    /// Whether anybody waits for this key.
    pub fn contended(&self, key: KeyRef<'_>) -> bool {
        self.queue(key).is_some()
    }

    /// Puts a request at the end of the key's queue, unless `max_waiters` wait there.
    pub fn push(
        &mut self,
        key: KeyRef<'_>,
        request: AcquireRequest,
        wait: Wait,
        since_us: i64,
        max_waiters: usize,
    ) -> Result<WaiterId, LockError> {
        let known = self.by_key.get_key_value(&key);
        if known.is_some_and(|(_, queue)| queue.waiters.len() >= max_waiters) {
            return Err(LockError::QueueFull { max_waiters });
        }
        let key = known.map_or_else(|| key.into(), |(key, _)| key.clone());
        let id = WaiterId(self.next_id);
        self.next_id += 1;
        let owner = request.owner.clone();
        let waiter = Waiter {
            id,
            request,
            since_us,
            client: wait.client,
            until_ms: wait.until_ms,
        };
        let queue = self.by_key.entry(key.clone()).or_default();
        let waits_already = queue.first_id_of(&owner).is_some();
        queue.insert(id, waiter);
        self.by_id.insert(id, key.clone());
        if !waits_already {
            self.note_wait(key, owner);
        }
        Ok(id)
    }

    /// Removes a waiter that will not be served, if it still waits.
    pub fn remove(&mut self, key: KeyRef<'_>, id: WaiterId) -> Option<Waiter> {
        #[cfg(feature = "planted-faults")]
        self.forget_second(key, id);
        let queue = self.queue_mut(key)?;
        let waiter = queue.remove(id)?;
        let owner = &waiter.request.owner;
        let empty = queue.waiters.is_empty();
        let next_of_owner = queue.first_id_of(owner);
        if queue.waiting_elsewhere.remove(&id)
            && let Some(next) = next_of_owner
        {
            queue.waiting_elsewhere.insert(next);
        }
        if let Some(key) = self.by_id.remove(&id)
            && next_of_owner.is_none()
        {
            self.forget_wait(&key, owner);
        }
        if empty {
            self.forget_queue(key);
        }
        Some(waiter)
    }

    fn note_wait(&mut self, key: KeyBuf, owner: Owner) {
        let was_alone = self.waits.insert(&owner, key.clone());
        if !self.waits.are_several(&owner) {
            return;
        }
        if let Some(other) = was_alone {
            // It did not know of this one.
            self.note_first(other.as_ref(), &owner, true);
        }
        self.note_first(key.as_ref(), &owner, true);
    }

    /// Notes whether this owner waits for other keys as well.
    fn note_first(&mut self, key: KeyRef<'_>, owner: &Owner, waits_elsewhere: bool) {
        if let Some(queue) = self.queue_mut(key)
            && let Some(first) = queue.first_id_of(owner)
        {
            if waits_elsewhere {
                queue.waiting_elsewhere.insert(first);
            } else {
                queue.waiting_elsewhere.remove(&first);
            }
        }
    }

    fn forget_wait(&mut self, key: &KeyBuf, owner: &Owner) {
        if let Some(last) = self.waits.remove(owner, key) {
            self.note_first(last.as_ref(), owner, false);
        }
    }

    /// The first waiter.
    pub fn first(&self, key: KeyRef<'_>) -> Option<&Waiter> {
        self.first_entry(key).map(|(_, waiter)| waiter)
    }

    fn first_entry(&self, key: KeyRef<'_>) -> Option<(WaiterId, &Waiter)> {
        let waiters = &self.queue(key)?.waiters;
        let first = waiters.first_key_value();
        #[cfg(feature = "planted-faults")]
        let first = Fault::LastInFirstOut.instead(first, || waiters.last_key_value());
        first.map(|(&id, waiter)| (id, waiter))
    }

    /// The first request of this owner in the key's queue.
    pub fn first_id_of(&self, key: KeyRef<'_>, owner: &Owner) -> Option<WaiterId> {
        self.queue(key)?.first_id_of(owner)
    }

    /// Whether anybody stands behind this owner's first request in the key's queue.
    pub fn is_anyone_behind(&self, key: KeyRef<'_>, owner: &Owner) -> bool {
        let behind = self.queue(key).and_then(|queue| {
            let last = *queue.waiters.last_key_value()?.0;
            Some(queue.first_id_of(owner)? < last)
        });
        behind.unwrap_or(false)
    }

    /// The waiter of this id, if it still waits.
    pub fn waiter(&self, key: KeyRef<'_>, id: WaiterId) -> Option<&Waiter> {
        self.queue(key)?.waiters.get(&id)
    }

    /// The first request for the lock all alone.
    #[cfg(test)]
    pub(crate) fn first_exclusive(&self, key: KeyRef<'_>) -> Option<WaiterId> {
        self.queue(key)?.exclusive.first().copied()
    }

    /// The last request for the lock all alone before this one, or of all.
    pub fn last_exclusive_before(
        &self,
        key: KeyRef<'_>,
        position: Option<WaiterId>,
    ) -> Option<WaiterId> {
        let exclusive = &self.queue(key)?.exclusive;
        match position {
            Some(position) => exclusive.range(..position).next_back().copied(),
            None => exclusive.last().copied(),
        }
    }

    /// The owners in this part of the queue that wait for other keys as well, each
    /// with its first request here.
    pub fn waiting_elsewhere(
        &self,
        key: KeyRef<'_>,
        part: impl RangeBounds<WaiterId>,
    ) -> impl Iterator<Item = (WaiterId, &Owner)> {
        let queue = self.queue(key);
        queue.into_iter().flat_map(move |queue| {
            let part = (part.start_bound().cloned(), part.end_bound().cloned());
            let ids = queue.waiting_elsewhere.range(part);
            ids.filter_map(|id| Some((*id, &queue.waiters.get(id)?.request.owner)))
        })
    }

    /// Whose requests are to be served before the others, because it has the lock.
    pub fn reentering(&self, key: KeyRef<'_>) -> Option<&Owner> {
        self.queue(key)?.reentering.as_ref()
    }

    /// Notes whose requests are to be served before the others, if anybody waits.
    pub fn set_reentering(&mut self, key: KeyRef<'_>, owner: Option<Owner>) {
        if let Some(queue) = self.queue_mut(key) {
            queue.reentering = owner;
        }
    }

    /// The key for which a waiter waits, if it still does.
    pub fn key_of(&self, id: WaiterId) -> Option<&KeyBuf> {
        self.by_id.get(&id)
    }

    /// The owners that wait for this key, each at least once.
    pub fn owners(&self, key: KeyRef<'_>) -> impl Iterator<Item = &Owner> {
        let queue = self.queue(key);
        let entries = queue.into_iter().flat_map(|queue| &queue.by_owner);
        entries.map(|(owner, _)| owner)
    }

    /// The keys for which this owner waits.
    pub fn waits_of(&self, owner: &Owner) -> impl Iterator<Item = &KeyBuf> {
        self.waits.of(owner)
    }

    /// Whether this owner waits for anything.
    pub fn waits(&self, owner: &Owner) -> bool {
        self.waits.contains(owner)
    }

    /// The key's waiters, in order.
    pub fn waiters(&self, key: KeyRef<'_>) -> impl Iterator<Item = &Waiter> {
        let queue = self.queue(key);
        queue.into_iter().flat_map(|queue| queue.waiters.values())
    }

    /// How many wait for the key.
    pub fn length(&self, key: KeyRef<'_>) -> usize {
        self.queue(key).map_or(0, |queue| queue.waiters.len())
    }

    /// The keys that somebody waits for, longest wait first, each with the time since
    /// which the first in line has waited, in microseconds since 1970.
    pub fn contended_keys(&self) -> impl Iterator<Item = (&KeyBuf, i64)> {
        self.by_id.iter().filter_map(|(id, key)| {
            let (first, waiter) = self.queue(key.as_ref())?.waiters.first_key_value()?;
            (first == id).then_some((key, waiter.since_us))
        })
    }

    /// Since when the one has waited that has waited longest.
    pub fn longest_since_us(&self) -> Option<i64> {
        let (id, key) = self.by_id.first_key_value()?;
        Some(self.waiter(key.as_ref(), *id)?.since_us)
    }

    /// The next of the key's waiters that has not been found to wait for long.
    pub fn next_not_slow(&self, key: KeyRef<'_>) -> Option<&Waiter> {
        let queue = self.queue(key)?;
        let later = match queue.slow {
            Some(slow) => (Bound::Excluded(slow), Bound::Unbounded),
            None => (Bound::Unbounded, Bound::Unbounded),
        };
        queue.waiters.range(later).next().map(|(_, waiter)| waiter)
    }

    /// Notes that this waiter, and all before it, have been found to wait for long.
    pub fn note_slow(&mut self, key: KeyRef<'_>, id: WaiterId) {
        if let Some(queue) = self.queue_mut(key) {
            queue.slow = Some(id);
        }
    }

    /// Takes the first waiter.
    pub fn take_first(&mut self, key: KeyRef<'_>) -> Option<Waiter> {
        let (id, _) = self.first_entry(key)?;
        self.remove(key, id)
    }

    /// Takes the first waiter of this owner.
    pub fn take_first_of(&mut self, key: KeyRef<'_>, owner: &Owner) -> Option<Waiter> {
        let id = self.first_id_of(key, owner)?;
        self.remove(key, id)
    }

    /// Has the key looked at again at `at_ms` or earlier, if anybody waits for it.
    pub fn recheck_by(&mut self, key: KeyRef<'_>, at_ms: i64) {
        #[cfg(feature = "planted-faults")]
        let at_ms = crate::planted::recheck_late(at_ms);
        let Some((key, queue)) = self.by_key.get_key_value_mut(&key) else {
            return;
        };
        if queue.recheck_at_ms.is_some_and(|planned| planned <= at_ms) {
            return;
        }
        if let Some(planned_ms) = queue.recheck_at_ms {
            let planned = (planned_ms, key.clone());
            if !self.rechecks.remove(&planned) {
                if self.overdue_at_ms <= at_ms {
                    return;
                }
                self.overdue.remove(&planned);
            }
        }
        queue.recheck_at_ms = Some(at_ms);
        self.rechecks.insert((at_ms, key.clone()));
    }

    /// Whether a look is planned at any of these keys.
    pub fn any_planned(&self, mut is_meant: impl FnMut(KeyRef<'_>) -> bool) -> bool {
        let mut planned = self.rechecks.iter().chain(&self.overdue);
        planned.any(|(_, key)| is_meant(key.as_ref()))
    }

    /// Has every contended key looked at again at `at_ms` or earlier.
    pub fn recheck_all_by(&mut self, at_ms: i64) {
        #[cfg(feature = "planted-faults")]
        let at_ms = crate::planted::recheck_late(at_ms);
        if self.rechecks.len() + self.overdue.len() < self.by_key.len() {
            for (key, queue) in &mut self.by_key {
                if queue.recheck_at_ms.is_none() {
                    queue.recheck_at_ms = Some(at_ms);
                    self.rechecks.insert((at_ms, key.clone()));
                }
            }
        }
        self.overdue_at_ms = match self.overdue.is_empty() {
            true => at_ms,
            false => self.overdue_at_ms.min(at_ms),
        };
        self.overdue.append(&mut self.rechecks);
    }

    fn next_overdue_ms(&self) -> Option<i64> {
        let &(planned_ms, _) = self.overdue.first()?;
        Some(planned_ms.min(self.overdue_at_ms))
    }

    /// When the next look is due.
    pub fn next_recheck_ms(&self) -> Option<i64> {
        let planned_ms = self.rechecks.first().map(|&(at_ms, _)| at_ms);
        planned_ms.into_iter().chain(self.next_overdue_ms()).min()
    }

    /// A key whose look is due at `now_ms`.
    pub fn next_due(&self, now_ms: i64) -> Option<&KeyBuf> {
        let next_ms = self.next_recheck_ms().filter(|&at_ms| at_ms <= now_ms)?;
        let (_, key) = match self.next_overdue_ms() == Some(next_ms) {
            true => self.overdue.first()?,
            false => self.rechecks.first()?,
        };
        Some(key)
    }

    /// Takes a key whose look is due at `now_ms`. Whoever rechecks plans the next one.
    pub fn take_due(&mut self, now_ms: i64) -> Option<KeyBuf> {
        let next_ms = self.next_recheck_ms().filter(|&at_ms| at_ms <= now_ms)?;
        let (_, key) = match self.next_overdue_ms() == Some(next_ms) {
            true => self.overdue.pop_first()?,
            false => self.rechecks.pop_first()?,
        };
        if let Some(queue) = self.queue_mut(key.as_ref()) {
            queue.recheck_at_ms = None;
        }
        Some(key)
    }

    fn forget_queue(&mut self, key: KeyRef<'_>) {
        if let Some((key, queue)) = self.by_key.remove_entry(&key)
            && let Some(at_ms) = queue.recheck_at_ms
        {
            let planned = (at_ms, key);
            if !self.rechecks.remove(&planned) {
                self.overdue.remove(&planned);
            }
        }
        give_memory_back(&mut self.by_key);
    }
}

#[cfg(feature = "planted-faults")]
impl WaitQueues {
    fn forget_second(&mut self, key: KeyRef<'_>, first: WaiterId) {
        let ids = self.queue(key).map(|queue| queue.waiters.keys());
        let mut ids = ids.into_iter().flatten().copied();
        if ids.next() == Some(first)
            && let Some(second) = ids.next()
            && Fault::WaiterDropped.strikes()
        {
            self.remove(key, second);
        }
    }
}

#[cfg(test)]
impl WaitQueues {
    /// Writes down what decides what will happen.
    pub(crate) fn take_down(&self, form: &mut Form<'_>) {
        for key in form.keys() {
            let queue = self.queue(key.as_ref());
            form.flag(queue.is_some());
            let Some(queue) = queue else { continue };
            form.count(queue.waiters.len());
            for (id, waiter) in &queue.waiters {
                form.waiter(Some(*id));
                let request = &waiter.request;
                form.owner(&request.owner);
                form.number(request.lease.ms());
                form.hold(request.hold);
                form.number(request.limit.count_or_zero());
                form.client(request.session);
                form.client(Some(waiter.client));
                #[cfg(feature = "planted-faults")]
                form.time(Some(waiter.since_us / 1000));
                form.flag(queue.waiting_elsewhere.contains(id));
            }
            form.flag(queue.reentering.is_some());
            if let Some(owner) = &queue.reentering {
                form.owner(owner);
            }
            form.time(self.recheck_at_ms(key.as_ref()));
        }
    }

    /// Whether all that is kept twice is the same.
    pub(crate) fn agree(&self) -> bool {
        let queues = || self.by_key.iter();
        let waiters =
            || queues().flat_map(|(key, queue)| queue.waiters.keys().map(move |id| (id, key)));
        let rechecks: BTreeSet<_> = queues()
            .filter_map(|(key, queue)| Some((queue.recheck_at_ms?, key.clone())))
            .collect();
        let waits_here = |owner: &Owner, key: &KeyBuf| self.waits_of(owner).any(|one| one == key);
        let planned: BTreeSet<_> = self.rechecks.union(&self.overdue).cloned().collect();
        rechecks == planned
            && self.rechecks.is_disjoint(&self.overdue)
            && waiters().count() == self.by_id.len()
            && waiters().all(|(id, key)| self.by_id.get(id) == Some(key))
            && queues().all(|(key, queue)| {
                let by_owner = queue.waiters.iter();
                let by_owner = by_owner.map(|(id, waiter)| (waiter.request.owner.clone(), *id));
                let exclusive = queue.waiters.iter();
                let exclusive =
                    exclusive.filter(|(_, waiter)| waiter.request.limit == Limit::EXCLUSIVE);
                let waiting_elsewhere = queue.waiters.iter().filter(|(id, waiter)| {
                    let owner = &waiter.request.owner;
                    queue.first_id_of(owner) == Some(**id) && self.waits_of(owner).count() > 1
                });
                let owners_wait = queue
                    .by_owner
                    .iter()
                    .all(|(owner, _)| waits_here(owner, key));
                !queue.waiters.is_empty()
                    && owners_wait
                    && by_owner.collect::<BTreeSet<_>>() == queue.by_owner
                    && exclusive.map(|(id, _)| *id).collect::<BTreeSet<_>>() == queue.exclusive
                    && waiting_elsewhere
                        .map(|(id, _)| *id)
                        .collect::<BTreeSet<_>>()
                        == queue.waiting_elsewhere
            })
    }

    /// When a contended lock is looked at next.
    pub(crate) fn recheck_at_ms(&self, key: KeyRef<'_>) -> Option<i64> {
        let planned_ms = self.queue(key)?.recheck_at_ms?;
        let is_overdue = self.overdue.contains(&(planned_ms, key.into()));
        Some(match is_overdue {
            true => planned_ms.min(self.overdue_at_ms),
            false => planned_ms,
        })
    }
}

#[cfg(test)]
mod tests;
