//! One campaign: what it is told to do, and its course.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::ValueEnum;
use clap::builder::PossibleValuesParser;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis_lock_testing::{Setup, comes_true};

use crate::client::sets::{self, Workload};
use crate::client::{Client, LEASE_MS_MAX, Shared};
use crate::faults::minority::Minority;
use crate::faults::{self, Faults};
use crate::fleet::{Fleet, SIDES, Topology};
use crate::history::{self, Breach, History, Promise, TOLERANCE};
use crate::library::{self, Planted};
use crate::locks::Locks;
use crate::protection::{Mode, Protection};
use crate::{observer, report};

/// How often a campaign tells how far it is, and looks for the breach at which it ends.
const LOOK_EVERY: Duration = Duration::from_secs(4);

/// How many grants show that locks behind witnesses are at work.
const AT_WORK: usize = 20;

/// How long it may take until they are, beside the grace period.
const RECOVERY: Duration = Duration::from_secs(20);

/// How long the clients may take to end once the faults are over. It is longer
/// than they wait for an answer.
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// Who takes the locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Who {
    /// Bare commands of the module.
    Commands,
    /// The Rust client, with leases that it renews.
    Library,
    /// The Rust client, by sessions.
    Session,
    /// Redlock, on several servers.
    Redlock,
}

/// What the command line says of a campaign.
#[derive(clap::Args)]
pub struct Campaign {
    /// How long the faults go on, in seconds
    #[arg(long, visible_alias = "seconds", default_value_t = 300)]
    duration: u64,
    /// The server's binary
    #[arg(long, default_value = "redis-server")]
    server: PathBuf,
    /// The module
    #[arg(long, default_value = "target/release/libredislock.so")]
    module: PathBuf,
    /// Chooses the faults and what the clients do, though not how it is timed;
    /// random if not given
    #[arg(long)]
    seed: Option<u64>,
    /// Write the history to this file, a JSON object a line
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    /// Who takes the locks
    #[arg(long, value_enum, default_value_t = Who::Commands)]
    pub client: Who,
    /// Where the locks are, but for those of a Redlock
    #[arg(long, value_enum, default_value_t = Topology::One)]
    topology: Topology,
    /// How many locks they share; on one server these are the exclusive ones, and there
    /// are a few others
    #[arg(long, default_value_t = 4)]
    locks: usize,
    /// Succeed if this promise was broken, and only then; end at that
    #[arg(long, value_name = "PROMISE")]
    until_breach_of: Option<Promise>,
    /// Do nothing to the nodes
    #[arg(long)]
    without_faults: bool,
    /// Only these faults
    #[arg(long, value_name = "FAULT", num_args = 1.., value_parser = PossibleValuesParser::new(faults::names()))]
    only: Vec<String>,
    /// How servers with witnesses protect holds over fail-overs: min-replicas if not given
    #[arg(long, value_enum)]
    mode: Option<Mode>,
    /// The longest lease of bare commands behind witnesses, in milliseconds; 4000, or 2000
    /// with a grace period, if not given
    #[arg(long)]
    lease_max: Option<u64>,
    /// Have the clocks of the nodes differ by up to two seconds, and one gain and one lose this
    /// many microseconds a second
    #[arg(long, value_name = "MICROSECONDS")]
    clock_drift_ppm: Option<i64>,
    /// Where nodes are cut off from each other and from witnesses, lose packets, one way or both:
    /// bare commands only, in a network namespace that is nobody else's
    #[arg(long)]
    packets: bool,
    /// Have bare commands behind witnesses use the locks for data, and see what becomes of it
    #[arg(long, value_enum)]
    workload: Option<Workload>,
    /// Do this wrong: it has to be found
    #[arg(long, value_enum)]
    pub planted: Option<Planted>,
    /// How many servers a Redlock has: an odd number
    #[arg(long, default_value_t = 3)]
    servers: usize,
    /// Start a killed server of these again at once, which Redlock does not promise to
    /// survive: a breach has to be found
    #[arg(long)]
    restart_at_once: bool,
}

/// Waits until all clients have taken their last locks, and come to rest.
pub type End = Box<dyn FnOnce() -> Result<()>>;

impl Campaign {
    /// The seed, which is another one each time if none is given.
    pub fn seed(&self) -> u64 {
        self.seed
            .unwrap_or_else(|| rand::rng().random_range(0..1_000_000_000))
    }

    fn topology(&self) -> Topology {
        match self.client {
            Who::Redlock => Topology::Several(self.servers),
            _ => self.topology,
        }
    }

