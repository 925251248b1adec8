#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

// From the top: what people hold in their hands,
#[cfg(feature = "blocking")]
pub mod blocking;
mod client;
mod guard;
mod lock;
mod session;
// how a lock is taken,
mod acquire;
// what all clones of a client share,
mod shared;
// what there is of a lock that is held,
mod holding;
// the servers and the connections to them,
mod servers;
// and what knows nothing of all that.
mod backoff;
mod clock;
mod commands;
mod error;
#[cfg(test)]
mod fake_server;
mod inspect;
mod keyed;
mod lines;
mod mutex;
mod process;
mod request;
mod tasks;
mod validity;
mod votes;

/// The crate that makes the connections, for an application's own
/// [`redis::Client`].
pub use redis;

pub use client::{ClientBuilder, LockClient, Redlock};
pub use error::Error;
pub use guard::{HoldHandle, LockGuard};
pub use inspect::{ContendedLock, Counters, Holder, LockInfo, Waiter};
pub use lock::Lock;
pub use request::Mode;
pub use servers::events::{Events, Heard, LockEvent};
pub use servers::server::Server;
#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
#[cfg_attr(
    docsrs,
    doc(cfg(any(feature = "tls-rustls", feature = "tls-native-tls")))
)]
pub use servers::server::Tls;
pub use session::Session;
pub use validity::Lost;
