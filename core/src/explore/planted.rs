//! Shows that the search finds faults: each that the core can have is planted, and a
//! shortest way to its harm is told.

use super::scope::scopes;
use super::search::{Trace, search};
use super::threads;
use super::world::World;
use crate::bounds;
use crate::planted::{FAULTS, plant};

/// Faults that are planted outside of the core, where effects are replicated and grants
/// are allowed, and those of offsets and grace periods, of which there are none here.
const OUTSIDE: [&str; 5] = [
    "expiry-not-propagated",
    "offset-too-early",
    "grace-ignored",
    "reentry-in-grace",
    "not-fenced",
];

/// So far each scope is searched for a fault.
const DEPTH: usize = 8;

/// A level of a scope that ends beyond this many states is the last.
const STATES: usize = 20_000;

/// The shortest trace of all scopes.
fn find(fault: &str) -> Option<(&'static str, Trace)> {
    for depth in 1..=DEPTH {
        for scope in scopes() {
            let prepare = || {
                bounds::set(scope.small_bounds);
                assert!(plant(fault), "no fault is called {fault}");
            };
            let found = search::<World>(scope, depth, Some(STATES), threads(), &prepare);
            if let Some(trace) = found.trace {
                return Some((scope.name, trace));
            }
        }
    }
    None
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes; see `make explore`")]
fn each_planted_fault_is_found() {
    let only = std::env::var("FAULT").ok();
    let mut unseen = Vec::new();
    for (fault, _) in FAULTS {
        if OUTSIDE.contains(&fault) || only.as_ref().is_some_and(|only| only != fault) {
            continue;
        }
        match find(fault) {
            Some((scope, trace)) => {
                let (depth, trace) = (trace.lines.len(), trace.print());
                println!("{fault}: {depth} steps, among {scope}\n{trace}");
            }
            None => unseen.push(fault),
        }
    }
    assert!(unseen.is_empty(), "not found: {unseen:?}");
}
