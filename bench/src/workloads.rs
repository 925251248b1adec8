//! What contenders are put to, and how it is measured where a contender speaks
//! RESP through this program.

mod hand_off;
mod uncontended;

use anyhow::Result;
use hdrhistogram::Histogram;

use crate::clients::Protocol;
use crate::server::Server;

/// What a contender is put to.
#[derive(Clone, Copy, Debug)]
pub enum Workload {
    /// Clients that take and give back a lock of their own, over and over.
    Uncontended { clients: usize },
    /// The same, a hundred pairs in one write.
    Pipelined,
    /// One lock that goes round among clients that queue for it.
    HandOff { waiters: usize },
}

/// One figure of a measurement.
pub struct Figure {
    pub metric: &'static str,
    pub value: f64,
}

/// What one contender did in one round.
#[derive(Default)]
pub struct Measurement {
    pub figures: Vec<Figure>,
    /// Latencies in nanoseconds, where a distribution is of interest.
    pub latencies: Option<Histogram<u64>>,
}

impl Measurement {
    fn figure(&mut self, metric: &'static str, value: f64) {
        self.figures.push(Figure { metric, value });
    }

    /// Adds the median and the 99th percentile, in microseconds.
    fn latencies(&mut self, p50: &'static str, p99: &'static str, latencies: Histogram<u64>) {
        self.figure(p50, us(latencies.value_at_quantile(0.5)));
        self.figure(p99, us(latencies.value_at_quantile(0.99)));
        self.latencies = Some(latencies);
    }
}

fn us(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1000.0
}

/// Latencies in nanoseconds, to three digits.
fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits are allowed")
}

/// Puts a protocol to a workload. Nothing if the one doesn't fit the other.
pub fn run(
    workload: Workload,
    protocol: &Protocol,
    server: &Server,
) -> Result<Option<Measurement>> {
    match workload {
        Workload::Uncontended { clients } => uncontended::run(protocol, server, clients).map(Some),
        Workload::Pipelined => uncontended::run_pipelined(protocol, server).map(Some),
        Workload::HandOff { waiters } => {
            if !protocol.excludes || protocol.polls && waiters > 100 {
                return Ok(None);
            }
            hand_off::run(protocol, server, waiters).map(Some)
        }
    }
}
