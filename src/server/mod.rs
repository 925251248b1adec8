//! A safe face over the module API, and the only unsafe code.
//!
//! Architecture invariant: nothing here decides anything about locks. It reads
//! and writes what it is told to, and blocks and wakes whom it is told to. What
//! it has to tell the floor above goes through [`hooks`].
//!
//! Everything here runs on the server's main thread: Redis and Valkey run the
//! commands, timers and callbacks of a module there, and this one starts no
//! threads of its own.

#![allow(unsafe_code)]

pub(crate) mod acl;
pub(crate) mod api;
pub(crate) mod blocked;
pub(crate) mod call;
pub(crate) mod clients;
pub(crate) mod clock;
pub(crate) mod command;
mod dump;
pub(crate) mod hooks;
pub(crate) mod keyspace;
pub(crate) mod open_lock;
pub(crate) mod panics;
pub(crate) mod publish;
pub(crate) mod registration;
pub(crate) mod replicas;
pub(crate) mod reply;
pub(crate) mod server_str;
pub(crate) mod subscriptions;
pub(crate) mod timer;
