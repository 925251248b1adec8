//! Clients, faults and servers of a campaign, what the clients saw, and whether
//! any correct lock could have shown it to them.

pub mod clients;
pub mod clock;
pub mod faults;
pub mod history;
pub mod journal;
pub mod locks;
pub mod observer;
pub mod proxy;
pub mod scene;
pub mod servers;
pub mod wire;
