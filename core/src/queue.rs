//! Who waits for which lock, in which order, and when to look again.
//!
//! `LOCK.ACQUIRE ... BLOCK` that finds the lock taken puts a [`Waiter`] at the end of the key's
//! queue. So does `QUEUE`, whose client does not block: it has a *place*, and what becomes of
//! that is published on a channel. A place belongs to its owner, and outlives the connection
//! that asked for it, unless that asked for a session. Nobody but the table ends it: it is over
//! when its time is, or its session's connection, whether or not it has been removed.
//!
//! # Order
//! First come, first served, for each lock by itself. A newcomer never passes a queue. An owner
//! stands for one thread of work, so it waits for a lock once: a later request of it takes the
//! earlier one over, with its position if the mode is the same.
//!
//! # When to look again
//! A lock can come free without a command of ours: its lease ends, or somebody deletes the key.
//! So each contended key has a time at which it is looked at again at the latest: at the end of
//! the lease and every so often before, "now" as soon as the server tells that something
//! happened to the key. That time is never moved back, so no look can come too late.
//!
//! # What it costs
//! Everything about one waiter or one key takes logarithmic time, however many wait. A queue
//! and its planned look go with its last waiter. To have all keys looked at again takes
//! constant time.

mod waiter;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
#[cfg(test)]
use std::ops::RangeBounds;

#[cfg(test)]
use crate::explore::form::Form;
use crate::keys::{AnyKey, KeyBuf, KeyRef};
use crate::lock::Lock;
#[cfg(feature = "planted-faults")]
use crate::planted::Fault;
use crate::request::{AcquireRequest, ClientId, Limit, Owner};

pub use waiter::{Addressee, Channel, Place, Wait, Waiter, WaiterId};

/// How many contended keys are looked at to list those with the longest waits.
const KEYS_LISTED_OF: usize = 10_000;

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

/// The queue of one lock, never empty.
#[derive(Clone, Debug)]
struct Queue {
    key: KeyBuf,
    ids: BTreeSet<WaiterId>,
    /// The last waiter that was logged as slow.
    slow: Option<WaiterId>,
    recheck_at_ms: Option<i64>,
    /// The lock as the last step has left it.
    seen: Lock,
}

impl Queue {
    fn of(key: KeyBuf) -> Box<Self> {
        Box::new(Self {
            key,
            ids: BTreeSet::new(),
            slow: None,
            recheck_at_ms: None,
            seen: Lock::default(),
        })
    }
}

/// All queues of a server. A key has one exactly while somebody waits for it.
#[derive(Clone, Debug, Default)]
pub struct WaitQueues {
    by_key: BTreeMap<KeyBuf, Box<Queue>>,
    /// All waiters, and so in the order in which they began to wait.
    by_id: BTreeMap<WaiterId, Box<Waiter>>,
    /// What each owner waits for.
    by_owner: BTreeMap<(Owner, KeyBuf), WaiterId>,
    /// Looks that are planned, at most one for each key. Its queue knows for when.
    rechecks: BTreeSet<(i64, KeyBuf)>,
    /// A round in which all keys are looked at goes on behind this key, the last one done.
    round: Option<Bound<KeyBuf>>,
    next_id: u64,
    places: usize,
    /// The places that end with each connection.
    of_sessions: BTreeSet<(ClientId, WaiterId)>,
    /// Comes before every key.
    no_key: KeyBuf,
}

impl WaitQueues {
    #[inline(always)]
    fn queue(&self, key: KeyRef<'_>) -> Option<&Queue> {
        // Mostly nobody waits for anything.
        (!self.is_empty()).then(|| self.find(key))?
    }

    fn find(&self, key: KeyRef<'_>) -> Option<&Queue> {
        self.by_key.get(&key as &dyn AnyKey).map(Box::as_ref)
    }

    #[inline(always)]
    fn queue_mut(&mut self, key: KeyRef<'_>) -> Option<&mut Queue> {
        (!self.is_empty()).then(|| self.find_mut(key))?
    }

    fn find_mut(&mut self, key: KeyRef<'_>) -> Option<&mut Queue> {
        let queue = self.by_key.get_mut(&key as &dyn AnyKey);
        queue.map(Box::as_mut)
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
        let known = self.queue(key).map(|queue| queue.key.clone());
        let key = known.unwrap_or_else(|| key.into());
        let id = self.new_id();
        let waiter = Box::new(Waiter {
            id,
            key: key.clone(),
            request,
            since_us,
            wait,
        });
        self.by_owner
            .insert((waiter.request.owner.clone(), key.clone()), id);
        let queue = self.by_key.entry(key.clone());
        queue.or_insert_with(|| Queue::of(key)).ids.insert(id);
        self.count_place(&waiter);
        self.by_id.insert(id, waiter);
        id
    }

    /// A new id. A client that waits for replicas alone gets one, too.
    pub fn new_id(&mut self) -> WaiterId {
        let id = WaiterId(self.next_id);
        self.next_id += 1;
        id
    }

