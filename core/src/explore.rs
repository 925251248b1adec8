//! Explores the very core: all that can happen to a lock table, in every order.
//!
//! A simulated server, with a keyspace, clients and a clock that stands still until
//! something moves it, drives the lock table as the module does. From each state all
//! that can happen is tried, and [`invariants`] are checked after each step.
//!
//! # Why not a library
//! stateright keeps every state of its frontier, and asks for states that threads can
//! share; with symmetry it searches depth first, which finds long traces. Here, a state
//! is kept as a fingerprint and the step that led to it, some thirty bytes in all, and
//! is made again from its way when it is its turn. So owners can be shared within a
//! thread as they are in a server, tens of millions of states fit into memory, and the
//! search goes breadth first, which finds shortest traces, with symmetry.
//!
//! # When two states are one
//! If they differ in names alone, see [`form`]. What only counts and measures is left
//! out, and so is which kind of due work comes first at the next wake.
//!
//! # How the server is simulated
//! - The clock stands still until [`action::Action::Pass`] moves it to the next time at
//!   which something can happen: the end of a lease, or what the table asked to be woken
//!   for. Between two such times nothing can differ.
//! - A key that has expired stays until it is opened, or the server finds it.
//! - A client that was granted the lock after a wait hears of it later in the same turn, or
//!   never. Where the timer may be late, such a turn may take any time.
//! - Where replies wait for replicas, these acknowledge all that was written, or nothing
//!   in time.
//! - A waiter's time may be up at any moment, as by `CLIENT UNBLOCK`.
//! - A replica has the same writes, or all but the last, and takes over with a table
//!   that knows nothing.
//!
//! Several nodes, fail-overs and split brains have a world of their own: [`nodes`].
//!
//! What the server alone does is outside: that effects are replicated at all, that a
//! slow turn of the event loop wakes the module late, that commands are parsed.

mod action;
mod cast;
mod clients;
mod commands;
mod events;
pub(crate) mod form;
mod invariants;
pub(crate) mod keyspace;
mod nodes;
#[cfg(feature = "planted-faults")]
mod planted;
mod road;
mod scope;
mod search;
mod world;

use crate::bounds;
use scope::{SCOPES, Scope};
use search::{Found, search};
use world::World;

fn explore(scope: &Scope, depth: usize) -> Found {
    let threads = threads();
    let found = search::<World>(*scope, depth, None, threads, &|| {
        bounds::set(scope.small_bounds)
    });
    show(scope.name, &found);
    found
}

/// Prints what was found in a scope.
fn show(name: &str, found: &Found) {
    println!(
        "{name:47} depth {:2}{} {:9} states {:10} steps {:6.1} s",
        found.depth,
        if found.is_all { ", all" } else { "     " },
        found.states,
        found.steps,
        found.seconds
    );
    if let Some(trace) = &found.trace {
        println!("{}", trace.print());
    }
}

/// Whether this scope is asked for: the environment may name one.
fn is_asked_for(name: &str) -> bool {
    std::env::var("SCOPE").map_or(true, |only| only == name)
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, |count| count.get().min(2))
}

fn explore_all(which: usize) {
    let deeper = std::env::var("DEEPER").map_or(0, |deeper| deeper.parse().unwrap());
    let mut broken = Vec::new();
    for scope in SCOPES {
        if !is_asked_for(scope.name) {
            continue;
        }
        let found = explore(scope, scope.depths[which] + deeper);
        if found.trace.is_some() {
            broken.push(scope.name);
        }
    }
    assert!(broken.is_empty(), "broken in {broken:?}");
}

#[test]
fn no_short_history_breaks_an_invariant() {
    explore_all(0);
}

#[test]
#[ignore = "takes minutes; see `make explore`"]
fn no_history_breaks_an_invariant() {
    explore_all(1);
}
