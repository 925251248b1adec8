//! Real Redisson and its `RLock`, in a JVM of its own that is asked over its standard input and
//! answers in lines of JSON.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Result, bail};
use subject::driver::{Driver, Question, java};

use super::Contender;
use crate::measurement::{MS, Measurement, US, histogram, jain};
use crate::protocols::LEASE;
use crate::server::Server;
use crate::workloads::{Pace, Workload};

/// How long all have to come back to their wait after a hand-off, at least.
const SETTLE: Duration = Duration::from_millis(5);

/// All kinds, by name.
pub const NAMES: [&str; 2] = ["redisson", "redisson-apart"];

/// A kind of clients.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// The clients are threads of one process, so that a release
    /// wakes one of them.
    Lock,
    /// The clients are as apart as in processes of their own.
    Apart,
}

/// Clients with a `RedissonClient` each soon fill a JVM with threads.
const MOST_APART: usize = 101;
/// How many threads still start and end within moments.
const MOST_TOGETHER: usize = 1001;

impl Kind {
    fn fits(self, work: Workload) -> bool {
        let clients = match work {
            Workload::Uncontended { .. } => return self == Self::Lock,
            Workload::HandOff { waiters } => waiters + 1,
            Workload::Contended { clients, .. } => clients,
            Workload::OneProcess { .. } => return self == Self::Lock,
            _ => return false,
        };
        match self {
            Self::Apart => clients <= MOST_APART,
            Self::Lock => clients <= MOST_TOGETHER,
        }
    }
}

/// Redisson with one kind of clients.
pub struct Redisson {
    kind: Kind,
    jvm: Rc<RefCell<Driver>>,
}

/// Whether any kind can do the work.
pub fn fits(work: Workload) -> bool {
    [Kind::Lock, Kind::Apart]
        .into_iter()
        .any(|kind| kind.fits(work))
}

/// All kinds, in one JVM. Builds it if need be.
pub fn all() -> Result<[Redisson; 2]> {
    let jvm = Rc::new(RefCell::new(Driver::start(java()?)?));
    Ok([Kind::Lock, Kind::Apart].map(|kind| Redisson {
        kind,
        jvm: jvm.clone(),
    }))
}

impl Contender for Redisson {
    fn name(&self) -> &'static str {
        NAMES[self.kind as usize]
    }

    fn title(&self) -> &'static str {
        match self.kind {
            Kind::Lock => "Redisson `RLock`, real, one process",
            Kind::Apart => "Redisson `RLock`, real, a process each",
        }
    }

    fn settings(&self) -> Option<String> {
        (self.kind == Kind::Lock).then(|| {
            let settings = &self.jvm.borrow().ready;
            format!(
                "{settings}; \"a process each\": a RedissonClient for each client, all in one JVM \
                 and on the same netty threads; the JVM may use every processor"
            )
        })
    }

    fn fits(&self, work: Workload) -> bool {
        self.kind.fits(work)
    }

    fn run(&mut self, work: Workload, pace: Pace, server: &Server) -> Result<Measurement> {
        let (what, clients, locks, section, pace) = match work {
            Workload::Uncontended { clients } => {
                ("uncontended", clients, clients, Duration::ZERO, pace)
            }
            Workload::HandOff { waiters } => ("hand-off", waiters + 1, 1, Duration::ZERO, pace),
            Workload::Contended { clients, section } => ("contended", clients, 1, section, pace),
            Workload::OneProcess { tasks, locks } => {
                ("contended", tasks, locks, Duration::ZERO, Pace::CROWD)
            }
            _ => bail!("the JVM can't do this"),
        };
        let question = Question {
            what,
            kind: match self.kind {
                Kind::Lock => "lock",
                Kind::Apart => "apart",
            },
            port: server.addr().port(),
            clients,
            locks,
            section,
            warm_up: pace.warm_up * 5,
            measure: pace.measure,
            lease: LEASE,
            settle: SETTLE,
        };
        let (counts, cpu) = (self.jvm.borrow_mut()).measure(&question, || server.cpu_time())?;
        let cpu_us = cpu.as_secs_f64() * 1e6;
        let mut latencies = histogram();
        for latency in &counts.latencies_ns {
            latencies.record(*latency)?;
        }
        let mut measurement = Measurement::default();
        let times = counts.shares.iter().sum::<u64>() as f64;
        match work {
            Workload::Uncontended { .. } => {
                measurement.figure("pairs/s", times / counts.seconds);
                measurement.figure("server CPU µs/pair", cpu_us / times);
                measurement.quantiles("pair p50 µs", "pair p99 µs", US, &latencies);
            }
            Workload::HandOff { .. } => {
                measurement.quantiles("hand-off p50 µs", "hand-off p99 µs", US, &latencies);
            }
            _ => {
                measurement.figure("sections/s", times / counts.seconds);
                measurement.figure("Jain's fairness", jain(&counts.shares));
                measurement.figure("server CPU µs/section", cpu_us / times);
                measurement.quantiles("wait p50 ms", "wait p99 ms", MS, &latencies);
            }
        }
        Ok(measurement)
    }
}