    /// Whether bare commands go from one primary to the next.
    fn follows(&self) -> bool {
        self.client == Who::Commands && self.topology.is_watched()
    }

    /// Whether bare commands go to one server.
    fn stays(&self) -> bool {
        self.client == Who::Commands && !self.topology.is_watched()
    }

    fn protection(&self) -> Protection {
        let mode = self.mode.unwrap_or(Mode::MinReplicas);
        let lease_max_ms = match mode {
            _ if !self.topology().is_watched() => return Protection::none(LEASE_MS_MAX),
            Mode::Plain | Mode::MinReplicas if self.follows() => 4000,
            _ => LEASE_MS_MAX,
        };
        Protection {
            mode,
            lease_max_ms: self.lease_max.unwrap_or(lease_max_ms),
            drift_ppm: self.clock_drift_ppm,
        }
    }

    fn shared(&self, fleet: &Fleet) -> Shared {
        let prefix = fleet.prefix();
        let names = (1..=self.locks).map(|n| format!("{prefix}lock-{n}"));
        let names = names.collect();
        let locks = match self.stays() {
            true => Locks::new(self.locks),
            false => Locks { names },
        };
        Shared {
            prefix,
            workload: self.workload,
            ..Shared::new(fleet.guide(), self.protection(), locks)
        }
    }

    /// Whether these go together.
    fn examine(&self) -> Result<()> {
        if (self.workload.is_some() || self.packets) && !self.follows() {
            bail!("--workload and --packets want bare commands on --topology sentinel or cluster");
        }
        if self.client == Who::Redlock && (self.servers < 3 || self.servers.is_multiple_of(2)) {
            bail!("a majority needs an odd number of servers, 3 at least");
        }
        Ok(())
    }

    /// Runs a campaign. Returns whether it came out as it should: without a breach, or with
    /// the one that is looked for.
    pub fn run(&self, seed: u64) -> Result<bool> {
        self.examine()?;
        let (topology, protection) = (self.topology(), self.protection());
        let (server, module) = (self.server.display(), self.module.display());
        let (client, duration) = (self.client, self.duration);
        println!("seed {seed}, {duration} s, {client:?} on {topology:?}, {protection}");
        println!("{server} with {module}");
        let dir = tempfile::TempDir::with_prefix("redis-lock-chaos-")?;
        let mut rng = StdRng::seed_from_u64(seed);
        let path = self.module.canonicalize();
        let path = path.with_context(|| module.to_string())?;
        let setup = Setup::of(&self.server).module(path, &[]);
        let fleet = Fleet::start(&setup, dir.path(), topology, &protection, self.packets)?;
        if self.without_faults {
            fleet.stay_calm()?;
        }
        let shared = Arc::new(self.shared(&fleet));
        let minority = (self.client == Who::Redlock).then(|| {
            let rng = StdRng::seed_from_u64(rng.random());
            Minority::new(self.restart_at_once, rng)
        });
        let mut faults = Faults::new(
            fleet,
            self.client == Who::Commands,
            StdRng::seed_from_u64(rng.random()),
            Arc::clone(&shared),
            &self.only,
            minority,
        )?;
        let start = Instant::now();
        let await_end = self.start_clients(&faults.fleet, &shared, rng)?;
        let hurt = self.hurt(&mut faults, &shared);
        let healed = faults.end();
        shared.end();
        let ended = await_end();
        let survived = hurt.and(healed).and(ended);
        let mut survived = survived.and_then(|()| faults.fleet.examine());
        if self.workload.is_some() && survived.is_ok() {
            survived = Client::new(0, seed, Some(0), Arc::clone(&shared)).read_back();
        }
        let history = shared.journal.history();
        let mut breaches = self.judge(history::check(&history, TOLERANCE));
        if let Some(workload) = self.workload {
            println!("{}", sets::sum_up(workload, &history, &mut breaches));
        }
        if self.client != Who::Commands && survived.is_ok() && breaches.is_empty() {
            survived = faults.fleet.await_empty();
        }
        let broken = report::show(&breaches, &history);
        let all = report::totals(&history, &faults.counts, &broken);
        let seconds = start.elapsed().as_secs_f64();
        println!("totals: {seconds:.1} s; {all}; seed {seed}");
        let kept = match self.until_breach_of {
            // What it breaks may keep clients from coming to an end.
            Some(_) if is_found(&breaches, self.until_breach_of) => Ok(true),
            Some(_) => survived.map(|()| false),
            None => survived.map(|()| breaches.is_empty()),
        };
        self.keep(&history, matches!(kept, Ok(true)), dir)?;
        kept
    }

