//! Clients, faults and servers of a campaign, what the clients saw, and whether any correct lock
//! could have shown it to them.
#![forbid(unsafe_code)]

pub mod campaign;
mod client;
pub mod clock;
mod faults;
mod fleet;
#[expect(missing_docs, reason = "it is for tests, here and of interop")]
pub mod history;
mod journal;
mod library;
mod locks;
mod observer;
mod protection;
pub mod report;
pub mod scene;
mod words;
