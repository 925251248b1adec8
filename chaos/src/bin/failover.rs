//! Runs locks through fail-overs, and checks that nobody had a lock that
//! somebody else had. [`redis_lock_chaos::failover`] says what is judged and why
//! that is fair.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use clap::builder::PossibleValuesParser;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis_lock_chaos::campaign::{self, Campaign, PROGRESS_EVERY};
use redis_lock_chaos::clock;
use redis_lock_chaos::failover::clients::{Client, Shared};
use redis_lock_chaos::failover::faults::{self, Faults};
use redis_lock_chaos::failover::fleet::{Fleet, Topology};
use redis_lock_chaos::failover::protection::{Mode, Protection};
use redis_lock_chaos::failover::story;
use redis_lock_chaos::history::{self, Breach, Promise, TOLERANCE};
use redis_lock_chaos::report::counts;

/// How many breaches of each promise are told.
const SHOWN: usize = 2;

/// How many grants show that the locks are at work.
const AT_WORK: usize = 20;

/// How long it may take until they are, beside the grace period.
const RECOVERY: Duration = Duration::from_secs(20);

/// Runs locks through fail-overs, and checks that no lock had two holders.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    campaign: Campaign,
    /// Who promotes replicas
    #[arg(long, value_enum, default_value_t = Topology::Sentinel)]
    topology: Topology,
    /// How the servers protect holds
    #[arg(long, value_enum, default_value_t = Mode::MinReplicas)]
    mode: Mode,
    /// Succeed if two owners held one lock, and only then; end at that
    #[arg(long)]
    expect_breach: bool,
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
    /// How many clients work at a time
    #[arg(long, default_value_t = 8)]
    clients: usize,
    /// How many locks they share
    #[arg(long, default_value_t = 4)]
    locks: usize,
}

impl Arguments {
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

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let seed = arguments.campaign.seed();
    match run(&arguments, seed) {
        Ok(found) if found == arguments.expect_breach => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            println!("the campaign can't run: {error}");
            ExitCode::from(2)
        }
    }
}

/// Runs a campaign. Returns whether there was a breach; where one of exclusion was expected,
/// whether that was found.
fn run(arguments: &Arguments, seed: u64) -> Result<bool, String> {
    let protection = arguments.protection();
    println!(
        "seed {seed}, {} s, {:?}, {protection}, {}",
        arguments.campaign.duration, arguments.topology, arguments.campaign
    );
    let (setup, dir) = (arguments.campaign.setup()?, campaign::directory()?);
    let mut rng = StdRng::seed_from_u64(seed);
    let rng_of_faults = StdRng::seed_from_u64(rng.random());
    let topology = arguments.topology;
    let fleet = Fleet::start(&setup, dir.path(), topology, &protection)?;
    if arguments.without_faults {
        fleet.stay_calm()?;
    }
    let lock = |n| format!("{}lock-{n}", topology.prefix());
    let locks = (1..=arguments.locks).map(lock).collect();
    let shared = Arc::new(Shared::new(
        fleet.guide(),
        protection,
        &topology.prefix(),
        locks,
    ));
    let mut faults = Faults::new(fleet, rng_of_faults, Arc::clone(&shared), &arguments.only)?;
    let start = clock::now();
    let clients: Vec<_> = (1..=arguments.clients)
        .map(|id| {
            let rng = StdRng::seed_from_u64(rng.random());
            let client = Client::new(id, rng, Arc::clone(&shared));
            thread::spawn(move || client.run())
        })
        .collect();
    let hurt = hurt(arguments, &mut faults, &shared);
    shared.over.store(true, Ordering::SeqCst);
    let ended: Result<Vec<()>, String> = clients
        .into_iter()
        .map(|client| {
            client
                .join()
                .unwrap_or_else(|_| Err("a client panicked".into()))
        })
        .collect();
    let breaches = judge(&shared);
    let history = shared.journal.history();
    let mut broken: BTreeMap<String, usize> = BTreeMap::new();
    for breach in &breaches {
        let count = broken.entry(breach.promise.to_string()).or_default();
        *count += 1;
        if *count <= SHOWN {
            let told = story::tell(breach, &history, &faults.events, &shared, start);
            println!("{told}");
        }
    }
    println!(
        "totals: {:.1} s; {} operations: {}; faults: {}; breaches: {}; seed {seed}",
        (clock::now() - start) as f64 / 1e9,
        history.operations.len(),
        counts(&shared.outcomes()),
        counts(&faults.counts),
        counts(&broken),
    );
    let survived = hurt.and(ended.map(|_| ()));
    if let Err(error) = &survived {
        println!("breach of survival: {error}; seed {seed}");
    }
    let is_unexpected = !breaches.is_empty() && !arguments.expect_breach;
    if survived.is_err() || is_unexpected {
        println!("logs are in {}", dir.keep().display());
    }
    Ok(match survived {
        Ok(()) => is_found(&breaches, arguments),
        Err(_) => !arguments.expect_breach,
    })
}

/// Whether it is a breach that counts: if one is expected, one of exclusion.
fn is_found(breaches: &[Breach], arguments: &Arguments) -> bool {
    let counts = |one: &Breach| !arguments.expect_breach || one.promise == Promise::Exclusion;
    breaches.iter().any(counts)
}

/// What is wrong with what the clients saw so far.
fn judge(shared: &Shared) -> Vec<Breach> {
    let mut breaches = history::check_so_far(&shared.journal.history(), TOLERANCE);
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

/// Injects faults for as long as the campaign lasts, or until there is a breach.
fn hurt(arguments: &Arguments, faults: &mut Faults, shared: &Shared) -> Result<(), String> {
    let (started, mut told) = (Instant::now(), Instant::now());
    let duration = Duration::from_secs(arguments.campaign.duration);
    while started.elapsed() < duration {
        await_work(shared)?;
        if !arguments.without_faults {
            faults.inject()?;
        }
        if told.elapsed() >= PROGRESS_EVERY {
            told = Instant::now();
            println!(
                "{:4} s: {} operations, {} grants, {} faults",
                started.elapsed().as_secs(),
                shared.journal.operations(),
                shared.grants.load(Ordering::SeqCst),
                faults.counts.values().sum::<usize>()
            );
        }
        if is_found(&judge(shared), arguments) {
            break;
        }
    }
    Ok(())
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
