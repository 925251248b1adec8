#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
mod background;
#[cfg(feature = "blocking")]
pub mod blocking;
mod client;
mod commands;
mod error;
mod guard;
mod hold;
mod keyed;
mod link;
mod lock;
mod majority;
mod mode;
mod node;
mod pending;
mod renewal;
mod session;
mod votes;

pub use client::{ClientBuilder, LockClient, Redlock};
pub use error::Error;
pub use guard::LockGuard;
pub use hold::Lost;
pub use lock::Lock;
/// The crate that makes the connections, for its addresses and builders.
pub use redis;
