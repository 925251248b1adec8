//! Turns of the event loop, and who is told of a grant in one.
//!
//! What is in a client's buffer is written at the end of the turn, unless the server has
//! decided in this turn that it closes the client. Then it is not, and the client is closed
//! at the end of the turn. So nobody has been told before the next turn begins.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;

use redis_module::{Context, raw};

use crate::server::api::api;
use crate::server::hooks::hooks;
use crate::server::{clients, panics};
use redis_lock_core::request::ClientId;

thread_local! {
    static FOLLOWED: Cell<bool> = const { Cell::new(false) };

    /// The clients that are told of a grant at the end of this turn.
    static TO_BE_TOLD: RefCell<Vec<ClientId>> = const { RefCell::new(Vec::new()) };
}

/// Follows the turns from now on, which costs each of them two calls. Returns whether the
/// server lets the module do so.
pub(super) fn follow(ctx: &Context) -> bool {
    if !FOLLOWED.get() {
        let (id, dataver) = (raw::REDISMODULE_EVENT_EVENTLOOP, 1);
        let event_loop = raw::RedisModuleEvent { id, dataver };
        // SAFETY: the context is alive, and the callback uses no data.
        let answer =
            unsafe { (api().subscribe_to_server_event)(ctx.ctx, event_loop, Some(on_turn)) };
        FOLLOWED.set(answer == 0);
    }
    FOLLOWED.get()
}

/// Begins anew, as a module that has just been loaded.
pub(crate) fn reset() {
    FOLLOWED.set(false);
    TO_BE_TOLD.take();
}

/// This client's grant is in its buffer.
pub(super) fn to_be_told(ctx: &Context, client: ClientId) {
    TO_BE_TOLD.with_borrow_mut(|clients| clients.push(client));
    if !FOLLOWED.get() {
        told(ctx, client);
    }
}

/// This client has been told, if it was to be.
pub(super) fn told(ctx: &Context, client: ClientId) {
    if take(client) {
        hooks().grant_told(ctx, client, true);
    }
}

/// The connection of this client ends in this turn. It has been told only if it is closed
/// because all has been written to it.
pub(super) fn connection_ends(ctx: &Context, client: ClientId) {
    if take(client) {
        let heard = clients::closes_after_reply(ctx, client);
        hooks().grant_told(ctx, client, heard);
    }
}

fn take(client: ClientId) -> bool {
    TO_BE_TOLD.with_borrow_mut(|clients| {
        let at = clients.iter().position(|other| *other == client);
        at.map(|at| clients.swap_remove(at)).is_some()
    })
}

unsafe extern "C" fn on_turn(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    _data: *mut c_void,
) {
    if subevent == raw::REDISMODULE_SUBEVENT_EVENTLOOP_BEFORE_SLEEP {
        if hooks().awaits_replicas() {
            panics::catch("the end of a turn", || {
                hooks().turn_ends(&Context::new(ctx));
            });
        }
    } else if TO_BE_TOLD.with_borrow(|clients| !clients.is_empty()) {
        panics::catch("the beginning of a turn", || {
            let ctx = Context::new(ctx);
            while let Some(client) = TO_BE_TOLD.with_borrow_mut(Vec::pop) {
                hooks().grant_told(&ctx, client, true);
            }
        });
    }
}
