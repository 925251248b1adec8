//! The lock manager: the one place where a transition is decided, written,
//! replicated and handed on.
//!
//! Every road to a lock leads here: the commands, the alarm that rings at a
//! lease's end, a key that somebody else deleted, a client that was gone
//! before it heard of its grant. Each becomes one [`Transition`]: read what is
//! stored, decide, let the waiters have what came free, write it all as one
//! unit, then tell those who got the lock.
//!
//! Architecture invariant: the remembered state (queues, token clock) never
//! says who holds a lock; the stored hash alone does. What is remembered can
//! therefore be lost, in a restart or a fail-over, without two owners ever
//! holding one lock.
//!
//! Architecture invariant: the state is never borrowed while the server is
//! called. The server calls back from within, for example with the `expired`
//! event of the key that is being opened.

pub(crate) mod inspect;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use redis_module::Context;
use smallvec::SmallVec;

use crate::config::{self, RedissonNotify};
use crate::error::LockError;
use crate::lock::deadlock::{self, Link};
use crate::lock::fence::{Fence, FenceClock};
use crate::lock::metrics::Metrics;
#[cfg(feature = "planted-faults")]
use crate::lock::planted::Fault;
use crate::lock::record::{Acquired, Effects, Holder, Lock, Now, Released};
use crate::lock::request::{
    AcquireRequest, ClientId, Owner, ReleaseExtent, ReleaseRequest, RenewRequest, Timeout,
};
use crate::lock::sessions::{Place, Sessions, Tie};
use crate::lock::waiters::{KeyBuf, KeyRef, WaitQueues, Waiter};
use crate::server::blocked::{self, Answer, Grant, Hooks, Leave, Ticket};
use crate::server::clients;
use crate::server::clock;
use crate::server::keyspace::{self, LockKey};
use crate::server::notifications::{self, Happening};
use crate::server::open_lock::OpenLock;
use crate::server::publish;
use crate::server::subscriptions::{self, ConnectionEvents};
use crate::server::timer;

/// How soon to try again while the server must not write.
const SILENCE_RETRY_MS: i64 = 10;

/// A contended key is looked at no less often than this. It is the net under
/// every change that the server does not tell of, such as a `SET` that
/// overwrites the lock.
const LOOK_EVERY_MS: i64 = 500;

/// How much of each kind one ring of the alarm does before other clients have
/// their turn.
const STEPS_A_RING: usize = 256;

#[derive(Default)]
struct State {
    queues: WaitQueues<Rc<Ticket>>,
    fences: FenceClock,
    /// How often a grant confirmed a hold that the owner had already, because
    /// it sent `HOLD n` again.
    confirmations: u64,
    metrics: Metrics,
    sessions: Sessions,
    /// Whether the server tells when connections end.
    listening: bool,
    /// Holds that are over because of what became of a client.
    ended: VecDeque<Ended>,
}

/// A hold that was granted to a client that was gone before it heard of it, or
/// all holds of an owner that were tied to a client that is gone.
struct Ended {
    place: Place,
    fence: Fence,
    extent: ReleaseExtent,
}

thread_local! {
    static STATE: RefCell<State> = RefCell::default();
}

/// What came of an acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The owner holds the lock, with this token.
    Granted(Fence),
    /// Another owner holds it, and the client would not or could not wait.
    NotAvailable,
    /// The client waits and is answered later.
    Waits,
}

/// Takes the lock, one hold more of it, or a place in its queue.
pub(crate) fn acquire(
    key: LockKey<'_>,
    request: AcquireRequest,
    timeout: Option<Timeout>,
) -> Result<Outcome, LockError> {
    let timeout = timeout.filter(|_| blocked::may_block(key.ctx()));
    let mut transition = Transition::begin(key, Some(&request.owner))?;
    let granted = STATE.with_borrow_mut(|state| {
        // The lock may have come free a moment ago. Whoever queued comes first.
        transition.hand_on(state);
        transition.try_grant(state, &request)
    });
    let queued = match (&granted, timeout) {
        (Ok(None), Some(_)) => Some(transition.enqueue(request)),
        _ => None,
    };
    transition.commit();
    if let Some(grant) = granted? {
        return Ok(Outcome::Granted(grant.fence));
    }
    let (Some(queued), Some(timeout)) = (queued, timeout) else {
        return Ok(Outcome::NotAvailable);
    };
    queued?.block(key, timeout, clock::now().ms());
    Ok(Outcome::Waits)
}

