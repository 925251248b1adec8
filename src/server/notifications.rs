//! Keyspace notifications of the module class, `d` in `notify-keyspace-events`.

use std::ffi::CStr;

use redis_module::raw;

use crate::server::api::api;
use crate::server::keyspace::LockKey;
use redis_lock_core::table::LockEvent;

const fn name(event: LockEvent) -> &'static CStr {
    match event {
        LockEvent::Acquired => c"lock.acquire",
        LockEvent::Released => c"lock.release",
        LockEvent::Expired => c"lock.expire",
        LockEvent::Broken => c"lock.break",
    }
}

/// Notifies those who have subscribed to this event.
pub(crate) fn notify(key: LockKey<'_>, event: LockEvent) {
    let (ctx, key) = (key.ctx().ctx, key.name().inner());
    let class = raw::REDISMODULE_NOTIFY_MODULE;
    // SAFETY: the context and the name are alive, the event's name lasts.
    unsafe { api!(notify_keyspace_event)(ctx, class, name(event).as_ptr(), key) };
}
