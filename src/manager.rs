//! The lock manager: the one place where a transition is decided, written,
//! replicated and handed on.
//!
//! Every road to a lock leads here: the commands, the alarm that rings at a
//! lease's end, a key that somebody else deleted, a client that was gone
//! before it heard of its grant. Each becomes one [`Transition`]: read what is
//! stored, decide, let the waiters have what came free, write it all as one
//! unit, then tell those who got the lock.
//!
//! Architecture invariant: what is remembered never says that somebody holds a
//! lock; the stored hash alone does. It may say that a stored hold is over
//! (`State::ended`); if that is lost, in a restart or a fail-over, the hold lasts
//! until its lease ends, and no two owners ever hold one lock.
//!
//! Architecture invariant: what has ended is over before the next command of ours
//! sees the lock. The end of a connection is told where nothing may be written, so
//! it waits in `State::ended`; every transition takes it from there first.
//!
//! Architecture invariant: the state is never borrowed where the server may call
//! back: while a key is opened or written, a command called, a client closed,
//! woken or told. It calls back, for example, with the `expired` event of the key
//! that is being opened.

mod alarm;
pub(crate) mod inspect;
mod transition;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use redis_module::Context;

use self::alarm::plan_ring;
use self::transition::{Transition, place_of};
use crate::error::LockError;
use crate::lock::deliveries::{Deliveries, Told};
use crate::lock::ended::{EndedBy, EndedHolds};
use crate::lock::fence::{Fence, FenceClock};
use crate::lock::metrics::Metrics;
use crate::lock::record::Released;
use crate::lock::request::{
    AcquireRequest, ClientId, Lease, ReleaseRequest, RenewRequest, Timeout,
};
use crate::lock::sessions::{Place, Sessions, Tie};
use crate::lock::waiters::{KeyBuf, KeyRef, WaitQueues, WaiterId};
use crate::server::blocked::{self, Ticket};
use crate::server::clients;
use crate::server::clock;
use crate::server::keyspace::{self, LockKey};
use crate::server::notifications::Happening;

#[derive(Default)]
struct State {
    queues: WaitQueues<Rc<Ticket>>,
    fences: FenceClock,
    metrics: Metrics,
    sessions: Sessions,
    /// Grants whose clients have not heard of them yet.
    deliveries: Deliveries,
    /// Holds that are over because of what became of a client.
    ended: EndedHolds,
    /// Waits that may have closed a cycle, to be checked where every key can be
    /// read.
    unchecked: VecDeque<(KeyBuf, WaiterId)>,
    /// A key that has just left its place.
    leaving: Option<KeyBuf>,
    /// Clients whose sessions are over unnoticed: their connections have to be
    /// closed.
    doomed: Vec<ClientId>,
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
    if (timeout.is_some() || request.session.is_some()) && keyspace::is_replica(key.ctx()) {
        return Err(LockError::ReadOnly);
    }
    let mut transition = Transition::begin(key, Some(&request.owner))?;
    transition.end_if_closing(&request.owner);
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
    if let Some(fence) = granted? {
        return Ok(Outcome::Granted(fence));
    }
    let (Some(queued), Some(timeout)) = (queued, timeout) else {
        return Ok(Outcome::NotAvailable);
    };
    queued?.block(key, timeout, clock::now().ms());
    Ok(Outcome::Waits)
}

