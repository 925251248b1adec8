//! The pure core: what a lock is and how it changes.
//!
//! Architecture invariant: nothing here knows Redis, reads a clock, does I/O
//! or is unsafe. Time comes in as an argument, and what must be written goes
//! out as a list of [`record::Effect`]s. That is why all of it can be tested
//! without a server, and why the same rules hold for every way a lock can
//! change hands.

pub(crate) mod deadlock;
pub(crate) mod deliveries;
pub(crate) mod ended;
pub(crate) mod fence;
pub(crate) mod metrics;
#[cfg(feature = "planted-faults")]
pub(crate) mod planted;
pub(crate) mod record;
pub(crate) mod request;
pub(crate) mod sessions;
pub(crate) mod stored;
pub(crate) mod waiters;
