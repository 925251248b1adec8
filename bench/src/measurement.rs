//! What a measurement yields.

use hdrhistogram::Histogram;

/// What one contender did in one round.
#[derive(Default)]
pub struct Measurement {
    /// Figures by metric, a name with its unit.
    pub figures: Vec<(&'static str, f64)>,
}

impl Measurement {
    /// Adds a figure.
    pub fn figure(&mut self, metric: &'static str, value: f64) {
        self.figures.push((metric, value));
    }

    /// Adds the median and the 99th percentile of latencies in nanoseconds, in
    /// a unit of this many nanoseconds.
    pub fn quantiles(
        &mut self,
        p50: &'static str,
        p99: &'static str,
        unit: f64,
        latencies: &Histogram<u64>,
    ) {
        self.figure(p50, latencies.value_at_quantile(0.5) as f64 / unit);
        self.figure(p99, latencies.value_at_quantile(0.99) as f64 / unit);
    }
}

/// Nanoseconds in a microsecond and in a millisecond.
pub const US: f64 = 1e3;
pub const MS: f64 = 1e6;

/// Latencies in nanoseconds, to three digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits are allowed")
}

/// Jain's index of fairness: 1 if all had the same, 1/n if one had all.
pub fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|&n| n as f64).sum();
    let squares: f64 = shares.iter().map(|&n| (n as f64).powi(2)).sum();
    sum * sum / (shares.len() as f64 * squares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_shares_are_fair_and_one_share_for_all_is_not() {
        assert_eq!(jain(&[5, 5, 5, 5]), 1.0);
        assert_eq!(jain(&[20, 0, 0, 0]), 0.25);
    }
}
