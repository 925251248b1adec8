//! The core: what a lock is and how it changes.
//!
//! Architecture invariant: nothing here knows Redis, reads a clock, does I/O
//! or is unsafe. The compiler holds that: this crate depends on no crate that
//! could. Time comes in as an argument, and all that must be
//! done goes out as data: a [`table::Step`]. That is why all of it can be tested
//! without a server, and why the same rules hold for every way a lock can
//! change hands.

#![forbid(unsafe_code)]
// Nothing that a client sends may crash the server.
#![cfg_attr(
    not(test),
    deny(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

pub mod acks;
mod bounds;
pub mod cycle;
pub mod deadlock;
pub mod effect;
pub mod ended;
pub mod error;
#[cfg(test)]
mod explore;
pub mod grace;
pub mod holder;
pub mod keys;
pub mod lock;
pub mod metrics;
mod outbox;
#[cfg(feature = "planted-faults")]
pub mod planted;
pub mod queue;
pub mod request;
pub mod sessions;
pub mod stored;
pub mod table;
pub mod token;
pub mod usage;
