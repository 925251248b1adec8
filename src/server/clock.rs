//! The wall clock, the same that the server expires keys by, and one that nobody sets.

use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

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

/// The time since the machine was started, in milliseconds. It runs on while the
/// machine sleeps and while this process is stopped.
pub(crate) fn since_boot_ms() -> i64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec * 1000 + time.tv_nsec / 1_000_000
}
