//! Tells of steps of the wall clock.

use std::cell::Cell;

use redis_module::Context;

use super::TABLE;
use crate::server::clock;
use redis_lock_core::clock_steps::{ClockSteps, STEP_MS_MIN};

thread_local! {
    static STEPS: Cell<ClockSteps> = const { Cell::new(ClockSteps::new()) };
}

/// Those that were seen so far.
pub(crate) fn seen() -> ClockSteps {
    STEPS.get()
}

/// Looks whether the wall clock was set.
pub(super) fn look(ctx: &Context) {
    let steady_ms = clock::since_boot_ms();
    let wall_ms = clock::now().ms();
    // The process may have been stopped between the two.
    if clock::since_boot_ms() - steady_ms >= STEP_MS_MIN / 2 {
        return;
    }
    let mut steps = STEPS.get();
    let step_ms = steps.look(wall_ms, steady_ms);
    STEPS.set(steps);
    let Some(step_ms) = step_ms else {
        return;
    };
    let (way, what) = match step_ms {
        0.. => ("forward", "early"),
        _ => ("backward", "late"),
    };
    ctx.log_warning(&format!(
        "the wall clock was set {way} by {} ms: leases that began before end {what} by that",
        step_ms.saturating_abs()
    ));
    // What was planned was so by the clock of before.
    TABLE.with_borrow_mut(|table| table.clock_stepped(step_ms));
    super::everything_touched(ctx);
}
