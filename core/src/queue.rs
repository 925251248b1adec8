//! Who waits for which lock, in which order, and when to look again.
//!
//! # A waiter's life
//! `LOCK.ACQUIRE ... BLOCK` that finds the lock taken puts a [`Waiter`] at the
//! end of the key's queue. It leaves in one of two ways: it is *taken* from the
//! front because the lock is its to have (or because its owner holds the lock
//! already), or it is *removed* because its client timed out, was unblocked or
//! went away. Whoever takes it answers it; whoever removes it need not.
//!
//! An owner stands for one thread of work, so it waits for a lock once: a later request
//! of it takes the earlier one over, with its position if the mode is the same.
//!
//! `LOCK.ACQUIRE ... QUEUE` puts one into the same queue whose client does not block:
//! it has a *place*. What becomes of it is published on a channel. A place belongs to
//! its owner, and outlives the connection that asked for it, unless that asked for a
//! session. Nobody but the table ends it: it is over when its time is, or its session's
//! connection, whether or not it has been removed.
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
//! of a crowd with the crowd. To have all keys looked at again takes constant time.

mod line;
mod waiter;
mod waits;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
#[cfg(test)]
use std::ops::RangeBounds;
use std::rc::Rc;

#[cfg(test)]
use crate::explore::form::Form;
use crate::keys::{KeyBuf, KeyRef};
use crate::lock::Lock;
#[cfg(feature = "planted-faults")]
use crate::planted::Fault;
#[cfg(test)]
use crate::request::Limit;
use crate::request::{AcquireRequest, ClientId, Owner};
use line::Queue;
use waits::WaitsByOwner;

pub use waiter::{Addressee, Channel, Place, Wait, Waiter, WaiterId};

/// How much there is to remember. All are zero while nobody waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// All that wait.
    pub waiters: usize,
    /// Places among them.
    pub places: usize,
    /// Keys that somebody waits for.
    pub contended_keys: usize,
    /// Keys with a time at which they must be looked at.
    pub planned_rechecks: usize,
}

/// All queues of a server. A key has one exactly while somebody waits for it.
#[derive(Clone, Debug, Default)]
pub struct WaitQueues {
    by_key: BTreeMap<KeyBuf, Box<Queue>>,
    /// Everybody who waits, and so in the order in which they began.
    by_id: BTreeMap<WaiterId, KeyBuf>,
    /// Who is first in line for each key, by the number of its database.
    firsts: BTreeSet<(i32, WaiterId)>,
    /// Looks that are planned, at most one for each key. Its queue knows for when.
    rechecks: BTreeSet<(i64, KeyBuf)>,
    /// Behind which key a round goes on in which all keys are looked at.
    round: Option<Bound<KeyBuf>>,
    waits: WaitsByOwner,
    next_id: u64,
    places: usize,
    /// The places that end with each connection.
    of_sessions: BTreeSet<(ClientId, WaiterId)>,
    /// The last channel that was named. Mostly it is named again.
    last_channel: Option<Channel>,
}

impl WaitQueues {
    #[inline]
    fn queue(&self, key: KeyRef<'_>) -> Option<&Queue> {
        // Mostly nobody waits for anything.
        if self.is_empty() {
            return None;
        }
        self.by_key.get(key.to_bytes().as_slice()).map(Box::as_ref)
    }

    #[inline]
    fn queue_mut(&mut self, key: KeyRef<'_>) -> Option<&mut Queue> {
        if self.is_empty() {
            return None;
        }
        self.by_key
            .get_mut(key.to_bytes().as_slice())
            .map(Box::as_mut)
    }

    /// Counts what is remembered.
    pub fn counts(&self) -> Counts {
        Counts {
            waiters: self.by_id.len(),
            places: self.places,
            contended_keys: self.by_key.len(),
            planned_rechecks: self.rechecks.len(),
        }
    }

    /// Whether nobody waits for anything.
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Whether anybody waits for this key.
    pub fn contended(&self, key: KeyRef<'_>) -> bool {
        self.queue(key).is_some()
    }

    /// Puts a request at the end of the key's queue.
    pub fn push(
        &mut self,
        key: KeyRef<'_>,
        request: AcquireRequest,
        wait: Wait,
        since_us: i64,
    ) -> WaiterId {
        let known = self.queue(key).map(|queue| queue.first.key.clone());
        let key = known.unwrap_or_else(|| key.into());
        let id = self.new_id();
        let waiter = Waiter {
            id,
            key: key.clone(),
            request,
            since_us,
            wait,
        };
        self.waits.insert(&waiter);
        let place = waiter.is_place().then_some(waiter.request.session);
        match self.by_key.entry(key.clone()) {
            Entry::Occupied(queue) => queue.into_mut().push(waiter),
            Entry::Vacant(place) => {
                self.firsts.insert((key.db(), id));
                place.insert(Box::new(Queue::of(waiter)));
            }
        }
        if let Some(session) = place {
            self.count_place(id, session);
        }
        self.by_id.insert(id, key);
        id
    }

