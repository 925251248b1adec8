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

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::rc::Rc;

use hashbrown::{Equivalent, HashMap};
use smallvec::SmallVec;

use crate::error::LockError;
#[cfg(feature = "planted-faults")]
use crate::lock::planted::Fault;
use crate::lock::record::Holder;
use crate::lock::request::{AcquireRequest, Limit, Owner};

/// A key, by the number of its database and its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct KeyRef<'k> {
    /// The database.
    pub(crate) db: i32,
    /// The name.
    pub(crate) name: &'k [u8],
}

/// A key that outlives the call.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct KeyBuf {
    db: i32,
    name: Rc<[u8]>,
}

impl KeyBuf {
    /// The same key, borrowed.
    pub(crate) fn as_ref(&self) -> KeyRef<'_> {
        KeyRef {
            db: self.db,
            name: &self.name,
        }
    }

    /// The key under which the same lock is found once two databases have
    /// changed places.
    pub(super) fn swapped(&self, one: i32, other: i32) -> Self {
        Self {
            db: match self.db {
                db if db == one => other,
                db if db == other => one,
                db => db,
            },
            name: Rc::clone(&self.name),
        }
    }
}

/// Both have the same fields, and so the same hash.
impl Equivalent<KeyBuf> for KeyRef<'_> {
    fn equivalent(&self, key: &KeyBuf) -> bool {
        *self == key.as_ref()
    }
}

impl From<KeyRef<'_>> for KeyBuf {
    fn from(key: KeyRef<'_>) -> Self {
        Self {
            db: key.db,
            name: key.name.into(),
        }
    }
}

/// Names a waiter; later waiters have greater ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WaiterId(pub(super) u64);

/// A request in a queue. The ticket is whatever the caller needs to answer it.
#[derive(Debug)]
pub(crate) struct Waiter<T> {
    /// What it asks for.
    pub(crate) request: AcquireRequest,
    /// Since when it has waited, in microseconds since 1970.
    pub(crate) since_us: i64,
    /// How to answer it.
    pub(crate) ticket: T,
}

/// Who held a contended lock, and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NotedHolder {
    /// Its name.
    pub(crate) owner: Owner,
    /// The end of its lease, in milliseconds since 1970; none after `PERSIST`.
    pub(crate) lease_end_ms: Option<i64>,
    /// How many may hold the lock together with it.
    pub(crate) limit: Limit,
}

#[derive(Debug)]
struct Queue<T> {
    waiters: BTreeMap<WaiterId, Waiter<T>>,
    by_owner: BTreeSet<(Owner, WaiterId)>,
    /// Those that ask for the lock all alone.
    exclusive: BTreeSet<WaiterId>,
    /// Who held the lock when it was looked at last.
    holders: SmallVec<[NotedHolder; 1]>,
    /// The last waiter that was found to wait for long.
    slow: Option<WaiterId>,
    look_at_ms: Option<i64>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self {
            waiters: BTreeMap::new(),
            by_owner: BTreeSet::new(),
            exclusive: BTreeSet::new(),
            holders: SmallVec::new(),
            slow: None,
            look_at_ms: None,
        }
    }
}

impl<T> Queue<T> {
    fn insert(&mut self, id: WaiterId, waiter: Waiter<T>) {
        self.by_owner.insert((waiter.request.owner.clone(), id));
        if waiter.request.limit == Limit::EXCLUSIVE {
            self.exclusive.insert(id);
        }
        self.waiters.insert(id, waiter);
    }

