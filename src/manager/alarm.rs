//! What the manager does without being asked: it ends what is over because of what
//! became of a client, keeps up the leases of sessions and closes the connections
//! of those it can't, looks at contended keys when they are due, and refuses waits
//! that have closed a cycle across slots.

use redis_module::Context;

use super::transition::{Transition, forget_ended};
use super::{STATE, grant_told, key_touched, unsigned};
use crate::config;
use crate::lock::sessions::{Place, Tie};
use crate::lock::waiters::{KeyBuf, KeyRef, WaiterId};
use crate::server::blocked::{Answer, Hooks, Leave};
use crate::server::clients;
use crate::server::clock;
use crate::server::guard;
use crate::server::keyspace::{self, LockKey, WriteAnswer};
use crate::server::timer;

/// How soon to try again while the server must not write.
const SILENCE_RETRY_MS: i64 = 10;

/// How soon to try again to keep up a lease that has a while to go.
const KEEP_RETRY_MS: i64 = 100;

/// How much of each kind one ring of the alarm does before other clients have
/// their turn.
const STEPS_A_RING: usize = 256;

/// How soon to look again at a key that another node of the cluster serves. The
/// server does not tell when a slot stays or comes back.
const SLOT_RETRY_MS: i64 = 500;

/// Sets the alarm for whatever is to be done next.
pub(super) fn plan_ring(ctx: &Context, now_ms: i64) {
    let at_ms = STATE.with_borrow(|state| {
        let overdue =
            !(state.ended.is_empty() && state.unchecked.is_empty() && state.doomed.is_empty());
        let overdue = overdue.then_some(now_ms);
        let looks = state.queues.next_look_ms();
        let renewals = state.sessions.next_renewal_ms();
        overdue.into_iter().chain(looks).chain(renewals).min()
    });
    if let Some(at_ms) = at_ms {
        timer::ring_by(ctx, at_ms, now_ms, ring);
    }
}

pub(super) const HOOKS: Hooks = Hooks {
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
    delivered: grant_told,
};

/// The alarm rang: end what is over because of what became of a client, keep up
/// the leases of those that are still connected, and look at every key that is
/// due. What does not fit into one ring waits until other clients have had
/// their turn.
fn ring(ctx: &Context) {
    let now_ms = clock::now().ms();
    for client in STATE.with_borrow_mut(|state| std::mem::take(&mut state.doomed)) {
        clients::close(ctx, client);
    }
    if keyspace::is_replica(ctx) {
        forget_connections(ctx);
    }
    if keyspace::must_not_write(ctx) || writes_are_refused(ctx, now_ms) {
        close_what_can_not_be_kept(ctx, now_ms);
        let idle = STATE.with_borrow(|state| {
            state.queues.is_empty() && state.ended.is_empty() && state.sessions.is_empty()
        });
        if !idle {
            timer::ring_by(ctx, now_ms + SILENCE_RETRY_MS, now_ms, ring);
        }
        return;
    }
    for _ in 0..STEPS_A_RING {
        let Some(key) = STATE.with_borrow(|state| state.ended.next_key().cloned()) else {
            break;
        };
        match with_key(ctx, &key, look_at) {
            WriteAnswer::Allowed => {}
            WriteAnswer::Refused => break,
            // Whoever serves the key now knows of no connection here.
            WriteAnswer::NotServedHere => forget_ended(key.as_ref()),
        }
    }
    for _ in 0..STEPS_A_RING {
        let Some((place, tie)) = STATE.with_borrow_mut(|state| state.sessions.take_due(now_ms))
        else {
            break;
        };
        if with_key(ctx, &place.key, |key| keep(key, &place, tie)) != WriteAnswer::Allowed {
            not_kept(ctx, &place, tie, now_ms);
        }
    }
    for _ in 0..STEPS_A_RING {
        let Some(due) = STATE.with_borrow_mut(|state| state.queues.take_due(now_ms)) else {
            break;
        };
        with_key(ctx, &due, look_at);
    }
    for _ in 0..STEPS_A_RING {
        let Some((key, id)) = STATE.with_borrow_mut(|state| state.unchecked.pop_front()) else {
            break;
        };
        with_key(ctx, &key, |key| check_wait(key, id));
    }
    plan_ring(ctx, clock::now().ms());
}

/// A replica keeps up no lease, and the new primary knows of no connection here.
/// So whoever holds by one is told by its end.
fn forget_connections(ctx: &Context) {
    for _ in 0..STEPS_A_RING {
        let Some(client) = STATE.with_borrow_mut(|state| {
            let client = state.sessions.any_client()?;
            state.sessions.take_client(client);
            Some(client)
        }) else {
            break;
        };
        clients::close(ctx, client);
    }
    STATE.with_borrow_mut(|state| {
        state.deliveries = Default::default();
        state.ended = Default::default();
        state.unchecked.clear();
    });
}

