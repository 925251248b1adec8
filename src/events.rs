//! What the server tells the module without a command of ours: somebody did
//! something to a key, a database was flushed, a setting changed.
//!
//! Architecture invariant: nothing here decides or writes; it tells the manager.

use redis_module::server_events::FlushSubevent;
use redis_module::{Context, NotifyEvent, RedisValue};
use redis_module_macros::{config_changed_event_handler, flush_event_handler};

use crate::manager;
use crate::server::guard;

/// Called after every command that changed a key, and when a key expires or is
/// evicted. Which event it was does not matter: if somebody waits for the key,
/// the manager looks at it and sees.
pub(crate) fn on_key_event(ctx: &Context, _kind: NotifyEvent, _event: &str, key: &[u8]) {
    guard::catch("a key event", || manager::key_touched(ctx, key));
}

/// `FLUSHDB` and `FLUSHALL` tell of no single key.
#[flush_event_handler]
fn on_flush(ctx: &Context, stage: FlushSubevent) {
    if matches!(stage, FlushSubevent::Ended) {
        guard::catch("a flush event", || manager::everything_touched(ctx));
    }
}

#[config_changed_event_handler]
fn on_setting_changed(ctx: &Context, names: &[&str]) {
    if names.contains(&"maxmemory-policy") {
        guard::catch("a settings event", || warn_if_locks_may_be_evicted(ctx));
    }
}

/// A lock is a key with an expiry, and every policy but `noeviction` may evict
/// such a key: its holder would lose it without a sign.
pub(crate) fn warn_if_locks_may_be_evicted(ctx: &Context) {
    let Ok(RedisValue::Array(reply)) = ctx.call("CONFIG", &["GET", "maxmemory-policy"]) else {
        return;
    };
    let policy = match reply.get(1) {
        Some(RedisValue::SimpleString(policy)) => policy.as_str(),
        _ => return,
    };
    if policy != "noeviction" {
        ctx.log_warning(&format!(
            "maxmemory-policy is '{policy}': the server may evict locks that are held. \
             Set 'maxmemory-policy noeviction' on a server that keeps locks."
        ));
    }
}
