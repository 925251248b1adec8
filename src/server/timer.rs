//! One alarm for the whole module: "wake me at this time at the latest".
//!
//! It rings in a timer of the server, where the module may write. That timer is
//! made only when the moment has come, which a [`KernelTimer`] tells; where
//! there is none, it is made in advance, and rings up to two milliseconds late.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr;

use redis_module::{Context, raw};

use crate::server::kernel_timer::KernelTimer;
use crate::server::{blocked, guard};

/// A single timer, set to the earliest time that anybody asked for.
struct Alarm {
    armed: Cell<Option<Armed>>,
    /// Ends with the module, but not with the process, whose end the server
    /// does not tell.
    precise: RefCell<ManuallyDrop<Option<Precise>>>,
}

/// What the alarm does when it rings. It is called in a context that may write.
pub(crate) type Ring = fn(&Context);

#[derive(Clone, Copy)]
struct Armed {
    due_ms: i64,
    ring: Ring,
    /// The server's timer, once there is one.
    id: Option<raw::RedisModuleTimerID>,
}

/// What it takes to have the server's timer made at the right moment.
struct Precise {
    timer: KernelTimer,
    /// A context of our own: the kernel's timer has none.
    ctx: Context,
}

thread_local! {
    static ALARM: Alarm = const {
        Alarm {
            armed: Cell::new(None),
            precise: RefCell::new(ManuallyDrop::new(None)),
        }
    };
}

/// Has `ring` called at `due_ms`, or earlier if that was asked for before.
pub(crate) fn ring_by(ctx: &Context, due_ms: i64, now_ms: i64, ring: Ring) {
    ALARM.with(|alarm| alarm.ring_by(ctx, due_ms, now_ms, ring));
}

/// Makes the alarm precise, if the system can do that.
pub(crate) fn start(ctx: &Context) {
    let precise = ManuallyDrop::new(Precise::new(ctx));
    ALARM.with(|alarm| alarm.precise.replace(precise));
}

/// Has nothing called any more, before the module is unloaded.
pub(crate) fn stop(ctx: &Context) {
    ALARM.with(|alarm| {
        alarm.disarm(ctx);
        ManuallyDrop::into_inner(alarm.precise.take());
    });
}

impl Alarm {
    fn ring_by(&self, ctx: &Context, due_ms: i64, now_ms: i64, ring: Ring) {
        // What is overdue is due now. An older moment would keep later ones away
        // if the clock were set back before the server's timer fires.
        let due_ms = due_ms.max(now_ms);
        if let Some(armed) = self.armed.get() {
            if armed.due_ms <= due_ms {
                return;
            }
            self.disarm(ctx);
        }
        let armed = Armed {
            due_ms,
            ring,
            id: None,
        };
        let wait_ms = due_ms.saturating_sub(now_ms);
        let precise = self.precise.borrow();
        let precise = precise.as_ref();
        if wait_ms > 0 && precise.is_some_and(|precise| precise.timer.set(due_ms)) {
            self.armed.set(Some(armed));
            return;
        }
        self.make_timer(ctx, armed, wait_ms);
        if wait_ms == 0 {
            wake_event_loop();
        }
    }

    fn disarm(&self, ctx: &Context) {
        // SAFETY: the id is of a timer that has not fired, because `armed` is
        // cleared first when it does. Its data is a function, so there is
        // nothing to free.
        unsafe {
            if let Some(Armed { id: Some(id), .. }) = self.armed.take()
                && let Some(stop) = raw::RedisModule_StopTimer
            {
                stop(ctx.ctx, id, ptr::null_mut());
            }
        }
    }

    fn make_timer(&self, ctx: &Context, armed: Armed, wait_ms: i64) {
        // SAFETY: `on_timer` expects a `Ring` for its data, and gets one.
        let id = unsafe {
            raw::RedisModule_CreateTimer
                .map(|create| create(ctx.ctx, wait_ms, Some(on_timer), armed.ring as *mut c_void))
        };
        self.armed.set(id.map(|_| Armed { id, ..armed }));
    }

    /// The moment has come. The server runs its timers, and so the one that is
    /// made here, before it sleeps again.
    fn due(&self) {
        if let Some(armed) = self.armed.get()
            && armed.id.is_none()
            && let Some(precise) = self.precise.borrow().as_ref()
        {
            self.make_timer(&precise.ctx, armed, 0);
        }
    }
}

impl Precise {
    fn new(ctx: &Context) -> Option<Self> {
        let timer = KernelTimer::new(|| ALARM.with(Alarm::due))?;
        // SAFETY: asks for a context of this module, which lasts.
        let ctx = unsafe { raw::RedisModule_GetDetachedThreadSafeContext?(ctx.ctx) };
        let ctx = Context::new(ctx);
        Some(Self { timer, ctx })
    }
}

impl Drop for Precise {
    fn drop(&mut self) {
        // SAFETY: `Precise::new` made the context, and nobody else has it.
        unsafe {
            if let Some(free) = raw::RedisModule_FreeThreadSafeContext {
                free(self.ctx.ctx);
            }
        }
    }
}

unsafe extern "C" fn on_timer(ctx: *mut raw::RedisModuleCtx, ring: *mut c_void) {
    ALARM.with(|alarm| alarm.armed.set(None));
    // SAFETY: `make_timer` is the only place that makes such a timer, and its
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
