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

use std::cell::RefCell;
use std::rc::Rc;

use redis_module::{Context, RedisString};

use crate::config::{self, RedissonNotify};
use crate::error::LockError;
use crate::lock::fence::{Fence, FenceClock};
#[cfg(feature = "planted-faults")]
use crate::lock::planted::Fault;
use crate::lock::record::{Acquired, Effect, Lock, Now, Released};
use crate::lock::request::{
    AcquireRequest, Owner, ReleaseExtent, ReleaseRequest, RenewRequest, Timeout,
};
use crate::lock::waiters::{Counts, KeyBuf, KeyRef, WaitQueues};
use crate::server::blocked::{self, Answer, Grant, Hooks, Ticket};
use crate::server::clock;
use crate::server::keyspace::{self, LockKey, OpenLock};
use crate::server::publish;
use crate::server::timer;

/// How soon to try again while the server must not write.
const SILENCE_RETRY_MS: i64 = 10;

/// A contended key is looked at no less often than this. It is the net under
/// every change that the server does not tell of, such as a `SET` that
/// overwrites the lock.
const LOOK_EVERY_MS: i64 = 500;

/// How many keys one ring of the alarm looks at before other clients have
/// their turn.
const LOOKS_A_RING: usize = 256;

#[derive(Default)]
struct State {
    queues: WaitQueues<Rc<Ticket>>,
    fences: FenceClock,
    /// How often a grant confirmed a hold that the owner had already, because
    /// it sent `HOLD n` again.
    confirmations: u64,
    undelivered: Vec<Undelivered>,
}

/// A hold whose owner was gone before it heard of it.
struct Undelivered {
    key: KeyBuf,
    owner: Owner,
    fence: Fence,
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
    let mut transition = Transition::begin(key)?;
    let mut waits = None;
    let outcome = STATE.with_borrow_mut(|state| {
        // The lock may have come free a moment ago. Whoever queued comes first.
        transition.hand_on(state);
        match transition.try_grant(state, &request)? {
            Some(grant) => Ok(Outcome::Granted(grant.fence)),
            None => match timeout {
                None => Ok(Outcome::NotAvailable),
                Some(timeout) => {
                    let ticket = transition.enqueue(state, request)?;
                    waits = Some((ticket, timeout));
                    Ok(Outcome::Waits)
                }
            },
        }
    });
    transition.commit();
    if let Some((ticket, timeout)) = waits {
        ticket.block(key, timeout);
    }
    outcome
}

/// Gives holds back; with the last one, hands the lock on.
pub(crate) fn release(key: LockKey<'_>, request: &ReleaseRequest) -> Result<Released, LockError> {
    let mut transition = Transition::begin(key)?;
    let released = transition.lock.release(request, &mut transition.effects);
    transition.freed = transition.effects.contains(&Effect::Delete);
    transition.hand_on_and_commit();
    released
}

/// Lets the lease end at now + lease exactly.
pub(crate) fn renew(key: LockKey<'_>, request: &RenewRequest) -> Result<bool, LockError> {
    let mut transition = Transition::begin(key)?;
    let renewed = transition
        .lock
        .renew(request, transition.now, &mut transition.effects);
    transition.hand_on_and_commit();
    Ok(renewed)
}

/// How much the manager remembers.
pub(crate) fn counts() -> Counts {
    STATE.with_borrow(|state| state.queues.counts())
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
    let next = STATE.with_borrow_mut(|state| {
        plan(&mut state.queues, now_ms);
        state.queues.next_look_ms()
    });
    if let Some(at_ms) = next {
        timer::ring_by(ctx, at_ms, now_ms, ring);
    }
}

const HOOKS: Hooks = Hooks {
    left: |ticket| {
        STATE.with_borrow_mut(|state| state.queues.remove(ticket.key.as_ref(), ticket.id));
    },
    undelivered: |ctx, ticket, grant| {
        let noted = STATE.with_borrow_mut(|state| {
            // If any owner sent a HOLD again since, it may have been this one,
            // on a new connection, and may rely on this hold. The lease will
            // free it then.
            let sole = grant.confirmations == state.confirmations;
            if sole {
                state.undelivered.push(Undelivered {
                    key: ticket.key.clone(),
                    owner: ticket.owner.clone(),
                    fence: grant.fence,
                });
            }
            sole
        });
        if noted {
            let now_ms = clock::now().ms();
            timer::ring_by(ctx, now_ms, now_ms, ring);
        }
    },
};

/// The alarm rang: look at every key that is due, and take back what was
/// granted to clients that are gone.
fn ring(ctx: &Context) {
    let now_ms = clock::now().ms();
    if keyspace::must_not_write(ctx) {
        let idle =
            STATE.with_borrow(|state| state.queues.is_empty() && state.undelivered.is_empty());
        if !idle {
            timer::ring_by(ctx, now_ms + SILENCE_RETRY_MS, now_ms, ring);
        }
        return;
    }
    for gone in STATE.with_borrow_mut(|state| std::mem::take(&mut state.undelivered)) {
        let request = ReleaseRequest {
            owner: gone.owner,
            fence: Some(gone.fence),
            extent: ReleaseExtent::One,
        };
        with_key(ctx, &gone.key, |key| {
            // An error says that the key is no lock any more: nothing to take back.
            let _ = release(key, &request);
        });
    }
    for _ in 0..LOOKS_A_RING {
        let Some(due) = STATE.with_borrow_mut(|state| state.queues.take_due(now_ms)) else {
            break;
        };
        with_key(ctx, &due, look_at);
    }
    if let Some(at_ms) = STATE.with_borrow(|state| state.queues.next_look_ms()) {
        timer::ring_by(ctx, at_ms, clock::now().ms(), ring);
    }
}

