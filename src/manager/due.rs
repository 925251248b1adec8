//! What the module does when the timer wakes it.

use redis_module::Context;

use super::{TABLE, acks, arm_timer, carry_out, clock_steps, fence, gate, look_at, step};
use crate::config;
use crate::server::clients;
use crate::server::clock;
use crate::server::guard;
use crate::server::keyspace::{self, LockKey, WriteAnswer};
use crate::server::open_lock::{OpenLock, Part};
use crate::server::overwriting;
use crate::server::timer;
use redis_lock_core::keys::KeyRef;
#[cfg(feature = "planted-faults")]
use redis_lock_core::planted::Fault;
use redis_lock_core::table::{Due, LockTable, NotNow, Progress, REFUSED_RETRY_MS, Step, Work};

/// How much one wake does, in locks that are looked at and waiters that are answered,
/// before other clients have their turn.
const WORK_A_WAKE: usize = 64;

/// So many writes cost as much as one look at a lock.
const WRITES_WEIGH_ONE: usize = 4;

/// A part of a search for deadlocks costs as much as so many looks.
const SEARCH_WEIGHS: usize = 16;

/// The time has come: close the connections whose sessions are over unnoticed, and do
/// what is due. What does not fit into one wake waits until other clients have had
/// their turn.
pub(crate) fn on_wake(ctx: &Context) {
    let now_ms = clock_steps::now(ctx).ms();
    if !TABLE.with_borrow(LockTable::follows_overwriting) {
        overwriting::unfollow(ctx);
    }
    if keyspace::is_replica(ctx) {
        TABLE.with_borrow_mut(|table| table.forget_connections(WORK_A_WAKE));
    }
    fence::ask_if_needed(ctx);
    gate::look(ctx, now_ms);
    acks::give_up(now_ms, WORK_A_WAKE);
    close_clients(ctx);
    if keyspace::must_not_write(ctx) || writes_are_refused(ctx, now_ms) {
        let is_left = TABLE.with_borrow_mut(|table| table.put_off_everything(now_ms, WORK_A_WAKE));
        close_clients(ctx);
        let retry_ms = is_left.then_some(now_ms + REFUSED_RETRY_MS);
        let at_ms = retry_ms.into_iter().chain(gate::wake_at_ms(now_ms)).min();
        if let Some(at_ms) = at_ms {
            timer::wake_by(ctx, at_ms, now_ms);
        }
        return;
    }
    let mut left = WORK_A_WAKE;
    while left > 0
        && let Some(due) = TABLE.with_borrow_mut(|table| table.take_due(now_ms))
    {
        match do_due(ctx, due) {
            Some(work) => left = left.saturating_sub(work),
            None => break,
        }
    }
    close_clients(ctx);
    arm_timer(ctx, clock::now().ms());
}

fn close_clients(ctx: &Context) {
    for client in TABLE.with_borrow_mut(|table| table.take_clients_to_close(WORK_A_WAKE)) {
        clients::close(ctx, client);
    }
}

/// Does what is due to a lock, if this server may write to it. In a cluster it may not
/// where the key's slot has moved, or is moving, to another node: only that node may
/// grant the lock now, and the server redirects those who wait here. Returns how much
/// work it was, or nothing where the server refuses every write.
fn do_due(ctx: &Context, due: Due) -> Option<usize> {
    let key = due.key.clone();
    let answer = match keyspace::in_cluster(ctx) {
        true => ask(ctx, key.as_ref()),
        false if !fence::has_enough_replicas(ctx) => WriteAnswer::Refused,
        // It was asked when the timer woke, and is the same for all keys.
        false => WriteAnswer::Allowed,
    };
    let why = match answer {
        WriteAnswer::Allowed => None,
        WriteAnswer::Refused => Some(NotNow::Refused),
        WriteAnswer::NotServedHere => Some(NotNow::NotServedHere),
    };
    if let Some(why) = why {
        let now_ms = clock::now().ms();
        TABLE.with_borrow_mut(|table| table.put_off(due, why, now_ms));
        return (why == NotNow::NotServedHere).then_some(1);
    }
    keyspace::select_db(ctx, key.as_ref().db);
    let done = guard::catch("a look at a lock", || {
        keyspace::with_named(ctx, key.as_ref().name, |key| do_to(key, due))
    });
    if done.is_none() {
        // The look that was due is over, and nobody has planned the next.
        let again_ms = clock::now().ms() + config::recheck_interval_ms();
        TABLE.with_borrow_mut(|table| table.key_touched(key.as_ref(), again_ms));
    }
    Some(done.unwrap_or(1))
}

fn do_to(key: LockKey<'_>, due: Due) -> usize {
    let open = OpenLock::open(key);
    let stored = look_at(&open, key.as_ref(), due.owner(), Part::OfAsker);
    let now = clock_steps::now(key.ctx());
    let is_search = matches!(due.work, Work::CheckWait(_));
    let progress = step(key.ctx(), |table| {
        table.settings.reads_other_keys = true;
        table.do_due(due, stored, now)
    });
    let work = match &progress {
        Progress::Done(done) => weigh(&done.step, is_search),
        Progress::Asks(_) => SEARCH_WEIGHS,
    };
    // There is nobody to whom an error could be told.
    let _ = carry_out(key, open, now, progress);
    work
}

/// How much of [`WORK_A_WAKE`] a step is.
fn weigh(step: &Step, is_search: bool) -> usize {
    let writes = step.effects.len() + step.events.len();
    let search = if is_search { SEARCH_WEIGHS } else { 1 };
    search + step.answers.len() + writes / WRITES_WEIGH_ONE
}

/// Whether the server refuses every write at the moment. Asked of one of the keys that
/// are due.
fn writes_are_refused(ctx: &Context, now_ms: i64) -> bool {
    let due = TABLE.with_borrow(|table| table.next_due(now_ms).cloned());
    due.is_some_and(|key| ask(ctx, key.as_ref()) == WriteAnswer::Refused)
}

fn ask(ctx: &Context, key: KeyRef<'_>) -> WriteAnswer {
    #[cfg(feature = "planted-faults")]
    if Fault::NotFenced.planted() {
        return WriteAnswer::Allowed;
    }
    if !fence::has_enough_replicas(ctx) {
        return WriteAnswer::Refused;
    }
    keyspace::select_db(ctx, key.db);
    keyspace::with_named(ctx, key.name, |key| key.asks_for_a_write())
}