    /// Removes a waiter that will not be served, if it still waits.
    pub fn remove(&mut self, id: WaiterId) -> Option<Waiter> {
        #[cfg(feature = "planted-faults")]
        self.forget_second(id);
        let waiter = *self.by_id.remove(&id)?;
        self.uncount_place(&waiter);
        self.by_owner
            .remove(&(waiter.request.owner.clone(), waiter.key.clone()));
        let queue = self.by_key.get_mut(&waiter.key)?;
        queue.ids.remove(&id);
        if queue.ids.is_empty() {
            if let Some(at_ms) = queue.recheck_at_ms {
                self.rechecks.remove(&(at_ms, waiter.key.clone()));
            }
            self.by_key.remove(&waiter.key);
            self.round.take_if(|_| self.by_key.is_empty());
        }
        Some(waiter)
    }

    /// The owner's waiter for this key.
    pub fn waiter_of(&self, key: KeyRef<'_>, owner: &Owner) -> Option<&Waiter> {
        let wait = (owner.clone(), self.queue(key)?.key.clone());
        self.waiter(*self.by_owner.get(&wait)?)
    }

    /// Another request of the same owner takes this waiter's position over. Returns the
    /// waiter as it was.
    pub fn take_over(
        &mut self,
        id: WaiterId,
        request: AcquireRequest,
        wait: Wait,
    ) -> Option<Waiter> {
        let mut waiter = self.by_id.remove(&id)?;
        let earlier = Waiter::clone(&waiter);
        self.uncount_place(&earlier);
        (waiter.request, waiter.wait) = (request, wait);
        self.count_place(&waiter);
        self.by_id.insert(id, waiter);
        Some(earlier)
    }

