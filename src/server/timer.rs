//! The one wake timer of the module: "wake me at this time at the latest".
//!
//! It is a timer of the server, because only there the module may write. Such a timer is
//! late by up to two milliseconds: it counts whole ones from now, and the event loop rounds
//! its sleep up to whole ones (`RM_CreateTimer` and `aeApiPoll` of Redis 7.0 to 8.2).

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;

use redis_module::{Context, raw};

use crate::server::api::api;
use crate::server::hooks::hooks;
use crate::server::{blocked, clock, panics};

thread_local! {
    /// The server's timer, set to the earliest time that anybody asked for.
    static ARMED: Cell<Option<Armed>> = const { Cell::new(None) };
}

#[derive(Clone, Copy)]
struct Armed {
    at_ms: i64,
    /// How long it was to wait. If that is 0, the server runs it in this turn.
    wait_ms: i64,
    id: raw::RedisModuleTimerID,
}

/// A wake-up that is further ahead than this has no timer yet: it is asked for again when the
/// server's cron runs, once a second at least. The server unloads no module that has a timer.
const AHEAD_MS: i64 = 1500;

/// Has `on_wake` called at `at_ms`, or earlier if that was asked for before. Both
/// times are in milliseconds since 1970. Each call is for one wake-up.
pub(crate) fn wake_by(ctx: &Context, at_ms: i64, now_ms: i64) {
    // What is overdue is due now. An older time would keep later ones away
    // if the clock were set back before the server's timer fires.
    let at_ms = at_ms.max(now_ms);
    let wait_ms = at_ms.saturating_sub(now_ms);
    // The server counts a timer down, and so does not follow a clock that is set forward.
    let is_in_time =
        |armed: Armed| armed.at_ms <= at_ms && (armed.at_ms > now_ms || armed.wait_ms == 0);
    if wait_ms > AHEAD_MS || ARMED.get().is_some_and(is_in_time) {
        return;
    }
    stop(ctx);
    // SAFETY: the context is alive, and `on_timer` needs no data.
    let id = unsafe { api!(create_timer)(ctx.ctx, wait_ms, Some(on_timer), ptr::null_mut()) };
    ARMED.set(Some(Armed { at_ms, wait_ms, id }));
    if wait_ms == 0 {
        wake_event_loop();
    }
}

/// As [`wake_by`], as soon as the server comes to it.
pub(crate) fn wake_now(ctx: &Context) {
    wake_by(ctx, i64::MIN, clock::now().ms());
}

fn stop(ctx: &Context) {
    if let Some(Armed { id, .. }) = ARMED.take() {
        // SAFETY: the id is of a timer that has not fired, because `ARMED` is cleared first
        // when it does. The timer has no data to free.
        unsafe { api!(stop_timer)(ctx.ctx, id, ptr::null_mut()) };
    }
}

unsafe extern "C" fn on_timer(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    ARMED.set(None);
    panics::catch("a timer", || (hooks().on_wake)(&Context::new(ctx)));
    blocked::wake_answered();
}

/// Redis 7.0 decides how long to sleep before it runs what is to run before
/// sleeping. A timer that is made there would wait for the next tick of the
/// server's own clock, up to 100 ms; an empty one-shot wakes it at once.
fn wake_event_loop() {
    unsafe extern "C" fn nothing(_data: *mut c_void) {}
    // SAFETY: the function does nothing, with no data.
    unsafe { api!(event_loop_add_one_shot)(Some(nothing), ptr::null_mut()) };
}
