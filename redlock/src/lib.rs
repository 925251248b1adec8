#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod error;
mod guard;
mod hold;
mod lock;
mod redlock;

pub use redis_lock_client::{self, Lost, Servers};

pub use error::Error;
pub use guard::LockGuard;
pub use lock::Lock;
pub use redlock::Redlock;
