//! What the manager does without being asked: it looks at contended keys when
//! they are due, ends what is over because of what became of a client, and keeps
//! up the leases of sessions.

use redis_module::Context;

use super::transition::Transition;
use super::{Ended, Reason, STATE, key_touched, release_because, unsigned};
#[cfg(feature = "planted-faults")]
use crate::lock::planted::Fault;
use crate::lock::request::{ClientId, Owner, ReleaseExtent, ReleaseRequest};
use crate::lock::sessions::{Place, Sessions, Tie};
use crate::lock::waiters::KeyBuf;
use crate::server::blocked::{Answer, Hooks, Leave};
use crate::server::clock;
use crate::server::keyspace::{self, LockKey};
use crate::server::subscriptions::{self, ConnectionEvents};
use crate::server::timer;

/// How soon to try again while the server must not write.
const SILENCE_RETRY_MS: i64 = 10;

/// How much of each kind one ring of the alarm does before other clients have
/// their turn.
const STEPS_A_RING: usize = 256;

/// How soon to look again at a key that another node of the cluster serves. The
/// server does not tell when a slot stays or comes back.
const SLOT_RETRY_MS: i64 = 500;

/// Sets the alarm for whatever is to be done next.
pub(super) fn plan_ring(ctx: &Context, now_ms: i64) {
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
pub(super) fn listen_while_needed(ctx: &Context) {
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
        let is_replica = keyspace::is_replica(ctx);
        let idle = STATE.with_borrow_mut(|state| {
            if is_replica {
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
        let again_ms = clock::now().ms() + SLOT_RETRY_MS;
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
                state.metrics.waits_refused += unsigned(waiters.len());
            });
            for ticket in waiters {
                ticket.answer(Answer::Refused(error.clone()));
            }
        }
    }
}
