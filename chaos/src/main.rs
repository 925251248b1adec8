//! Runs the lock module under faults, and checks what its clients saw.
//!
//! A campaign starts servers of its own, lets many clients take and release
//! locks, and meanwhile crashes, stops, pauses and deceives whatever it can.
//! Every client writes down what it sent and heard, and in the end [`history`]
//! says whether any correct lock could have answered so.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use clap::Parser;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis_lock_chaos::campaign::{self, Campaign, PROGRESS_EVERY};
use redis_lock_chaos::clients::{Client, FaultsEnd, Flow, Route};
use redis_lock_chaos::faults::Faults;
use redis_lock_chaos::history::{Breach, History, Mode, Outcome, Promise, Request, TOLERANCE};
use redis_lock_chaos::journal::Journal;
use redis_lock_chaos::locks::Locks;
use redis_lock_chaos::report::{counts, write_history};
use redis_lock_chaos::{clock, history, observer};

/// How often a campaign that ends at a breach looks for one.
const SEARCH_EVERY: Duration = Duration::from_secs(2);

/// How long the clients may take to end once the faults are over. It is longer
/// than they wait for an answer.
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// How many breaches of each promise are shown in full.
const SHOWN: usize = 3;

/// Runs locks under faults, and checks what the clients saw.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    campaign: Campaign,
    /// How many clients work at a time
    #[arg(long, default_value_t = 20)]
    clients: usize,
    /// How many locks they share that are exclusive; there are a few others
    #[arg(long, default_value_t = 4)]
    locks: usize,
    /// End at the first breach of this promise
    #[arg(long, value_name = "PROMISE")]
    until_breach_of: Option<Promise>,
    /// What the clients shall not do
    #[arg(long, value_name = "FLOW")]
    without: Vec<Flow>,
    /// Judge the history that an earlier campaign left in this file
    #[arg(long, value_name = "FILE")]
    judge: Option<PathBuf>,
    /// Be one client, on this port, for a campaign that reads our output
    #[arg(long, hide = true, requires = "number")]
    as_client_of: Option<u16>,
    /// The number of that client
    #[arg(long, hide = true)]
    number: Option<usize>,
    /// The locks of that client
    #[arg(hide = true)]
    names: Vec<String>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let seed = arguments.campaign.seed();
    if let (Some(port), Some(number)) = (arguments.as_client_of, arguments.number) {
        let locks = Locks::named(arguments.names);
        run_client(port, number, seed, Arc::new(locks));
        return ExitCode::SUCCESS;
    }
    let kept = match &arguments.judge {
        Some(path) => judge(path),
        None => run_campaign(&arguments, seed),
    };
    match kept {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("redis-lock-chaos: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_client(port: u16, number: usize, seed: u64, locks: Arc<Locks>) {
    let journal = Arc::new(Journal::echoing());
    let faults_end = Arc::new(FaultsEnd::new(0));
    Client::new(
        number,
        seed,
        Route::Proxied(port),
        locks,
        journal,
        faults_end,
        Vec::new(),
    )
    .run();
}

/// Runs a campaign. Returns whether all promises were kept.
fn run_campaign(arguments: &Arguments, seed: u64) -> Result<bool, String> {
    let campaign = &arguments.campaign;
    println!("seed {seed}, {} s, {campaign}", campaign.duration);
    let (setup, dir) = (campaign.setup()?, campaign::directory()?);
    let mut rng = StdRng::seed_from_u64(seed);
    let locks = Arc::new(Locks::new(arguments.locks));
    let journal = Arc::new(Journal::default());
    let faults_end = Arc::new(AtomicU64::new(0));
    let seeds: Vec<u64> = (0..arguments.clients).map(|_| rng.random()).collect();
    let (for_faults, known) = (Arc::clone(&journal), Arc::clone(&locks));
    let mut faults = match Faults::start(rng, setup, dir.path(), known, for_faults) {
        Ok(faults) => faults,
        Err(error) => {
            return Err(format!("{error}; logs are in {}", dir.keep().display()));
        }
    };
    let (without, locks) = (&arguments.without, &locks);
    let mut threads = start_clients(&faults, &seeds, locks, &journal, &faults_end, without);
    threads.push(start_observer(&faults, &journal, &faults_end));

    let duration = Duration::from_secs(campaign.duration);
    let survived = match arguments.until_breach_of {
        None => inject_faults(&mut faults, duration, &journal, || false),
        Some(promise) => {
            let searched = AtomicBool::new(false);
            thread::scope(|scope| {
                let found = scope.spawn(|| search(&journal, promise, &searched));
                let survived =
                    inject_faults(&mut faults, duration, &journal, || found.is_finished());
                searched.store(true, Ordering::SeqCst);
                survived
            })
        }
    };
    faults.end();
    faults_end.store(clock::now(), Ordering::SeqCst);
    let survived = survived
        .and_then(|()| await_end(&threads))
        .and_then(|()| faults.examine());
    let history = journal.history();
    let breaches = by_promise(history::check(&history, TOLERANCE));
    show(&breaches);
    if let Err(error) = &survived {
        println!("breach of survival: {error}");
    }
    println!(
        "{}; seed {seed}",
        totals(&history, &faults.counts, &breaches, survived.is_ok())
    );
    let kept = breaches.is_empty() && survived.is_ok();
    if !kept {
        let dir = dir.keep();
        write_history(&history, &dir.join("history.jsonl"))?;
        println!("logs and history are in {}", dir.display());
    }
    Ok(kept)
}

/// Waits until the clients have taken their last locks.
fn await_end(threads: &[JoinHandle<()>]) -> Result<(), String> {
    let deadline = Instant::now() + END_TIMEOUT;
    while !threads.iter().all(JoinHandle::is_finished) {
        if Instant::now() > deadline {
            return Err("some clients can't come to an end".into());
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn by_promise(breaches: Vec<Breach>) -> BTreeMap<Promise, Vec<Breach>> {
    let mut sorted: BTreeMap<Promise, Vec<Breach>> = BTreeMap::new();
    for breach in breaches {
        sorted.entry(breach.promise).or_default().push(breach);
    }
    sorted
}

fn start_clients(
    faults: &Faults,
    seeds: &[u64],
    locks: &Arc<Locks>,
    journal: &Arc<Journal>,
    faults_end: &Arc<FaultsEnd>,
    without: &[Flow],
) -> Vec<JoinHandle<()>> {
    let client = |(number, &seed): (usize, &u64)| {
        let route = if number % 3 == 0 {
            Route::Proxied(faults.proxy.addr().port())
        } else {
            Route::Direct(Arc::clone(&faults.primary))
        };
        let client = Client::new(
            number,
            seed,
            route,
            Arc::clone(locks),
            Arc::clone(journal),
            Arc::clone(faults_end),
            without.to_vec(),
        );
        thread::spawn(move || client.run())
    };
    seeds.iter().enumerate().map(client).collect()
}

fn start_observer(
    faults: &Faults,
    journal: &Arc<Journal>,
    faults_end: &Arc<FaultsEnd>,
) -> JoinHandle<()> {
    let primary: Arc<AtomicU16> = Arc::clone(&faults.primary);
    let (journal, faults_end) = (Arc::clone(journal), Arc::clone(faults_end));
    thread::spawn(move || observer::watch(&journal, &primary, &faults_end))
}

/// Looks for a breach every now and then, until there is one or somebody says
/// that it is enough.
fn search(journal: &Journal, promise: Promise, enough: &AtomicBool) {
    let mut looked = Instant::now();
    while !enough.load(Ordering::SeqCst) {
        thread::sleep(Duration::from_millis(50));
        if looked.elapsed() >= SEARCH_EVERY {
            let breaches = history::check_so_far(&journal.history(), TOLERANCE);
            if breaches.iter().any(|breach| breach.promise == promise) {
                return;
            }
            looked = Instant::now();
        }
    }
}

fn inject_faults(
    faults: &mut Faults,
    duration: Duration,
    journal: &Journal,
    enough: impl Fn() -> bool,
) -> Result<(), String> {
    let start = Instant::now();
    let mut reported = start;
    while start.elapsed() < duration && !enough() {
        thread::sleep(Duration::from_millis(faults.rng.random_range(20..300)));
        faults.inject()?;
        if reported.elapsed() >= PROGRESS_EVERY {
            reported = Instant::now();
            println!(
                "{:4} s: {} operations, {} faults",
                start.elapsed().as_secs(),
                journal.operations(),
                faults.counts.values().sum::<usize>()
            );
        }
    }
    Ok(())
}

/// The campaign in one line.
fn totals(
    history: &History,
    faults: &BTreeMap<&str, usize>,
    breaches: &BTreeMap<Promise, Vec<Breach>>,
    survived: bool,
) -> String {
    let (mut unknown, mut queued, mut told, mut deadlocks, mut closed) = (0, 0, 0, 0, 0);
    let mut grants: BTreeMap<&str, usize> = BTreeMap::new();
    let mut errors: BTreeMap<&str, usize> = BTreeMap::new();
    for operation in &history.operations {
        queued += usize::from(operation.queued.is_some());
        told += usize::from(matches!(operation.outcome, Outcome::Told { .. }));
        closed += usize::from(operation.request == Request::Close);
        match &operation.outcome {
            Outcome::Granted(_) | Outcome::Told { .. } => {
                *grants.entry(kind_of(operation.request)).or_default() += 1
            }
            Outcome::Deadlock(_) => deadlocks += 1,
            Outcome::Lost | Outcome::GivenUp => unknown += 1,
            Outcome::Error(code) => *errors.entry(code).or_default() += 1,
            _ => {}
        }
    }
    let mut broken: BTreeMap<String, usize> = breaches
        .iter()
        .map(|(promise, found)| (promise.to_string(), found.len()))
        .collect();
    if !survived {
        broken.insert("survival".into(), 1);
    }
    format!(
        "totals: {} operations; grants: {}; {told} told, {queued} seen to queue, \
         {unknown} unknown, {closed} sessions closed, {deadlocks} deadlocks refused; errors: {}; faults: {}; breaches: {}",
        history.operations.len(),
        counts(&grants),
        counts(&errors),
        counts(faults),
        counts(&broken)
    )
}

/// What a grant is counted as.
fn kind_of(request: Request) -> &'static str {
    match request {
        Request::Acquire {
            claim_ms: Some(_), ..
        } => "places",
        Request::Acquire { session: true, .. } => "in sessions",
        Request::Acquire { mode, .. } => match mode {
            Mode::Exclusive => "exclusive",
            Mode::Shared => "shared",
            Mode::Limited(_) => "limited",
        },
        _ => "others",
    }
}

/// Judges a history that was written before. Returns whether all promises were kept.
fn judge(path: &Path) -> Result<bool, String> {
    let said = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let lines = BufReader::new(File::open(path).map_err(|error| said(&error))?).lines();
    let mut history = History::default();
    for line in lines {
        let line = line.map_err(|error| said(&error))?;
        match serde_json::from_str(&line) {
            Ok(operation) => history.operations.push(operation),
            Err(_) => {
                let interference = serde_json::from_str(&line).map_err(|error| said(&error))?;
                history.interferences.push(interference);
            }
        }
    }
    let breaches = by_promise(history::check(&history, TOLERANCE));
    show(&breaches);
    println!("{}", totals(&history, &BTreeMap::new(), &breaches, true));
    Ok(breaches.is_empty())
}

fn show(breaches: &BTreeMap<Promise, Vec<Breach>>) {
    for breach in breaches.values().flat_map(|found| found.iter().take(SHOWN)) {
        println!("breach of {}: {}", breach.promise, breach.evidence);
    }
}
