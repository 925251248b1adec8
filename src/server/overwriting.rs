//! Keys that are overwritten, as by `SET`.
//!
//! While somebody waits for a lock, or much is remembered of one, it matters that its
//! key becomes something else. Most servers tell of every key that is overwritten, and
//! the module listens only while that matters. Redis 7.0 has no such event: there the
//! module subscribes to the classes of commands that overwrite keys, as soon as it
//! matters for the first time. Such a subscription can't be taken back.

use std::cell::Cell;
use std::ffi::{c_int, c_void};

use redis_module::{Context, RedisString, raw};

use crate::server::api::api;
use crate::server::hooks::hooks;
use crate::server::panics;
use crate::server::subscriptions::on_key_event;
use redis_lock_core::keys::KeyRef;

/// The classes of commands that put something else in place of any key, beyond those
/// that the module always follows.
const KINDS: u32 = raw::REDISMODULE_NOTIFY_STRING as u32
    | raw::REDISMODULE_NOTIFY_LIST as u32
    | raw::REDISMODULE_NOTIFY_SET as u32
    | raw::REDISMODULE_NOTIFY_ZSET as u32;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Following {
    No,
    Yes,
    /// By a subscription that can't be taken back.
    Always,
}

thread_local! {
    static FOLLOWING: Cell<Following> = const { Cell::new(Following::No) };
}

/// Begins anew, as a module that has just been loaded.
pub(crate) fn reset() {
    FOLLOWING.set(Following::No);
}

/// Whether the module listens, and can stop that.
pub(crate) fn is_followed() -> bool {
    FOLLOWING.get() == Following::Yes
}

/// Has the server tell of keys that are overwritten. To be called from a command.
pub(crate) fn follow(ctx: &Context) {
    if FOLLOWING.get() != Following::No {
        return;
    }
    // SAFETY: the context is alive, and `on_overwritten` takes the data of the event.
    let is_told =
        unsafe { (api().subscribe_to_server_event)(ctx.ctx, KEY_EVENT, Some(on_overwritten)) == 0 };
    if is_told {
        FOLLOWING.set(Following::Yes);
        return;
    }
    // SAFETY: the context is alive.
    unsafe { (api().subscribe_to_keyspace_events)(ctx.ctx, KINDS as c_int, Some(on_key_event)) };
    FOLLOWING.set(Following::Always);
}

/// Has the server not tell of them any more. To be called from a timer: while the
/// server tells its listeners of an event, none may be removed.
pub(crate) fn unfollow(ctx: &Context) {
    if is_followed() {
        // SAFETY: the context is alive. Without a callback, the listener is removed.
        unsafe { (api().subscribe_to_server_event)(ctx.ctx, KEY_EVENT, None) };
        FOLLOWING.set(Following::No);
    }
}

const KEY_EVENT: raw::RedisModuleEvent = raw::RedisModuleEvent {
    id: raw::REDISMODULE_EVENT_KEY,
    dataver: 1,
};

unsafe extern "C" fn on_overwritten(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    data: *mut c_void,
) {
    // The module hears of the others by its subscription to the keyspace.
    if subevent != raw::REDISMODULE_SUBEVENT_KEY_OVERWRITTEN {
        return;
    }
    panics::catch("an overwritten key", || {
        // SAFETY: for this event, the data is the key, open as long as the call, and so
        // is its name.
        let (db, name) = unsafe {
            let Some(info) = data.cast::<raw::RedisModuleKeyInfo>().as_ref() else {
                return;
            };
            let name = (api().get_key_name_from_module_key)(info.key);
            ((api().get_db_id_from_module_key)(info.key), name)
        };
        let name = RedisString::string_as_slice(name);
        (hooks().key_touched)(&Context::new(ctx), KeyRef { db, name });
    });
}