/// Names a key in the alarm's context, which can select any database. Skips a
/// key whose slot has moved, or is moving, to another node of a cluster: only
/// that node may grant it now, and the server redirects those who wait here.
fn with_key(ctx: &Context, key: &KeyBuf, body: impl FnOnce(LockKey<'_>)) {
    let key = key.as_ref();
    keyspace::select_db(ctx, key.db);
    let name = RedisString::create_from_slice(std::ptr::null_mut(), key.name);
    let lock_key = LockKey::new(ctx, &name);
    if lock_key.is_served_here() {
        body(lock_key);
    } else {
        let again_ms = clock::now().ms() + LOOK_EVERY_MS;
        STATE.with_borrow_mut(|state| state.queues.look_by(key, again_ms));
    }
}

/// Gives the lock to those who may have it now. If the key has become
/// something else, everyone who waits is told so.
fn look_at(key: LockKey<'_>) {
    match Transition::begin(key) {
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
    effects: Vec<Effect>,
    answers: Vec<(Rc<Ticket>, Answer)>,
    /// Its last holder gave it back.
    freed: bool,
}

impl<'c> Transition<'c> {
    fn begin(key: LockKey<'c>) -> Result<Self, LockError> {
        let open = key.open();
        let lock = open.read()?;
        Ok(Self {
            key,
            now: clock::now(),
            open,
            lock,
            effects: Vec::new(),
            answers: Vec::new(),
            freed: false,
        })
    }

    fn try_grant(
        &mut self,
        state: &mut State,
        request: &AcquireRequest,
    ) -> Result<Option<Grant>, LockError> {
        let held_before = self.lock.holder().map(|holder| holder.holds);
        let acquired =
            self.lock
                .acquire(request, self.now, &mut state.fences, &mut self.effects)?;
        let Acquired::Granted(fence) = acquired else {
            return Ok(None);
        };
        if held_before == self.lock.holder().map(|holder| holder.holds) {
            state.confirmations += 1;
        }
        Ok(Some(Grant {
            fence,
            confirmations: state.confirmations,
        }))
    }

    fn enqueue(
        &mut self,
        state: &mut State,
        request: AcquireRequest,
    ) -> Result<Rc<Ticket>, LockError> {
        let key = self.key.as_ref();
        let owner = request.owner.clone();
        let ticket = state
            .queues
            .push(key, request, config::max_waiters(), |id| {
                Ticket::new(self.key.ctx(), id, key.into(), owner, HOOKS)
            })?;
        self.plan_look(state);
        Ok(ticket)
    }

    /// Serves everyone in the queue who may have the lock as it is now: the
    /// first in line if it is free, and whoever asked as its holder.
    fn hand_on(&mut self, state: &mut State) {
        let key = self.key.as_ref();
        if !state.queues.contended(key) {
            return;
        }
        #[cfg(feature = "planted-faults")]
        if Fault::HandOffSkipped.planted() {
            return;
        }
        loop {
            let next = match self.lock.holder() {
                Some(holder) => state.queues.take_first_of(key, &holder.owner),
                None => state.queues.take_first(key),
            };
            let Some(waiter) = next else {
                break;
            };
            let answer = match self.try_grant(state, &waiter.request) {
                Ok(Some(grant)) => Answer::Granted(grant),
                Ok(None) => continue,
                Err(error) => Answer::Refused(error),
            };
            self.answers.push((waiter.ticket, answer));
        }
        self.plan_look(state);
    }

    fn plan_look(&self, state: &mut State) {
        let regular_ms = self.now.ms() + LOOK_EVERY_MS;
        let holder = self.lock.holder();
        let lease_end_ms = holder.and_then(|holder| holder.lease_end_ms);
        // The server takes a key for expired one millisecond after its time.
        let at_ms = lease_end_ms.map_or(regular_ms, |end_ms| regular_ms.min(end_ms + 1));
        state.queues.look_by(self.key.as_ref(), at_ms);
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
        } = self;
        open.apply(&effects);
        drop(open);
        if freed && lock.holder().is_none() {
            match config::redisson_notify() {
                RedissonNotify::No => {}
                RedissonNotify::Publish => publish::release_to_redisson(key, "PUBLISH"),
                RedissonNotify::Spublish => publish::release_to_redisson(key, "SPUBLISH"),
            }
        }
        if let Some(at_ms) = STATE.with_borrow(|state| state.queues.next_look_ms()) {
            timer::ring_by(key.ctx(), at_ms, now.ms(), ring);
        }
        for (ticket, answer) in answers {
            ticket.answer(answer);
        }
    }
}
