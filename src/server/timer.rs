//! One alarm for the whole module: "wake me at this time at the latest".

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;

use redis_module::{Context, raw};

use crate::server::{blocked, guard};

/// A single timer, set to the earliest time that anybody asked for.
pub(crate) struct Alarm {
    armed: Cell<Option<Armed>>,
}

/// What the alarm does when it rings. It is called in a context that may write.
pub(crate) type Ring = fn(&Context);

#[derive(Clone, Copy)]
struct Armed {
    due_ms: i64,
    id: raw::RedisModuleTimerID,
}

thread_local! {
    static ALARM: Alarm = const { Alarm { armed: Cell::new(None) } };
}

/// Has `ring` called at `due_ms`, or earlier if that was asked for before.
pub(crate) fn ring_by(ctx: &Context, due_ms: i64, now_ms: i64, ring: Ring) {
    ALARM.with(|alarm| alarm.ring_by(ctx, due_ms, now_ms, ring));
}

impl Alarm {
    fn ring_by(&self, ctx: &Context, due_ms: i64, now_ms: i64, ring: Ring) {
        // SAFETY: the API table is filled once, while the module loads.
        let (create, stop) = unsafe { (raw::RedisModule_CreateTimer, raw::RedisModule_StopTimer) };
        let (Some(create), Some(stop)) = (create, stop) else {
            return;
        };
        if let Some(armed) = self.armed.get() {
            if armed.due_ms <= due_ms {
                return;
            }
            // SAFETY: the id is of a timer that has not fired, because `armed`
            // is cleared first when it does. Its data is a function, so there
            // is nothing to free.
            unsafe { stop(ctx.ctx, armed.id, ptr::null_mut()) };
        }
        let wait_ms = due_ms.saturating_sub(now_ms).max(0);
        // SAFETY: `on_timer` expects a `Ring` for its data, and gets one.
        let id = unsafe { create(ctx.ctx, wait_ms, Some(on_timer), ring as *mut c_void) };
        self.armed.set(Some(Armed { due_ms, id }));
        if wait_ms == 0 {
            wake_event_loop();
        }
    }
}

unsafe extern "C" fn on_timer(ctx: *mut raw::RedisModuleCtx, ring: *mut c_void) {
    ALARM.with(|alarm| alarm.armed.set(None));
    // SAFETY: `ring_by` is the only place that makes such a timer, and its
    // data is a `Ring`.
    let ring = unsafe { std::mem::transmute::<*mut c_void, Ring>(ring) };
    guard::catch("a timer", || ring(&Context::new(ctx)));
    blocked::wake_answered();
}

/// Redis 7.0 decides how long to sleep before it runs what is to run before
/// sleeping. A timer that is made there would wait for the next tick of the
/// server's own clock, up to 100 ms; an empty one-shot wakes it at once.
fn wake_event_loop() {
    unsafe extern "C" fn nothing(_data: *mut c_void) {}
    // SAFETY: the function does nothing, with no data.
    unsafe {
        if let Some(add_one_shot) = raw::RedisModule_EventLoopAddOneShot {
            add_one_shot(Some(nothing), ptr::null_mut());
        }
    }
}
