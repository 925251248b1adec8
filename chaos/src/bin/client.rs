//! Runs the Rust client in several processes, hurts its connections and its servers, and
//! checks what it saw. [`redis_lock_chaos::rust_client`] says what is judged and why that
//! is fair.

use std::collections::BTreeMap;
use std::io::BufReader;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use clap::Parser;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis_lock_chaos::campaign::{self, Campaign, PROGRESS_EVERY};
use redis_lock_chaos::history::{self, Breach, Outcome, TOLERANCE};
use redis_lock_chaos::journal::Journal;
use redis_lock_chaos::report::{counts, write_history};
use redis_lock_chaos::rust_client::scenes;
use redis_lock_chaos::rust_client::servers::{PROCESSES, Servers, Topology};
use redis_lock_chaos::rust_client::workers::{self, Kind, Planted};
use redis_lock_testing::spawn;
use tokio::runtime::Runtime;

/// How often the campaign looks for a breach.
const SEARCH_EVERY: Duration = Duration::from_secs(3);

/// How long the processes may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(300);

/// How many breaches are shown.
const SHOWN: usize = 3;

/// Runs the Rust client through faults, and checks that no lock had two holders, that no
/// waiter was lost, and that nothing is left in the end.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    campaign: Campaign,
    /// Where the locks are
    #[arg(long, value_enum, default_value_t = Topology::One)]
    topology: Topology,
    /// How they are held
    #[arg(long, value_enum, default_value_t = Kind::Plain)]
    mode: Kind,
    /// How many tasks each of the three processes has
    #[arg(long, default_value_t = 6)]
    tasks: usize,
    /// How many locks they share
    #[arg(long, default_value_t = 4)]
    locks: usize,
    /// Before that, give so many acquires up at random moments
    #[arg(long, default_value_t = 0)]
    cancels: usize,
    /// Before that, have so many holds and so many waits of one client
    #[arg(long, default_value_t = 0)]
    crowd: usize,
    /// Do this wrong: it has to be found
    #[arg(long, value_enum)]
    planted: Option<Planted>,
    /// Be the process of this number, for a campaign that reads our output
    #[arg(long, hide = true, requires = "url")]
    number: Option<usize>,
    /// The servers of that process
    #[arg(long, hide = true)]
    url: Option<String>,
    /// The locks of that process
    #[arg(hide = true)]
    names: Vec<String>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let seed = arguments.campaign.seed();
    let ran = match (arguments.number, &arguments.url) {
        (Some(number), Some(url)) => {
            let who = (number, arguments.tasks, seed);
            let names = arguments.names.clone();
            workers::run(who, url, names, arguments.mode, arguments.planted).map(|()| true)
        }
        _ => run(&arguments, seed),
    };
    match ran {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("breach of survival: {error}; seed {seed}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a campaign. Returns whether all promises were kept.
fn run(arguments: &Arguments, seed: u64) -> Result<bool, String> {
    let campaign = &arguments.campaign;
    let (topology, mode) = (arguments.topology, arguments.mode);
    println!(
        "seed {seed}, {topology:?}, {mode:?}, {} s, {campaign}",
        campaign.duration
    );
    let (setup, dir) = (campaign.setup()?, campaign::directory()?);
    let mut rng = StdRng::seed_from_u64(seed);
    let for_servers = StdRng::seed_from_u64(rng.random());
    let ran = Servers::start(topology, &setup, dir.path(), for_servers).and_then(|mut servers| {
        run_scenes(arguments, &servers, rng.random())?;
        match campaign.duration {
            0 => Ok(true),
            _ => run_processes(arguments, &mut servers, rng, seed, dir.path()),
        }
    });
    if !matches!(ran, Ok(true)) {
        println!("logs are in {}", dir.keep().display());
    }
    ran
}

fn run_scenes(arguments: &Arguments, servers: &Servers, seed: u64) -> Result<(), String> {
    let runtime = Runtime::new().map_err(|error| error.to_string())?;
    if arguments.cancels > 0 {
        let granted = runtime.block_on(scenes::cancels(servers, arguments.cancels, seed))?;
        println!(
            "{} acquires given up, {granted} granted before",
            arguments.cancels
        );
    }
    if arguments.crowd > 0 {
        let took = runtime.block_on(scenes::crowd(servers, arguments.crowd))?;
        println!("{} holds and waits: passed on in {took:?}", arguments.crowd);
    }
    Ok(())
}

/// A process, and what copies its journal.
struct Process {
    child: Child,
    copying: JoinHandle<()>,
}

impl Process {
    fn start(
        arguments: &Arguments,
        number: usize,
        url: &str,
        names: &[String],
        seed: u64,
        journal: &Arc<Journal>,
    ) -> Result<Self, String> {
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(own);
        let (number, tasks) = (number.to_string(), arguments.tasks.to_string());
        command.args(["--number", &number, "--url", url, "--tasks", &tasks]);
        command.args(["--seed", &seed.to_string()]);
        for (option, value) in [
            ("--mode", name_of(Some(arguments.mode))),
            ("--planted", name_of(arguments.planted)),
        ] {
            if let Some(value) = value {
                command.args([option, &value]);
            }
        }
        command
            .args(names)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = spawn(command)?;
        let output = child.stdout.take().ok_or("a process without output")?;
        let journal = Arc::clone(journal);
        let copying = thread::spawn(move || journal.copy_from(BufReader::new(output)));
        Ok(Self { child, copying })
    }

    /// Has it come to an end.
    fn end(mut self, deadline: Instant) -> Result<(), String> {
        drop(self.child.stdin.take());
        loop {
            match self.child.try_wait().map_err(|error| error.to_string())? {
                Some(status) if status.success() => break,
                Some(status) => return Err(format!("a process ended with {status}")),
                None if Instant::now() > deadline => {
                    let _ = self.child.kill();
                    return Err("a process does not end".into());
                }
                None => thread::sleep(Duration::from_millis(20)),
            }
        }
        let copied = self.copying.join();
        copied.map_err(|_| "the journal of a process can't be read".into())
    }
}

fn name_of(value: Option<impl clap::ValueEnum>) -> Option<String> {
    Some(value?.to_possible_value()?.get_name().to_owned())
}

fn run_processes(
    arguments: &Arguments,
    servers: &mut Servers,
    mut rng: StdRng,
    seed: u64,
    dir: &Path,
) -> Result<bool, String> {
    let journal = Arc::new(Journal::default());
    let name = |n| format!("{}lock-{n}", servers.prefix);
    let names: Vec<String> = (1..=arguments.locks).map(name).collect();
    let processes: Vec<Process> = (0..PROCESSES)
        .map(|number| {
            let (url, seed) = (servers.url(number), rng.random());
            Process::start(arguments, number + 1, &url, &names, seed, &journal)
        })
        .collect::<Result<_, _>>()?;
    let hurt = hurt(arguments, servers, &journal);
    let deadline = Instant::now() + END_TIMEOUT;
    let ended: Vec<Result<(), String>> = processes.into_iter().map(|it| it.end(deadline)).collect();
    let ended: Result<(), String> = ended.into_iter().collect();
    let history = journal.history();
    let breaches = history::check(&history, TOLERANCE);
    show(&breaches);
    if !breaches.is_empty() {
        write_history(&history, &dir.join("history.jsonl"))?;
    }
    let mut outcomes: BTreeMap<String, usize> = BTreeMap::new();
    // What shows that a section relies upon its lock is none of them.
    let mut sections = history
        .operations
        .iter()
        .filter(|one| one.answered != Some(one.sent));
    sections.by_ref().for_each(|one| {
        let kind = match &one.outcome {
            Outcome::Granted(_) => "granted".to_owned(),
            Outcome::Error(code) => code.clone(),
            other => format!("{other:?}").to_lowercase(),
        };
        *outcomes.entry(kind).or_default() += 1;
    });
    println!(
        "totals: {:?}, {:?}: {}; faults: {}; breaches: {}; seed {seed}",
        arguments.topology,
        arguments.mode,
        counts(&outcomes),
        counts(&servers.counts),
        breaches.len(),
    );
    hurt.and(ended)?;
    if breaches.is_empty() {
        servers.await_empty()?;
    }
    Ok(breaches.is_empty())
}

/// Hurts one thing after another, for as long as the campaign lasts or until there is a
/// breach.
fn hurt(arguments: &Arguments, servers: &mut Servers, journal: &Journal) -> Result<(), String> {
    let started = Instant::now();
    let (mut told, mut searched) = (started, started);
    while started.elapsed() < Duration::from_secs(arguments.campaign.duration) {
        servers.hurt(journal)?;
        if told.elapsed() >= PROGRESS_EVERY {
            told = Instant::now();
            println!(
                "{:4} s: {} operations, {} faults",
                started.elapsed().as_secs(),
                journal.operations(),
                servers.counts.values().sum::<usize>()
            );
        }
        if searched.elapsed() >= SEARCH_EVERY {
            if !history::check_so_far(&journal.history(), TOLERANCE).is_empty() {
                break;
            }
            searched = Instant::now();
        }
    }
    Ok(())
}

fn show(breaches: &[Breach]) {
    for breach in breaches.iter().take(SHOWN) {
        println!("breach of {}: {}", breach.promise, breach.evidence);
    }
}
