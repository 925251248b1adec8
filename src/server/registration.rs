//! What the module tells the server about itself while it loads, beyond what
//! the `redis_module!` macro does.

use redis_module::{Context, raw};

/// Lets the server read `redis.conf` into the registered settings.
pub(crate) fn load_settings(ctx: &Context) -> Result<(), String> {
    // SAFETY: called while the module loads, after its settings are registered.
    let status = unsafe { raw::RedisModule_LoadConfigs.map_or(0, |load| load(ctx.ctx)) };
    if status == 0 {
        Ok(())
    } else {
        Err("a lock.* setting in the configuration is not valid".into())
    }
}
