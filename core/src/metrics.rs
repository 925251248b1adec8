//! What has happened to the locks of a server since it started.

use hdrhistogram::Histogram;

/// The longest time that the histograms tell apart, in microseconds: an hour.
const LONGEST_US: u64 = 3_600_000_000;

/// Times are kept to within one percent.
const DIGITS: u8 = 2;

/// Counts and times.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// New holds that were granted at once.
    pub grants_immediate: u64,
    /// Requests that were granted after a wait, new holds or re-entries.
    pub grants_after_wait: u64,
    /// New holds among them: the lock was handed to the next in line.
    pub hand_offs: u64,
    /// Grants to an owner that held the lock already, without a wait.
    pub reentries: u64,
    /// Grants taken back because the client was gone before it heard of them.
    pub grants_undelivered: u64,
    /// Replies that were withheld and never told: too few replicas acknowledged them
    /// in time, or their client was unblocked.
    pub replies_unacknowledged: u64,
    /// Waits that ended without the lock when their time was up.
    pub wait_timeouts: u64,
    /// Waits whose client went away, or was unblocked with an error.
    pub waits_abandoned: u64,
    /// Waits that ended with an error: the key had become something else, or
    /// the request did not fit when its turn came.
    pub waits_refused: u64,
    /// Requests that were taken over by a later one of their owner.
    pub superseded: u64,
    /// Owners that gave their last hold back.
    pub releases: u64,
    /// Owners whose lease was found to be over: one of several holders, or the
    /// holder of a lock for which somebody waited.
    pub releases_expired: u64,
    /// Owners whose connection ended.
    pub releases_session: u64,
    /// Owners whose lock was broken.
    pub releases_broken: u64,
    /// Owners whose lock somebody deleted or overwrote while others waited.
    pub releases_deleted: u64,
    /// Waits that were refused because they would have closed a cycle.
    pub deadlocks_refused: u64,
    /// Releases, renewals and breaks of a held lock that named another token, and
    /// guarded commands whose token nobody held.
    pub tokens_refused: u64,
    /// Waits that were refused because the queue was full.
    pub queues_full: u64,
    /// Grants to places that were claimed in time.
    pub claims: u64,
    /// Grants to places whose first lease ended unclaimed.
    pub grants_unclaimed: u64,
    /// Places that were gone because nobody heard of their grant.
    pub places_unheard: u64,
    /// How long granted requests had waited.
    pub waits: Times,
    /// How long owners held a lock until they gave it back, their connection
    /// ended, or the grant was taken back.
    pub holds: Times,
}

/// How long things took. Nothing is kept until the first comes.
#[derive(Clone, Debug, Default)]
pub struct Times(Option<Histogram<u64>>);

/// The middle and the end of a distribution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// How many there were.
    pub count: u64,
    /// Half of them took no longer, in microseconds.
    pub p50_us: u64,
    /// Of a hundred, 99 took no longer.
    pub p99_us: u64,
    /// Of a thousand, 999 took no longer.
    pub p999_us: u64,
    /// The longest.
    pub max_us: u64,
}

impl Times {
    /// Adds a time in microseconds. A clock that was set back counts as none.
    pub fn add(&mut self, us: i64) {
        if self.0.is_none() {
            self.0 = Histogram::new_with_bounds(1, LONGEST_US, DIGITS).ok();
        }
        if let Some(histogram) = &mut self.0 {
            histogram.saturating_record(u64::try_from(us).unwrap_or(0));
        }
    }

    /// Sums them up.
    pub fn summary(&self) -> Summary {
        let Some(histogram) = &self.0 else {
            return Summary::default();
        };
        Summary {
            count: histogram.len(),
            p50_us: histogram.value_at_quantile(0.5),
            p99_us: histogram.value_at_quantile(0.99),
            p999_us: histogram.value_at_quantile(0.999),
            max_us: histogram.max(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_summed_up_to_within_a_percent() {
        let mut times = Times::default();
        assert_eq!(times.summary(), Summary::default());
        (1..=1000).for_each(|n| times.add(n * 1000));
        let summary = times.summary();
        assert_eq!(summary.count, 1000);
        for (us, expected) in [
            (summary.p50_us, 500_000),
            (summary.p99_us, 990_000),
            (summary.p999_us, 999_000),
            (summary.max_us, 1_000_000),
        ] {
            assert!(
                us.abs_diff(expected) <= expected / 100,
                "{us} for {expected}"
            );
        }
    }

    #[test]
    fn a_time_out_of_range_counts_as_the_nearest_in_it() {
        let mut times = Times::default();
        times.add(-5);
        times.add(i64::MAX);
        assert_eq!(times.summary().count, 2);
        assert!(times.summary().max_us >= LONGEST_US);
    }
}
