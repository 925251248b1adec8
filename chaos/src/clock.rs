//! The machine's monotonic clock, which all processes share.

use crate::history::Nanos;
use rustix::time::{ClockId, clock_gettime};

/// What it shows.
pub fn now() -> Nanos {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}
