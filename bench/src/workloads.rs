//! What contenders are put to, and how it is measured where a contender is a
//! protocol that this program speaks.

mod contended;
mod expiry;
mod hand_off;
mod memory;
mod places;
mod uncontended;

use std::time::Duration;

use anyhow::Result;

use crate::measurement::Measurement;
use crate::protocols::{Kind, Protocol};
use crate::server::Server;

/// What a contender is put to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Workload {
    /// Clients that take and give back a lock of their own, over and over.
    Uncontended { clients: usize },
    /// One client that is told of its lock when a replica has it.
    Acknowledged,
    /// Many pairs, a hundred in one write.
    Pipelined,
    /// One lock that goes round among clients that queue for it.
    HandOff { waiters: usize },
    /// One lock that all clients fight for, and hold this long.
    Contended { clients: usize, section: Duration },
    /// Tasks or threads of one process, each wanting one of this many locks.
    OneProcess { tasks: usize, locks: usize },
    /// Many locks, of which few are wanted often.
    Zipf { clients: usize, locks: usize },
    /// Leases that end while somebody waits.
    Expiry,
    /// Holders that die while somebody waits.
    HolderKilled,
    /// Bytes of a lock that is held.
    MemoryOfLocks,
    /// Bytes of a client that waits.
    MemoryOfWaiters,
    /// A hundred thousand places in queues.
    Places,
}

/// For how long to measure.
#[derive(Clone, Copy)]
pub struct Pace {
    pub warm_up: Duration,
    pub measure: Duration,
}

impl Pace {
    /// A few minutes for everything.
    pub const QUICK: Self = Self {
        warm_up: Duration::from_millis(60),
        measure: Duration::from_millis(400),
    };
    /// Until a thousand tasks or threads have come to work, and have done some.
    pub const CROWD: Self = Self {
        warm_up: Duration::from_millis(500),
        measure: Duration::from_millis(2000),
    };
    /// For figures to publish.
    pub const FULL: Self = Self {
        warm_up: Duration::from_millis(300),
        measure: Duration::from_millis(1000),
    };
}

/// Beyond this many, clients that poll keep the server busy with nothing else.
pub const MOST_POLLING_WAITERS: usize = 100;

/// Whether a kind of protocol can do this.
pub fn fits(work: Workload, kind: Kind) -> bool {
    match work {
        Workload::Acknowledged => kind == Kind::Acknowledged,
        Workload::Pipelined => !matches!(kind, Kind::Session | Kind::Acknowledged | Kind::Place),
        Workload::Uncontended { .. } => {
            !matches!(kind, Kind::Session | Kind::Acknowledged | Kind::Place)
        }
        Workload::HandOff { waiters } => match kind {
            Kind::Lock | Kind::Endless | Kind::Place => true,
            Kind::Polling => waiters <= MOST_POLLING_WAITERS,
            _ => false,
        },
        Workload::Contended { .. } => matches!(kind, Kind::Lock | Kind::Endless | Kind::Polling),
        Workload::Zipf { .. } | Workload::Expiry => matches!(kind, Kind::Lock | Kind::Polling),
        Workload::HolderKilled => matches!(kind, Kind::Lock | Kind::Session),
        Workload::MemoryOfLocks => kind == Kind::Lock,
        Workload::MemoryOfWaiters => matches!(kind, Kind::Lock | Kind::Endless),
        Workload::Places => kind == Kind::Place,
        // That is for whole libraries, but for the floor.
        Workload::OneProcess { locks, .. } => kind == Kind::Endless && locks == 1,
    }
}

/// Puts a protocol to a workload.
pub fn run(
    work: Workload,
    pace: Pace,
    protocol: &Protocol,
    server: &Server,
) -> Result<Measurement> {
    match work {
        Workload::Uncontended { clients } => uncontended::run(protocol, server, pace, clients),
        Workload::Acknowledged => uncontended::run(protocol, server, pace, 1),
        Workload::Pipelined => uncontended::run_pipelined(protocol, server, pace),
        Workload::HandOff { waiters } => hand_off::run(protocol, server, pace, waiters),
        Workload::Contended { clients, section } => {
            contended::run(protocol, server, pace, clients, section)
        }
        Workload::Zipf { clients, locks } => {
            contended::run_zipf(protocol, server, pace, clients, locks)
        }
        Workload::Expiry => expiry::run(protocol, server),
        Workload::HolderKilled => expiry::run_killed(protocol, server),
        Workload::MemoryOfLocks => memory::of_locks(protocol, server),
        Workload::MemoryOfWaiters => memory::of_waiters(protocol, server),
        Workload::Places => places::run(server, pace),
        Workload::OneProcess { tasks, .. } => {
            contended::run(protocol, server, pace, tasks, Duration::ZERO)
        }
    }
}
