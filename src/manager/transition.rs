//! One change of one lock, from reading it to telling those whom it concerns.

use std::rc::Rc;

use smallvec::SmallVec;

use super::alarm::{HOOKS, listen_while_needed, plan_ring};
use super::{Reason, STATE, State, unsigned};
use crate::config::{self, RedissonNotify};
use crate::error::LockError;
use crate::lock::deadlock::{self, Link};
#[cfg(feature = "planted-faults")]
use crate::lock::planted::Fault;
use crate::lock::record::{Acquired, Effects, Holder, Lock, Now};
use crate::lock::request::{AcquireRequest, ClientId, Owner};
use crate::lock::waiters::{KeyBuf, KeyRef, NotedHolder, Waiter};
use crate::server::blocked::{Answer, Grant, Ticket};
use crate::server::clients;
use crate::server::clock;
use crate::server::keyspace::LockKey;
use crate::server::notifications::{self, Happening};
use crate::server::open_lock::OpenLock;
use crate::server::publish;

/// One change of one lock, from reading it to telling those whom it concerns.
pub(super) struct Transition<'c> {
    key: LockKey<'c>,
    pub(super) now: Now,
    open: OpenLock<'c>,
    pub(super) lock: Lock,
    pub(super) effects: Effects,
    answers: Vec<(Rc<Ticket>, Answer)>,
    /// Its last holder gave it back, or was made to.
    pub(super) freed: bool,
    pub(super) happenings: SmallVec<[Happening; 2]>,
}

impl<'c> Transition<'c> {
    /// Reads the lock. `asker` is the owner in question, if there is one.
    pub(super) fn begin(key: LockKey<'c>, asker: Option<&Owner>) -> Result<Self, LockError> {
        let open = key.open();
        let mut lock = open.read(asker)?;
        let (now, mut effects) = (clock::now(), Effects::new());
        let expired = count_ends(key.as_ref(), &mut lock, now, &mut effects);
        Ok(Self {
            key,
            now,
            open,
            lock,
            effects,
            answers: Vec::new(),
            freed: false,
            happenings: std::iter::repeat_n(Happening::Expired, expired).collect(),
        })
    }

    pub(super) fn owners(&self) -> SmallVec<[Owner; 1]> {
        let holders = self.lock.holders().iter();
        holders.map(|holder| holder.owner.clone()).collect()
    }

    pub(super) fn count_release(&mut self, held: &Holder, reason: Reason) {
        self.freed = self.lock.is_free();
        self.happenings.push(Happening::Released);
        let key = self.key.as_ref();
        STATE.with_borrow_mut(|state| {
            state.sessions.untie(key, &held.owner);
            let metrics = &mut state.metrics;
            match reason {
                Reason::Released => metrics.releases += 1,
                Reason::Session => metrics.releases_session += 1,
                Reason::Undelivered => metrics.grants_undelivered += 1,
            }
            // A token is the wall clock of its grant, as long as that runs forward.
            if let Some(fence) = held.fence {
                metrics.holds.add(self.now.us - fence.get());
            }
        });
    }

    /// Grants the lock to a newcomer, or one hold more of it to a holder, if that
    /// is possible now.
    pub(super) fn try_grant(
        &mut self,
        state: &mut State,
        request: &AcquireRequest,
    ) -> Result<Option<Grant>, LockError> {
        let in_turn = !state.queues.contended(self.key.as_ref());
        let Some((grant, is_new)) = self.grant(state, request, in_turn)? else {
            return Ok(None);
        };
        if is_new {
            state.metrics.grants_immediate += 1;
        } else {
            state.metrics.reentries += 1;
        }
        Ok(Some(grant))
    }

    /// Says with the grant whether it made a new holder.
    fn grant(
        &mut self,
        state: &mut State,
        request: &AcquireRequest,
        in_turn: bool,
    ) -> Result<Option<(Grant, bool)>, LockError> {
        let holds = |lock: &Lock| lock.holder(&request.owner).map(|holder| holder.holds);
        let held_before = holds(&self.lock);
        let acquired = self.lock.acquire(
            request,
            in_turn,
            self.now,
            &mut state.fences,
            &mut self.effects,
        )?;
        let Acquired::Granted(fence) = acquired else {
            return Ok(None);
        };
        if held_before == holds(&self.lock) {
            state.confirmations += 1;
        }
        let is_new = held_before.is_none();
        if is_new {
            self.happenings.push(Happening::Acquired);
        }
        if let Some(client) = request.session {
            let (key, now_ms) = (self.key.as_ref(), self.now.ms());
            state
                .sessions
                .tie(key, &request.owner, client, fence, request.lease, now_ms);
        }
        let grant = Grant {
            fence,
            confirmations: state.confirmations,
        };
        Ok(Some((grant, is_new)))
    }

