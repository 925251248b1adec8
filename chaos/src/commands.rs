//! A campaign against one server and its replica: many clients take locks by bare commands,
//! while servers crash, stop and fail over, and others do what they like to the keys.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis_lock_testing::Setup;

use crate::campaign::{Tally, counts, hurt_for, show, write_history};
use crate::clients::{Client, FaultsEnd, Route};
use crate::faults::Faults;
use crate::history::{Acquire, History, Mode, Outcome, Promise, Request, TOLERANCE};
use crate::journal::Journal;
use crate::locks::Locks;
use crate::{clock, history, observer};

/// How often a campaign that ends at a breach looks for one.
const SEARCH_EVERY: Duration = Duration::from_secs(2);

/// How long the clients may take to end once the faults are over. It is longer
/// than they wait for an answer.
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// What the command line says of such a campaign.
#[derive(clap::Args)]
#[group(skip)]
pub struct Options {
    /// End at the first breach of this promise
    #[arg(long, value_name = "PROMISE")]
    until_breach_of: Option<Promise>,
}

/// Is one client, for a campaign that reads our output.
pub fn run_client(port: u16, number: usize, seed: u64, names: Vec<String>) {
    let journal = Arc::new(Journal::echoing());
    let faults_end = Arc::new(FaultsEnd::new(0));
    Client::new(
        number,
        seed,
        Route::Proxied(port),
        Arc::new(Locks::named(names)),
        journal,
        faults_end,
    )
    .run();
}

/// Runs a campaign. Returns whether all promises were kept.
pub fn run(
    options: &Options,
    (clients, locks): (usize, usize),
    (setup, dir): (Setup, &Path),
    (seed, duration): (u64, Duration),
) -> Result<bool, String> {
    let mut rng = StdRng::seed_from_u64(seed);
    let locks = Arc::new(Locks::new(locks));
    let journal = Arc::new(Journal::default());
    let faults_end = Arc::new(AtomicU64::new(0));
    let seeds: Vec<u64> = (0..clients).map(|_| rng.random()).collect();
    let (for_faults, known) = (Arc::clone(&journal), Arc::clone(&locks));
    let mut faults = Faults::start(rng, setup, dir, known, for_faults)?;
    let mut threads = start_clients(&faults, &seeds, &locks, &journal, &faults_end);
    threads.push(start_observer(&faults, &journal, &faults_end));

    let hurt = || {
        thread::sleep(Duration::from_millis(faults.rng.random_range(20..300)));
        faults.inject()
    };
    let breached = || {
        let breaches = history::check_so_far(&journal.history(), TOLERANCE);
        let mut broken = breaches.iter().map(|breach| breach.promise);
        broken.any(|promise| Some(promise) == options.until_breach_of)
    };
    let search = options.until_breach_of.is_some();
    let search: Option<(_, &dyn Fn() -> bool)> = search.then_some((SEARCH_EVERY, &breached));
    let tell = || format!("{} operations", journal.operations());
    let survived = hurt_for(duration, hurt, search, tell);
    faults.end();
    faults_end.store(clock::now(), Ordering::SeqCst);
    let survived = survived
        .and_then(|()| await_end(&threads))
        .and_then(|()| faults.examine());
    let history = journal.history();
    let breaches = history::check(&history, TOLERANCE);
    let broken = show(&breaches);
    if let Err(error) = &survived {
        println!("breach of survival: {error}");
    }
    let totals = totals(&history, &faults.counts, broken, survived.is_ok());
    println!("{totals}; seed {seed}");
    write_history(&history, &dir.join("history.jsonl"))?;
    Ok(breaches.is_empty() && survived.is_ok())
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

fn start_clients(
    faults: &Faults,
    seeds: &[u64],
    locks: &Arc<Locks>,
    journal: &Arc<Journal>,
    faults_end: &Arc<FaultsEnd>,
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
    let primary = Arc::clone(&faults.primary);
    let (journal, faults_end) = (Arc::clone(journal), Arc::clone(faults_end));
    thread::spawn(move || observer::watch(&journal, &primary, &faults_end))
}

/// The campaign in one line.
fn totals(
    history: &History,
    faults: &BTreeMap<&str, usize>,
    mut broken: Tally,
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
        Request::Acquire(_) if request.is_for_place() => "places",
        Request::Acquire(Acquire { session: true, .. }) => "in sessions",
        Request::Acquire(Acquire { mode, .. }) => match mode {
            Mode::Exclusive => "exclusive",
            Mode::Shared => "shared",
            Mode::Limited(_) => "limited",
        },
        _ => "others",
    }
}

/// Judges a history that was written before. Returns whether all promises were kept.
pub fn judge(path: &Path) -> Result<bool, String> {
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
    let breaches = history::check(&history, TOLERANCE);
    println!(
        "{}",
        totals(&history, &BTreeMap::new(), show(&breaches), true)
    );
    Ok(breaches.is_empty())
}