/// Why an owner's last hold ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    /// It said so.
    Released,
    /// Its connection ended.
    Session,
    /// It never heard of its grant.
    Undelivered,
}

/// Gives holds back; with the last one, hands the lock on.
pub(crate) fn release(key: LockKey<'_>, request: &ReleaseRequest) -> Result<Released, LockError> {
    release_because(key, request, Reason::Released)
}

fn release_because(
    key: LockKey<'_>,
    request: &ReleaseRequest,
    reason: Reason,
) -> Result<Released, LockError> {
    let mut transition = Transition::begin(key, Some(&request.owner))?;
    let held = transition.lock.holder(&request.owner).cloned();
    let released = transition.lock.release(request, &mut transition.effects);
    if let Some(held) = held {
        match released {
            Ok(Released::LastHold) => transition.count_release(&held, reason),
            Ok(Released::NotHeld) => {
                STATE.with_borrow_mut(|state| state.metrics.tokens_refused += 1);
            }
            _ => {}
        }
    }
    transition.hand_on_and_commit();
    released
}

/// Takes the lock from whoever holds it, if this is its newest token, and hands
/// it on. Says whether anybody held it.
pub(crate) fn break_lock(key: LockKey<'_>, fence: Option<Fence>) -> Result<bool, LockError> {
    let mut transition = Transition::begin(key, None)?;
    let (fence_before, holders) = (
        transition.lock.last_fence(),
        transition.lock.holders().len(),
    );
    let owners: SmallVec<[Owner; 1]> = transition.owners();
    let broken = transition.lock.break_holds(fence, &mut transition.effects);
    if broken {
        transition.freed = true;
        transition.happenings.push(Happening::Broken);
    }
    STATE.with_borrow_mut(|state| {
        if broken {
            state.metrics.releases_broken += unsigned(holders);
            for owner in &owners {
                state.sessions.untie(key.as_ref(), owner);
            }
        } else if fence.is_some() && fence != fence_before {
            state.metrics.tokens_refused += 1;
        }
    });
    transition.hand_on_and_commit();
    Ok(broken)
}

/// Lets the lease end at now + lease exactly.
pub(crate) fn renew(key: LockKey<'_>, request: &RenewRequest) -> Result<bool, LockError> {
    let mut transition = Transition::begin(key, Some(&request.owner))?;
    let renewed = transition
        .lock
        .renew(request, transition.now, &mut transition.effects);
    if !renewed && request.fence.is_some() && transition.lock.holder(&request.owner).is_some() {
        STATE.with_borrow_mut(|state| state.metrics.tokens_refused += 1);
    }
    if renewed {
        let (now_ms, lease) = (transition.now.ms(), request.lease);
        STATE.with_borrow_mut(|state| {
            state
                .sessions
                .set_lease(key.as_ref(), &request.owner, lease, now_ms);
        });
    }
    transition.hand_on_and_commit();
    Ok(renewed)
}

/// Whether anybody waits for any lock.
pub(crate) fn anybody_waits() -> bool {
    STATE.with_borrow(|state| !state.queues.is_empty())
}

/// Somebody did something to this key. It may be called where writing is not
/// allowed, so it only sees to it that the key is looked at very soon.
pub(crate) fn key_touched(ctx: &Context, key: KeyRef<'_>) {
    look_soon(ctx, |queues, now_ms| queues.look_by(key, now_ms));
}

/// Any key may have changed. As [`key_touched`], for all of them.
pub(crate) fn everything_touched(ctx: &Context) {
    look_soon(ctx, WaitQueues::look_at_all_by);
}

fn look_soon(ctx: &Context, plan: impl FnOnce(&mut WaitQueues<Rc<Ticket>>, i64)) {
    let now_ms = clock::now().ms();
    STATE.with_borrow_mut(|state| plan(&mut state.queues, now_ms));
    plan_ring(ctx, now_ms);
}

