//! Asks the server to tell of what happens to keys and databases.

use std::ffi::{c_char, c_int, c_void};

use redis_module::{Context, RedisString, raw};

use crate::lock::request::ClientId;
use crate::server::guard;
use crate::server::keyspace::selected_db;

/// Receives the events. Implemented by the floor above, so that this one need
/// not know it. The server does not allow writes in any of them.
pub(crate) trait Events {
    /// Whether an event can be of interest now. It is asked for every write to
    /// the server, so it must be cheap.
    fn awake() -> bool;

    /// Something happened to this key.
    fn key_touched(ctx: &Context, db: i32, name: &[u8]);

    /// Two databases changed places.
    fn databases_swapped(ctx: &Context);
}

/// Receives the ends of connections, in which the server allows no writes either.
pub(crate) trait ConnectionEvents {
    /// This client's connection has ended.
    fn connection_ended(ctx: &Context, client: ClientId);
}

/// What can free a lock: commands on keys of any type (`DEL`, `RENAME`,
/// `EXPIRE`), commands on hashes, expiry and eviction. Overwriting a lock with a
/// string or a list is not among them, because each subscription to such a
/// class slows all of its commands down: `SET` by 15% on Redis 7.0. The manager
/// finds those by looking.
const KINDS: u32 = raw::REDISMODULE_NOTIFY_GENERIC as u32
    | raw::REDISMODULE_NOTIFY_HASH as u32
    | raw::REDISMODULE_NOTIFY_EXPIRED as u32
    | raw::REDISMODULE_NOTIFY_EVICTED as u32;

/// Subscribes to what can free a lock, whatever the server's
/// `notify-keyspace-events` says.
pub(crate) fn subscribe<E: Events>(ctx: &Context) -> Result<(), String> {
    let swap_event = raw::RedisModuleEvent {
        id: raw::REDISMODULE_EVENT_SWAPDB,
        dataver: 1,
    };
    // SAFETY: called while the module loads; the callbacks have the right types.
    let subscribed = unsafe {
        raw::RedisModule_SubscribeToKeyspaceEvents.is_some_and(|subscribe| {
            subscribe(ctx.ctx, KINDS as c_int, Some(on_key_event::<E>)) == 0
        }) && raw::RedisModule_SubscribeToServerEvent
            .is_some_and(|subscribe| subscribe(ctx.ctx, swap_event, Some(on_swap::<E>)) == 0)
    };
    if subscribed {
        Ok(())
    } else {
        Err("the server refuses a subscription to its events".into())
    }
}

const CONNECTION_EVENT: raw::RedisModuleEvent = raw::RedisModuleEvent {
    id: raw::REDISMODULE_EVENT_CLIENT_CHANGE,
    dataver: 1,
};

/// Has the server tell when connections end. Says whether it will.
pub(crate) fn listen_to_connections<E: ConnectionEvents>(ctx: &Context) -> bool {
    // SAFETY: the callback has the right type.
    unsafe {
        raw::RedisModule_SubscribeToServerEvent.is_some_and(|subscribe| {
            subscribe(ctx.ctx, CONNECTION_EVENT, Some(on_connection::<E>)) == 0
        })
    }
}

/// Undoes [`listen_to_connections`]. Must not be called from such an event.
pub(crate) fn stop_listening_to_connections(ctx: &Context) {
    // SAFETY: no callback means the end of the subscription.
    unsafe {
        if let Some(subscribe) = raw::RedisModule_SubscribeToServerEvent {
            subscribe(ctx.ctx, CONNECTION_EVENT, None);
        }
    }
}

unsafe extern "C" fn on_connection<E: ConnectionEvents>(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    data: *mut c_void,
) {
    if subevent != raw::REDISMODULE_SUBEVENT_CLIENT_CHANGE_DISCONNECTED {
        return;
    }
    guard::catch("the end of a connection", || {
        // SAFETY: for this event, the data is the client's information, or
        // nothing in a server that does not know.
        if let Some(client) = unsafe { data.cast::<raw::RedisModuleClientInfo>().as_ref() } {
            E::connection_ended(&Context::new(ctx), ClientId(client.id));
        }
    });
}

unsafe extern "C" fn on_swap<E: Events>(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    _data: *mut c_void,
) {
    guard::catch("a swap event", || E::databases_swapped(&Context::new(ctx)));
}

unsafe extern "C" fn on_key_event<E: Events>(
    ctx: *mut raw::RedisModuleCtx,
    _kind: c_int,
    _event: *const c_char,
    name: *mut raw::RedisModuleString,
) -> c_int {
    guard::catch("a key event", || {
        if E::awake() {
            let ctx = Context::new(ctx);
            E::key_touched(&ctx, selected_db(&ctx), RedisString::string_as_slice(name));
        }
    });
    raw::REDISMODULE_OK as c_int
}
