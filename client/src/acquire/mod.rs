//! How a lock is taken: on one server or on most of several, at once or by waiting for
//! it, alone or with other tasks of this client.

mod attempt;
mod blocked;
pub(crate) mod cohort;
pub(crate) mod handing_out;
mod in_line;
pub(crate) mod majority;
pub(crate) mod reentry;
pub(crate) mod single;
mod taking;