/// Sets the alarm for whatever is to be done next.
fn plan_ring(ctx: &Context, now_ms: i64) {
    let at_ms = STATE.with_borrow(|state| {
        let ended = (!state.ended.is_empty()).then_some(now_ms);
        let looks = state.queues.next_look_ms();
        let renewals = state.sessions.next_renewal_ms();
        ended.into_iter().chain(looks).chain(renewals).min()
    });
    if let Some(at_ms) = at_ms {
        timer::ring_by(ctx, at_ms, now_ms, ring);
    }
}

const HOOKS: Hooks = Hooks {
    left: |ctx, ticket, leave| {
        let key = ticket.key.as_ref();
        let was_first = STATE.with_borrow_mut(|state| {
            match leave {
                Leave::TimeUp => state.metrics.wait_timeouts += 1,
                Leave::Gone => state.metrics.waits_abandoned += 1,
            }
            let first = state.queues.first(key);
            let was_first = first.is_some_and(|first| first.ticket.id == ticket.id);
            state.queues.remove(key, ticket.id);
            was_first
        });
        // The one behind a writer may be a reader among readers.
        if was_first {
            key_touched(ctx, key);
        }
    },
    undelivered: |ctx, ticket, grant| {
        STATE.with_borrow_mut(|state| {
            // If any owner sent a HOLD again since, it may have been this one,
            // on a new connection, and may rely on this hold. The lease will
            // free it then.
            if grant.confirmations == state.confirmations {
                state.ended.push_back(Ended {
                    place: Place {
                        key: ticket.key.clone(),
                        owner: ticket.owner.clone(),
                    },
                    fence: grant.fence,
                    extent: ReleaseExtent::One,
                });
            }
        });
        plan_ring(ctx, clock::now().ms());
    },
};

struct SessionEnds;

impl ConnectionEvents for SessionEnds {
    fn connection_ended(ctx: &Context, client: ClientId) {
        #[cfg(feature = "planted-faults")]
        if Fault::SessionOutlived.planted() {
            return;
        }
        let any = STATE.with_borrow_mut(|state| {
            let ties = state.sessions.take_client(client);
            let any = !ties.is_empty();
            state
                .ended
                .extend(ties.into_iter().map(|(place, tie)| Ended {
                    place,
                    fence: tie.fence,
                    extent: ReleaseExtent::All,
                }));
            any
        });
        if any {
            plan_ring(ctx, clock::now().ms());
        }
    }
}

/// Has the server tell when connections end, exactly while anything is tied to one.
fn listen_while_needed(ctx: &Context) {
    let (needed, listening) =
        STATE.with_borrow(|state| (!state.sessions.is_empty(), state.listening));
    if needed && !listening {
        let listening = subscriptions::listen_to_connections::<SessionEnds>(ctx);
        STATE.with_borrow_mut(|state| state.listening = listening);
    } else if listening && !needed {
        subscriptions::stop_listening_to_connections(ctx);
        STATE.with_borrow_mut(|state| state.listening = false);
    }
}

/// The alarm rang: end what is over because of what became of a client, keep up
/// the leases of those that are still connected, and look at every key that is
/// due. What does not fit into one ring waits until other clients have had
/// their turn.
fn ring(ctx: &Context) {
    let now_ms = clock::now().ms();
    if keyspace::must_not_write(ctx) {
        let idle = STATE.with_borrow_mut(|state| {
            if keyspace::is_replica(ctx) {
                // The new primary knows of no connection here.
                state.sessions = Sessions::default();
                state.ended.clear();
            }
            state.queues.is_empty() && state.ended.is_empty() && state.sessions.is_empty()
        });
        if !idle {
            timer::ring_by(ctx, now_ms + SILENCE_RETRY_MS, now_ms, ring);
        }
        return;
    }
    for _ in 0..STEPS_A_RING {
        let Some(ended) = STATE.with_borrow_mut(|state| state.ended.pop_front()) else {
            break;
        };
        let request = ReleaseRequest {
            owner: ended.place.owner,
            fence: Some(ended.fence),
            extent: ended.extent,
        };
        let reason = match ended.extent {
            ReleaseExtent::All => Reason::Session,
            _ => Reason::Undelivered,
        };
        with_key(ctx, &ended.place.key, |key| {
            // An error says that the key is no lock any more: nothing to take back.
            let _ = release_because(key, &request, reason);
        });
    }
    for _ in 0..STEPS_A_RING {
        let Some((place, tie)) = STATE.with_borrow_mut(|state| state.sessions.take_due(now_ms))
        else {
            break;
        };
        with_key(ctx, &place.key, |key| keep(key, &place.owner, tie));
    }
    for _ in 0..STEPS_A_RING {
        let Some(due) = STATE.with_borrow_mut(|state| state.queues.take_due(now_ms)) else {
            break;
        };
        with_key(ctx, &due, look_at);
    }
    listen_while_needed(ctx);
    plan_ring(ctx, clock::now().ms());
}

