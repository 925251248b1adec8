//! Native locks for Redis and Valkey.
//!
//! Loaded by `loadmodule`, this module adds `LOCK.ACQUIRE`, `LOCK.RELEASE`,
//! `LOCK.RENEW` and their relatives to the server: reentrant locks with leases
//! and fencing tokens, exclusive, shared or limited, whose waiters are blocked
//! in the server and are handed the lock the moment it comes free.
//!
//! # The map
//! From the top; imports only run down.
//!
//! | floor | what it does |
//! |---|---|
//! | `lib` | registers everything with the server, below |
//! | [`commands`], [`events`] | read a command or an event, ask the manager, reply |
//! | [`manager`] | the one road: reads, asks the core for the step, writes, propagates, notifies, answers |
//! | [`server`] | a safe face over the module API, and the only unsafe code; it calls up through `server::hooks` alone |
//! | [`config`] | settings |
//! | [`redis_lock_core`] | a crate of its own: what a lock is and how it changes; no Redis, no clock, no I/O |
//!
//! `docs/architecture.md` has the invariants, and the way of a request.

#![deny(unsafe_code)]
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
// The `redis_module!` macro defines two public functions without docs; and
// these pages are for contributors, since a module has no API in Rust.
#![allow(missing_docs, rustdoc::private_intra_doc_links)]

mod commands;
mod config;
mod events;
mod manager;
mod server;

use redis_module::{Context, RedisString, Status, redis_module};

use crate::server::{acl, api, hooks, registration, subscriptions};

/// Allocations count as the server's memory. The unit tests run without a server.
#[cfg(not(test))]
type Allocator = redis_module::alloc::RedisAlloc;
#[cfg(not(test))]
const ALLOCATOR: Allocator = redis_module::alloc::RedisAlloc;
#[cfg(test)]
type Allocator = std::alloc::System;
#[cfg(test)]
const ALLOCATOR: Allocator = std::alloc::System;

#[cfg(all(feature = "planted-faults", not(debug_assertions)))]
compile_error!("`planted-faults` breaks the locks on purpose, so no release build may have it");

/// Plants the fault that the environment names.
#[cfg(feature = "planted-faults")]
fn plant_fault(ctx: &Context) {
    if let Ok(name) = std::env::var("REDISLOCK_PLANTED_FAULT") {
        let known = redis_lock_core::planted::plant(&name);
        ctx.log_warning(&format!("planted fault {name}, known: {known}"));
    }
}

fn init(ctx: &Context, args: &[RedisString]) -> Status {
    #[cfg(feature = "planted-faults")]
    plant_fault(ctx);
    hooks::register(&events::HOOKS);
    let registered = api::check()
        .and_then(|()| registration::check_server())
        .map(|()| registration::set_options(ctx))
        .and_then(|()| registration::check_commands(ctx))
        .and_then(|()| config::register(ctx, args))
        .and_then(|()| registration::load_settings(ctx))
        .and_then(|()| commands::register(ctx))
        .and_then(|()| subscriptions::subscribe(ctx));
    if let Err(reason) = registered {
        ctx.log_warning(&format!("the module is not loaded: {reason}"));
        return Status::Err;
    }
    // The memory of an earlier load may still be there.
    manager::reset(ctx);
    events::warn_if_locks_may_be_evicted(ctx);
    events::warn_if_grace_falls_short(ctx);
    manager::gate::server_started(ctx);
    Status::Ok
}

/// Refuses to be unloaded while holds are remembered, or if that would crash the server.
/// The server itself refuses while clients wait or a timer runs.
fn deinit(ctx: &Context) -> Status {
    let pinned = || {
        let who = acl::who_pins_commands(ctx, "lock.")?;
        Some(format!(
            "without it this server could crash, as '{who}' refers to a command of it: allow \
             that user +@lock instead, or let that client run another command"
        ))
    };
    let in_use = manager::why_in_use().map(str::to_owned);
    let Some(why) = in_use.or_else(pinned) else {
        manager::goes(ctx);
        return Status::Ok;
    };
    ctx.log_warning(&format!("the module is not unloaded: {why}"));
    Status::Err
}

/// What `MODULE LIST` shows: 10000 for each major version, 100 for each minor one, and 1 for
/// each patch.
const VERSION: i32 = number(env!("CARGO_PKG_VERSION_MAJOR")) * 10_000
    + number(env!("CARGO_PKG_VERSION_MINOR")) * 100
    + number(env!("CARGO_PKG_VERSION_PATCH"));

const fn number(digits: &str) -> i32 {
    match i32::from_str_radix(digits, 10) {
        Ok(number) => number,
        Err(_) => 0,
    }
}

redis_module! {
    name: config::MODULE_NAME,
    version: VERSION,
    allocator: (Allocator, ALLOCATOR),
    data_types: [],
    init: init,
    deinit: deinit,
    commands: [],
}