/// Gives holds back; with the last one, hands the lock on.
pub(crate) fn release(key: LockKey<'_>, request: &ReleaseRequest) -> Result<Released, LockError> {
    let mut transition = Transition::begin(key, Some(&request.owner))?;
    transition.end_if_closing(&request.owner);
    let held = transition.lock.holder(&request.owner).cloned();
    let released = transition.lock.release(request, &mut transition.effects);
    if let Some(held) = held {
        match released {
            Ok(Released::LastHold) => transition.count_release(&held, None),
            Ok(Released::StillHeld) => transition.note_release(request),
            Ok(Released::NotHeld) => {
                STATE.with_borrow_mut(|state| state.metrics.tokens_refused += 1);
            }
            Err(_) => {}
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
                let place = || place_of(key.as_ref(), owner);
                state.deliveries.ended(place);
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
    transition.end_if_closing(&request.owner);
    let renewed = transition
        .lock
        .renew(request, transition.now, &mut transition.effects);
    if !renewed && request.fence.is_some() && transition.lock.holder(&request.owner).is_some() {
        STATE.with_borrow_mut(|state| state.metrics.tokens_refused += 1);
    }
    if renewed {
        let (now_ms, lease) = (transition.now.ms(), request.lease);
        let holder = transition.lock.holder(&request.owner);
        let fence = holder.and_then(|holder| holder.fence);
        STATE.with_borrow_mut(|state| {
            if let Some(fence) = fence {
                let (key, owner) = (key.as_ref(), &request.owner);
                state.sessions.set_lease(key, owner, fence, lease, now_ms);
            }
            let place = || place_of(key.as_ref(), &request.owner);
            state.deliveries.told(place, Told::at_least(1));
        });
    }
    transition.hand_on_and_commit();
    Ok(renewed)
}

/// Whether anybody waits for any lock.
pub(crate) fn anybody_waits() -> bool {
    STATE.with_borrow(|state| !state.queues.is_empty())
}

/// Whether anything is remembered of holds: sessions, grants on their way, or what
/// has ended.
pub(crate) fn remembers_holds() -> bool {
    STATE.with_borrow(|state| {
        !(state.sessions.is_empty() && state.deliveries.is_empty() && state.ended.is_empty())
    })
}

/// Begins anew, as a module that has just been loaded.
pub(crate) fn reset() {
    STATE.take();
}

/// Somebody did something to this key. It may be called where writing is not
/// allowed, so it only sees to it that the key is looked at very soon.
pub(crate) fn key_touched(ctx: &Context, key: KeyRef<'_>) {
    if anybody_waits() {
        look_soon(ctx, |queues, now_ms| queues.look_by(key, now_ms));
    }
}

/// Any key may have changed. As [`key_touched`], for all of them.
pub(crate) fn everything_touched(ctx: &Context) {
    look_soon(ctx, WaitQueues::look_at_all_by);
}

/// A key has left this place; [`key_arrives`], which comes next, says where it is.
pub(crate) fn key_leaves(key: KeyRef<'_>) {
    STATE.with_borrow_mut(|state| state.leaving = Some(key.into()));
}

/// What belongs to the holds of the key that has left belongs to this one now.
pub(crate) fn key_arrives(key: KeyRef<'_>) {
    STATE.with_borrow_mut(|state| {
        if let Some(from) = state.leaving.take() {
            // The lock that was there before has been overwritten.
            state.deliveries.forget_lock(key);
            state.ended.take(key);
            state.sessions.follow(from.as_ref(), key);
            state.deliveries.follow(from.as_ref(), key);
            state.ended.follow(from.as_ref(), key);
        }
    });
}

/// What belongs to the holds in two databases has changed places as they have.
pub(crate) fn databases_swapped(one: i32, other: i32) {
    STATE.with_borrow_mut(|state| {
        state.sessions.swap_databases(one, other);
        state.deliveries.swap_databases(one, other);
        state.ended.swap_databases(one, other);
    });
}

/// A connection has ended, and with it all holds that were tied to it. Nothing
/// may be written now, so they are ended by whoever sees their locks next.
pub(crate) fn connection_ended(ctx: &Context, client: ClientId) {
    // A script that is too slow has the server serve connections in between: the
    // reply was sent before the end was read.
    let heard = blocked::replies_are_sent_early() && keyspace::script_runs(ctx);
    let any_ended = STATE.with_borrow_mut(|state| {
        end_connection(state, client, heard);
        !state.ended.is_empty()
    });
    if any_ended {
        plan_ring(ctx, clock::now().ms());
    }
}

/// Ends what is tied to a connection, or ties it to another one of the same owner
/// that still holds the lock by it. Nobody hears any more of the grant that was on
/// its way to it.
fn end_connection(state: &mut State, client: ClientId, heard: bool) {
    let ties = state.sessions.take_client(client);
    let heirs: Vec<_> = ties
        .iter()
        .map(|(place, tie)| heir(state, place, *tie, client))
        .collect();
    if heard {
        state.deliveries.delivered(client);
    } else {
        grant_lost(state, client);
    }
    for ((place, tie), heir) in ties.into_iter().zip(heirs) {
        match heir {
            Some((heir, lease)) => state.sessions.retie(place, tie, heir, lease),
            None => state.ended.push(place, tie.fence, EndedBy::Session),
        }
    }
}

/// A client has heard of the grant that was on its way to it, if one was, or never
/// will.
fn grant_told(ctx: &Context, client: ClientId, heard: bool) {
    let any_ended = STATE.with_borrow_mut(|state| {
        if heard {
            state.deliveries.delivered(client);
        } else {
            untie_unheard(state, client);
            grant_lost(state, client);
        }
        !state.ended.is_empty()
    });
    if any_ended {
        plan_ring(ctx, clock::now().ms());
    }
}

fn grant_lost(state: &mut State, client: ClientId) {
    if let Some((place, fence)) = state.deliveries.lost(client) {
        state.ended.push(place, fence, EndedBy::Undelivered);
    }
}

/// Who keeps up holds that are tied to a client which will not hear of them: one
/// that is still to hear of the same holds, or the one they were tied to before.
fn heir(state: &State, place: &Place, tie: Tie, client: ClientId) -> Option<(ClientId, Lease)> {
    let other = state.deliveries.other_session(place, tie.fence, client);
    other.or_else(|| {
        let before = state.deliveries.tied_before(place, client)?;
        clients::is_connected(before).then_some((before, tie.lease))
    })
}

/// Unties what a client will not hear of, and lives on.
fn untie_unheard(state: &mut State, client: ClientId) {
    let Some(place) = state.deliveries.place_of(client).cloned() else {
        return;
    };
    let (key, owner) = (place.key.as_ref(), &place.owner);
    let Some(tie) = state.sessions.tie_of(key, owner) else {
        return;
    };
    if tie.client == client {
        let heir = heir(state, &place, tie, client);
        state.sessions.untie(key, owner);
        if let Some((heir, lease)) = heir {
            state.sessions.retie(place, tie, heir, lease);
        }
    }
}

fn look_soon(ctx: &Context, plan: impl FnOnce(&mut WaitQueues<Rc<Ticket>>, i64)) {
    let now_ms = clock::now().ms();
    STATE.with_borrow_mut(|state| plan(&mut state.queues, now_ms));
    plan_ring(ctx, now_ms);
}

fn unsigned(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
