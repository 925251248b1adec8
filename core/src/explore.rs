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
//! Several such servers, with fail-overs and split brains between them, are explored by
//! [`nodes`]. What a server does at a command or a wake is the same code there.
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
use scope::scopes;
use search::search;
use world::World;

/// What is searched, and what it is to come to.
struct Sought<S> {
    name: &'static str,
    scope: S,
    depth: usize,
    /// After how many steps owners exclude each other no more, if ever.
    breaks: Option<usize>,
    /// See [`scope::Scope`].
    small_bounds: bool,
}

/// Searches those that are asked for: the environment may name one, and add to the depth.
fn explore_all<W: search::World>(all: impl Iterator<Item = Sought<W::Scope>>) {
    let variable = |name| std::env::var(name).ok();
    let deeper = variable("DEEPER").map_or(0, |deeper| deeper.parse().unwrap());
    let mut surprises = Vec::new();
    for one in all.filter(|one| variable("SCOPE").is_none_or(|only| only == one.name)) {
        let depth = one.depth + deeper;
        let prepare = || bounds::set(one.small_bounds);
        let found = search::<W>(one.scope, depth, None, threads(), &prepare);
        println!(
            "{:47} depth {:2}{} {:9} states {:10} steps {:6.1} s",
            one.name,
            found.depth,
            if found.is_all { ", all" } else { "     " },
            found.states,
            found.steps,
            found.seconds
        );
        if let Some(trace) = &found.trace {
            println!("{}", trace.print());
        }
        let broken = found.trace.as_ref();
        let broken = broken.map(|trace| (trace.lines.len(), trace.broken.invariant));
        let steps = one.breaks.filter(|&steps| steps <= depth);
        let expected = steps.map(|steps| (steps, "owners_exclude_each_other"));
        let is_whole = broken.is_some() || found.is_all || found.depth == depth;
        if broken != expected || !is_whole {
            surprises.push(format!("{}: {broken:?}, not {expected:?}", one.name));
        }
    }
    assert!(surprises.is_empty(), "{surprises:#?}");
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, |count| count.get().min(2))
}

fn explore(which: usize) {
    explore_all::<World>(scopes().into_iter().map(|scope| Sought {
        name: scope.name,
        depth: scope.depths[which],
        breaks: None,
        small_bounds: scope.small_bounds,
        scope,
    }));
}

#[test]
fn no_short_history_breaks_an_invariant() {
    explore(0);
}

#[test]
#[ignore = "takes minutes; see `make explore`"]
fn no_history_breaks_an_invariant() {
    explore(1);
}
