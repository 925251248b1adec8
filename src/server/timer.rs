//! The one wake timer of the module: "wake me at this time at the latest".
//!
//! The hook `on_wake` runs in a timer of the server, where the module may write.
//! That timer is made only when its time has come, which a [`KernelTimer`] tells;
//! where there is none, it is made in advance, and is up to two milliseconds late.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr;

use redis_module::{Context, raw};

use crate::server::api::api;
use crate::server::hooks::hooks;
use crate::server::kernel_timer::KernelTimer;
use crate::server::{blocked, panics};

/// A single timer, set to the earliest time that anybody asked for.
struct WakeTimer {
    armed: Cell<Option<Armed>>,
    /// Ends with the module, but not with the process, whose end the server
    /// does not tell.
    precise: RefCell<ManuallyDrop<Option<Precise>>>,
}

#[derive(Clone, Copy)]
struct Armed {
    at_ms: i64,
    /// The server's timer, once there is one.
    id: Option<raw::RedisModuleTimerID>,
}

/// What it takes to have the server's timer made at the right time.
struct Precise {
    timer: KernelTimer,
    /// A context of our own, because the kernel's timer has none.
    ctx: Context,
}

thread_local! {
    static WAKE_TIMER: WakeTimer = const {
        WakeTimer {
            armed: Cell::new(None),
            precise: RefCell::new(ManuallyDrop::new(None)),
        }
    };
}

/// Has `on_wake` called at `at_ms`, or earlier if that was asked for before. Both
/// times are in milliseconds since 1970. Each call is for one wake-up.
pub(crate) fn wake_by(ctx: &Context, at_ms: i64, now_ms: i64) {
    WAKE_TIMER.with(|timer| timer.wake_by(ctx, at_ms, now_ms));
}

/// Makes the wake timer precise, if the system can do that.
pub(crate) fn start(ctx: &Context) {
    let precise = ManuallyDrop::new(Precise::new(ctx));
    WAKE_TIMER.with(|timer| timer.precise.replace(precise));
}

/// Has nothing called any more, before the module is unloaded.
pub(crate) fn stop(ctx: &Context) {
    WAKE_TIMER.with(|timer| {
        timer.disarm(ctx);
        ManuallyDrop::into_inner(timer.precise.take());
    });
}

impl WakeTimer {
    fn wake_by(&self, ctx: &Context, at_ms: i64, now_ms: i64) {
        // What is overdue is due now. An older time would keep later ones away
        // if the clock were set back before the server's timer fires.
        let at_ms = at_ms.max(now_ms);
        if let Some(armed) = self.armed.get() {
            if armed.at_ms <= at_ms {
                return;
            }
            self.disarm(ctx);
        }
        let wait_ms = at_ms.saturating_sub(now_ms);
        let precise = self.precise.borrow();
        let precise = precise.as_ref();
        if wait_ms > 0 && precise.is_some_and(|precise| precise.timer.set(at_ms)) {
            self.armed.set(Some(Armed { at_ms, id: None }));
            return;
        }
        self.make_timer(ctx, at_ms, wait_ms);
        if wait_ms == 0 {
            wake_event_loop();
        }
    }

    fn disarm(&self, ctx: &Context) {
        if let Some(Armed { id: Some(id), .. }) = self.armed.take() {
            // SAFETY: the id is of a timer that has not fired, because `armed`
            // is cleared first when it does. The timer has no data to free.
            unsafe { (api().stop_timer)(ctx.ctx, id, ptr::null_mut()) };
        }
    }

    fn make_timer(&self, ctx: &Context, at_ms: i64, wait_ms: i64) {
        // SAFETY: the context is alive, and `on_timer` needs no data.
        let id = unsafe { (api().create_timer)(ctx.ctx, wait_ms, Some(on_timer), ptr::null_mut()) };
        let id = Some(id);
        self.armed.set(Some(Armed { at_ms, id }));
    }

    /// The time has come. The server runs its timers, and so the one that is
    /// made here, before it sleeps again.
    fn due(&self) {
        if let Some(Armed { at_ms, id: None }) = self.armed.get()
            && let Some(precise) = self.precise.borrow().as_ref()
        {
            self.make_timer(&precise.ctx, at_ms, 0);
        }
    }
}

impl Precise {
    fn new(ctx: &Context) -> Option<Self> {
        let timer = KernelTimer::new(|| WAKE_TIMER.with(WakeTimer::due))?;
        // SAFETY: the context is alive. The new one is of this module, and lasts
        // until `drop`.
        let ctx = unsafe { (api().get_detached_thread_safe_context)(ctx.ctx) };
        let ctx = Context::new(ctx);
        Some(Self { timer, ctx })
    }
}

impl Drop for Precise {
    fn drop(&mut self) {
        // SAFETY: `Precise::new` made the context, and nobody else has it.
        unsafe { (api().free_thread_safe_context)(self.ctx.ctx) };
    }
}

unsafe extern "C" fn on_timer(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    WAKE_TIMER.with(|timer| timer.armed.set(None));
    panics::catch("a timer", || (hooks().on_wake)(&Context::new(ctx)));
    blocked::wake_answered();
}

/// Redis 7.0 decides how long to sleep before it runs what is to run before
/// sleeping. A timer that is made there would wait for the next tick of the
/// server's own clock, up to 100 ms; an empty one-shot wakes it at once.
fn wake_event_loop() {
    unsafe extern "C" fn nothing(_data: *mut c_void) {}
    // SAFETY: the function does nothing, with no data.
    unsafe { (api().event_loop_add_one_shot)(Some(nothing), ptr::null_mut()) };
}
