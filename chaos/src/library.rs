//! A campaign against the Rust client and its `Redlock`: three clients, of some tasks each,
//! take locks on one server, behind sentinels, in a cluster, or on most of several servers,
//! while connections are cut, delayed and half-closed, and servers are killed.
//!
//! # What is judged
//!
//! Each section is a few operations of one history ([`crate::history`]), by one owner that
//! nobody else is:
//!
//! - An acquire, from when the client was asked until it answered. It shows the token, and
//!   of the hold no more than that. `Redlock` knows no tokens.
//! - What the guard says of itself (`valid_for`), as one re-entry whose lease is no longer
//!   than that: from then until that is over, the section relies upon the lock.
//! - Its end: a release that was sent before the client was asked for one, or before the
//!   loss was told. A hold whose server was said to have refused it is a release that was
//!   answered null.
//!
//! So *no two holders* is that no two sections rely upon one lock at a time, *tokens* are
//! those that the guards show, and *possession* is that nobody is told that he does not
//! hold what his guard still vouches for. A wait that has no end within a minute after the
//! faults is silent. In the end every client has to get every lock, and when all guards are
//! gone and each client has come to rest, the servers must have neither a lock nor a waiter.
//!
//! # Why a correct client is never found at fault
//!
//! Nothing is relied upon that the guard did not say, and each belief is dated shorter than
//! it was. One clock dates them all. One server keeps what it was told. Behind
//! sentinels and in a cluster `lock.min-replicas` is the number of all replicas, a killed
//! primary comes back when another has taken its place, and one fault follows another when
//! all is well again: so a fail-over loses no hold that was told.
//!
//! The server ends a session's hold with its connection, and the client hears of that a
//! moment later. So where a session has ended, nothing counts that a section relied upon in
//! the half second before.
//!
//! What may be done to the servers of a Redlock: [`crate::faults::minority`].
//!
//! # Why it would notice
//!
//! [`workers::Planted`] has the sections do what a wrong client would have them do.

pub mod workers;

/// No lease is longer.
pub const LEASE_MS_MAX: u64 = 2000;
