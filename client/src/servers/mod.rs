//! The servers, the connections to them, and what comes by these without being asked for.

pub(crate) mod connection;
mod ear;
pub(crate) mod events;
pub(crate) mod identities;
pub(crate) mod node;
pub(crate) mod places;
pub(crate) mod server;
#[cfg(feature = "cluster")]
mod slots;
pub(crate) mod target;
pub(crate) mod waiting;
