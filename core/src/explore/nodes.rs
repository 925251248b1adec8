//! Explores several nodes: fail-overs, and what clients believe meanwhile.
//!
//! Each node is a simulated server, the one of [`super::world`], and what must hold of each
//! step is checked on each. Writes reach the replicas in order and late. Any replica may be
//! promoted at any moment; the primary of before does not notice, and serves whoever asks,
//! until it is made a replica, is given all data of the new one, and loses its own.
//!
//! **No two owners may believe at one time that they hold the lock.** A client believes
//! it from the reply on, and until the lease is over that it asked for, counted from
//! when it sent its request.
//!
//! Exclusion does not survive a fail-over as such: the scopes that are called plain
//! show how it breaks. It does under the conditions of acknowledged grants, and under
//! those of a primary that fences itself and a grace period; and it breaks without any
//! one of these conditions. So each condition is needed, and the search is not blind.
//! See [`scope`].
//!
//! A client that waits is blocked, or has a place in the queue: then it is told by a
//! message, and believes it for the first lease, until it claims more by a renewal. A
//! place is on one node alone. Its client asks others as well, hears each, and has several
//! places; one that gives the lock up on a node listens to no other any more. With places
//! there are too many states to go to the end.
//!
//! A node that is promoted must know of each hold that anybody was told of, if all others
//! acknowledge what is told.
//!
//! # What is left out because it shows no more
//! - A message that is lost: a client that hears of a grant may do nothing.
//! - The time that requests and replies take: a client that hears later believes for
//!   less. One that waited is taken to know when it was granted the lock; a real one
//!   renews it first, and believes for less.
//! - A stream that is cut and goes on where it was: it stood still. One that is cut, or
//!   falls too far behind, and goes on with all data: what was on its way came at once.
//! - A replica that acknowledges nothing although it is there: a primary that hears of
//!   it less often grants less.
//! - A wait for enough replicas before anything is handed on: what can't be told is not
//!   believed.
//!
//! # Time
//! A tick is a millisecond of the server. All clocks run at one rate, and may show
//! different times. A lease of one tick lasts until the end of the next one.

mod scope;
mod world;

use super::{Sought, explore_all};
use scope::{Scope, scopes};
use world::World;

/// So far scopes in which nothing breaks are followed in a test of seconds.
const SHORTLY: usize = 6;

/// The same where places are granted: it takes more steps.
const SHORTLY_WITH_PLACES: usize = 8;

fn explore(depth_of: impl Fn(&Scope) -> usize) {
    explore_all::<World>(scopes().into_iter().map(|scope| Sought {
        name: scope.name,
        depth: depth_of(&scope),
        breaks: scope.breaks,
        small_bounds: false,
        scope,
    }));
}

#[test]
fn no_short_history_of_nodes_surprises() {
    explore(|scope| match (scope.breaks, scope.place) {
        (Some(steps), _) => steps,
        (None, 0) => SHORTLY,
        (None, _) => SHORTLY_WITH_PLACES,
    });
}

#[test]
#[ignore = "takes minutes; see `make explore`"]
fn no_history_of_nodes_surprises() {
    explore(|scope| scope.depth);
}
