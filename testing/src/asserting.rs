//! The harness for tests: what fails here panics, and so fails the test.

mod client;
mod clock;
mod cluster;
mod judge;
mod play;
pub mod scene;
pub mod sentinel;
mod server;
mod tls;

use std::path::{Path, PathBuf};
use std::time::Duration;

pub use client::{Client, arrivals, text};
pub use clock::Clock;
pub use cluster::{Cluster, redis_cli, slot, tag};
pub use judge::{Control, Judge};
pub use play::Play;
pub use sentinel::Sentinels;
pub use server::NO_REGULAR_LOOKS;
pub use tls::{Authority, Certificate};

use crate::{SOON, comes_true, processors, raise_file_limit, stay_on};

/// A lease that outlasts every test.
pub const LONG: &str = "LEASE 600000";

/// The server's binary: `REDISLOCK_SERVER`, or `redis-server` from the path.
pub fn binary() -> String {
    std::env::var("REDISLOCK_SERVER").unwrap_or_else(|_| "redis-server".into())
}

/// The module: `REDISLOCK_MODULE`, or what `make build` leaves.
pub fn module() -> PathBuf {
    let module = std::env::var_os("REDISLOCK_MODULE").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/release/libredislock.so"),
        PathBuf::from,
    );
    assert!(
        module.exists(),
        "{} is not there: run `make build`, or `make test` which does",
        module.display()
    );
    module
}

/// Asks `ready` until it says yes. Fails with `what` if that takes too long.
#[track_caller]
pub fn eventually(what: &str, ready: impl FnMut() -> bool) {
    eventually_within(SOON, what, ready);
}

/// As [`eventually`], for what takes its time.
#[track_caller]
pub fn eventually_within(patience: Duration, what: &str, ready: impl FnMut() -> bool) {
    assert!(comes_true(patience, ready), "still not so: {what}");
}

/// Keeps this thread on one processor from now on. Then what it sends on several
/// connections of this machine, their ends included, arrives in that order.
pub fn stay_on_one_processor() {
    stay_on(processors().unwrap()[0]).unwrap();
}

/// Checks that this process may open this many files.
#[track_caller]
pub fn need_files(count: u64) {
    let most = raise_file_limit().unwrap();
    assert!(
        most >= count,
        "this test needs {count} open files, and the hard limit is {most}: see `ulimit -Hn`"
    );
}