    fn count_place(&mut self, waiter: &Waiter) {
        if waiter.is_place() {
            self.places += 1;
            let session = waiter.request.session.map(|client| (client, waiter.id));
            self.of_sessions.extend(session);
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

    /// The first waiter.
    pub fn first(&self, key: KeyRef<'_>) -> Option<&Waiter> {
        let ids = &self.queue(key)?.ids;
        #[cfg(feature = "planted-faults")]
        if Fault::LastInFirstOut.planted() {
            return self.waiter(*ids.last()?);
        }
        self.waiter(*ids.first()?)
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
    pub fn waiter(&self, id: WaiterId) -> Option<&Waiter> {
        self.by_id.get(&id).map(Box::as_ref)
    }

    /// Whether another owner asks for the lock exclusively in front of `position`, or, without
    /// one, anywhere in the queue. Looks at `waits_left` waits at most, and counts them off.
    pub fn has_exclusive_before(
        &self,
        key: KeyRef<'_>,
        owner: &Owner,
        position: Option<WaiterId>,
        waits_left: &Cell<usize>,
    ) -> bool {
        let may_look = |one: &&Waiter| {
            let left = waits_left.get();
            waits_left.set(left.saturating_sub(1));
            left > 0 && position.is_none_or(|position| one.id < position)
        };
        let mut others = self.waiters(key).take_while(may_look);
        others.any(|one| one.request.owner != *owner && one.request.limit == Limit::EXCLUSIVE)
    }

    /// All that this owner waits for.
    pub fn waits_of<'q>(&'q self, owner: &'q Owner) -> impl Iterator<Item = &'q Waiter> {
        let first = (owner.clone(), self.no_key.clone());
        let from_first = self.by_owner.range(first..);
        let of_owner = from_first.take_while(move |((one, _), _)| one == owner);
        of_owner.filter_map(|(_, id)| self.waiter(*id))
    }

    /// The key's waiters, in order.
    pub fn waiters(&self, key: KeyRef<'_>) -> impl Iterator<Item = &Waiter> {
        let ids = self.queue(key).map(|queue| &queue.ids);
        ids.into_iter().flatten().filter_map(|id| self.waiter(*id))
    }

    /// How many wait for the key.
    pub fn length(&self, key: KeyRef<'_>) -> usize {
        self.queue(key).map_or(0, |queue| queue.ids.len())
    }

    /// The keys of a database that somebody waits for, longest wait first as far as a look
    /// shows, each with the first in line.
    pub fn contended_keys(&self, db: i32) -> Vec<&Waiter> {
        let first = KeyBuf::from(KeyRef { db, name: b"" });
        let from_first = self.by_key.range(first..);
        let of_db = from_first.take_while(|(key, _)| key.as_ref().db == db);
        let looked_at = of_db.take(KEYS_LISTED_OF);
        let firsts = looked_at.filter_map(|(_, queue)| self.waiter(*queue.ids.first()?));
        let mut firsts: Vec<_> = firsts.collect();
        firsts.sort_unstable_by_key(|first| first.id);
        firsts
    }

    /// Who has waited longest.
    pub fn longest(&self) -> Option<&Waiter> {
        self.by_id.values().next().map(Box::as_ref)
    }

    /// The key's first waiter that is not logged as slow yet.
    pub fn next_not_slow(&self, key: KeyRef<'_>) -> Option<&Waiter> {
        let queue = self.queue(key)?;
        let behind = queue.slow.map_or(Bound::Unbounded, Bound::Excluded);
        self.waiter(*queue.ids.range((behind, Bound::Unbounded)).next()?)
    }

    /// Notes that this waiter, and so all before it, have been logged as slow.
    pub fn note_slow(&mut self, key: KeyRef<'_>, id: WaiterId) {
        if let Some(queue) = self.queue_mut(key) {
            queue.slow = Some(id);
        }
    }

    /// Has the key looked at again at `at_ms` or earlier, if anybody waits for it.
    pub fn recheck_by(&mut self, key: KeyRef<'_>, at_ms: i64) {
        #[cfg(feature = "planted-faults")]
        let at_ms = Fault::LooksLate.instead(at_ms, || at_ms + 500);
        let Some(queue) = self.by_key.get_mut(&key as &dyn AnyKey) else {
            return;
        };
        if queue
            .recheck_at_ms
            .is_some_and(|before_ms| before_ms <= at_ms)
        {
            return;
        }
        if let Some(before_ms) = queue.recheck_at_ms.replace(at_ms) {
            self.rechecks.remove(&(before_ms, queue.key.clone()));
        }
        self.rechecks.insert((at_ms, queue.key.clone()));
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

    /// Takes a key whose look is due at `now_ms`. That look plans the next one.
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
    fn forget_second(&mut self, first: WaiterId) {
        let key = self.waiter(first).map(|first| first.key.clone());
        let queue = key.as_ref().and_then(|key| self.by_key.get(key));
        let ids = queue.into_iter().flat_map(|queue| &queue.ids).copied();
        let ids: Vec<WaiterId> = ids.take(2).collect();
        if let [one, second] = ids[..]
            && one == first
            && Fault::WaiterDropped.strikes()
        {
            self.remove(second);
        }
    }
}

#[cfg(test)]
impl WaitQueues {
    /// Takes the first waiter.
    pub(crate) fn take_first(&mut self, key: KeyRef<'_>) -> Option<Waiter> {
        self.remove(self.first(key)?.id)
    }

    /// The first request for the lock all alone.
    pub(crate) fn first_exclusive(&self, key: KeyRef<'_>) -> Option<WaiterId> {
        let mut waiters = self.waiters(key);
        let first = waiters.find(|waiter| waiter.request.limit == Limit::EXCLUSIVE);
        first.map(|waiter| waiter.id)
    }

    /// Takes the waiter of this owner.
    pub(crate) fn take_of(&mut self, key: KeyRef<'_>, owner: &Owner) -> Option<Waiter> {
        self.remove(self.waiter_of(key, owner)?.id)
    }

    /// Adds to a form of the state all that can influence a later step.
    pub(crate) fn take_down(&self, form: &mut Form<'_>) {
        for key in form.keys() {
            let queue = self.queue(key.as_ref());
            form.flag(queue.is_some());
            let Some(queue) = queue else { continue };
            form.count(queue.ids.len());
            for waiter in self.waiters(key.as_ref()) {
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

    /// Returns whether all that is kept twice agrees.
    pub(crate) fn agree(&self) -> bool {
        let queues = || self.by_key.iter();
        let waiters = || self.by_id.iter();
        let rechecks =
            queues().filter_map(|(key, queue)| Some((queue.recheck_at_ms?, key.clone())));
        let ids = queues().flat_map(|(key, queue)| queue.ids.iter().map(move |id| (*id, key)));
        let by_owner = waiters().map(|(id, one)| ((&one.request.owner, &one.key), id));
        let places = || waiters().filter(|(_, one)| one.is_place());
        let sessions = places().filter_map(|(id, one)| Some((one.request.session?, *id)));
        self.rechecks == rechecks.collect()
            && ids.collect::<BTreeMap<_, _>>()
                == waiters().map(|(id, one)| (*id, &one.key)).collect()
            && queues().all(|(key, queue)| *key == queue.key && !queue.ids.is_empty())
            && waiters().all(|(id, one)| *id == one.id)
            && by_owner.collect::<BTreeMap<_, _>>()
                == self
                    .by_owner
                    .iter()
                    .map(|((owner, key), id)| ((owner, key), id))
                    .collect()
            && places().count() == self.places
            && sessions.collect::<BTreeSet<_>>() == self.of_sessions
    }

    /// When a contended lock is looked at next.
    pub(crate) fn recheck_at_ms(&self, key: KeyRef<'_>) -> Option<i64> {
        let queue = self.queue(key)?;
        let is_ahead = self.round.as_ref().is_some_and(|round| {
            let behind = (round.as_ref(), Bound::Unbounded);
            RangeBounds::<KeyBuf>::contains(&behind, &queue.key)
        });
        match is_ahead {
            true => Some(0),
            false => queue.recheck_at_ms,
        }
    }
}

#[cfg(test)]
mod tests;