/// Keeps up the lease of holds that are tied to a connection.
fn keep(key: LockKey<'_>, owner: &Owner, tie: Tie) {
    let kept = Transition::begin(key, Some(owner)).is_ok_and(|mut transition| {
        let (now, effects) = (transition.now, &mut transition.effects);
        let kept = transition
            .lock
            .keep(owner, tie.fence, tie.lease, now, effects);
        transition.hand_on_and_commit();
        kept
    });
    if !kept {
        STATE.with_borrow_mut(|state| state.sessions.untie(key.as_ref(), owner));
    }
}

/// Names a key in the alarm's context, which can select any database. Skips a
/// key whose slot has moved, or is moving, to another node of a cluster: only
/// that node may grant it now, and the server redirects those who wait here.
fn with_key(ctx: &Context, key: &KeyBuf, body: impl FnOnce(LockKey<'_>)) {
    let key = key.as_ref();
    keyspace::select_db(ctx, key.db);
    let served = keyspace::with_named(ctx, key.name, |key| {
        let served = key.is_served_here();
        if served {
            body(key);
        }
        served
    });
    if !served {
        let again_ms = clock::now().ms() + LOOK_EVERY_MS;
        STATE.with_borrow_mut(|state| state.queues.look_by(key, again_ms));
    }
}

/// Gives the lock to those who may have it now. If the key has become
/// something else, everyone who waits is told so.
fn look_at(key: LockKey<'_>) {
    match Transition::begin(key, None) {
        Ok(transition) => transition.hand_on_and_commit(),
        Err(error) => {
            let mut waiters = Vec::new();
            STATE.with_borrow_mut(|state| {
                while let Some(waiter) = state.queues.take_first(key.as_ref()) {
                    waiters.push(waiter.ticket);
                }
            });
            for ticket in waiters {
                ticket.answer(Answer::Refused(error.clone()));
            }
        }
    }
}

/// One change of one lock, from reading it to telling those whom it concerns.
struct Transition<'c> {
    key: LockKey<'c>,
    now: Now,
    open: OpenLock<'c>,
    lock: Lock,
    effects: Effects,
    answers: Vec<(Rc<Ticket>, Answer)>,
    /// Its last holder gave it back, or was made to.
    freed: bool,
    happenings: SmallVec<[Happening; 2]>,
}

