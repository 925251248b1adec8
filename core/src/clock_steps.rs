//! Steps of the wall clock: somebody set it, or it was corrected at once.
//!
//! Leases end by the wall clock, because the server expires keys by it. So a step
//! forward ends leases early, and a step backward late. The table can't prevent that;
//! it can be told.

/// A smaller difference between two looks is no step.
pub const STEP_MS_MIN: i64 = 1000;

/// Compares the wall clock with one that nobody sets.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClockSteps {
    /// By how much the wall clock was ahead of the other one.
    ahead_ms: Option<i64>,
    count: u64,
    last_ms: i64,
}

impl ClockSteps {
    /// Nobody has looked yet.
    pub const fn new() -> Self {
        Self {
            ahead_ms: None,
            count: 0,
            last_ms: 0,
        }
    }

    /// Looks at both clocks. Returns by how much the wall clock was set forward since
    /// the last look, or backward if that is negative, if it was.
    pub fn look(&mut self, wall_ms: i64, steady_ms: i64) -> Option<i64> {
        let ahead_ms = wall_ms.saturating_sub(steady_ms);
        let before_ms = self.ahead_ms.replace(ahead_ms)?;
        let step_ms = ahead_ms.saturating_sub(before_ms);
        if step_ms.saturating_abs() < STEP_MS_MIN {
            return None;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_runs_makes_no_steps() {
        let mut steps = ClockSteps::new();
        // It may be corrected bit by bit, and the look may come late.
        for (wall_ms, steady_ms) in [(5000, 0), (6000, 1000), (6900, 2000), (99_800, 95_000)] {
            assert_eq!(steps.look(wall_ms, steady_ms), None);
        }
        assert_eq!((steps.count(), steps.last_ms()), (0, 0));
    }

    #[test]
    fn steps_are_counted_in_both_directions() {
        let mut steps = ClockSteps::new();
        steps.look(5000, 0);
        assert_eq!(steps.look(6100, 100), Some(1000));
        assert_eq!(steps.look(6200, 200), None);
        assert_eq!(steps.look(2300, 300), Some(-4000));
        assert_eq!((steps.count(), steps.last_ms()), (2, -4000));
    }
}