/// Does for the sessions that are due what can be done where nothing may be
/// written.
fn close_what_can_not_be_kept(ctx: &Context, now_ms: i64) {
    for _ in 0..STEPS_A_RING {
        let Some((place, tie)) = STATE.with_borrow_mut(|state| state.sessions.take_due(now_ms))
        else {
            break;
        };
        not_kept(ctx, &place, tie, now_ms);
    }
}

/// A session's lease could not be kept up. It is tried again, sooner and sooner;
/// before the lease is over, its connection is closed.
fn not_kept(ctx: &Context, place: &Place, tie: Tie, now_ms: i64) {
    // One ring may be late.
    let left_ms = tie.kept_until_ms - now_ms - 2 * SILENCE_RETRY_MS;
    if left_ms <= 0 {
        clients::close(ctx, tie.client);
    } else {
        let again_ms = now_ms + (left_ms / 2).clamp(1, KEEP_RETRY_MS);
        STATE.with_borrow_mut(|state| state.sessions.renew_by(place, again_ms));
    }
}

/// Whether the server refuses every write at the moment. Asked of one of the
/// keys that are due.
fn writes_are_refused(ctx: &Context, now_ms: i64) -> bool {
    let due = STATE.with_borrow(|state| {
        let ended = state.ended.next_key();
        let renewal = state.sessions.next_due(now_ms).map(|place| &place.key);
        let look = state.queues.next_due(now_ms);
        ended.or(renewal).or(look).cloned()
    });
    due.is_some_and(|key| ask(ctx, key.as_ref()) == WriteAnswer::Refused)
}

fn ask(ctx: &Context, key: KeyRef<'_>) -> WriteAnswer {
    keyspace::select_db(ctx, key.db);
    keyspace::with_named(ctx, key.name, |key| key.asks_for_a_write())
}

/// Keeps up the lease of holds that are tied to a connection.
fn keep(key: LockKey<'_>, place: &Place, tie: Tie) {
    let Ok(mut transition) = Transition::begin(key, Some(&place.owner)) else {
        // It is no lock at the moment, and may be one again.
        not_kept(key.ctx(), place, tie, clock::now().ms());
        return;
    };
    let (now, effects) = (transition.now, &mut transition.effects);
    let kept = transition
        .lock
        .keep(&place.owner, tie.fence, tie.lease, now, effects);
    if kept {
        STATE.with_borrow_mut(|state| state.sessions.kept(place, now.ms()));
    } else {
        // Before the hand-off, which may tie the owner's next holds.
        STATE.with_borrow_mut(|state| state.sessions.untie(key.as_ref(), &place.owner));
    }
    transition.hand_on_and_commit();
    if !kept && tie.kept_until_ms <= now.ms() {
        clients::close(key.ctx(), tie.client);
    }
}

fn check_wait(key: LockKey<'_>, id: WaiterId) {
    if let Ok(mut transition) = Transition::begin(key, None) {
        // Who can have the lock now waits for nobody.
        STATE.with_borrow_mut(|state| transition.hand_on(state));
        transition.check_wait(id);
        transition.hand_on_and_commit();
    }
}

/// Does something to a key in the alarm's context, which can select any
/// database, if this server may write to it. In a cluster it may not where the
/// key's slot has moved, or is moving, to another node: only that node may grant
/// the lock now, and the server redirects those who wait here.
fn with_key(ctx: &Context, key: &KeyBuf, body: impl FnOnce(LockKey<'_>)) -> WriteAnswer {
    let key = key.as_ref();
    let answer = match keyspace::in_cluster(ctx) {
        true => ask(ctx, key),
        // It was asked when the alarm rang, and is the same for all keys.
        false => WriteAnswer::Allowed,
    };
    let mut again_ms = match answer {
        WriteAnswer::Refused => SILENCE_RETRY_MS,
        _ => SLOT_RETRY_MS,
    };
    if answer == WriteAnswer::Allowed {
        keyspace::select_db(ctx, key.db);
        let done = guard::catch("a look at a lock", || {
            keyspace::with_named(ctx, key.name, body);
        });
        if done.is_some() {
            return answer;
        }
        // The look that was due is over, and nobody has planned the next.
        again_ms = config::recheck_interval_ms();
    }
    let again_ms = clock::now().ms().saturating_add(again_ms);
    STATE.with_borrow_mut(|state| state.queues.look_by(key, again_ms));
    answer
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
                state.metrics.waits_refused += unsigned(waiters.len());
            });
            for ticket in waiters {
                ticket.answer(Answer::Refused(error.clone()));
            }
        }
    }
}
