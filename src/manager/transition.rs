//! One change of one lock, from reading it to telling those whom it concerns.

use std::rc::Rc;

use smallvec::SmallVec;

use super::alarm::{HOOKS, plan_ring};
use super::{STATE, State, end_connection, unsigned};
use crate::config::{self, RedissonNotify};
use crate::error::LockError;
use crate::lock::deadlock::{self, Certain, Link, Wait};
use crate::lock::deliveries::{Delivery, Told};
use crate::lock::ended::{Ended, EndedBy};
use crate::lock::fence::Fence;
#[cfg(feature = "planted-faults")]
use crate::lock::planted::Fault;
use crate::lock::record::{Acquired, Effects, Holder, Lock, Now};
use crate::lock::request::{AcquireRequest, ClientId, Owner, ReleaseRequest};
use crate::lock::sessions::Place;
use crate::lock::waiters::{KeyBuf, KeyRef, NotedHolder, Waiter, WaiterId};
use crate::server::acl::User;
use crate::server::blocked::{Answer, Ticket};
use crate::server::clients;
use crate::server::clock;
use crate::server::keyspace::{self, LockKey};
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
    /// Reads the lock, and ends what is over. `asker` is the owner in question,
    /// if there is one.
    pub(super) fn begin(key: LockKey<'c>, asker: Option<&Owner>) -> Result<Self, LockError> {
        let open = key.open();
        let mut lock = match open.read(asker) {
            Ok(lock) => lock,
            Err(error) => {
                // It is no lock any more: nothing is left to be ended.
                forget_ended(key.as_ref());
                return Err(error);
            }
        };
        let (now, mut effects) = (clock::now(), Effects::new());
        let expired = count_ends(key.as_ref(), &mut lock, now, &mut effects);
        let mut transition = Self {
            key,
            now,
            open,
            lock,
            effects,
            answers: Vec::new(),
            freed: false,
            happenings: std::iter::repeat_n(Happening::Expired, expired).collect(),
        };
        transition.end_what_is_over();
        Ok(transition)
    }

    fn end_what_is_over(&mut self) {
        let key = self.key.as_ref();
        for ended in STATE.with_borrow_mut(|state| state.ended.take(key)) {
            self.end(&ended);
        }
    }

    fn end(&mut self, ended: &Ended) {
        let place = place_of(self.key.as_ref(), &ended.owner);
        let held = self.lock.holder(&ended.owner).cloned();
        let held = held.filter(|held| held.fence == Some(ended.fence));
        let holds = held.as_ref().map_or(0, |held| held.holds);
        let left = STATE.with_borrow_mut(|state| state.deliveries.end(&place, ended, holds));
        let Some(held) = held else {
            return;
        };
        self.lock.leave(&ended.owner, left, &mut self.effects);
        if left == 0 {
            self.count_release(&held, Some(ended.by));
        }
    }

    /// Ends the owner's holds if they are tied to another connection that is
    /// about to end: nobody shall be told of a hold that ends with it.
    pub(super) fn end_if_closing(&mut self, owner: &Owner) {
        let (key, ctx) = (self.key.as_ref(), self.key.ctx());
        let tied = STATE.with_borrow(|state| state.sessions.tie_of(key, owner));
        let Some(client) = tied.map(|tie| tie.client) else {
            return;
        };
        if client == clients::running(ctx) || !clients::is_closing(ctx, client) {
            return;
        }
        STATE.with_borrow_mut(|state| end_connection(state, client, false));
        self.end_what_is_over();
    }

    pub(super) fn owners(&self) -> SmallVec<[Owner; 1]> {
        let holders = self.lock.holders().iter();
        holders.map(|holder| holder.owner.clone()).collect()
    }

    /// Counts that an owner's last hold is over, and why: for no reason but that it
    /// gave it back, or because of this.
    pub(super) fn count_release(&mut self, held: &Holder, ended_by: Option<EndedBy>) {
        self.freed = self.lock.is_free();
        self.happenings.push(Happening::Released);
        let key = self.key.as_ref();
        STATE.with_borrow_mut(|state| {
            state.sessions.untie(key, &held.owner);
            let place = || place_of(key, &held.owner);
            let metrics = &mut state.metrics;
            match ended_by {
                None => metrics.releases += 1,
                Some(EndedBy::Session) => metrics.releases_session += 1,
                Some(EndedBy::Undelivered) => metrics.grants_undelivered += 1,
            }
            // A token is the wall clock of its grant, as long as that runs forward.
            if let Some(fence) = held.fence {
                metrics.holds.add(self.now.us - fence.get());
            }
            state.deliveries.ended(place);
        });
    }

    /// Notes that an owner gave one hold back and has others.
    pub(super) fn note_release(&self, request: &ReleaseRequest) {
        let place = || place_of(self.key.as_ref(), &request.owner);
        let holder = self.lock.holder(&request.owner);
        let left = holder.map_or(0, |holder| holder.holds);
        let told = Told::by_release(request.extent);
        STATE.with_borrow_mut(|state| {
            state.deliveries.released(place, told, left);
        });
    }

    /// Grants the lock to a newcomer, or one hold more of it to a holder, if that
    /// is possible now.
    pub(super) fn try_grant(
        &mut self,
        state: &mut State,
        request: &AcquireRequest,
    ) -> Result<Option<Fence>, LockError> {
        let in_turn = !state.queues.contended(self.key.as_ref());
        let Some((fence, held_before)) = self.grant(state, request, in_turn)? else {
            return Ok(None);
        };
        if held_before == 0 {
            state.metrics.grants_immediate += 1;
        } else {
            state.metrics.reentries += 1;
        }
        let place = || place_of(self.key.as_ref(), &request.owner);
        state.deliveries.told(place, Told::by_grant(request.hold));
        Ok(Some(fence))
    }

    /// Returns with the token how many holds the owner had before.
    fn grant(
        &mut self,
        state: &mut State,
        request: &AcquireRequest,
        in_turn: bool,
    ) -> Result<Option<(Fence, i64)>, LockError> {
        let held_before = self.holds_of(&request.owner);
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
        if held_before == 0 {
            self.happenings.push(Happening::Acquired);
        }
        let (key, owner, lease) = (self.key.as_ref(), &request.owner, request.lease);
        let now_ms = self.now.ms();
        if let Some(client) = request.session {
            let old = state.sessions.tie_of(key, owner);
            state.sessions.tie(key, owner, client, fence, lease, now_ms);
            // A lease of it ended before anybody noticed.
            state.doomed.extend(
                old.filter(|old| {
                    old.client != client && old.fence != fence && old.kept_until_ms <= now_ms
                })
                .map(|old| old.client),
            );
        } else {
            state
                .sessions
                .last_until(key, owner, fence, lease.end_ms(now_ms));
        }
        Ok(Some((fence, held_before)))
    }

    fn holds_of(&self, owner: &Owner) -> i64 {
        self.lock.holder(owner).map_or(0, |holder| holder.holds)
    }

    /// Puts a request at the end of the queue, unless its wait could never end.
    pub(super) fn enqueue(&mut self, request: AcquireRequest) -> Result<Rc<Ticket>, LockError> {
        let (key, ctx) = (self.key.as_ref(), self.key.ctx());
        let verdict = self.deadlock(&Wait {
            owner: &request.owner,
            key,
            limit: request.limit,
            place: None,
        });
        if let Verdict::Deadlock(cycle) = verdict {
            return Err(self.refuse_deadlock(&cycle, &User::running(ctx)));
        }
        STATE.with_borrow_mut(|state| {
            let (now_us, max) = (self.now.us, config::max_waiters());
            let queued = state.queues.push(key, request, now_us, max, |id| {
                Ticket::new(ctx, id, key.into(), HOOKS)
            });
            match &queued {
                Ok(ticket) if verdict == Verdict::Uncertain => {
                    state.unchecked.push_back((key.into(), ticket.id));
                }
                Ok(_) => {}
                Err(_) => state.metrics.queues_full += 1,
            }
            self.plan_look(state);
            queued
        })
    }

    /// Refuses a wait that closed a cycle, if it still does and can now be told.
    pub(super) fn check_wait(&mut self, id: WaiterId) {
        let key = self.key.as_ref();
        let waits = STATE.with_borrow(|state| {
            let waiter = state.queues.waiter(key, id)?;
            Some((waiter.request.clone(), Rc::clone(&waiter.ticket)))
        });
        let Some((request, ticket)) = waits else {
            return;
        };
        let verdict = self.deadlock(&Wait {
            owner: &request.owner,
            key,
            limit: request.limit,
            place: Some(id),
        });
        if let Verdict::Deadlock(cycle) = verdict {
            let user = User::of(self.key.ctx(), ticket.client);
            let error = self.refuse_deadlock(&cycle, &user);
            STATE.with_borrow_mut(|state| state.queues.remove(key, id));
            self.answers.push((ticket, Answer::Refused(error)));
        }
    }

    fn refuse_deadlock(&self, cycle: &[Link], user: &User) -> LockError {
        let all = deadlock::spell(cycle, |_| true);
        self.key
            .ctx()
            .log_notice(&format!("deadlock refused: {all}"));
        STATE.with_borrow_mut(|state| state.metrics.deadlocks_refused += 1);
        LockError::Deadlock {
            cycle: deadlock::spell(cycle, |key| user.may_read(key.name)),
        }
    }

    /// Whether this wait would never end.
    fn deadlock(&self, wait: &Wait<'_>) -> Verdict {
        let nobody_waits = STATE.with_borrow(|state| state.queues.is_empty());
        if nobody_waits || !config::deadlock_detection() {
            return Verdict::NoDeadlock;
        }
        #[cfg(feature = "planted-faults")]
        if Fault::DeadlockMissed.planted() {
            return Verdict::NoDeadlock;
        }
        let mut certain = Certain::new();
        let here: KeyBuf = wait.key.into();
        certain.insert(here, deadlock::holders_of(self.lock.holders()));
        loop {
            let found = STATE.with_borrow(|state| deadlock::find(&state.queues, *wait, &certain));
            let Some(cycle) = found else {
                return Verdict::NoDeadlock;
            };
            // Who holds the other locks is known from the last look at them,
            // and may not be true any more.
            let keys = cycle.iter().map(|link| &link.key);
            let unseen: Vec<&KeyBuf> = keys.filter(|key| !certain.contains_key(*key)).collect();
            if unseen.is_empty() {
                return Verdict::Deadlock(cycle);
            }
            if wait.place.is_none() && keyspace::in_cluster(self.key.ctx()) {
                // A command can't read keys of other slots.
                return Verdict::Uncertain;
            }
            for key in unseen {
                certain.insert(key.clone(), self.holders_of_other(key));
            }
        }
    }

    /// Who holds another lock now. If that is news, it is looked at soon.
    fn holders_of_other(&self, other: &KeyBuf) -> deadlock::Holders {
        let (now, other) = (self.now, other.as_ref());
        let lock = self
            .key
            .with_other(other, |key| key.open_to_read().read(None));
        let mut lock = lock.unwrap_or_default();
        STATE.with_borrow(|state| end_in_view(state, other, &mut lock, now));
        let holders = deadlock::holders_of(lock.holders());
        STATE.with_borrow_mut(|state| {
            let noted = state.queues.holders(other).iter().map(|noted| &noted.owner);
            if !noted.eq(holders.iter().map(|(owner, _)| owner)) {
                state.queues.look_by(other, now.ms());
            }
        });
        holders
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
        let request = &waiter.request;
        let tied = state.sessions.tie_of(self.key.as_ref(), &request.owner);
        let answer = match self.grant(state, request, true) {
            Ok(Some((fence, held_before))) => {
                state.metrics.grants_after_wait += 1;
                state.metrics.hand_offs += u64::from(held_before == 0);
                state.metrics.waits.add(self.now.us - waiter.since_us);
                let place = place_of(self.key.as_ref(), &request.owner);
                let delivery = Delivery {
                    client: waiter.ticket.client,
                    hold: request.hold,
                    session: request.session.map(|_| request.lease),
                    tied_before: tied.filter(|tie| tie.fence == fence).map(|tie| tie.client),
                };
                let holds = self.holds_of(&request.owner);
                state
                    .deliveries
                    .send(place, fence, delivery, held_before, holds);
                Answer::Granted(fence)
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
        let at_ms = lease_end_ms.map_or(regular_ms, |end_ms| {
            regular_ms.min(end_ms.saturating_add(1))
        });
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
        plan_ring(key.ctx(), now.ms());
        for (ticket, answer) in answers {
            ticket.answer(answer);
        }
    }
}

/// What a search for deadlocks says of a wait.
#[derive(PartialEq, Eq)]
enum Verdict {
    NoDeadlock,
    /// It closes this cycle.
    Deadlock(Vec<Link>),
    /// It may close one; there is no telling before other keys can be read.
    Uncertain,
}

/// An owner's holds on a lock.
pub(super) fn place_of(key: KeyRef<'_>, owner: &Owner) -> Place {
    Place {
        key: key.into(),
        owner: owner.clone(),
    }
}

/// Leaves out of a copy what is over and is still stored.
pub(super) fn end_in_view(state: &State, key: KeyRef<'_>, lock: &mut Lock, now: Now) {
    let unwritten = &mut Effects::new();
    lock.end_leases(now, unwritten);
    for ended in state.ended.of(key) {
        let held = lock.holder(&ended.owner);
        let Some(held) = held.filter(|held| held.fence == Some(ended.fence)) else {
            continue;
        };
        let place = place_of(key, &ended.owner);
        let left = state.deliveries.left(&place, ended, held.holds);
        lock.leave(&ended.owner, left, unwritten);
    }
}

/// Forgets what has ended of a key that this server can't or need not write to.
pub(super) fn forget_ended(key: KeyRef<'_>) {
    STATE.with_borrow_mut(|state| {
        for ended in state.ended.take(key) {
            let place = place_of(key, &ended.owner);
            state.deliveries.end(&place, &ended, 0);
        }
    });
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
