//! A campaign of fail-overs: locks on a primary with two replicas, where
//! primaries die, stand still and are cut off, and replicas that lag behind take
//! over. Sentinels see to that, or the other primaries of a cluster. They are
//! the witnesses: all others learn from them who is the primary.
//!
//! # What is judged
//!
//! One history of all clients, whoever was the primary, and no fail-over is
//! excused in it ([`crate::history`]):
//!
//! - **Exclusion**: certain holds of two owners in one lock never overlap.
//! - **Tokens**: a later holding has a greater token.
//! - **Possession**: a hold that was told is kept, where the mode promises that
//!   ([`protection::Protection::keeps_holds`]).
//!
//! Order and prompt hand-offs are not promised across fail-overs. But when the
//! faults are over every client has to get every lock.
//!
//! # The modes
//!
//! - `plain`: nothing protects. Replication is asynchronous, so breaches have to
//!   be found.
//! - `min-replicas`: grants are told when both replicas have them.
//! - `grace`: a new primary grants nothing before the leases of the old one are
//!   over, and a primary without both replicas takes no writes.
//!
//! # What the clients keep to
//!
//! - Some wait by a place in the queue, and are told by a message. They claim at once
//!   what they are told. Their connections hear a channel that no other one hears. Where
//!   the server blocks no connection that has subscribed, they have another one for that.
//! - An owner is there for one holding. Who released a hold, or was told that it
//!   has none, never asks again as that owner: a hold that the old primary had
//!   ended may be in the data of the new one, with its old token.
//! - Who holds counts its lease from when it sent the request, less what it keeps
//!   in hand, and sends no more renewals when that is over. A grant that may have
//!   waited is renewed at once.
//! - `NOREPLICAS` is not believed, neither as a yes nor as a no: in the history
//!   the outcome is unknown. The client asks again with `HOLD`, or releases. Nor are
//!   `UNBLOCKED`, and in a cluster `MOVED`, which a primary that is demoted says of all
//!   that it withholds.
//! - The clocks of all nodes and clients are that of one machine.
//! - A client asks a witness who is the primary, and works with a node only if
//!   that says so itself.
//!
//! # Why a correct server is never found at fault
//!
//! - A fault begins when both replicas have synchronized with the primary, and
//!   all witnesses agree on it. So the one that is promoted has not restarted
//!   since it acknowledged the holds that count.
//! - A node that was killed comes back empty, as what it was at first: the old
//!   primary as a primary. That loses writes, which only the grace period promises
//!   to survive. In the other protected mode it comes back when all witnesses
//!   agree on another primary, so nobody asks it.
//! - A primary that is no longer the one may say that it knows nothing of a hold.
//!   That is no breach, as it grants nothing by that: where some witness names
//!   another node just after the answer, it is dismissed. Whoever was
//!   granted something by that other node had it named by a witness, and
//!   witnesses are never hurt. With a grace period, what was told before a start
//!   or a promotion may be lost, and an `ACQUIRE` that was sent within it tells of
//!   no hold.
//!
//! # Why it would notice
//!
//! Besides `plain`, a protection that is too weak has to be found at fault:
//! `--mode min-replicas --replicas 1`, and `--mode grace --grace 500`. In a
//! cluster that may take long: a primary that the others don't hear soon takes
//! no writes, so fewer holds outlive it.
//!
//! # How nodes are cut off
//!
//! Each node announces the address of a proxy as its own, and that of another one
//! as its place on the bus of a cluster. Clients reach it by two more, one for
//! each half of them. So a primary can be cut off from its peers while clients
//! still reach it, or from everybody. Every node connects from a loopback address
//! of its own, by which a proxy can cut off one replica, or what a node sends on
//! the bus. What goes by meanwhile is lost, or arrives late.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use clap::builder::PossibleValuesParser;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis_lock_testing::Setup;

use crate::campaign::{Topology, counts, hurt_for, outcomes, show_as, write_history};
use crate::clock;
use crate::history::{self, Breach, MS, Nanos, Promise, TOLERANCE};

pub mod clients;
pub mod faults;
pub mod fleet;
pub mod protection;
pub mod workload;

use clients::{Client, Shared};
use faults::{Event, Faults};
use fleet::Fleet;
use protection::{Mode, Protection};
use workload::Workload;

/// How many grants show that the locks are at work.
const AT_WORK: usize = 20;

/// How long it may take until they are, beside the grace period.
const RECOVERY: Duration = Duration::from_secs(20);

/// How much earlier than a breach the events begin that are told with it.
const EVENTS_BEFORE: Nanos = 5000 * MS;

/// What the command line says of such a campaign.
#[derive(clap::Args)]
#[group(skip)]
pub struct Options {
    /// How the servers protect holds over fail-overs
    #[arg(long, value_enum, default_value_t = Mode::MinReplicas)]
    mode: Mode,
    /// Succeed if two owners held one lock, and only then; end at that
    #[arg(long)]
    pub expect_breach: bool,
    /// Use the locks for data, and see what becomes of it
    #[arg(long, value_enum)]
    pub workload: Option<Workload>,
    /// Do nothing to the nodes
    #[arg(long)]
    without_faults: bool,
    /// Only these faults
    #[arg(long, value_name = "FAULT", num_args = 1.., value_parser = PossibleValuesParser::new(faults::names()))]
    only: Vec<String>,
    /// How many replicas protect, of two: with one, breaches have to be found
    #[arg(long, default_value_t = 2)]
    replicas: usize,
    /// The longest lease, in milliseconds; 4000, or 2000 with a grace period, if
    /// not given
    #[arg(long)]
    lease_max: Option<u64>,
    /// The grace period in milliseconds: as long as it has to be if not given
    #[arg(long)]
    grace: Option<u64>,
}

