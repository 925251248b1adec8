//! What the module does when the timer wakes it.

use redis_module::Context;

use super::{Asked, TABLE, apply, arm_timer, gate, read_lock, self_fencing, table_for, tell};
use crate::config;
use crate::server::clients;
use crate::server::clock;
use crate::server::keyspace::{self, LockKey};
use crate::server::open_lock::{OpenLock, Part};
use crate::server::panics;
use crate::server::publish;
use crate::server::timer;
use redis_lock_core::error::LockError;
use redis_lock_core::keys::KeyRef;
use redis_lock_core::lock::Now;
#[cfg(feature = "planted-faults")]
use redis_lock_core::planted::Fault;
use redis_lock_core::queue::Addressee;
use redis_lock_core::table::{Answer, Due, LockTable, NotNow, Step, WORK_A_WAKE, WaitEnd};

/// How long one kind of work goes on in one wake, in microseconds, before other clients
/// have their turn.
const WORK_US: i64 = 500;

/// How many ends of waits are taken before anybody is told.
const ENDS_AT_ONCE: usize = 8;

/// Works on as long as there is time for it and `work` finds something to do.
fn work_on(mut work: impl FnMut() -> bool) {
    let until_us = clock::since_boot_us() + WORK_US;
    while work() && clock::since_boot_us() < until_us {}
}

/// The time has come: close the connections whose sessions are over unnoticed, and do
/// what is due. What does not fit into one wake waits until other clients have had
/// their turn.
pub(crate) fn on_wake(ctx: &Context) {
    let now = clock::now();
    let now_ms = now.ms();
    let is_replica = keyspace::is_replica(ctx);
    end_waits(ctx, now, is_replica);
    if is_replica {
        TABLE.with_borrow_mut(|table| table.forget_connections(WORK_A_WAKE));
    }
    self_fencing::ask_if_needed(ctx);
    gate::look(ctx);
    close_clients(ctx);
    if keyspace::must_not_write(ctx) || writes_are_refused(ctx, now_ms) {
        let again_ms = TABLE.with_borrow_mut(|table| table.put_off_everything(now, WORK_A_WAKE));
        close_clients(ctx);
        for at_ms in [again_ms, gate::wake_at_ms(now_ms)].into_iter().flatten() {
            timer::wake_by(ctx, at_ms, now_ms);
        }
        return;
    }
    work_on(|| {
        let due = TABLE.with_borrow_mut(|table| table.take_due(now_ms));
        due.is_some_and(|due| do_due(ctx, due))
    });
    close_clients(ctx);
    arm_timer(ctx, clock::now());
}

/// Ends what ends without a write. A replica keeps no places, as it blocks no clients.
fn end_waits(ctx: &Context, now: Now, is_replica: bool) {
    if is_replica {
        tell_all(ctx, |table| {
            table.forget_places(&LockError::Unblocked, ENDS_AT_ONCE)
        });
    }
    TABLE.with_borrow_mut(|table| table.end_some_gone(WORK_A_WAKE));
    tell_all(ctx, |table| table.give_up(now, ENDS_AT_ONCE));
}

/// Tells of ends as they are taken.
fn tell_all(ctx: &Context, take: impl Fn(&mut LockTable) -> Vec<(Addressee, Answer)>) {
    work_on(|| {
        let over = TABLE.with_borrow_mut(&take);
        let is_any = !over.is_empty();
        for (addressee, answer) in over {
            tell(ctx, addressee, answer);
        }
        is_any
    });
}

fn close_clients(ctx: &Context) {
    for client in TABLE.with_borrow_mut(|table| table.take_clients_to_close(WORK_A_WAKE)) {
        clients::close(ctx, client);
        // The server tells of the end later, and drops what the client is told meanwhile.
        TABLE.with_borrow_mut(|table| table.connection_ended(client));
    }
}

/// Does what is due to a lock, if this server may write to it. In a cluster it may not if the
/// key's slot has moved, or is moving, to another node: only that node may grant the lock now,
/// and the server redirects the waiters here. Returns whether the server may take further writes.
fn do_due(ctx: &Context, due: Due) -> bool {
    let key = due.key.clone();
    // Outside a cluster the reason is the same for all keys: it was asked when the timer woke.
    let why = match keyspace::in_cluster(ctx) {
        true => why_not(ctx, key.as_ref()),
        false => (!self_fencing::has_enough_replicas(ctx)).then_some(NotNow::Refused),
    };
    if let Some(why) = why {
        let now_ms = clock::now().ms();
        TABLE.with_borrow_mut(|table| table.put_off(due, why, now_ms));
        if why == NotNow::NotServedHere {
            give_up_unheard(ctx, key.as_ref(), now_ms);
        }
        return why == NotNow::NotServedHere;
    }
    keyspace::select_db(ctx, key.as_ref().db);
    let done = panics::catch("a look at a lock", || {
        keyspace::with_named(ctx, key.as_ref().name, |key| do_to(key, due))
    });
    if done.is_none() {
        // The look that was due is over, and nobody has planned the next.
        let again_ms = clock::now().ms() + config::RECHECK_INTERVAL_MS.get();
        TABLE.with_borrow_mut(|table| table.key_touched(key.as_ref(), again_ms));
    }
    true
}

/// Another node of the cluster serves the key now, or is about to. The server ends the
/// subscriptions of a slot that it loses, so nobody listens to the places of such a key,
/// and they are given up. It redirects blocked clients itself.
fn give_up_unheard(ctx: &Context, key: KeyRef<'_>, now_ms: i64) {
    let places = TABLE.with_borrow(|table| table.places_of(key, WORK_A_WAKE));
    for place in places {
        if !publish::is_listened_to(ctx, &place.channel) {
            TABLE.with_borrow_mut(|table| table.waiter_left(place.id, WaitEnd::Gone, now_ms));
        }
    }
}

fn do_to(key: LockKey<'_>, due: Due) {
    let open = OpenLock::open(key);
    let stored = read_lock(&open, key.as_ref(), Part::Whole(None));
    let now = clock::now();
    let mut done = Step::default();
    let may_grant = gate::is_open(key.ctx());
    table_for(key, may_grant).do_due(due, stored, now, &mut Asked(key), &mut done);
    apply(key, open, now, &mut done);
}

/// Whether the server refuses every write at the moment. Asked of one of the keys that
/// are due.
fn writes_are_refused(ctx: &Context, now_ms: i64) -> bool {
    let due = TABLE.with_borrow(|table| table.next_due(now_ms));
    due.is_some_and(|key| why_not(ctx, key.as_ref()) == Some(NotNow::Refused))
}

/// Why nothing may be written to this key now, if nothing may.
fn why_not(ctx: &Context, key: KeyRef<'_>) -> Option<NotNow> {
    #[cfg(feature = "planted-faults")]
    if Fault::NotFenced.planted() {
        return None;
    }
    if !self_fencing::has_enough_replicas(ctx) {
        return Some(NotNow::Refused);
    }
    keyspace::select_db(ctx, key.db);
    keyspace::with_named(ctx, key.name, |key| key.why_not_writable())
}
