//! Subscribes to what happens to keys, databases and connections.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};

use redis_module::{Context, raw};

use crate::server::api::api;
use crate::server::hooks::hooks;
use crate::server::keyspace::{select_db, selected_db};
use crate::server::panics;
use crate::server::registration;
use crate::server::replicas;
use crate::server::server_str::ServerStr;
use redis_lock_core::request::ClientId;

/// What can free a lock: commands on keys of any type (`DEL`, `RENAME`, `EXPIRE`),
/// commands on hashes, expiry and eviction. Overwriting a lock with a string or a list is
/// not among them: each subscription to such a class slows all of its commands down, and
/// the next look finds it. Loaded keys are, for their tokens.
const KINDS: u32 = raw::REDISMODULE_NOTIFY_GENERIC as u32
    | raw::REDISMODULE_NOTIFY_LOADED as u32
    | raw::REDISMODULE_NOTIFY_HASH as u32
    | raw::REDISMODULE_NOTIFY_EXPIRED as u32
    | raw::REDISMODULE_NOTIFY_EVICTED as u32;

thread_local! {
    /// Whether a client has to be put back into its database when it has moved a key.
    static PUTS_BACK: Cell<bool> = const { Cell::new(false) };

    /// The database from which a key has been moved last.
    static MOVED_FROM: Cell<i32> = const { Cell::new(0) };
}

/// What the server tells of itself: databases that change places or are flushed,
/// connections that end, and its cron.
const SERVER_EVENTS: [u64; 4] = [
    raw::REDISMODULE_EVENT_SWAPDB,
    raw::REDISMODULE_EVENT_FLUSHDB,
    raw::REDISMODULE_EVENT_CLIENT_CHANGE,
    raw::REDISMODULE_EVENT_CRON_LOOP,
];

/// Subscribes to what can free a lock, whatever the server's
/// `notify-keyspace-events` says. The hooks are registered by then.
pub(crate) fn subscribe(ctx: &Context) -> Result<(), String> {
    PUTS_BACK.set(registration::valkey_version(ctx) >= Some((8, 1)));
    // SAFETY: the context is that of the load.
    let key_events =
        unsafe { api!(subscribe_to_keyspace_events)(ctx.ctx, KINDS as c_int, Some(on_key_event)) };
    match key_events == 0 && SERVER_EVENTS.iter().all(|id| follow(ctx, *id)) {
        true => Ok(()),
        false => Err("the server refuses a subscription to its events".into()),
    }
}

/// Has the hooks hear of replicas that come and go, and of the end of each turn of the event
/// loop, from now on. That costs each turn two calls.
pub(crate) fn follow_replicas(ctx: &Context) {
    replicas::forget_online();
    follow(ctx, raw::REDISMODULE_EVENT_REPLICA_CHANGE);
    follow(ctx, raw::REDISMODULE_EVENT_EVENTLOOP);
}

fn follow(ctx: &Context, id: u64) -> bool {
    let event = raw::RedisModuleEvent { id, dataver: 1 };
    // SAFETY: the context is alive, and the callback takes the data of each event.
    unsafe { api!(subscribe_to_server_event)(ctx.ctx, event, Some(on_server_event)) == 0 }
}

unsafe extern "C" fn on_server_event(
    ctx: *mut raw::RedisModuleCtx,
    event: raw::RedisModuleEvent,
    subevent: u64,
    data: *mut c_void,
) {
    panics::catch("an event of the server", || {
        let (ctx, hooks) = (&Context::new(ctx), hooks());
        match (event.id, subevent) {
            (raw::REDISMODULE_EVENT_EVENTLOOP, BEFORE_SLEEP) => (hooks.turn_ends)(ctx),
            (raw::REDISMODULE_EVENT_SWAPDB | raw::REDISMODULE_EVENT_FLUSHDB, _) => {
                (hooks.everything_touched)(ctx);
            }
            (raw::REDISMODULE_EVENT_CLIENT_CHANGE, DISCONNECTED) => {
                // SAFETY: for this event, the data is the client's information, or
                // nothing in a server that does not know.
                if let Some(client) = unsafe { data.cast::<raw::RedisModuleClientInfo>().as_ref() }
                {
                    (hooks.connection_ended)(ctx, ClientId(client.id));
                }
            }
            (raw::REDISMODULE_EVENT_REPLICA_CHANGE, _) => {
                replicas::forget_online();
                (hooks.replicas_changed)(ctx);
            }
            (raw::REDISMODULE_EVENT_CRON_LOOP, _) => {
                // SAFETY: for this event, the data is how often it comes.
                if let Some(cron) = unsafe { data.cast::<raw::RedisModuleCronLoopInfo>().as_ref() }
                {
                    (hooks.on_cron)(ctx, cron.hz);
                }
            }
            _ => {}
        }
    });
}

const BEFORE_SLEEP: u64 = raw::REDISMODULE_SUBEVENT_EVENTLOOP_BEFORE_SLEEP;
const DISCONNECTED: u64 = raw::REDISMODULE_SUBEVENT_CLIENT_CHANGE_DISCONNECTED;

unsafe extern "C" fn on_key_event(
    ctx: *mut raw::RedisModuleCtx,
    _kind: c_int,
    event: *const c_char,
    name: *mut raw::RedisModuleString,
) -> c_int {
    panics::catch("a key event", || {
        let ctx = Context::new(ctx);
        // SAFETY: the server passes a string of C and one of its own, which live through
        // the call.
        let (event, name) = unsafe { (CStr::from_ptr(event).to_bytes(), ServerStr::new(name)) };
        (hooks().key_event)(&ctx, event, name);
        if PUTS_BACK.get() {
            put_back(&ctx, event);
        }
    });
    raw::REDISMODULE_OK as c_int
}

/// Valkey 8.1 to 9.1.0 leave the client of a `MOVE` in the database of the last event that a
/// module heard of, where the key went. This selects the client's own again: the context is
/// the client's, so its selection is, too. After `COPY` nothing tells which one that was.
fn put_back(ctx: &Context, event: &[u8]) {
    match event {
        b"move_from" => MOVED_FROM.set(selected_db(ctx)),
        b"move_to" => select_db(ctx, MOVED_FROM.get()),
        _ => {}
    }
}

/// The database of the key of this event. Within `MULTI`, Valkey 9.1 reports the client's
/// database, not the one in which the key has just arrived.
pub(crate) fn db_of(ctx: &Context, event: &[u8], name: ServerStr<'_>) -> i32 {
    if !matches!(event, b"move_to" | b"copy_to") {
        return selected_db(ctx);
    }
    let mode = (raw::REDISMODULE_READ | raw::REDISMODULE_OPEN_KEY_NOTOUCH) as c_int;
    // SAFETY: the context and the name are those of the event, and a key that is there is
    // closed once.
    unsafe {
        let key = api!(open_key)(ctx.ctx, name.inner(), mode);
        if key.is_null() {
            return selected_db(ctx);
        }
        let db = api!(get_db_id_from_module_key)(key);
        api!(close_key)(key);
        db
    }
}
