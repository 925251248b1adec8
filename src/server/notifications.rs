//! Keyspace notifications of the module class, `d` in `notify-keyspace-events`.

use std::ffi::CStr;

use redis_module::raw;

use crate::server::keyspace::LockKey;

/// Something in the life of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Happening {
    /// An owner began to hold it.
    Acquired,
    /// An owner gave its last hold back, or its connection ended.
    Released,
    /// An owner's lease was found to be over.
    Expired,
    /// Somebody took it from its holders.
    Broken,
}

impl Happening {
    const fn name(self) -> &'static CStr {
        match self {
            Self::Acquired => c"lock.acquire",
            Self::Released => c"lock.release",
            Self::Expired => c"lock.expire",
            Self::Broken => c"lock.break",
        }
    }
}

/// Tells whoever subscribed.
pub(crate) fn tell(key: LockKey<'_>, happening: Happening) {
    let (ctx, name) = (key.ctx().ctx, key.name().inner());
    // SAFETY: the context and the name are alive, the event's name lasts.
    unsafe {
        if let Some(notify) = raw::RedisModule_NotifyKeyspaceEvent {
            let kind = raw::REDISMODULE_NOTIFY_MODULE;
            notify(ctx, kind, happening.name().as_ptr(), name);
        }
    }
}