    /// Puts a request at the end of the queue, unless its wait could never end.
    pub(super) fn enqueue(&mut self, request: AcquireRequest) -> Result<Rc<Ticket>, LockError> {
        if config::deadlock_detection()
            && let Some(cycle) = self.deadlock_of(&request.owner)
        {
            let cycle = deadlock::spell(&cycle);
            self.key
                .ctx()
                .log_notice(&format!("deadlock refused: {cycle}"));
            STATE.with_borrow_mut(|state| state.metrics.deadlocks_refused += 1);
            return Err(LockError::Deadlock { cycle });
        }
        let key = self.key.as_ref();
        let owner = request.owner.clone();
        STATE.with_borrow_mut(|state| {
            let (ctx, now_us, max) = (self.key.ctx(), self.now.us, config::max_waiters());
            let queued = state.queues.push(key, request, now_us, max, |id| {
                Ticket::new(ctx, id, key.into(), owner, HOOKS)
            });
            if queued.is_err() {
                state.metrics.queues_full += 1;
            }
            self.plan_look(state);
            queued
        })
    }

    /// The cycle of waits that would close if this owner queued here.
    fn deadlock_of(&self, owner: &Owner) -> Option<Vec<Link>> {
        #[cfg(feature = "planted-faults")]
        if Fault::DeadlockMissed.planted() {
            return None;
        }
        let key = self.key.as_ref();
        loop {
            let holders = self.lock.holders().iter().map(|holder| &holder.owner);
            let cycle =
                STATE.with_borrow(|state| deadlock::find(&state.queues, key, holders, owner))?;
            // Who holds the other locks is known from the last look at them,
            // and may not be true any more.
            let is_news = |link: &Link| link.key.as_ref() != key && self.look_who_holds(&link.key);
            if !cycle.iter().any(is_news) {
                return Some(cycle);
            }
        }
    }

    /// Notes who holds another lock now. Says whether that is news.
    fn look_who_holds(&self, other: &KeyBuf) -> bool {
        let now = self.now;
        let lock = self
            .key
            .with_other(other.as_ref(), |key| key.open().read(None));
        let mut lock = lock.unwrap_or_default();
        count_ends(other.as_ref(), &mut lock, now, &mut Effects::new());
        let holders = lock.holders().iter();
        STATE.with_borrow_mut(|state| state.queues.note_holders(other.as_ref(), holders))
    }

    /// Serves everyone in the queue who may have the lock as it is now: whoever
    /// asked as one of its holders, and as many from the front as it admits.
    pub(super) fn hand_on(&mut self, state: &mut State) {
        let key = self.key.as_ref();
        if !state.queues.contended(key) {
            return;
        }
        #[cfg(feature = "planted-faults")]
        if Fault::HandOffSkipped.planted() {
            return;
        }
        for owner in self.owners() {
            self.serve_requests_of(state, &owner);
        }
        while let Some(first) = state.queues.first(key)
            && self.lock.admits(first.request.limit)
            && let Some(waiter) = state.queues.take_first(key)
        {
            let owner = waiter.request.owner.clone();
            self.serve(state, waiter);
            self.serve_requests_of(state, &owner);
        }
        self.plan_look(state);
    }

    /// Serves the waiting requests of an owner that may hold the lock.
    fn serve_requests_of(&mut self, state: &mut State, owner: &Owner) {
        let key = self.key.as_ref();
        // The queue is asked first: it knows its owners, the lock looks for them.
        while state.queues.first_id_of(key, owner).is_some()
            && self.lock.holder(owner).is_some()
            && let Some(waiter) = state.queues.take_first_of(key, owner)
        {
            self.serve(state, waiter);
        }
    }

    fn serve(&mut self, state: &mut State, waiter: Waiter<Rc<Ticket>>) {
        let answer = match self.grant(state, &waiter.request, true) {
            Ok(Some((grant, is_new))) => {
                state.metrics.grants_after_wait += 1;
                state.metrics.hand_offs += u64::from(is_new);
                state.metrics.waits.add(self.now.us - waiter.since_us);
                Answer::Granted(grant)
            }
            Ok(None) => return,
            Err(error) => {
                state.metrics.waits_refused += 1;
                Answer::Refused(error)
            }
        };
        self.answers.push((waiter.ticket, answer));
    }

