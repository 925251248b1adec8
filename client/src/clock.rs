//! The clock by which leases are counted.
//!
//! A lease goes on while this machine is suspended, so the clock must as well:
//! on Linux and Android it is `CLOCK_BOOTTIME`. Elsewhere it is the clock of
//! [`std::time::Instant`], which may stand still during a suspension.

use std::ops::Add;
use std::time::Duration;

/// A moment by this clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(Duration);

impl Moment {
    /// The present moment.
    pub(crate) fn now() -> Self {
        Self(since_start())
    }

    /// The time from `self` to `later`, zero if that is over.
    pub(crate) fn until(self, later: Self) -> Duration {
        later.0.saturating_sub(self.0)
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }
}

#[cfg(all(not(test), any(target_os = "linux", target_os = "android")))]
fn since_start() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanos = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanos)
}

#[cfg(all(not(test), not(any(target_os = "linux", target_os = "android"))))]
fn since_start() -> Duration {
    use std::sync::LazyLock;
    use std::time::Instant;
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed()
}

#[cfg(test)]
use test_clock::since_start;
#[cfg(test)]
pub(crate) use test_clock::suspend;

/// Tokio's clock, which a test can pause, and suspensions on top.
#[cfg(test)]
mod test_clock {
    use std::cell::Cell;
    use std::time::Duration;

    use tokio::time::Instant;

    thread_local! {
        static START: Instant = Instant::now();
        static SUSPENDED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    pub(super) fn since_start() -> Duration {
        START.with(|start| start.elapsed()) + SUSPENDED.get() + Duration::from_secs(1000)
    }

    /// Lets time pass that timers don't notice.
    pub(crate) fn suspend(time: Duration) {
        SUSPENDED.set(SUSPENDED.get() + time);
    }
}
