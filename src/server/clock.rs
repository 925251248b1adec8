//! The wall clock, the same that the server expires keys by, and one that nobody sets.

use redis_lock_core::lock::Now;

#[cfg(target_os = "linux")]
const SINCE_BOOT: libc::clockid_t = libc::CLOCK_BOOTTIME;
// That of macOS runs on while the machine sleeps.
#[cfg(not(target_os = "linux"))]
const SINCE_BOOT: libc::clockid_t = libc::CLOCK_MONOTONIC;

/// The present moment.
pub(crate) fn now() -> Now {
    Now {
        us: read_us(libc::CLOCK_REALTIME),
        steady_ms: since_boot_ms(),
    }
}

/// As [`since_boot_us`], in milliseconds.
pub(crate) fn since_boot_ms() -> i64 {
    since_boot_us() / 1000
}

/// The time since the machine was started, in microseconds. It runs on while the
/// machine sleeps and while this process is stopped.
pub(crate) fn since_boot_us() -> i64 {
    read_us(SINCE_BOOT)
}

fn read_us(clock: libc::clockid_t) -> i64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the place lives through the call.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec * 1_000_000 + time.tv_nsec / 1000
}
