//! Subscribes to what happens to keys, databases and connections.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};

use redis_module::{Context, RedisString, raw};

use crate::server::api::api;
use crate::server::hooks::hooks;
use crate::server::keyspace::{select_db, selected_db};
use crate::server::panics;
use crate::server::registration;
use redis_lock_core::keys::KeyRef;
use redis_lock_core::request::ClientId;

/// What can free a lock: commands on keys of any type (`DEL`, `RENAME`,
/// `EXPIRE`), commands on hashes, expiry and eviction. Overwriting a lock with a
/// string or a list is not among them, because each subscription to such a
/// class slows all of its commands down: the next look finds that. And what is loaded,
/// for its tokens.
const KINDS: u32 = raw::REDISMODULE_NOTIFY_GENERIC as u32
    | raw::REDISMODULE_NOTIFY_LOADED as u32
    | raw::REDISMODULE_NOTIFY_HASH as u32
    | raw::REDISMODULE_NOTIFY_EXPIRED as u32
    | raw::REDISMODULE_NOTIFY_EVICTED as u32;

thread_local! {
    /// Whether a client has to be put back where it was when it has moved a key.
    static PUTS_BACK: Cell<bool> = const { Cell::new(false) };

    /// The database from which a key has been moved last.
    static MOVED_FROM: Cell<i32> = const { Cell::new(0) };
}

/// Subscribes to what can free a lock, whatever the server's
/// `notify-keyspace-events` says. The hooks are registered by then.
pub(crate) fn subscribe(ctx: &Context) -> Result<(), String> {
    PUTS_BACK.set(registration::valkey_version(ctx) >= Some((8, 1)));
    let event = |id| raw::RedisModuleEvent { id, dataver: 1 };
    let swap = event(raw::REDISMODULE_EVENT_SWAPDB);
    let flush = event(raw::REDISMODULE_EVENT_FLUSHDB);
    let client_change = event(raw::REDISMODULE_EVENT_CLIENT_CHANGE);
    let cron = event(raw::REDISMODULE_EVENT_CRON_LOOP);
    // SAFETY: the context is that of the load, and each callback takes the data
    // of its event.
    let all_taken = unsafe {
        let to_event = api!(subscribe_to_server_event);
        api!(subscribe_to_keyspace_events)(ctx.ctx, KINDS as c_int, Some(on_key_event)) == 0
            && to_event(ctx.ctx, swap, Some(on_swap)) == 0
            && to_event(ctx.ctx, flush, Some(on_flush)) == 0
            && to_event(ctx.ctx, client_change, Some(on_connection)) == 0
            && to_event(ctx.ctx, cron, Some(on_cron)) == 0
    };
    if all_taken {
        Ok(())
    } else {
        Err("the server refuses a subscription to its events".into())
    }
}

unsafe extern "C" fn on_connection(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    data: *mut c_void,
) {
    if subevent != raw::REDISMODULE_SUBEVENT_CLIENT_CHANGE_DISCONNECTED {
        return;
    }
    panics::catch("the end of a connection", || {
        // SAFETY: for this event, the data is the client's information, or
        // nothing in a server that does not know.
        if let Some(client) = unsafe { data.cast::<raw::RedisModuleClientInfo>().as_ref() } {
            (hooks().connection_ended)(&Context::new(ctx), ClientId(client.id));
        }
    });
}

unsafe extern "C" fn on_cron(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    data: *mut c_void,
) {
    panics::catch("the server's cron", || {
        // SAFETY: for this event, the data is how often it comes.
        if let Some(cron) = unsafe { data.cast::<raw::RedisModuleCronLoopInfo>().as_ref() } {
            (hooks().on_cron)(&Context::new(ctx), cron.hz);
        }
    });
}

/// Databases have changed places.
unsafe extern "C" fn on_swap(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    _data: *mut c_void,
) {
    panics::catch("a swap event", || {
        (hooks().everything_touched)(&Context::new(ctx));
    });
}

unsafe extern "C" fn on_flush(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    _data: *mut c_void,
) {
    if subevent == raw::REDISMODULE_SUBEVENT_FLUSHDB_END {
        panics::catch("a flush event", || {
            (hooks().everything_touched)(&Context::new(ctx));
        });
    }
}

unsafe extern "C" fn on_key_event(
    ctx: *mut raw::RedisModuleCtx,
    _kind: c_int,
    event: *const c_char,
    name: *mut raw::RedisModuleString,
) -> c_int {
    panics::catch("a key event", || {
        let hooks = hooks();
        let (awake, receives) = ((hooks.awake)(), (hooks.receives)());
        if !(awake || receives) {
            return;
        }
        let ctx = Context::new(ctx);
        // SAFETY: the server passes a string of C, which lives through the call.
        let event = unsafe { CStr::from_ptr(event) }.to_bytes();
        let key = KeyRef {
            db: match event {
                b"move_to" | b"copy_to" => db_with(&ctx, name),
                _ => selected_db(&ctx),
            },
            name: RedisString::string_as_slice(name),
        };
        if receives && matches!(event, b"hset" | b"restore" | b"loaded") {
            (hooks.key_received)(&ctx, key);
        }
        if !awake || event == b"loaded" {
            return;
        }
        (hooks.key_touched)(&ctx, key);
    });
    if PUTS_BACK.get() {
        // SAFETY: as above.
        let event = unsafe { CStr::from_ptr(event) };
        put_back(&Context::new(ctx), event.to_bytes());
    }
    raw::REDISMODULE_OK as c_int
}

/// Valkey 8.1 and later, before 9.1.1, leaves a client that has moved a key in the
/// database of the last event of which a module has heard, where the key went. The
/// context is the client's, so what is selected here is what it has selected. Of `COPY`
/// nothing tells where it was.
fn put_back(ctx: &Context, event: &[u8]) {
    match event {
        b"move_from" => MOVED_FROM.set(selected_db(ctx)),
        b"move_to" => select_db(ctx, MOVED_FROM.get()),
        _ => {}
    }
}

/// The database in which a key has just arrived. In a transaction Valkey 9.1 takes the
/// one that the client selected for that of the event.
fn db_with(ctx: &Context, name: *mut raw::RedisModuleString) -> i32 {
    let mode = (raw::REDISMODULE_READ | raw::REDISMODULE_OPEN_KEY_NOTOUCH) as c_int;
    // SAFETY: the context and the name are those of the event, and a key that is there is
    // closed once.
    unsafe {
        let key = api!(open_key)(ctx.ctx, name, mode);
        if key.is_null() {
            return selected_db(ctx);
        }
        let db = api!(get_db_id_from_module_key)(key);
        api!(close_key)(key);
        db
    }
}