impl<'c> Transition<'c> {
    /// Reads the lock. `asker` is the owner in question, if there is one.
    fn begin(key: LockKey<'c>, asker: Option<&Owner>) -> Result<Self, LockError> {
        let open = key.open();
        let mut lock = open.read(asker)?;
        let (now, mut effects) = (clock::now(), Effects::new());
        let vanished = vanished_holders(key.as_ref(), &lock, now);
        let expired = lock.end_leases(now, &mut effects) + vanished.expired;
        if expired + vanished.deleted > 0 {
            STATE.with_borrow_mut(|state| {
                state.metrics.releases_expired += unsigned(expired);
                state.metrics.releases_deleted += unsigned(vanished.deleted);
            });
        }
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

    fn owners(&self) -> SmallVec<[Owner; 1]> {
        let holders = self.lock.holders().iter();
        holders.map(|holder| holder.owner.clone()).collect()
    }

    fn count_release(&mut self, held: &Holder, reason: Reason) {
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
    fn try_grant(
        &mut self,
        state: &mut State,
        request: &AcquireRequest,
    ) -> Result<Option<Grant>, LockError> {
        let in_turn = !state.queues.contended(self.key.as_ref());
        let is_holder = self.lock.holder(&request.owner).is_some();
        let grant = self.grant(state, request, in_turn)?;
        match grant {
            None => {}
            Some(_) if is_holder => state.metrics.reentries += 1,
            Some(_) => state.metrics.grants_immediate += 1,
        }
        Ok(grant)
    }

    fn grant(
        &mut self,
        state: &mut State,
        request: &AcquireRequest,
        in_turn: bool,
    ) -> Result<Option<Grant>, LockError> {
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
        if held_before.is_none() {
            self.happenings.push(Happening::Acquired);
        }
        if let Some(client) = request.session {
            let (key, now_ms) = (self.key.as_ref(), self.now.ms());
            state
                .sessions
                .tie(key, &request.owner, client, fence, request.lease, now_ms);
        }
        Ok(Some(Grant {
            fence,
            confirmations: state.confirmations,
        }))
    }

    /// Puts a request at the end of the queue, unless its wait could never end.
    fn enqueue(&mut self, request: AcquireRequest) -> Result<Rc<Ticket>, LockError> {
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
        lock.end_leases(now, &mut Effects::new());
        let holders = lock.holders().iter();
        STATE.with_borrow_mut(|state| state.queues.note_holders(other.as_ref(), holders))
    }

    /// Serves everyone in the queue who may have the lock as it is now: whoever
    /// asked as one of its holders, and as many from the front as it admits.
    fn hand_on(&mut self, state: &mut State) {
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
        while self.lock.holder(owner).is_some()
            && let Some(waiter) = state.queues.take_first_of(self.key.as_ref(), owner)
        {
            self.serve(state, waiter);
        }
    }

    fn serve(&mut self, state: &mut State, waiter: Waiter<Rc<Ticket>>) {
        let is_holder = self.lock.holder(&waiter.request.owner).is_some();
        let answer = match self.grant(state, &waiter.request, true) {
            Ok(Some(grant)) => {
                state.metrics.grants_after_wait += 1;
                state.metrics.hand_offs += u64::from(!is_holder);
                state.metrics.waits.add(self.now.us - waiter.since_us);
                Answer::Granted(grant)
            }
            Ok(None) => return,
            Err(error) => Answer::Refused(error),
        };
        self.answers.push((waiter.ticket, answer));
    }

    /// Plans the next look at this lock, if anybody waits for it.
    fn plan_look(&self, state: &mut State) {
        let key = self.key.as_ref();
        let regular_ms = self.now.ms() + LOOK_EVERY_MS;
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

    fn hand_on_and_commit(mut self) {
        STATE.with_borrow_mut(|state| self.hand_on(state));
        self.commit();
    }

    fn commit(self) {
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

/// Holders that were noted at the last look, and are gone.
#[derive(Default)]
struct Vanished {
    /// Their leases are over.
    expired: usize,
    /// Somebody deleted or overwrote what was stored.
    deleted: usize,
}

fn vanished_holders(key: KeyRef<'_>, lock: &Lock, now: Now) -> Vanished {
    let mut vanished = Vanished::default();
    STATE.with_borrow_mut(|state| {
        let noted = state.queues.holders(key).iter();
        let mut any = false;
        for gone in noted.filter(|noted| lock.holder(&noted.owner).is_none()) {
            any = true;
            if gone.lease_end_ms.is_some_and(|end_ms| end_ms <= now.ms()) {
                vanished.expired += 1;
            } else {
                vanished.deleted += 1;
            }
        }
        if any {
            state.queues.note_holders(key, lock.holders().iter());
        }
    });
    vanished
}

/// A client, as the log names it.
fn describe(client: ClientId) -> String {
    let address = clients::address(client).unwrap_or_default();
    format!("id={} addr={address}", client.0)
}

fn unsigned(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