    /// Plans the next look at this lock, if anybody waits for it.
    fn plan_look(&self, state: &mut State) {
        let key = self.key.as_ref();
        let regular_ms = self.now.ms() + config::recheck_interval_ms();
        // The server takes a key for expired one millisecond after its time.
        let lease_end_ms = self.lock.next_lease_end_ms();
        let at_ms = lease_end_ms.map_or(regular_ms, |end_ms| regular_ms.min(end_ms + 1));
        let at_ms = self
            .log_slow_waits(state)
            .map_or(at_ms, |slow_ms| at_ms.min(slow_ms));
        state.queues.look_by(key, at_ms);
        state.queues.note_holders(key, self.lock.holders().iter());
    }

    /// Logs each wait that has become a long one. Says when the next will have,
    /// in milliseconds since 1970.
    fn log_slow_waits(&self, state: &mut State) -> Option<i64> {
        let slow_ms = config::log_slow_wait_ms()?;
        let key = self.key.as_ref();
        while let Some(waiter) = state.queues.next_not_slow(key) {
            let waited_ms = (self.now.us - waiter.since_us) / 1000;
            if waited_ms < slow_ms {
                return Some(self.now.ms() + slow_ms - waited_ms);
            }
            let holders: Vec<String> = self
                .lock
                .holders()
                .iter()
                .map(|holder| {
                    let owner = holder.owner.as_bytes().escape_ascii();
                    let tie = state.sessions.tie_of(key, &holder.owner);
                    match tie.map(|tie| tie.client) {
                        Some(client) => format!("'{owner}' (client {})", describe(client)),
                        None => format!("'{owner}'"),
                    }
                })
                .collect();
            self.key.ctx().log_notice(&format!(
                "slow wait: '{}' (client {}) has waited {waited_ms} ms for '{}' in database {}, \
                 held by {}",
                waiter.request.owner.as_bytes().escape_ascii(),
                describe(waiter.ticket.client),
                key.name.escape_ascii(),
                key.db,
                holders.join(", "),
            ));
            let id = waiter.ticket.id;
            state.queues.note_slow(key, id);
        }
        None
    }

    pub(super) fn hand_on_and_commit(mut self) {
        STATE.with_borrow_mut(|state| self.hand_on(state));
        self.commit();
    }

    pub(super) fn commit(self) {
        let Self {
            key,
            now,
            mut open,
            lock,
            effects,
            answers,
            freed,
            happenings,
        } = self;
        open.apply(&effects);
        drop(open);
        if freed && lock.is_free() {
            match config::redisson_notify() {
                RedissonNotify::No => {}
                RedissonNotify::Publish => publish::release_to_redisson(key, "PUBLISH"),
                RedissonNotify::Spublish => publish::release_to_redisson(key, "SPUBLISH"),
            }
        }
        for happening in happenings {
            notifications::tell(key, happening);
        }
        listen_while_needed(key.ctx());
        plan_ring(key.ctx(), now.ms());
        for (ticket, answer) in answers {
            ticket.answer(answer);
        }
    }
}

/// Ends the leases that are over, and counts those holders and the ones that
/// were noted at the last look and are gone. The caller notes who holds the
/// lock now. Says how many leases were over.
fn count_ends(key: KeyRef<'_>, lock: &mut Lock, now: Now, effects: &mut Effects) -> usize {
    STATE.with_borrow_mut(|state| {
        // Who is still there is mostly in the same order, so that nobody need
        // be searched among many.
        let holders = lock.holders();
        let mut next = 0;
        let mut is_gone = |noted: &&NotedHolder| {
            let is_it = |holder: &Holder| holder.owner == noted.owner;
            let at = match holders.get(next).is_some_and(is_it) {
                true => Some(next),
                false => holders.iter().position(is_it),
            };
            next = at.map_or(next, |at| at + 1);
            at.is_none()
        };
        let noted = state.queues.holders(key).iter();
        let gone: SmallVec<[Option<i64>; 1]> = noted
            .filter(|noted| is_gone(noted))
            .map(|noted| noted.lease_end_ms)
            .collect();
        let over = |end: &&Option<i64>| end.is_some_and(|end_ms| end_ms <= now.ms());
        let vanished = gone.iter().filter(over).count();
        let expired = lock.end_leases(now, effects) + vanished;
        state.metrics.releases_expired += unsigned(expired);
        state.metrics.releases_deleted += unsigned(gone.len() - vanished);
        expired
    })
}

/// A client, as the log names it.
fn describe(client: ClientId) -> String {
    let address = clients::address(client).unwrap_or_default();
    format!("id={} addr={address}", client.0)
}