    /// Writes the history if that is wanted, or if something went wrong. Then the logs stay.
    fn keep(&self, history: &History, is_well: bool, dir: tempfile::TempDir) -> Result<()> {
        if let Some(path) = &self.history {
            report::write_history(history, path)?;
        }
        if !is_well {
            let dir = dir.keep();
            report::write_history(history, &dir.join("history.jsonl"))?;
            println!("logs and history are in {}", dir.display());
        }
        Ok(())
    }

    fn start_clients(&self, fleet: &Fleet, shared: &Arc<Shared>, mut rng: StdRng) -> Result<End> {
        if self.client != Who::Commands {
            return library::start(self, fleet, shared, rng);
        }
        let is_watched = self.topology.is_watched();
        let clients = if is_watched { 8 } else { 20 };
        let start = |number: usize| {
            // A third of those on one server go by ways of which some stall.
            let side = match is_watched {
                true => Some(number % SIDES),
                false => number.is_multiple_of(3).then_some(number / 3 % SIDES),
            };
            let client = Client::new(number, rng.random(), side, Arc::clone(shared));
            thread::spawn(move || client.run())
        };
        let mut threads: Vec<_> = (1..=clients).map(start).collect();
        if !is_watched {
            let shared = Arc::clone(shared);
            threads.push(thread::spawn(move || {
                observer::watch(&shared);
                Ok(())
            }));
        }
        let grace = Duration::from_millis(shared.protection.grace_ms());
        Ok(Box::new(move || {
            await_all(threads, 10 * (END_TIMEOUT + grace))
        }))
    }

    /// Hurts something again and again, until the time is over or a breach is found.
    fn hurt(&self, faults: &mut Faults, shared: &Shared) -> Result<()> {
        let duration = Duration::from_secs(self.duration);
        let started = Instant::now();
        let (mut looked, mut took) = (started, Duration::ZERO);
        while started.elapsed() < duration {
            if self.follows() {
                await_work(shared)?;
            }
            if !self.without_faults {
                faults.inject()?;
            }
            // A history that grows takes ever longer: not more than a twentieth of all time.
            if looked.elapsed() < LOOK_EVERY.max(took * 20) {
                continue;
            }
            looked = Instant::now();
            let (seconds, journal) = (started.elapsed().as_secs(), &shared.journal);
            let (operations, grants) = (journal.operations(), journal.grants());
            let times: usize = faults.counts.values().sum();
            println!("{seconds:4} s: {operations} operations, {grants} grants, {times} faults");
            // Elsewhere a history gets too long for that.
            if !self.stays() || self.until_breach_of.is_some() {
                let breaches = history::check_so_far(&journal.history(), TOLERANCE);
                if is_found(&self.judge(breaches), self.until_breach_of) {
                    break;
                }
            }
            took = looked.elapsed();
        }
        Ok(())
    }

    /// The breaches that count, as they are shown.
    fn judge(&self, mut breaches: Vec<Breach>) -> Vec<Breach> {
        // Nothing protects the locks in this mode: what is promised of the data is left.
        if self.workload.is_some() && self.mode == Some(Mode::Plain) {
            breaches.retain(|one| one.promise == Promise::Updates);
        }
        report::sort(&mut breaches);
        breaches
    }
}

/// Whether there is a breach, of this promise if one is named.
fn is_found(breaches: &[Breach], promise: Option<Promise>) -> bool {
    let mut broken = breaches.iter().map(|one| one.promise);
    broken.any(|broken| promise.is_none_or(|promise| promise == broken))
}

/// Waits until all clients have come to an end.
fn await_all(threads: Vec<JoinHandle<Result<()>>>, patience: Duration) -> Result<()> {
    if !comes_true(patience, || threads.iter().all(JoinHandle::is_finished)) {
        bail!("some clients can't come to an end");
    }
    let panicked = |_| Err(anyhow!("a client panicked"));
    let joined = threads.into_iter().map(JoinHandle::join);
    let ended: Vec<_> = joined.map(|one| one.unwrap_or_else(panicked)).collect();
    ended.into_iter().collect()
}

/// Waits until locks are granted again.
fn await_work(shared: &Shared) -> Result<()> {
    let before = shared.journal.grants();
    let grace = Duration::from_millis(shared.protection.grace_ms());
    let is_at_work = || shared.journal.grants() >= before + AT_WORK;
    if !comes_true(RECOVERY + grace, is_at_work) {
        bail!("nobody is granted anything after a fault");
    }
    Ok(())
}
