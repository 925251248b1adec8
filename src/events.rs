//! What the server tells the module without a command of ours: somebody did
//! something to a key, a database was flushed, a setting changed.
//!
//! Architecture invariant: nothing here decides or writes; it tells the manager.

use redis_module::server_events::FlushSubevent;
use redis_module::{Context, InfoContext, RedisResult, RedisValue};
use redis_module_macros::{
    config_changed_event_handler, flush_event_handler, info_command_handler,
};

use crate::lock::waiters::KeyRef;
use crate::manager;
use crate::server::guard;
use crate::server::subscriptions::Events;

/// What happens to keys. Which event it was does not matter: if somebody waits
/// for the key, the manager looks at it and sees.
pub(crate) struct ContendedKeys;

impl Events for ContendedKeys {
    fn awake() -> bool {
        manager::anybody_waits()
    }

    fn key_touched(ctx: &Context, db: i32, name: &[u8]) {
        manager::key_touched(ctx, KeyRef { db, name });
    }

    fn databases_swapped(ctx: &Context) {
        manager::everything_touched(ctx);
    }
}

/// `FLUSHDB` and `FLUSHALL` tell of no single key.
#[flush_event_handler]
fn on_flush(ctx: &Context, stage: FlushSubevent) {
    if matches!(stage, FlushSubevent::Ended) {
        guard::catch("a flush event", || manager::everything_touched(ctx));
    }
}

/// `INFO lock`
#[info_command_handler]
fn on_info(ctx: &InfoContext, for_crash_report: bool) -> RedisResult<()> {
    if for_crash_report {
        // The state may be what crashed.
        return Ok(());
    }
    let (counts, sessions) = manager::counts();
    // A section without a name of its own has that of the module.
    ctx.builder()
        .add_section("")
        .field("waiters", counts.waiters.to_string())?
        .field("contended_keys", counts.contended_keys.to_string())?
        .field("planned_looks", counts.planned_looks.to_string())?
        .field("sessions", sessions.to_string())?
        .build_section()?
        .build_info()?;
    Ok(())
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
