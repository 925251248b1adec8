//! Turns of the event loop, at whose ends replies are told that replicas have acknowledged.

use std::cell::Cell;
use std::ffi::c_void;

use redis_module::{Context, raw};

use crate::server::api::api;
use crate::server::hooks::hooks;
use crate::server::panics;

thread_local! {
    static FOLLOWED: Cell<bool> = const { Cell::new(false) };
}

/// Follows the turns from now on, which costs each of them two calls. Returns whether the
/// server lets the module do so.
pub(super) fn follow(ctx: &Context) -> bool {
    if !FOLLOWED.get() {
        let (id, dataver) = (raw::REDISMODULE_EVENT_EVENTLOOP, 1);
        let event_loop = raw::RedisModuleEvent { id, dataver };
        // SAFETY: the context is alive, and the callback uses no data.
        let answer = unsafe { api!(subscribe_to_server_event)(ctx.ctx, event_loop, Some(on_turn)) };
        FOLLOWED.set(answer == 0);
    }
    FOLLOWED.get()
}

/// Begins anew, as a module that has just been loaded.
pub(crate) fn reset() {
    FOLLOWED.set(false);
}

unsafe extern "C" fn on_turn(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    _data: *mut c_void,
) {
    if subevent == raw::REDISMODULE_SUBEVENT_EVENTLOOP_BEFORE_SLEEP && (hooks().awaits_replicas)() {
        panics::catch("the end of a turn", || {
            (hooks().turn_ends)(&Context::new(ctx));
        });
    }
}
