//! Steps of the wall clock: somebody set it, or it was corrected at once.
//!
//! Leases end by the wall clock, because the server expires keys by it. So a step
//! forward would end leases early, and a step backward late. Of locks of which it
//! knows enough, the table moves the ends of the leases with the clock
//! ([`LockTable::clock_stepped`](crate::table::LockTable::clock_stepped)).

/// A smaller difference between two looks is no step.
pub const STEP_MS_MIN: i64 = 100;

/// Compares the wall clock with one that nobody sets.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClockSteps {
    /// By how much the wall clock was ahead of the other one at least.
    ahead_us: Option<i64>,
    count: u64,
    last_ms: i64,
}

impl ClockSteps {
    /// Nobody has looked yet.
    pub const fn new() -> Self {
        Self {
            ahead_us: None,
            count: 0,
            last_ms: 0,
        }
    }

    /// Whether a look is worthwhile. The other clock was read after the wall clock, maybe
    /// much later.
    #[inline]
    pub fn may_have_stepped(&self, wall_us: i64, steady_us: i64) -> bool {
        let ahead_us = wall_us.saturating_sub(steady_us);
        self.ahead_us
            .is_some_and(|before_us| is_step(ahead_us.saturating_sub(before_us)))
    }

    /// Looks at both clocks: at the wall clock between two looks at the other one.
    /// Returns by how much the wall clock was set forward since the last look, or
    /// backward if that is negative, if it was. By what is not certain it is more
    /// forward, so that no lease that is moved by it becomes shorter.
    pub fn look(&mut self, wall_us: i64, [before_us, after_us]: [i64; 2]) -> Option<i64> {
        let at_least_us = wall_us.saturating_sub(after_us);
        let last_us = self.ahead_us.replace(at_least_us)?;
        let step_us = wall_us.saturating_sub(before_us).saturating_sub(last_us);
        if !is_step(step_us) {
            return None;
        }
        let step_ms = step_us.saturating_add(999).div_euclid(1000);
        self.count += 1;
        self.last_ms = step_ms;
        Some(step_ms)
    }

    /// How many there were.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The last one, in milliseconds, 0 if there was none.
    pub const fn last_ms(&self) -> i64 {
        self.last_ms
    }
}

const fn is_step(step_us: i64) -> bool {
    step_us.saturating_abs() >= STEP_MS_MIN * 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A look at both clocks at the same moment.
    fn look(steps: &mut ClockSteps, wall_ms: i64, steady_ms: i64) -> Option<i64> {
        steps.look(wall_ms * 1000, [steady_ms * 1000; 2])
    }

    #[test]
    fn a_clock_that_runs_makes_no_steps() {
        let mut steps = ClockSteps::new();
        // It may be corrected bit by bit, and the look may come late.
        for (wall_ms, steady_ms) in [(5000, 0), (6000, 1000), (6990, 2000), (99_980, 95_000)] {
            assert!(!steps.may_have_stepped(wall_ms * 1000, steady_ms * 1000));
            assert_eq!(look(&mut steps, wall_ms, steady_ms), None);
        }
        assert_eq!((steps.count(), steps.last_ms()), (0, 0));
    }

    #[test]
    fn steps_are_counted_in_both_directions() {
        let mut steps = ClockSteps::new();
        look(&mut steps, 5000, 0);
        assert!(steps.may_have_stepped(5_200_000, 100_000));
        assert_eq!(look(&mut steps, 5200, 100), Some(100));
        assert_eq!(look(&mut steps, 5300, 200), None);
        assert!(steps.may_have_stepped(1_400_000, 300_000));
        assert_eq!(look(&mut steps, 1400, 300), Some(-4000));
        assert_eq!((steps.count(), steps.last_ms()), (2, -4000));
    }

    #[test]
    fn what_is_not_certain_of_a_step_is_forward() {
        let mut steps = ClockSteps::new();
        assert_eq!(steps.look(5_000_000, [0, 700]), None);
        assert_eq!(steps.look(8_000_000, [1_000_000, 1_000_300]), Some(2001));
        assert_eq!(steps.look(7_000_000, [2_000_000, 2_000_300]), Some(-1999));
    }
}
