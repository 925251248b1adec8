//! This project's Rust client: guards that are renewed and that notice a loss.

use std::time::Duration;

use anyhow::Result;
use redis_lock_client::{LockClient, LockGuard};

use super::Contender;
use super::tasks::{self, TaskLock};
use crate::measurement::Measurement;
use crate::server::Server;
use crate::workloads::{Pace, Workload};

/// Each has a connection of its own.
const MOST_WAITERS: usize = 1000;

/// How often a hold is passed on at most, and for how long.
const PASSED: (u32, Duration) = (100, Duration::from_millis(10));

/// All ways to use it.
pub const ALL: [RustClient; 2] = [
    RustClient { passes_on: false },
    RustClient { passes_on: true },
];

pub struct RustClient {
    /// Whether tasks of a process pass a lock on among themselves.
    passes_on: bool,
}

impl Contender for RustClient {
    fn name(&self) -> &'static str {
        match self.passes_on {
            false => "redis-lock-client",
            true => "redis-lock-client-passing",
        }
    }

    fn title(&self) -> &'static str {
        match self.passes_on {
            false => "Rust client of this module",
            true => "the same with `pass_on`",
        }
    }

    fn settings(&self) -> Option<String> {
        if self.passes_on {
            let (at_most, within) = PASSED;
            return Some(format!(
                "`pass_on`: a hold is passed on {at_most} times at most, and for {} ms after its grant",
                within.as_millis()
            ));
        }
        Some("redis-lock-client as it comes: a lease of 30 s that is renewed; every client with connections of its own, as in a process of its own, but for \"one process\"; all in one thread".into())
    }

    fn needs_module(&self) -> bool {
        true
    }

    fn fits(&self, work: Workload) -> bool {
        match work {
            _ if self.passes_on => matches!(work, Workload::OneProcess { .. }),
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
            let mut builder = LockClient::builder();
            if self.passes_on {
                let (at_most, within) = PASSED;
                builder = builder.pass_on(at_most, within);
            }
            Ok(builder.connect(url.as_str()).await?)
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
