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
//! ## Of a Redlock
//!
//! There are 2f + 1 servers, and at most f of them are hurt at a time. What
//! that may do to exclusion depends on the kind:
//!
//! - A server that is **stopped, slow or cut off** remembers. Any majority that
//!   granted a hold shares a server with any other majority, and that server
//!   refuses the second, early or late. So these faults can't break exclusion,
//!   however they follow each other. What is delayed in them (a late acquire,
//!   renewal or release) takes effect after what the client did next. A client
//!   can cope with that: it knows what it left unanswered, and on each server it
//!   can name the token that it means. So late messages excuse nothing, and a
//!   server that runs again counts as sound at once.
//! - A server that is **killed and starts empty** has forgotten its vote. A hold
//!   may rest on a bare majority of f + 1, as the others may have been out of
//!   reach or taken by another at the time. Then one forgotten vote is enough
//!   for a second majority, whatever the client does: so a server that started
//!   empty *within* the life of a hold would be more than Redlock promises to
//!   survive, even if no other server is hurt. This is why Redlock asks for a
//!   delayed restart. Here a killed server stays down until each acquire that
//!   was under way when it was killed has ended, and so has the hold that came
//!   of it; or else for longer than the longest lease, as what is believed in
//!   later rests on commands that a majority of the others confirmed while it
//!   was down. So no live hold ever rests on a vote that was forgotten, and
//!   the next server may be hurt as soon as it is up.
//!
//! The bound of f has to do with progress alone: a majority can always be had.
//! `--most` lifts it.
//!
//! # Why it would notice
//!
//! [`workers::Planted`] has the sections do what a wrong client would have them do.
//! `--restart-at-once` leaves the delay of the restart out. Then a correct Redlock,
//! too, has to be found at fault, and the campaign shows that it can.

use std::path::Path;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis_lock_testing::Setup;
use tokio::runtime::Runtime;

use crate::campaign::{Topology, counts, hurt_for, outcomes, show, write_history};
use crate::history::{self, TOLERANCE};

pub mod plan;
pub mod scenes;
pub mod servers;
pub mod workers;

use plan::Rules;
use servers::{CLIENTS, Servers};
use workers::{Kind, Planted, Workers};

/// How often the campaign looks for a breach.
const SEARCH_EVERY: Duration = Duration::from_secs(2);

/// What the command line says of such a campaign.
#[derive(clap::Args)]
#[group(skip)]
pub struct Options {
    /// How many tasks each of the three clients has
    #[arg(long, default_value_t = 6)]
    tasks: usize,
    /// Before that, give so many acquires up at random moments
    #[arg(long, default_value_t = 0)]
    cancels: usize,
    /// Before that, have so many holds and so many waits of one client
    #[arg(long, default_value_t = 0)]
    crowd: usize,
    /// Do this wrong: it has to be found
    #[arg(long, value_enum)]
    planted: Option<Planted>,
    /// How many servers a Redlock has: an odd number
    #[arg(long, default_value_t = 3)]
    servers: usize,
    /// How many of these may be hurt at a time: a minority if not given
    #[arg(long)]
    most: Option<usize>,
    /// Start a killed server of these again at once, which Redlock does not promise to
    /// survive: a breach has to be found
    #[arg(long)]
    restart_at_once: bool,
}

/// Runs a campaign. Returns whether all promises were kept.
pub fn run(
    options: &Options,
    (kind, topology): (Kind, Topology),
    locks: usize,
    (setup, dir): (&Setup, &Path),
    (seed, duration): (u64, Duration),
) -> Result<bool, String> {
    println!("{kind:?}, {topology:?}");
    let mut rng = StdRng::seed_from_u64(seed);
    let rng_of_servers = StdRng::seed_from_u64(rng.random());
    let mut servers = match kind {
        Kind::Redlock => {
            let count = options.servers;
            if count < 3 || count.is_multiple_of(2) {
                return Err("a majority needs an odd number of servers, 3 at least".into());
            }
            let rules = Rules {
                most: options.most.unwrap_or((count - 1) / 2).min(count),
                restart_at_once: options.restart_at_once,
            };
            Servers::several(count, rules, setup, dir, rng_of_servers)?
        }
        Kind::Client | Kind::Session => Servers::start(topology, setup, dir, rng_of_servers)?,
    };
    let runtime = Runtime::new().map_err(|error| error.to_string())?;
    if options.cancels > 0 {
        let cancels = scenes::cancels(&servers, options.cancels, rng.random());
        let granted = runtime.block_on(cancels)?;
        println!(
            "{} acquires given up, {granted} granted before",
            options.cancels
        );
    }
    if options.crowd > 0 {
        let took = runtime.block_on(scenes::crowd(&servers, options.crowd))?;
        println!("{} holds and waits: passed on in {took:?}", options.crowd);
    }
    if duration.is_zero() {
        return Ok(true);
    }
    let name = |n| format!("{}lock-{n}", servers.prefix);
    let names: Vec<String> = (1..=locks).map(name).collect();
    let urls = (0..CLIENTS).map(|client| servers.urls(client)).collect();
    let open = servers.open();
    let workers = Workers::start(
        &runtime,
        kind,
        urls,
        names,
        options.tasks,
        rng,
        options.planted,
        open,
    )?;
    let hurt = {
        let journal = workers.journal();
        let breached = || !history::check_so_far(&journal.history(), TOLERANCE).is_empty();
        let tell = || format!("{} operations", journal.operations());
        hurt_for(
            duration,
            || servers.hurt(journal),
            Some((SEARCH_EVERY, &breached)),
            tell,
        )
    };
    let healed = servers.heal();
    let (history, ended) = workers.end(&runtime);
    let breaches = history::check(&history, TOLERANCE);
    show(&breaches);
    println!(
        "totals: {kind:?}, {topology:?}: {}; faults: {}; breaches: {}; seed {seed}",
        counts(&outcomes(&history)),
        counts(&servers.counts),
        breaches.len(),
    );
    write_history(&history, &dir.join("history.jsonl"))?;
    if !breaches.is_empty() {
        return Ok(false);
    }
    hurt.and(healed).and(ended)?;
    servers.await_empty()?;
    Ok(true)
}
