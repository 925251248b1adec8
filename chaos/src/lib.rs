//! Clients, faults and servers of a campaign, what the clients saw, and whether
//! any correct lock could have shown it to them.

#![forbid(unsafe_code)]

pub mod campaign;
pub mod clients;
pub mod clock;
pub mod commands;
pub mod failover;
pub mod faults;
pub mod fsync;
pub mod history;
pub mod journal;
pub mod library;
pub mod locks;
pub mod observer;
pub mod scene;
pub mod words;