    /// Names somebody who waits for something else than a lock.
    pub fn new_id(&mut self) -> WaiterId {
        let id = WaiterId(self.next_id);
        self.next_id += 1;
        id
    }

    /// Removes a waiter that will not be served, if it still waits.
    pub fn remove(&mut self, key: KeyRef<'_>, id: WaiterId) -> Option<Waiter> {
        #[cfg(feature = "planted-faults")]
        self.forget_second(key, id);
        let bytes = key.to_bytes();
        let queue = self.by_key.get_mut(bytes.as_slice())?;
        let waiter = match queue.remove(id) {
            Some(waiter) => waiter,
            None if queue.first.id == id => {
                let (key, queue) = self.by_key.remove_entry(bytes.as_slice())?;
                if let Some(at_ms) = queue.recheck_at_ms {
                    self.rechecks.remove(&(at_ms, key));
                }
                queue.first
            }
            None => return None,
        };
        self.waits.remove(&waiter);
        self.by_id.remove(&id);
        self.round.take_if(|_| self.by_key.is_empty());
        if self.firsts.remove(&(key.db, id))
            && let Some(next) = self.first(key)
        {
            self.firsts.insert((key.db, next.id));
        }
        self.uncount_place(&waiter);
        Some(waiter)
    }

    /// This channel, shared with whoever named it last.
    pub fn channel(&mut self, name: &[u8]) -> Channel {
        let last = self.last_channel.take().filter(|last| **last == *name);
        let channel = last.unwrap_or_else(|| name.into());
        self.last_channel = Some(Rc::clone(&channel));
        channel
    }

    /// What the owner waits with for this key.
    pub fn waiter_of(&self, key: KeyRef<'_>, owner: &Owner) -> Option<&Waiter> {
        let queue = self.queue(key)?;
        queue.waiter(self.waits.id(owner, &queue.first.key)?)
    }

    /// Another request of the same owner takes this waiter's position over. Returns the
    /// waiter as it was.
    pub fn take_over(
        &mut self,
        key: KeyRef<'_>,
        id: WaiterId,
        request: AcquireRequest,
        wait: Wait,
    ) -> Option<Waiter> {
        let waiter = self.queue_mut(key)?.waiter_mut(id)?;
        let place = wait.is_for_place().then_some(request.session);
        let earlier = waiter.clone();
        (waiter.request, waiter.wait) = (request, wait);
        self.uncount_place(&earlier);
        if let Some(session) = place {
            self.count_place(id, session);
        }
        Some(earlier)
    }

    fn count_place(&mut self, id: WaiterId, session: Option<ClientId>) {
        self.places += 1;
        if let Some(session) = session {
            self.of_sessions.insert((session, id));
        }
    }

    fn uncount_place(&mut self, waiter: &Waiter) {
        if waiter.is_place() {
            self.places -= 1;
            if let Some(session) = waiter.request.session {
                self.of_sessions.remove(&(session, waiter.id));
            }
        }
    }

    /// A place that ends with this client's connection.
    pub fn any_of(&self, client: ClientId) -> Option<WaiterId> {
        #[cfg(feature = "planted-faults")]
        if Fault::PlaceOutlived.planted() {
            return None;
        }
        let all = WaiterId::all_behind(client);
        self.of_sessions.range(all).next().map(|(_, id)| *id)
    }

    /// A place. It is for a replica, where nobody is blocked: a step goes by for each
    /// blocked waiter before it.
    pub fn any_place(&self) -> Option<&Waiter> {
        if self.places == 0 {
            return None;
        }
        let waiters = self.by_id.iter();
        let mut waiters = waiters.filter_map(|(id, key)| self.waiter(key.as_ref(), *id));
        waiters.find(|waiter| waiter.is_place())
    }

    /// The first waiter.
    pub fn first(&self, key: KeyRef<'_>) -> Option<&Waiter> {
        self.queue(key).map(Queue::next)
    }

    /// The lock as the last step has left it, if anybody waits for it.
    pub fn seen(&self, key: KeyRef<'_>) -> Option<&Lock> {
        self.queue(key).map(|queue| &queue.seen)
    }

    /// The same, to be noted anew.
    pub fn seen_mut(&mut self, key: KeyRef<'_>) -> Option<&mut Lock> {
        self.queue_mut(key).map(|queue| &mut queue.seen)
    }

