//! This project's Rust client: guards that are renewed and that notice a loss.

use anyhow::Result;
use redis_lock_client::{LockClient, LockGuard};

use super::Contender;
use super::tasks::{self, TaskLock};
use crate::measurement::Measurement;
use crate::server::Server;
use crate::workloads::{Pace, Workload};

/// Each has a connection of its own.
const MOST_WAITERS: usize = 1000;

pub struct RustClient;

impl Contender for RustClient {
    fn name(&self) -> &'static str {
        "redis-lock-client"
    }

    fn title(&self) -> &'static str {
        "Rust client of this module"
    }

    fn settings(&self) -> Option<String> {
        Some("redis-lock-client as it comes: a lease of 30 s that is renewed; every client with connections of its own, as in a process of its own, but for \"one process\"; all in one thread".into())
    }

    fn needs_module(&self) -> bool {
        true
    }

    fn fits(&self, work: Workload) -> bool {
        match work {
            Workload::Uncontended { .. }
            | Workload::Contended { .. }
            | Workload::OneProcess { .. } => true,
            Workload::HandOff { waiters } => waiters <= MOST_WAITERS,
            _ => false,
        }
    }

    fn run(&mut self, work: Workload, pace: Pace, server: &Server) -> Result<Measurement> {
        let url = format!("redis://{}", server.addr());
        tasks::run(work, pace, server, async || {
            Ok(LockClient::connect(url.as_str()).await?)
        })
    }
}

impl TaskLock for LockClient {
    type Guard = LockGuard;

    async fn acquire(&self, lock: &str) -> Result<LockGuard> {
        Ok(self.lock(lock).acquire().await?)
    }

    async fn release(&self, guard: LockGuard) -> Result<()> {
        Ok(guard.release().await?)
    }
}
