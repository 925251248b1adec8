#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

// From the top: what people hold in their hands,
#[cfg(feature = "blocking")]
pub mod blocking;
mod client;
mod guard;
mod job;
mod lock;
mod session;
// how a lock is taken and kept,
mod acquire;
mod hold;
mod shared;
// the servers and the connections to them,
mod bond;
mod connection;
mod link;
mod register;
mod router;
mod servers;
mod slots;
// and what knows nothing of all that.
mod backoff;
mod clock;
mod command;
mod error;
mod info;
mod message;
mod mutex;

/// The crate that makes the connections, for an application's own [`redis::Client`].
pub use redis;

pub use client::{ClientBuilder, LockClient};
pub use command::Mode;
pub use error::{Error, Lost};
pub use guard::LockGuard;
pub use info::{Holder, LockInfo, Waiter};
pub use job::Job;
pub use lock::Lock;
pub use servers::Servers;
pub use session::Session;
