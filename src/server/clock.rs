//! The wall clock, the same that the server expires keys by.

use std::time::{SystemTime, UNIX_EPOCH};

use redis_lock_core::lock::Now;

/// The present moment.
pub(crate) fn now() -> Now {
    let us = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since_1970| since_1970.as_micros());
    Now {
        us: i64::try_from(us).unwrap_or(i64::MAX),
    }
}
