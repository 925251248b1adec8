//! Runs the Rust client's `Redlock` on several servers, hurts a minority of
//! them, and checks that nobody had a lock that somebody else had.
//! [`redis_lock_chaos::redlock`] says what is judged and why that is fair.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis_lock_chaos::campaign::{self, Campaign, PROGRESS_EVERY};
use redis_lock_chaos::clock;
use redis_lock_chaos::history::{MS, Nanos};
use redis_lock_chaos::redlock::beliefs::{self, Breach, Journal};
use redis_lock_chaos::redlock::plan::{Plan, Rules};
use redis_lock_chaos::redlock::workers::{Client, Shared, Tally, Worker};
use redis_lock_chaos::report::counts;
use redis_lock_testing::Setup;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// How often the campaign looks for a breach.
const SEARCH_EVERY: Duration = Duration::from_secs(2);

/// How long the tasks may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(120);

/// How many breaches are shown in full.
const SHOWN: usize = 3;

/// How long before a breach what happened is shown with it.
const SHOWN_BEFORE: Nanos = 5000 * MS;

/// Runs Redlocks on servers of which a minority is hurt, and checks that no lock
/// had two holders.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    campaign: Campaign,
    /// How many servers there are: an odd number, one after another in an equal
    /// share of the time if given more than once; 3 and 5 if not given
    #[arg(long)]
    servers: Vec<usize>,
    /// How many clients there are
    #[arg(long, default_value_t = 3)]
    clients: usize,
    /// How many tasks each client has
    #[arg(long, default_value_t = 6)]
    tasks: usize,
    /// How many locks they share
    #[arg(long, default_value_t = 6)]
    locks: usize,
    /// How many servers may be hurt at a time: a minority if not given
    #[arg(long)]
    most: Option<usize>,
    /// Start a killed server again at once, which Redlock does not promise to
    /// survive: a breach has to be found
    #[arg(long)]
    restart_at_once: bool,
}

fn main() -> ExitCode {
    let mut arguments = Arguments::parse();
    if arguments.servers.is_empty() {
        arguments.servers = vec![3, 5];
    }
    let seed = arguments.campaign.seed();
    let share = Duration::from_secs(arguments.campaign.duration) / arguments.servers.len() as u32;
    for &servers in &arguments.servers {
        match run(&arguments, servers, share, seed) {
            Ok(true) => {}
            Ok(false) => return ExitCode::FAILURE,
            Err(error) => {
                println!("breach of survival: {error}; seed {seed}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

/// Runs a campaign on this many servers. Returns whether no lock had two holders.
fn run(
    arguments: &Arguments,
    servers: usize,
    duration: Duration,
    seed: u64,
) -> Result<bool, String> {
    if servers < 3 || servers.is_multiple_of(2) {
        return Err("a majority needs an odd number of servers, 3 at least".into());
    }
    println!(
        "seed {seed}, {servers} servers, {} s, {}",
        duration.as_secs(),
        arguments.campaign
    );
    let (setup, dir) = (arguments.campaign.setup()?, campaign::directory()?);
    let runtime = Runtime::new().map_err(|error| error.to_string())?;
    let judged = hurt_and_judge(
        arguments,
        servers,
        duration,
        seed,
        setup,
        dir.path(),
        &runtime,
    );
    if !matches!(judged, Ok(true)) {
        println!("logs are in {}", dir.keep().display());
    }
    judged
}

fn hurt_and_judge(
    arguments: &Arguments,
    servers: usize,
    duration: Duration,
    seed: u64,
    setup: Setup,
    dir: &Path,
    runtime: &Runtime,
) -> Result<bool, String> {
    let mut rng = StdRng::seed_from_u64(seed);
    let journal = Arc::new(Journal::default());
    let (for_plan, seed_of_plan) = (Arc::clone(&journal), rng.random());
    let fair = Rules::fair(servers);
    let rules = Rules {
        most: arguments.most.unwrap_or(fair.most).min(servers),
        restart_at_once: arguments.restart_at_once,
    };
    let mut plan = Plan::start(
        StdRng::seed_from_u64(seed_of_plan),
        setup,
        dir,
        servers,
        for_plan,
        rules,
    )?;
    let shared = Arc::new(Shared {
        journal: Arc::clone(&journal),
        answers: Tally::default(),
        keys: (1..=arguments.locks).map(|n| format!("lock-{n}")).collect(),
        enough: AtomicBool::new(false),
    });
    let mut clients = Vec::new();
    let mut tasks = JoinSet::new();
    for number in 1..=arguments.clients {
        let urls = plan.ways()?;
        let client = runtime.block_on(Client::connect(number, &urls))?;
        for task in 1..=arguments.tasks {
            let worker = Worker::new(client.clone(), task, rng.random(), Arc::clone(&shared));
            tasks.spawn_on(worker.run(), runtime.handle());
        }
        clients.push(client);
    }
    let (start, started) = (clock::now(), Instant::now());
    let mut progress = Progress::new(started);
    plan.run(duration, |plan| progress.found_breach(&journal, plan))?;
    let lasted = started.elapsed();
    plan.end()?;
    shared.enough.store(true, Ordering::SeqCst);
    let rest = runtime.block_on(come_to_rest(tasks, clients, &shared));
    let breaches = beliefs::check(&journal.beliefs());
    show(&breaches, &plan, start);
    println!(
        "totals: {} servers, {:.1} s; {} operations; acquires: {}; faults: {}; \
         breaches: {}; seed {seed}",
        servers,
        lasted.as_secs_f64(),
        journal.operations(),
        counts(&shared.answers.counts()),
        counts(&plan.counts()),
        breaches.len(),
    );
    rest?;
    Ok(breaches.is_empty())
}

/// Waits until all tasks have ended, and each client gets each lock again.
async fn come_to_rest(
    tasks: JoinSet<()>,
    clients: Vec<Client>,
    shared: &Shared,
) -> Result<(), String> {
    let ended = tokio::time::timeout(END_TIMEOUT, tasks.join_all()).await;
    ended.map_err(|_| "some tasks can't come to an end".to_owned())?;
    for client in clients {
        client.take_each(&shared.keys).await?;
    }
    Ok(())
}

/// Tells how it goes, and looks for breaches meanwhile.
struct Progress {
    started: Instant,
    told: Instant,
    searched: Instant,
}

impl Progress {
    fn new(started: Instant) -> Self {
        Self {
            started,
            told: started,
            searched: started,
        }
    }

    fn found_breach(&mut self, journal: &Journal, plan: &Plan) -> bool {
        if self.told.elapsed() >= PROGRESS_EVERY {
            self.told = Instant::now();
            println!(
                "{:4} s: {} operations, {} faults",
                self.started.elapsed().as_secs(),
                journal.operations(),
                plan.events.len()
            );
        }
        if self.searched.elapsed() < SEARCH_EVERY {
            return false;
        }
        let found = !beliefs::check(&journal.beliefs()).is_empty();
        self.searched = Instant::now();
        found
    }
}

fn show(breaches: &[Breach], plan: &Plan, start: Nanos) {
    for breach in breaches.iter().take(SHOWN) {
        let (from, until) = breach.overlap();
        println!(
            "breach: two had {} from {} to {}\n  {}\n  {}",
            breach.first.claim.key,
            beliefs::at(from, start),
            beliefs::at(until, start),
            breach.first.told(start),
            breach.second.told(start)
        );
        let since = breach.first.begun.saturating_sub(SHOWN_BEFORE);
        let near = plan
            .events
            .iter()
            .filter(|event| event.until >= since && event.from <= from);
        for event in near {
            println!("  {}", event.told(start));
        }
    }
}
