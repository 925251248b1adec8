//! Real servers for tests, spoken to over RESP alone: a server, a cluster,
//! a trio of sentinels.

mod client;
mod clock;
mod cluster;
mod process;
mod proxy;
pub mod scene;
mod sentinel;
mod server;

pub use client::{Arrivals, Client, int, nil, status, text, token};
pub use clock::Clock;
pub use cluster::{Cluster, free_port, redis_cli, slot, tag};
pub use process::{need_files, spawn, stay_on_one_processor};
pub use proxy::Proxy;
pub use sentinel::Sentinels;
pub use server::{NO_REGULAR_LOOKS, TestServer, binary, module};

use std::time::{Duration, Instant};

/// How long a test waits for something that should happen soon.
pub const SOON: Duration = Duration::from_secs(10);

/// Asks `ready` until it says yes. Fails with `what` if that takes too long.
///
/// # Panics
/// If `ready` has not said yes within [`SOON`].
#[track_caller]
pub fn eventually(what: &str, ready: impl FnMut() -> bool) {
    eventually_within(SOON, what, ready);
}

/// As [`eventually`], for what takes its time.
///
/// # Panics
/// If `ready` has not said yes within `patience`.
#[track_caller]
pub fn eventually_within(patience: Duration, what: &str, mut ready: impl FnMut() -> bool) {
    let deadline = Instant::now() + patience;
    while !ready() {
        assert!(Instant::now() < deadline, "still not so: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The middle one of several times, for a bound that a single stall of the
/// machine must not break.
///
/// # Panics
/// If there is none.
#[track_caller]
pub fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
