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

    /// A moment that a test names.
    #[cfg(test)]
    pub(crate) fn at(time: Duration) -> Self {
        Self(time)
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

#[cfg(any(target_os = "linux", target_os = "android"))]
fn since_start() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanos = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanos)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn since_start() -> Duration {
    use std::sync::LazyLock;
    use std::time::Instant;
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed()
}

/// How much shorter a lease counts here than on the server: one percent for clocks that
/// run apart, and ten milliseconds for the time it takes to notice. A lease so short that
/// this would eat it up keeps half.
fn margin(lease: Duration) -> Duration {
    (lease / 100 + Duration::from_millis(10)).min(lease / 2)
}

/// Until when a lease is relied upon. The server counts it from no earlier than when its
/// command was sent.
pub(crate) fn valid_until(sent_at: Moment, lease: Duration) -> Moment {
    sent_at + (lease - margin(lease))
}

/// Whole milliseconds, as the server counts.
pub(crate) fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_counts_from_sending_and_leaves_a_margin() {
        let sent_at = Moment::now();
        for (lease_ms, valid_us) in [(30_000, 29_690_000), (100, 89_000), (20, 10_000), (1, 500)] {
            let until = valid_until(sent_at, Duration::from_millis(lease_ms));
            assert_eq!(sent_at.until(until), Duration::from_micros(valid_us));
        }
    }
}
