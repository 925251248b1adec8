//! A real server for each test, spoken to over RESP alone.

#![allow(
    dead_code,
    unused_imports,
    reason = "each test file uses what it needs"
)]

mod client;
mod cluster;
mod server;

pub use client::{Client, int, nil, status, text};
pub use cluster::{Cluster, free_port, redis_cli, slot, tag};
pub use server::{TestServer, binary, module};

use std::time::{Duration, Instant};

/// How long a test waits for something that should happen soon.
pub const SOON: Duration = Duration::from_secs(10);

/// Asks `ready` until it says yes. Fails with `what` if that takes too long.
#[track_caller]
pub fn eventually(what: &str, mut ready: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !ready() {
        assert!(Instant::now() < deadline, "still not so: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
