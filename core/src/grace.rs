//! The grace period: a time after a start or a promotion in which nothing is granted.
//!
//! What was granted before may not be in the data, because it was lost with the
//! server that granted it. When the longest lease of before is over, nobody holds
//! anything that is not in the data. NFSv4 does the same after a restart.
//!
//! Times are of a clock that runs on whatever is done to the wall clock, and while
//! the machine sleeps.

/// A grace period that has begun, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grace {
    began_ms: i64,
    ends_ms: i64,
}

impl Grace {
    /// One that begins now and lasts this long.
    pub const fn begin(now_ms: i64, length_ms: i64) -> Self {
        Self {
            began_ms: now_ms,
            ends_ms: now_ms.saturating_add(length_ms),
        }
    }

    /// How long it lasts from now on, 0 if it is over.
    pub fn left_ms(&self, now_ms: i64) -> i64 {
        self.ends_ms.saturating_sub(now_ms).max(0)
    }

    /// Gives it another length, counted from its beginning. One that is over stays
    /// over.
    pub fn set_length(&mut self, length_ms: i64, now_ms: i64) {
        if self.left_ms(now_ms) > 0 {
            self.ends_ms = self.began_ms.saturating_add(length_ms);
        }
    }
}

/// Beside the longest lease and the lag that is allowed, a grace period has to outlast
/// this: lags are told in whole seconds, and messages take their time.
pub const GRACE_MARGIN_MS: i64 = 2000;

/// Why a grace period of this length does not keep out two holders over a fail-over,
/// if that is so. `max_lag_ms` is for how long a primary goes on without its replicas,
/// if that has an end.
pub fn shortcoming(
    length_ms: i64,
    max_lease_ms: i64,
    max_lag_ms: Option<i64>,
) -> Option<&'static str> {
    if length_ms == 0 {
        return None;
    }
    let Some(max_lag_ms) = max_lag_ms else {
        return Some(
            "lock.grace-period is set, but min-replicas-to-write is not: a primary that is cut \
             off from its replicas goes on granting locks. Set min-replicas-to-write to the \
             number of all replicas.",
        );
    };
    let needed_ms = max_lease_ms.saturating_add(max_lag_ms.saturating_add(GRACE_MARGIN_MS));
    (length_ms < needed_ms).then_some(
        "lock.grace-period is shorter than lock.max-lease + min-replicas-max-lag + 2 seconds: a \
         lock that was granted before a fail-over may be granted again while its lease lasts. \
         Make lock.grace-period longer, or lock.max-lease shorter.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_lasts_for_its_length() {
        let grace = Grace::begin(1000, 500);
        let left = [1000, 1200, 1499, 1500, 9000].map(|now_ms| grace.left_ms(now_ms));
        assert_eq!(left, [500, 300, 1, 0, 0]);
    }

    #[test]
    fn without_a_length_there_is_none() {
        assert_eq!(Grace::begin(1000, 0).left_ms(1000), 0);
        assert_eq!(Grace::default().left_ms(0), 0);
    }

    #[test]
    fn another_length_counts_from_the_beginning() {
        let mut grace = Grace::begin(1000, 500);
        grace.set_length(800, 1400);
        assert_eq!(grace.left_ms(1400), 400);
        grace.set_length(300, 1400);
        assert_eq!(grace.left_ms(1400), 0);
    }

    #[test]
    fn no_length_brings_one_back_that_is_over() {
        let mut grace = Grace::begin(1000, 500);
        grace.set_length(9000, 1500);
        assert_eq!(grace.left_ms(1500), 0);
        let mut ended = Grace::begin(1000, 500);
        ended.set_length(0, 1200);
        ended.set_length(9000, 1300);
        assert_eq!(ended.left_ms(1300), 0);
    }

    #[test]
    fn it_has_to_outlast_the_longest_lease_and_the_lag() {
        assert_eq!(shortcoming(22_000, 10_000, Some(10_000)), None);
        let too_short = shortcoming(21_999, 10_000, Some(10_000));
        assert!(too_short.is_some_and(|why| why.contains("is shorter than lock.max-lease")));
        let not_fenced = shortcoming(i64::MAX, 1, None);
        assert!(not_fenced.is_some_and(|why| why.contains("min-replicas-to-write is not")));
        assert_eq!(shortcoming(0, i64::MAX, None), None);
    }

    #[test]
    fn the_longest_one_ends_with_the_clock() {
        assert_eq!(Grace::begin(i64::MAX - 1, 500).left_ms(i64::MAX - 1), 1);
    }
}
