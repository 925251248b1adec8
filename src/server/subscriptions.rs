//! Asks the server to tell of what happens to keys, databases and connections.

use std::ffi::{CStr, c_char, c_int, c_void};

use redis_module::{Context, RedisString, raw};

use crate::lock::request::ClientId;
use crate::lock::waiters::KeyRef;
use crate::server::guard;
use crate::server::keyspace::selected_db;

/// Receives the events. Implemented by the floor above, so that this one need
/// not know it. The server does not allow writes in any of them.
pub(crate) trait Events {
    /// Whether an event can be of interest now. It is asked for every write to
    /// the server, so it must be cheap.
    fn awake() -> bool;

    /// Something happened to this key.
    fn key_touched(ctx: &Context, key: KeyRef<'_>);

    /// A key is about to be found under another name or in another database.
    fn key_leaves(key: KeyRef<'_>);

    /// This is where it is found.
    fn key_arrives(key: KeyRef<'_>);

    /// Two databases changed places.
    fn databases_swapped(ctx: &Context, one: i32, other: i32);

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
    let event = |id| raw::RedisModuleEvent { id, dataver: 1 };
    let swap = event(raw::REDISMODULE_EVENT_SWAPDB);
    let client_change = event(raw::REDISMODULE_EVENT_CLIENT_CHANGE);
    // SAFETY: called while the module loads; the callbacks have the right types.
    let subscribed = unsafe {
        let to_event = |event, callback| {
            raw::RedisModule_SubscribeToServerEvent
                .is_some_and(|subscribe| subscribe(ctx.ctx, event, callback) == 0)
        };
        raw::RedisModule_SubscribeToKeyspaceEvents.is_some_and(|subscribe| {
            subscribe(ctx.ctx, KINDS as c_int, Some(on_key_event::<E>)) == 0
        }) && to_event(swap, Some(on_swap::<E>))
            && to_event(client_change, Some(on_connection::<E>))
    };
    if subscribed {
        Ok(())
    } else {
        Err("the server refuses a subscription to its events".into())
    }
}

unsafe extern "C" fn on_connection<E: Events>(
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
    data: *mut c_void,
) {
    guard::catch("a swap event", || {
        // SAFETY: for this event, the data are the numbers of the databases.
        if let Some(swap) = unsafe { data.cast::<raw::RedisModuleSwapDbInfo>().as_ref() } {
            E::databases_swapped(&Context::new(ctx), swap.dbnum_first, swap.dbnum_second);
        }
    });
}

unsafe extern "C" fn on_key_event<E: Events>(
    ctx: *mut raw::RedisModuleCtx,
    _kind: c_int,
    event: *const c_char,
    name: *mut raw::RedisModuleString,
) -> c_int {
    guard::catch("a key event", || {
        if !E::awake() {
            return;
        }
        let ctx = Context::new(ctx);
        let key = KeyRef {
            db: selected_db(&ctx),
            name: RedisString::string_as_slice(name),
        };
        // SAFETY: the server passes a string of C, which lives through the call.
        match unsafe { CStr::from_ptr(event) }.to_bytes() {
            b"rename_from" | b"move_from" => E::key_leaves(key),
            b"rename_to" | b"move_to" => E::key_arrives(key),
            _ => {}
        }
        E::key_touched(&ctx, key);
    });
    raw::REDISMODULE_OK as c_int
}
