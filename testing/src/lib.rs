//! Real servers for tests, spoken to over RESP alone: a server, a cluster,
//! a trio of sentinels.

mod client;
mod cluster;
pub mod scene;
mod sentinel;
mod server;

pub use client::{Client, int, nil, status, text};
pub use cluster::{Cluster, free_port, redis_cli, slot, tag};
pub use sentinel::Sentinels;
pub use server::{TestServer, binary, module};

use std::time::{Duration, Instant};

/// How long a test waits for something that should happen soon.
pub const SOON: Duration = Duration::from_secs(10);

/// Asks `ready` until it says yes. Fails with `what` if that takes too long.
///
/// # Panics
/// If `ready` has not said yes within [`SOON`].
#[track_caller]
pub fn eventually(what: &str, mut ready: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !ready() {
        assert!(Instant::now() < deadline, "still not so: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
