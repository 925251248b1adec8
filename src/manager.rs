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

mod alarm;
pub(crate) mod inspect;
mod transition;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use redis_module::Context;

use self::alarm::plan_ring;
use self::transition::Transition;
use crate::error::LockError;
use crate::lock::fence::{Fence, FenceClock};
use crate::lock::metrics::Metrics;
use crate::lock::record::Released;
use crate::lock::request::{AcquireRequest, ReleaseExtent, ReleaseRequest, RenewRequest, Timeout};
use crate::lock::sessions::{Place, Sessions};
use crate::lock::waiters::{KeyRef, WaitQueues};
use crate::server::blocked::{self, Ticket};
use crate::server::clock;
use crate::server::keyspace::LockKey;
use crate::server::notifications::Happening;

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
            Ok(Released::NotHeld) if reason == Reason::Released => {
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
    let owners = transition.owners();
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
        } else if holders > 0 && fence.is_some() && fence != fence_before {
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

/// Whether any lease is kept up because a connection lives.
pub(crate) fn keeps_leases() -> bool {
    STATE.with_borrow(|state| !state.sessions.is_empty())
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

fn unsigned(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