impl Options {
    fn protection(&self) -> Protection {
        let lease_max_ms = match self.mode {
            Mode::Plain | Mode::MinReplicas => 4000,
            Mode::Grace => 2000,
        };
        Protection {
            mode: self.mode,
            replicas: self.replicas,
            lease_max_ms: self.lease_max.unwrap_or(lease_max_ms),
            grace_ms: self.grace,
        }
    }
}

/// Runs a campaign. Returns whether it came out as it should: without a breach, or with
/// one of exclusion where that is expected.
pub fn run(
    options: &Options,
    topology: Topology,
    (clients, locks): (usize, usize),
    (setup, dir): (&Setup, &Path),
    (seed, duration): (u64, Duration),
) -> Result<bool, String> {
    let protection = options.protection();
    println!("{topology:?}, {protection}");
    let mut rng = StdRng::seed_from_u64(seed);
    let rng_of_faults = StdRng::seed_from_u64(rng.random());
    let fleet = Fleet::start(setup, dir, topology, &protection)?;
    if options.without_faults {
        fleet.stay_calm()?;
    }
    let prefix = topology.prefix();
    let locks = (1..=locks).map(|n| format!("{prefix}lock-{n}")).collect();
    let (guide, workload) = (fleet.guide(), options.workload);
    let shared = Arc::new(Shared::new(guide, protection, &prefix, locks, workload));
    let mut faults = Faults::new(fleet, rng_of_faults, Arc::clone(&shared), &options.only)?;
    let start = clock::now();
    let clients: Vec<_> = (1..=clients)
        .map(|id| {
            let rng = StdRng::seed_from_u64(rng.random());
            let client = Client::new(id, rng, Arc::clone(&shared));
            thread::spawn(move || client.run())
        })
        .collect();
    let hurt = || {
        await_work(&shared)?;
        match options.without_faults {
            true => Ok(()),
            false => faults.inject(),
        }
    };
    let breached = || is_found(&judge(&shared), options);
    let tell = || {
        let grants = shared.grants.load(Ordering::SeqCst);
        format!(
            "{} operations, {grants} grants",
            shared.journal.operations()
        )
    };
    let hurt = hurt_for(duration, hurt, Some((Duration::ZERO, &breached)), tell);
    shared.over.store(true, Ordering::SeqCst);
    let joined = clients.into_iter().map(|client| client.join());
    let panicked = |_| Err("a client panicked".into());
    let ended: Vec<Result<(), String>> = joined.map(|one| one.unwrap_or_else(panicked)).collect();
    let ended: Result<(), String> = ended.into_iter().collect();
    let reader = StdRng::seed_from_u64(rng.random());
    let read = match workload {
        Some(_) => Client::new(0, reader, Arc::clone(&shared)).read_back(),
        None => Ok(()),
    };
    let mut breaches = judge(&shared);
    let history = shared.journal.history();
    if let Some(workload) = workload {
        println!("{}", workload::sum_up(workload, &history, &mut breaches));
    }
    let broken = show_as(&breaches, |breach| told(breach, &faults.events));
    println!(
        "totals: {:.1} s; {} operations: {}; faults: {}; breaches: {}; seed {seed}",
        (clock::now() - start) as f64 / 1e9,
        history.operations.len(),
        counts(&outcomes(&history)),
        counts(&faults.counts),
        counts(&broken),
    );
    write_history(&history, &dir.join("history.jsonl"))?;
    hurt.and(ended).and(read)?;
    Ok(is_found(&breaches, options) == options.expect_breach)
}

/// A breach as its reader sees it: the operations that show it, and what was done to the
/// nodes. The last digit of a connection's number is that of its node.
fn told(breach: &Breach, events: &[Event]) -> String {
    let mut told = format!("breach of {}: {}", breach.promise, breach.evidence);
    let times = || breach.shown.iter().map(|one| one.sent);
    let (first, last) = (times().min().unwrap_or(0), times().max().unwrap_or(0));
    let near = first.saturating_sub(EVENTS_BEFORE)..=last;
    for event in events.iter().filter(|event| near.contains(&event.at)) {
        told += &format!("\n  {} ms: == {}", event.at / MS, event.what);
    }
    told
}

/// Whether it is a breach that counts: if one is expected, one of exclusion.
fn is_found(breaches: &[Breach], options: &Options) -> bool {
    let counts = |one: &Breach| !options.expect_breach || one.promise == Promise::Exclusion;
    breaches.iter().any(counts)
}

/// What is wrong with what the clients saw so far.
fn judge(shared: &Shared) -> Vec<Breach> {
    let mut breaches = history::check_so_far(&shared.journal.history(), TOLERANCE);
    // Nothing protects the locks in this mode: what is promised of the data is left.
    if shared.workload.is_some() && shared.protection.mode == Mode::Plain {
        breaches.retain(|one| one.promise == Promise::Updates);
    }
    breaches.sort_by_key(|breach| {
        let begun = breach.shown.iter().map(|one| one.sent).max();
        (breach.promise != Promise::Exclusion, begun)
    });
    // The same holds may overlap as many requests show.
    let mut seen = HashSet::new();
    breaches.retain(|breach| {
        let owners = breach.shown.iter().map(|one| one.owner.clone());
        let owners: BTreeSet<String> = owners.collect();
        seen.insert((breach.promise, owners))
    });
    breaches
}

/// Waits until locks are granted again.
fn await_work(shared: &Shared) -> Result<(), String> {
    let before = shared.grants.load(Ordering::SeqCst);
    let grace = Duration::from_millis(shared.protection.grace_ms());
    let deadline = Instant::now() + RECOVERY + grace;
    while shared.grants.load(Ordering::SeqCst) < before + AT_WORK {
        if Instant::now() > deadline {
            return Err("nobody is granted anything after a fault".into());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