    /// The waiter of this id, if it still waits.
    pub fn waiter(&self, key: KeyRef<'_>, id: WaiterId) -> Option<&Waiter> {
        self.queue(key)?.waiter(id)
    }

    /// Whether another owner before this one, or anyone, asks for the lock all alone, as far
    /// as a look shows.
    pub fn has_exclusive_before(
        &self,
        key: KeyRef<'_>,
        owner: &Owner,
        position: Option<WaiterId>,
    ) -> bool {
        self.queue(key)
            .is_some_and(|queue| queue.has_exclusive_before(owner, position))
    }

    /// The key for which a waiter waits, if it still does.
    pub fn key_of(&self, id: WaiterId) -> Option<&KeyBuf> {
        self.by_id.get(&id)
    }

    /// The keys for which this owner waits.
    pub fn waits_of<'q>(&'q self, owner: &'q Owner) -> impl Iterator<Item = &'q KeyBuf> {
        self.waits.keys(owner)
    }

    /// Whether this owner waits for anything.
    pub fn waits(&self, owner: &Owner) -> bool {
        self.waits.keys(owner).next().is_some()
    }

    /// The key's waiters, in order.
    pub fn waiters(&self, key: KeyRef<'_>) -> impl Iterator<Item = &Waiter> {
        let queue = self.queue(key);
        queue.into_iter().flat_map(Queue::waiters)
    }

    /// How many wait for the key.
    pub fn length(&self, key: KeyRef<'_>) -> usize {
        self.queue(key).map_or(0, Queue::len)
    }

    /// The keys of a database that somebody waits for, longest wait first, each with the
    /// time since which the first in line has waited, in microseconds since 1970.
    pub fn contended_keys(&self, db: i32) -> impl Iterator<Item = (&KeyBuf, i64)> {
        let all = WaiterId::all_behind(db);
        self.firsts.range(all).filter_map(|(_, id)| {
            let key = self.by_id.get(id)?;
            Some((key, self.waiter(key.as_ref(), *id)?.since_us))
        })
    }

    /// Since when the one has waited that has waited longest.
    pub fn longest_since_us(&self) -> Option<i64> {
        let (id, key) = self.by_id.first_key_value()?;
        Some(self.waiter(key.as_ref(), *id)?.since_us)
    }

    /// The next of the key's waiters that has not been found to wait for long.
    pub fn next_not_slow(&self, key: KeyRef<'_>) -> Option<&Waiter> {
        self.queue(key)?.next_not_slow()
    }

    /// Notes that this waiter, and all before it, have been found to wait for long.
    pub fn note_slow(&mut self, key: KeyRef<'_>, id: WaiterId) {
        if let Some(queue) = self.queue_mut(key) {
            queue.note_slow(id);
        }
    }

    /// Has the key looked at again at `at_ms` or earlier, if anybody waits for it.
    pub fn recheck_by(&mut self, key: KeyRef<'_>, at_ms: i64) {
        #[cfg(feature = "planted-faults")]
        let at_ms = Fault::LooksLate.instead(at_ms, || at_ms + 500);
        let Some(queue) = self.by_key.get_mut(key.to_bytes().as_slice()) else {
            return;
        };
        let before_ms = queue.recheck_at_ms;
        if before_ms.is_none_or(|before_ms| at_ms < before_ms) {
            let mut look = (at_ms, queue.first.key.clone());
            queue.recheck_at_ms = Some(at_ms);
            self.rechecks.insert(look.clone());
            if let Some(before_ms) = before_ms {
                look.0 = before_ms;
                self.rechecks.remove(&look);
            }
        }
    }

    /// Has every key looked at that somebody waits for.
    pub fn recheck_all(&mut self) {
        self.round = (!self.is_empty()).then_some(Bound::Unbounded);
    }

    /// Whether a round is under way in which all keys are looked at.
    pub fn is_in_round(&self) -> bool {
        self.round.is_some()
    }

    /// The next key of that round.
    pub fn next_of_round(&self) -> Option<&KeyBuf> {
        let behind = (self.round.as_ref()?.as_ref(), Bound::Unbounded);
        let (key, _) = self.by_key.range::<KeyBuf, _>(behind).next()?;
        Some(key)
    }

    /// Takes it.
    pub fn take_next_of_round(&mut self) -> Option<KeyBuf> {
        let next = self.next_of_round().cloned();
        self.round = next.clone().map(Bound::Excluded);
        next
    }

    /// When the next planned look is due.
    pub fn next_recheck_ms(&self) -> Option<i64> {
        self.rechecks.first().map(|&(at_ms, _)| at_ms)
    }

    /// A key whose look is due at `now_ms`.
    pub fn next_due(&self, now_ms: i64) -> Option<&KeyBuf> {
        let (at_ms, key) = self.rechecks.first()?;
        (*at_ms <= now_ms).then_some(key)
    }

