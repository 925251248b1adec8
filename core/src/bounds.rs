//! Bounds that only a crowd reaches.
//!
//! Tests of a few owners can have them smaller, so that they go the ways of a crowd.

#[cfg(test)]
use std::cell::Cell;

/// How many waiters are granted the lock in one step.
pub const GRANTS_A_STEP: usize = 32;

/// How many places whose grants nobody hears of are given up in one step.
pub const UNHEARD_A_STEP: usize = 256;

/// How many places that are over are ended in one step, on the way to the waiters behind them.
pub const PASSED_A_STEP: usize = 1024;

/// How many waits that are over are ended in one step to make room for one more, and how much
/// ends at once with the connections that end between two wakes.
pub const ENDS_A_STEP: usize = 64;

/// How many ends of connections, clients to close and sessions to put off the table's caller
/// takes in one wake, before other clients have their turn.
pub const WORK_A_WAKE: usize = 64;

/// Through how many waits a cycle is looked for when a wait begins.
pub(crate) const WAITS_LOOKED_AT: usize = 1000;

/// At how many holders one search for a cycle looks, all its fresh starts together.
pub(crate) const HOLDERS_LOOKED_AT: usize = 10_000;

#[cfg(test)]
thread_local! {
    static ARE_SMALL: Cell<bool> = const { Cell::new(false) };
}

/// Has this thread go by small bounds.
#[cfg(test)]
pub(crate) fn set(are_small: bool) {
    ARE_SMALL.set(are_small);
}

/// This bound, for now.
#[cfg(test)]
pub(crate) fn bound(usual: usize) -> usize {
    if ARE_SMALL.get() { 1 } else { usual }
}

/// This bound, for now.
#[cfg(not(test))]
#[inline]
pub(crate) const fn bound(usual: usize) -> usize {
    usual
}
