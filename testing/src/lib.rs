//! The one harness: real servers, spoken to over RESP alone, for tests, fault
//! campaigns and the benchmark.
//!
//! ```text
//! process      child processes that end with this one, and signals
//! server       a server on a free port: start, crash, stop, restart, replica, log
//! connection   commands out, raw replies in       proxy     a network that misbehaves when told to
//! told         what messages say of places in queues
//! asserting    the same for tests, with sentinels, clusters and TLS: what fails there panics
//! ```
//!
//! All but `asserting` returns a [`Result`] and never panics.

mod asserting;
mod connection;
mod process;
mod proxy;
mod server;
mod told;

use std::time::{Duration, Instant};

pub use anyhow::{Error, Result};
pub use asserting::*;
pub use connection::{Connection, info_field, local, pack, reply_text};
pub use process::{Signal, end_with_us, processors, raise_file_limit, signal, spawn, stay_on};
pub use proxy::{Fate, Proxy};
pub use redis::Value::{Int, Nil, Okay};
pub use server::{Server, Setup};
pub use told::Told;

/// How long anybody waits for something that should happen soon.
pub const SOON: Duration = Duration::from_secs(10);

/// Asks `ready` again and again, for at most this long, whether it says yes.
pub fn comes_true(patience: Duration, mut ready: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + patience;
    while !ready() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}
