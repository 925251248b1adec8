//! The gate: whether anything may be granted or handed on now, and when that changes.
//!
//! Nothing is granted during a grace period, or while fewer good replicas are connected
//! than the server demands: both are checked here. Waiters are served when a grace period
//! ends. When replicas come back, they are served at the next look at their lock, half a
//! second later at most.

use std::cell::Cell;

use redis_module::Context;

use super::{TABLE, arm_timer, self_fencing};
use crate::config;
use crate::server::{clock, keyspace};
use redis_lock_core::error::LockError;
use redis_lock_core::grace::Grace;
#[cfg(feature = "planted-faults")]
use redis_lock_core::planted::Fault;
use redis_lock_core::table::LockTable;

thread_local! {
    /// The grace period, as long as nobody has seen that it is over.
    static GRACE: Cell<Option<Grace>> = const { Cell::new(None) };
}

/// Begins anew, as a module that has just been loaded.
pub(super) fn reset() {
    GRACE.set(None);
}

/// Whether anything may be granted or handed on now.
#[inline]
pub(super) fn is_open(ctx: &Context) -> bool {
    self_fencing::has_enough_replicas(ctx) && is_grace_over()
}

/// Refuses what the server itself would refuse, if it counted its replicas now. Returns
/// whether anything may be granted. A command asks once: if its replicas fell silent
/// between two answers, it would tell a holder that it has no lock.
#[inline]
pub(super) fn check_replicas(ctx: &Context) -> Result<bool, LockError> {
    match self_fencing::has_enough_replicas(ctx) {
        true => Ok(is_grace_over()),
        false => Err(LockError::TooFewReplicas),
    }
}

#[inline]
fn is_grace_over() -> bool {
    #[cfg(feature = "planted-faults")]
    if Fault::GraceIgnored.planted() {
        return true;
    }
    grace_left_ms() == 0
}

/// How long nothing is granted because of a start or a promotion, in milliseconds.
#[inline]
pub(crate) fn grace_left_ms() -> i64 {
    let left_ms = |grace: Grace| grace.left_ms(clock::since_boot_ms());
    GRACE.get().map_or(0, left_ms)
}

/// When the gate has to be looked at, in milliseconds since 1970, if ever.
pub(super) fn wake_at_ms(now_ms: i64) -> Option<i64> {
    GRACE.get().map(|_| now_ms.saturating_add(grace_left_ms()))
}

/// What the server demands of its replicas may have changed.
pub(crate) fn demand_set(ctx: &Context) {
    self_fencing::begin(ctx);
    arm_timer(ctx, clock::now());
}

/// This server has just started. A replica has no grace period before its promotion.
pub(crate) fn server_started(ctx: &Context) {
    self_fencing::begin(ctx);
    if !keyspace::is_replica(ctx) {
        begin_grace(ctx, "the start");
    }
}

/// This server has become a primary, or a replica.
pub(crate) fn role_changed(ctx: &Context, is_primary: bool) {
    self_fencing::begin(ctx);
    match is_primary {
        true => begin_grace(ctx, "the promotion"),
        false => GRACE.set(None),
    }
}

fn begin_grace(ctx: &Context, what: &str) {
    let length_ms = config::GRACE_PERIOD_MS.get();
    let before = GRACE.take();
    if length_ms == 0 {
        return;
    }
    let grace = Grace::begin(clock::since_boot_ms(), length_ms);
    GRACE.set(Some(grace));
    // A start is told twice: when the module is loaded, and when the data is.
    if before.is_none() {
        ctx.log_notice(&format!(
            "grace period begins with {what}: no lock is granted for {length_ms} ms"
        ));
    }
    arm_timer(ctx, clock::now());
}

/// `lock.grace-period` was set.
pub(crate) fn grace_period_set(ctx: &Context) {
    let Some(mut grace) = GRACE.get() else {
        return;
    };
    grace.set_length(config::GRACE_PERIOD_MS.get(), clock::since_boot_ms());
    GRACE.set(Some(grace));
    let left_ms = grace_left_ms();
    if left_ms > 0 {
        ctx.log_notice(&format!("grace period: {left_ms} ms are left"));
    }
    arm_timer(ctx, clock::now());
}

/// Has every contended lock looked at, if the grace period has ended.
pub(super) fn look(ctx: &Context) {
    if GRACE.get().is_some() && grace_left_ms() == 0 {
        GRACE.set(None);
        ctx.log_notice("grace period ends: locks are granted again");
        TABLE.with_borrow_mut(LockTable::everything_touched);
    }
}
