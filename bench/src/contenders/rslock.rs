//! The crate rslock: Redlock over one server, looking again after a random
//! delay.

use anyhow::Result;
use rslock::{LockGuard, LockManager};

use super::Contender;
use super::tasks::{self, TaskLock};
use crate::measurement::Measurement;
use crate::protocols::LEASE;
use crate::server::Server;
use crate::workloads::{MOST_POLLING_WAITERS, Pace, Workload};

pub struct Rslock;

impl Contender for Rslock {
    fn name(&self) -> &'static str {
        "rslock"
    }

    fn title(&self) -> &'static str {
        "rslock"
    }

    fn settings(&self) -> Option<String> {
        Some("rslock 0.10 as it comes: looks again after up to 200 ms; one manager, so one connection, a client; all in one thread".into())
    }

    fn fits(&self, work: Workload) -> bool {
        match work {
            Workload::Uncontended { .. } | Workload::Contended { .. } => true,
            Workload::HandOff { waiters } => waiters <= MOST_POLLING_WAITERS,
            _ => false,
        }
    }

    fn run(&mut self, work: Workload, pace: Pace, server: &Server) -> Result<Measurement> {
        let uri = format!("redis://{}", server.addr());
        tasks::run(work, pace, server, async || {
            Ok(LockManager::new(vec![uri.as_str()]))
        })
    }
}

impl TaskLock for LockManager {
    type Guard = LockGuard;

    async fn acquire(&self, lock: &str) -> Result<LockGuard> {
        Ok(LockManager::acquire(self, lock.as_bytes(), LEASE).await?)
    }

    async fn release(&self, guard: LockGuard) -> Result<()> {
        guard.release().await;
        Ok(())
    }
}
