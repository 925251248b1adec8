//! Clients, faults and servers of a campaign, what the clients saw, and whether
//! any correct lock could have shown it to them.

#![forbid(unsafe_code)]

pub mod campaign;
pub mod client;
pub mod clock;
pub mod faults;
pub mod fleet;
pub mod history;
pub mod journal;
pub mod library;
pub mod locks;
pub mod observer;
pub mod protection;
pub mod report;
pub mod scene;
pub mod words;
