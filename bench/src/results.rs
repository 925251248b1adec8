//! All figures of a run, by scenario, contender and metric, one value a round.

use crate::measurement::Measurement;

/// The values of one figure, one a round.
pub struct Series {
    pub scenario: String,
    pub contender: &'static str,
    pub metric: &'static str,
    pub values: Vec<f64>,
}

/// What a run has measured so far, in the order in which it came.
#[derive(Default)]
pub struct Results {
    pub series: Vec<Series>,
}

impl Series {
    /// The value in the middle; of an even number, the lower of the two.
    pub fn median(&self) -> f64 {
        let mut values = self.values.clone();
        values.sort_by(f64::total_cmp);
        values[(values.len() - 1) / 2]
    }

    /// The least value.
    pub fn min(&self) -> f64 {
        self.values.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// The greatest value.
    pub fn max(&self) -> f64 {
        self.values
            .iter()
            .copied()
            .fold(f64::NEG_INFINITY, f64::max)
    }
}

impl Results {
    /// Adds a round of a contender.
    pub fn add(&mut self, scenario: &str, contender: &'static str, measurement: Measurement) {
        for (metric, value) in measurement.figures {
            let known = self.series.iter_mut().find(|series| {
                (series.scenario.as_str(), series.contender, series.metric)
                    == (scenario, contender, metric)
            });
            match known {
                Some(series) => series.values.push(value),
                None => self.series.push(Series {
                    scenario: scenario.into(),
                    contender,
                    metric,
                    values: vec![value],
                }),
            }
        }
    }

    /// A figure, if it was measured.
    pub fn find(&self, scenario: &str, contender: &str, metric: &str) -> Option<&Series> {
        self.series.iter().find(|series| {
            (series.scenario.as_str(), series.contender, series.metric)
                == (scenario, contender, metric)
        })
    }

    /// The figures of a scenario.
    pub fn of<'a>(&'a self, scenario: &'a str) -> impl Iterator<Item = &'a Series> {
        self.series
            .iter()
            .filter(move |series| series.scenario == scenario)
    }
}
