//! Replies that replicas have to acknowledge first: `lock.min-replicas`.
//!
//! At the end of each turn of the event loop in which anything waits for replicas, the
//! server is asked once how far its stream reaches and how far each replica has
//! acknowledged it; where anything new waits, the replicas are asked once.

use std::cell::Cell;

use redis_module::Context;

use super::{TABLE, arm_timer, read_lock};
use crate::config;
use crate::server::blocked;
use crate::server::clients;
use crate::server::clock;
use crate::server::keyspace;
use crate::server::open_lock::{OpenLock, Part};
use crate::server::replicas;
use crate::server::subscriptions;
use crate::server::timer;
use redis_lock_core::acks::Acknowledgement;
use redis_lock_core::keys::KeyBuf;
use redis_lock_core::queue::WaiterId;
use redis_lock_core::table::LockTable;

/// How many replies are told at the end of one turn of the event loop.
const TOLD_A_TURN: usize = 64;

thread_local! {
    /// Whether something waits for replicas that have not been asked yet.
    static TO_ASK: Cell<bool> = const { Cell::new(false) };

    /// How many replicas too few were online when the server's cron ran last.
    static MISSING: Cell<usize> = const { Cell::new(0) };
}

/// Whether replies have to be acknowledged.
#[inline]
pub(super) fn are_on() -> bool {
    config::MIN_REPLICAS.count() > 0
}

/// Which replicas have to acknowledge what is told from now on, if any.
#[inline]
pub(super) fn needed(ctx: &Context) -> Option<Acknowledgement> {
    are_on().then(|| Acknowledgement {
        replicas: config::MIN_REPLICAS.count(),
        connected: replicas::online(ctx),
        timeout_ms: config::REPLICAS_TIMEOUT_MS.get(),
        client: blocked::may_block(ctx).then(|| clients::running(ctx)),
    })
}

/// Begins anew, as a module that has just been loaded.
pub(super) fn begin(ctx: &Context) {
    TO_ASK.set(false);
    MISSING.set(0);
    follow_replicas(ctx);
}

fn follow_replicas(ctx: &Context) {
    if are_on() {
        subscriptions::follow_replicas(ctx);
    }
}

/// The server's cron runs.
pub(super) fn on_cron(ctx: &Context) {
    let wanted = config::MIN_REPLICAS.count();
    // A replica withholds nothing.
    MISSING.set(match are_on() && !keyspace::is_replica(ctx) {
        true => wanted.saturating_sub(replicas::online(ctx)),
        false => 0,
    });
}

/// How many more replicas have to be online before anything is granted.
pub(crate) fn replicas_missing() -> usize {
    MISSING.get()
}

/// Whether anything waits for replicas.
#[inline]
pub(crate) fn awaits_replicas() -> bool {
    TABLE.with_borrow(LockTable::awaits_replicas)
}

/// Another number of replicas has to acknowledge from now on, so waiters may be granted
/// their locks.
pub(crate) fn requirement_set(ctx: &Context) {
    follow_replicas(ctx);
    super::everything_touched(ctx);
}

/// A replica has come or gone: as [`requirement_set`], if replies are withheld.
pub(crate) fn replicas_changed(ctx: &Context) {
    if are_on() || awaits_replicas() {
        super::everything_touched(ctx);
    }
}

/// Tells what is acknowledged, and asks the replicas for the rest.
pub(crate) fn turn_ends(ctx: &Context) {
    // Too few replicas acknowledge nothing, and a look costs each turn a call.
    if replicas::online(ctx) < config::MIN_REPLICAS.count() {
        return;
    }
    let Some(stream) = replicas::look(ctx) else {
        return;
    };
    let online = stream.online.iter();
    let acknowledged = online.map(|replica| replica.acknowledged).collect();
    let (replies, is_more) = TABLE.with_borrow_mut(|table| {
        if table.offset_known(stream.written) {
            TO_ASK.set(true);
        }
        table.acknowledged(config::MIN_REPLICAS.count(), acknowledged, TOLD_A_TURN)
    });
    if is_more {
        // The next turn shall not wait for anything.
        timer::wake_now(ctx);
    }
    for (id, key) in replies {
        tell(ctx, id, &key);
    }
    // During CLIENT PAUSE and FAILOVER this would bring the server down. Replicas
    // acknowledge by themselves once a second.
    if TO_ASK.get() && !keyspace::must_not_write(ctx) {
        TO_ASK.set(false);
        replicas::ask_for_acknowledgements(ctx);
    }
}

fn tell(ctx: &Context, id: WaiterId, key: &KeyBuf) {
    let owner = TABLE.with_borrow(|table| table.told_by(id).cloned());
    let key = key.as_ref();
    keyspace::select_db(ctx, key.db);
    let stored = keyspace::with_named(ctx, key.name, |named| {
        let open = OpenLock::open_to_read(named);
        read_lock(&open, key, Part::Whole(owner.as_ref()))
    });
    let now = clock::now();
    let told = TABLE.with_borrow_mut(|table| table.tell(id, stored, now));
    if let Some((addressee, answer)) = told {
        super::tell(ctx, addressee, answer);
    }
    arm_timer(ctx, now);
}
