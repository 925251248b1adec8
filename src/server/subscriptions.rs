//! Asks the server to tell of what happens to keys.

use std::ffi::{c_char, c_int};

use redis_module::{Context, RedisString, raw};

use crate::server::guard;
use crate::server::keyspace::selected_db;

/// Receives keyspace events. Implemented by the floor above, so that this one
/// need not know it.
pub(crate) trait KeyEvents {
    /// Whether an event can be of interest now. It is asked for every write to
    /// the server, so it must be cheap.
    fn awake() -> bool;

    /// Something happened to this key. The server does not allow writes here.
    fn key_touched(ctx: &Context, db: i32, name: &[u8]);
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
pub(crate) fn subscribe_to_keys<E: KeyEvents>(ctx: &Context) -> Result<(), String> {
    // SAFETY: called while the module loads; the callback has the right type.
    let status = unsafe {
        raw::RedisModule_SubscribeToKeyspaceEvents.map_or(1, |subscribe| {
            subscribe(ctx.ctx, KINDS as c_int, Some(on_event::<E>))
        })
    };
    if status == 0 {
        Ok(())
    } else {
        Err("the server refuses a subscription to key events".into())
    }
}

unsafe extern "C" fn on_event<E: KeyEvents>(
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