    /// Takes a key whose look is due at `now_ms`. Whoever rechecks plans the next one.
    pub fn take_due(&mut self, now_ms: i64) -> Option<KeyBuf> {
        self.next_due(now_ms)?;
        let (_, key) = self.rechecks.pop_first()?;
        if let Some(queue) = self.queue_mut(key.as_ref()) {
            queue.recheck_at_ms = None;
        }
        Some(key)
    }
}

#[cfg(feature = "planted-faults")]
impl WaitQueues {
    fn forget_second(&mut self, key: KeyRef<'_>, first: WaiterId) {
        let ids = self.waiters(key).map(|waiter| waiter.id);
        let ids: Vec<WaiterId> = ids.take(2).collect();
        if let [one, second] = ids[..]
            && one == first
            && Fault::WaiterDropped.strikes()
        {
            self.remove(key, second);
        }
    }
}

#[cfg(test)]
impl WaitQueues {
    /// Takes the first waiter.
    pub(crate) fn take_first(&mut self, key: KeyRef<'_>) -> Option<Waiter> {
        self.remove(key, self.first(key)?.id)
    }

    /// The first request for the lock all alone.
    pub(crate) fn first_exclusive(&self, key: KeyRef<'_>) -> Option<WaiterId> {
        let mut waiters = self.queue(key)?.waiters();
        let first = waiters.find(|waiter| waiter.request.limit == Limit::EXCLUSIVE);
        first.map(|waiter| waiter.id)
    }

    /// Takes the waiter of this owner.
    pub(crate) fn take_of(&mut self, key: KeyRef<'_>, owner: &Owner) -> Option<Waiter> {
        self.remove(key, self.waiter_of(key, owner)?.id)
    }

    /// Writes down what decides what will happen.
    pub(crate) fn take_down(&self, form: &mut Form<'_>) {
        for key in form.keys() {
            let queue = self.queue(key.as_ref());
            form.flag(queue.is_some());
            let Some(queue) = queue else { continue };
            form.count(queue.len());
            for waiter in queue.waiters() {
                form.waiter(Some(waiter.id));
                let request = &waiter.request;
                form.owner(&request.owner);
                form.number(request.lease.ms());
                form.hold(request.hold);
                form.number(request.limit.count_or_zero());
                form.client(request.session);
                form.client(Some(waiter.wait.client));
                form.flag(waiter.is_place());
                #[cfg(feature = "planted-faults")]
                form.time(Some(waiter.since_us / 1000));
            }
            form.time(self.recheck_at_ms(key.as_ref()));
            form.lock(&queue.seen);
        }
    }

    /// Whether all that is kept twice is the same.
    pub(crate) fn agree(&self) -> bool {
        let queues = || self.by_key.iter();
        let waiters = || queues().flat_map(|(_, queue)| queue.waiters());
        let rechecks: BTreeSet<_> = queues()
            .filter_map(|(key, queue)| Some((queue.recheck_at_ms?, key.clone())))
            .collect();
        let firsts: BTreeSet<_> = queues()
            .map(|(key, queue)| (key.db(), queue.first.id))
            .collect();
        self.rechecks == rechecks
            && waiters().count() == self.by_id.len()
            && firsts == self.firsts
            && waiters().filter(|waiter| waiter.is_place()).count() == self.places
            && self.agree_on_sessions()
            && self.waits.agree(waiters())
            && waiters().all(|waiter| self.by_id.get(&waiter.id) == Some(&waiter.key))
            && queues().all(|(key, queue)| {
                let all = || queue.waiters();
                let is_in_order = all().map(|waiter| waiter.id).is_sorted();
                let are_here = all().all(|waiter| waiter.key == *key);
                is_in_order && are_here
            })
    }

    fn agree_on_sessions(&self) -> bool {
        let queues = self.by_key.iter();
        let places = queues
            .flat_map(|(_, queue)| queue.waiters())
            .filter(|one| one.is_place());
        let with_session = places.filter_map(|one| Some((one.request.session?, one.id)));
        self.of_sessions == with_session.collect()
    }

    /// When a contended lock is looked at next.
    pub(crate) fn recheck_at_ms(&self, key: KeyRef<'_>) -> Option<i64> {
        let queue = self.queue(key)?;
        let is_ahead = self.round.as_ref().is_some_and(|round| {
            let behind = (round.as_ref(), Bound::Unbounded);
            RangeBounds::<KeyBuf>::contains(&behind, &queue.first.key)
        });
        match is_ahead {
            true => Some(0),
            false => queue.recheck_at_ms,
        }
    }
}

#[cfg(test)]
mod tests;