    fn remove(&mut self, id: WaiterId) -> Option<Waiter<T>> {
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
pub(crate) struct Counts {
    /// Clients that wait.
    pub(crate) waiters: usize,
    /// Keys that somebody waits for.
    pub(crate) contended_keys: usize,
    /// Keys with a time at which they must be looked at.
    pub(crate) planned_looks: usize,
}

/// So few contended keys never cost the time to make and remove a table.
const QUEUES_ALWAYS_ROOM_FOR: usize = 16;

/// All queues of a server. A key has one exactly while somebody waits for it.
#[derive(Debug)]
pub(crate) struct WaitQueues<T> {
    by_key: HashMap<KeyBuf, Queue<T>>,
    looks: BTreeSet<(i64, KeyBuf)>,
    /// The keys for which each owner waits, each once. Ordered maps give their
    /// memory back when those who waited have gone.
    waits: BTreeMap<Owner, SmallVec<[KeyBuf; 1]>>,
    /// The owners that wait for more than one key.
    waiting_for_several: BTreeSet<Owner>,
    next_id: u64,
}

impl<T> Default for WaitQueues<T> {
    fn default() -> Self {
        Self {
            by_key: HashMap::new(),
            looks: BTreeSet::new(),
            waits: BTreeMap::new(),
            waiting_for_several: BTreeSet::new(),
            next_id: 0,
        }
    }
}

impl<T> WaitQueues<T> {
    fn queue(&self, key: KeyRef<'_>) -> Option<&Queue<T>> {
        self.by_key.get(&key)
    }

    fn queue_mut(&mut self, key: KeyRef<'_>) -> Option<&mut Queue<T>> {
        self.by_key.get_mut(&key)
    }

    /// Counts what is remembered.
    pub(crate) fn counts(&self) -> Counts {
        let queues = self.by_key.values();
        Counts {
            waiters: queues.map(|queue| queue.waiters.len()).sum(),
            contended_keys: self.by_key.len(),
            planned_looks: self.looks.len(),
        }
    }

    /// Whether nobody waits for anything.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Whether anybody waits for this key.
    pub(crate) fn contended(&self, key: KeyRef<'_>) -> bool {
        self.queue(key).is_some()
    }

    /// Puts a request at the end of the key's queue, unless `max_waiters` wait there.
    /// The ticket is made from the id that the waiter gets.
    pub(crate) fn push(
        &mut self,
        key: KeyRef<'_>,
        request: AcquireRequest,
        since_us: i64,
        max_waiters: usize,
        ticket: impl FnOnce(WaiterId) -> T,
    ) -> Result<T, LockError>
    where
        T: Clone,
    {
        let known = self.by_key.get_key_value(&key);
        if known.is_some_and(|(_, queue)| queue.waiters.len() >= max_waiters) {
            return Err(LockError::QueueFull { max_waiters });
        }
        let key = known.map_or_else(|| key.into(), |(key, _)| key.clone());
        let id = WaiterId(self.next_id);
        self.next_id += 1;
        let ticket = ticket(id);
        let owner = request.owner.clone();
        let waiter = Waiter {
            request,
            since_us,
            ticket: ticket.clone(),
        };
        let queue = self.by_key.entry(key.clone()).or_default();
        let waits_already = queue.first_id_of(&owner).is_some();
        queue.insert(id, waiter);
        if !waits_already {
            self.note_wait(key, owner);
        }
        Ok(ticket)
    }

    /// Removes a waiter that will not be served, if it still waits.
    pub(crate) fn remove(&mut self, key: KeyRef<'_>, id: WaiterId) -> Option<Waiter<T>> {
        #[cfg(feature = "planted-faults")]
        self.forget_second(key, id);
        let queue = self.queue_mut(key)?;
        let waiter = queue.remove(id)?;
        let owner = &waiter.request.owner;
        let (waits_no_more, empty) = (queue.first_id_of(owner).is_none(), queue.waiters.is_empty());
        if waits_no_more {
            self.forget_wait(key, owner);
        }
        if empty {
            self.forget_queue(key);
        }
        Some(waiter)
    }

    fn note_wait(&mut self, key: KeyBuf, owner: Owner) {
        let waits = self.waits.entry(owner.clone()).or_default();
        waits.push(key);
        if waits.len() == 2 {
            self.waiting_for_several.insert(owner);
        }
    }

    fn forget_wait(&mut self, key: KeyRef<'_>, owner: &Owner) {
        let Some(waits) = self.waits.get_mut(owner) else {
            return;
        };
        waits.retain(|wait| wait.as_ref() != key);
        match waits.len() {
            0 => {
                self.waits.remove(owner);
            }
            1 => {
                self.waiting_for_several.remove(owner);
            }
            _ => {}
        }
    }

    /// The first waiter.
    pub(crate) fn first(&self, key: KeyRef<'_>) -> Option<&Waiter<T>> {
        self.first_entry(key).map(|(_, waiter)| waiter)
    }

    fn first_entry(&self, key: KeyRef<'_>) -> Option<(WaiterId, &Waiter<T>)> {
        let waiters = &self.queue(key)?.waiters;
        let first = waiters.first_key_value();
        #[cfg(feature = "planted-faults")]
        let first = Fault::LastInFirstOut.instead(first, || waiters.last_key_value());
        first.map(|(&id, waiter)| (id, waiter))
    }

    /// The first request of this owner in the key's queue.
    pub(crate) fn first_id_of(&self, key: KeyRef<'_>, owner: &Owner) -> Option<WaiterId> {
        self.queue(key)?.first_id_of(owner)
    }

    /// The waiter of this id, if it still waits.
    pub(crate) fn waiter(&self, key: KeyRef<'_>, id: WaiterId) -> Option<&Waiter<T>> {
        self.queue(key)?.waiters.get(&id)
    }

    /// The first request for the lock all alone.
    pub(crate) fn first_exclusive(&self, key: KeyRef<'_>) -> Option<WaiterId> {
        self.queue(key)?.exclusive.first().copied()
    }

    /// Whether a request for the lock all alone is queued from this one on, and
    /// before `to`, if that is one.
    pub(crate) fn exclusive_between(
        &self,
        key: KeyRef<'_>,
        from: WaiterId,
        to: Option<WaiterId>,
    ) -> bool {
        let Some(queue) = self.queue(key) else {
            return false;
        };
        let next = queue.exclusive.range(from..).next();
        next.is_some_and(|&next| to.is_none_or(|to| next < to))
    }

    /// The keys for which this owner waits.
    pub(crate) fn waits_of(&self, owner: &Owner) -> &[KeyBuf] {
        self.waits.get(owner).map_or(&[], |waits| waits)
    }

    /// The owners that wait for more than one key.
    pub(crate) fn waiting_for_several(&self) -> impl Iterator<Item = &Owner> {
        self.waiting_for_several.iter()
    }

    /// Who held the lock when it was looked at last, if anybody waits for it.
    pub(crate) fn holders(&self, key: KeyRef<'_>) -> &[NotedHolder] {
        self.queue(key).map_or(&[], |queue| &queue.holders)
    }

    /// Notes who holds the lock, if anybody waits for it.
    pub(crate) fn note_holders<'h>(
        &mut self,
        key: KeyRef<'_>,
        holders: impl Iterator<Item = &'h Holder>,
    ) {
        let Some(queue) = self.queue_mut(key) else {
            return;
        };
        queue.holders.clear();
        queue.holders.extend(holders.map(|holder| NotedHolder {
            owner: holder.owner.clone(),
            lease_end_ms: holder.lease_end_ms,
            limit: holder.limit,
        }));
    }

    /// The key's waiters, in order.
    pub(crate) fn waiters(&self, key: KeyRef<'_>) -> impl Iterator<Item = &Waiter<T>> {
        let queue = self.queue(key);
        queue.into_iter().flat_map(|queue| queue.waiters.values())
    }

    /// How many wait for the key.
    pub(crate) fn length(&self, key: KeyRef<'_>) -> usize {
        self.queue(key).map_or(0, |queue| queue.waiters.len())
    }

    /// The keys of a database that somebody waits for, each with the time since
    /// which the first in line has waited.
    pub(crate) fn contended_keys(&self, db: i32) -> impl Iterator<Item = (KeyBuf, i64)> {
        let queues = self.by_key.iter().filter(move |(key, _)| key.db == db);
        queues.filter_map(|(key, queue)| {
            let (_, first) = queue.waiters.first_key_value()?;
            Some((key.clone(), first.since_us))
        })
    }

    /// Since when the one has waited that has waited longest.
    pub(crate) fn longest_since_us(&self) -> Option<i64> {
        let queues = self.by_key.values();
        let firsts = queues.filter_map(|queue| queue.waiters.first_key_value());
        firsts.map(|(_, first)| first.since_us).min()
    }

    /// The next of the key's waiters that has not been found to wait for long.
    pub(crate) fn next_not_slow(&self, key: KeyRef<'_>) -> Option<&Waiter<T>> {
        let queue = self.queue(key)?;
        let later = match queue.slow {
            Some(slow) => (Bound::Excluded(slow), Bound::Unbounded),
            None => (Bound::Unbounded, Bound::Unbounded),
        };
        queue.waiters.range(later).next().map(|(_, waiter)| waiter)
    }

    /// Notes that this waiter, and all before it, have been found to wait for long.
    pub(crate) fn note_slow(&mut self, key: KeyRef<'_>, id: WaiterId) {
        if let Some(queue) = self.queue_mut(key) {
            queue.slow = Some(id);
        }
    }

    /// Takes the first waiter.
    pub(crate) fn take_first(&mut self, key: KeyRef<'_>) -> Option<Waiter<T>> {
        let (id, _) = self.first_entry(key)?;
        let taken = self.remove(key, id);
        #[cfg(feature = "planted-faults")]
        let taken = taken.map(Waiter::with_lease_from_enqueue);
        taken
    }

    /// Takes the first waiter of this owner.
    pub(crate) fn take_first_of(&mut self, key: KeyRef<'_>, owner: &Owner) -> Option<Waiter<T>> {
        let id = self.first_id_of(key, owner)?;
        self.remove(key, id)
    }

    /// Has the key looked at again at `at_ms` or earlier, if anybody waits for it.
    pub(crate) fn look_by(&mut self, key: KeyRef<'_>, at_ms: i64) {
        #[cfg(feature = "planted-faults")]
        let at_ms = crate::lock::planted::look_late(at_ms);
        let Some((key, queue)) = self.by_key.get_key_value_mut(&key) else {
            return;
        };
        if queue.look_at_ms.is_some_and(|planned| planned <= at_ms) {
            return;
        }
        if let Some(planned_ms) = queue.look_at_ms.replace(at_ms) {
            self.looks.remove(&(planned_ms, key.clone()));
        }
        self.looks.insert((at_ms, key.clone()));
    }

    /// Has every contended key looked at again at `at_ms` or earlier.
    pub(crate) fn look_at_all_by(&mut self, at_ms: i64) {
        let keys: Vec<KeyBuf> = self.by_key.keys().cloned().collect();
        for key in keys {
            self.look_by(key.as_ref(), at_ms);
        }
    }

    /// When the next look is due.
    pub(crate) fn next_look_ms(&self) -> Option<i64> {
        self.looks.first().map(|&(at_ms, _)| at_ms)
    }

    /// A key whose look is due at `now_ms`.
    pub(crate) fn next_due(&self, now_ms: i64) -> Option<&KeyBuf> {
        let (at_ms, key) = self.looks.first()?;
        (*at_ms <= now_ms).then_some(key)
    }

    /// Takes a key whose look is due at `now_ms`. Whoever looks plans the next one.
    pub(crate) fn take_due(&mut self, now_ms: i64) -> Option<KeyBuf> {
        if self.next_look_ms()? > now_ms {
            return None;
        }
        let (_, key) = self.looks.pop_first()?;
        if let Some(queue) = self.queue_mut(key.as_ref()) {
            queue.look_at_ms = None;
        }
        Some(key)
    }

    fn forget_queue(&mut self, key: KeyRef<'_>) {
        if let Some((key, queue)) = self.by_key.remove_entry(&key)
            && let Some(at_ms) = queue.look_at_ms
        {
            self.looks.remove(&(at_ms, key));
        }
        // When a crowd has gone, so shall the memory that it took.
        let (len, capacity) = (self.by_key.len(), self.by_key.capacity());
        if len < capacity / 8 && capacity > QUEUES_ALWAYS_ROOM_FOR {
            self.by_key.shrink_to(QUEUES_ALWAYS_ROOM_FOR.max(2 * len));
        }
    }
}

#[cfg(feature = "planted-faults")]
impl<T> WaitQueues<T> {
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

#[cfg(feature = "planted-faults")]
impl<T> Waiter<T> {
    fn with_lease_from_enqueue(mut self) -> Self {
        let (lease, since_us) = (self.request.lease, self.since_us);
        self.request.lease = crate::lock::planted::lease_from_enqueue(lease, since_us);
        self
    }
}

#[cfg(test)]
mod tests;
