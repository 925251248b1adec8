//! Tells of steps of the wall clock.

use std::cell::Cell;

use redis_module::Context;

use super::{TABLE, note};
use crate::server::clock;
use redis_lock_core::clock_steps::ClockSteps;
use redis_lock_core::lock::Now;
use redis_lock_core::table::LockTable;

thread_local! {
    static STEPS: Cell<ClockSteps> = const { Cell::new(ClockSteps::new()) };
}

/// Within how many microseconds of the other clock the wall clock has to be read to count.
const TOGETHER_US: i64 = 1000;

/// How often the clocks are read, at most, until that is so.
const TRIES: usize = 10;

/// Begins anew: steps are seen from now on, also before the server's first cron.
pub(super) fn reset(ctx: &Context) {
    STEPS.set(ClockSteps::new());
    look(ctx);
}

/// Those that were seen so far.
pub(crate) fn seen() -> ClockSteps {
    STEPS.get()
}

/// The present moment, for what is done with a lock that has been read: whatever the
/// server has expired, and whichever lease is over, the table knows of each step of the
/// clock that came before.
#[inline]
pub(super) fn now(ctx: &Context) -> Now {
    match TABLE.with_borrow(LockTable::follows_clock) {
        true => now_looked(ctx),
        false => clock::now(),
    }
}

/// As [`now`], where somebody is about to wait, or a session to begin.
#[inline]
pub(super) fn now_looked(ctx: &Context) -> Now {
    let now = clock::now();
    match STEPS.get().may_have_stepped(now.us, clock::since_boot_us()) {
        true => look(ctx),
        false => now,
    }
}

/// Looks whether the wall clock was set.
#[cold]
pub(super) fn look(ctx: &Context) -> Now {
    let mut now = clock::now();
    for _ in 0..TRIES {
        let before_us = clock::since_boot_us();
        now = clock::now();
        let after_us = clock::since_boot_us();
        // The process may have been stopped in between.
        if after_us - before_us > TOGETHER_US {
            continue;
        }
        let mut steps = STEPS.get();
        let step_ms = steps.look(now.us, [before_us, after_us]);
        STEPS.set(steps);
        if let Some(step_ms) = step_ms {
            tell(ctx, step_ms);
        }
        break;
    }
    now
}

fn tell(ctx: &Context, step_ms: i64) {
    let (way, what) = match step_ms {
        0.. => ("forward", "early"),
        _ => ("backward", "late"),
    };
    ctx.log_warning(&format!(
        "the wall clock was set {way} by {} ms: leases that began before end {what} by that, \
         but for those of locks that somebody waits for and of sessions",
        step_ms.saturating_abs()
    ));
    note(ctx, |table, now_ms| table.clock_stepped(step_ms, now_ms));
}
