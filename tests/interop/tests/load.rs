//! Both sides at once on one lock, for `INTEROP_SECONDS`: 16 threads of
//! Redisson's in two processes and 16 native clients.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis::Value;
use redis_lock_chaos::clock;
use redis_lock_chaos::history::{self, Acquire, History, MS, Operation, Outcome, Request};
use redis_lock_interop::{Redisson, Topology, versions};
use redis_lock_testing::{Client, Int, Okay, Server};

const NATIVE_CLIENTS: usize = 16;

/// In each of the two processes.
const REDISSON_THREADS: usize = 8;

const LEASE_MS: u64 = 10_000;

/// A client pauses from nothing to twice this long between two holds.
const THINK_MS: u64 = 40;

/// How far the server's clock may stray from the clients' within a lease.
const TOLERANCE_MS: u64 = 10;

fn seconds() -> u64 {
    std::env::var("INTEROP_SECONDS").map_or(20, |seconds| {
        seconds.parse().expect("INTEROP_SECONDS is a number")
    })
}

#[test]
#[ignore = "needs Redisson: make interop"]
fn both_sides_exclude_each_other_and_nobody_starves() {
    let server = Server::start();
    let mut observer = server.client();
    assert_eq!(observer.call("SET counter 0"), Okay);
    let dir = tempfile::tempdir().unwrap();
    let seed: u64 = rand::rng().random_range(0..1_000_000_000);
    println!("seed {seed}");

    let mut processes: Vec<_> = versions()
        .map(|version| Redisson::start(version, Topology::Single, server.addr(), LEASE_MS))
        .collect();
    let journals: Vec<_> = versions()
        .map(|version| dir.path().join(format!("redisson-{version}.jsonl")))
        .collect();
    for (number, (process, journal)) in processes.iter_mut().zip(&journals).enumerate() {
        let first = NATIVE_CLIENTS + number * REDISSON_THREADS;
        let journal = journal.display();
        let seconds = seconds();
        process.send(
            "main",
            &format!(
                "load lock counter {first} {REDISSON_THREADS} {LEASE_MS} {THINK_MS} {seconds} {journal}"
            ),
        );
    }
    let end = Instant::now() + Duration::from_secs(seconds());
    let native: Vec<_> = (0..NATIVE_CLIENTS)
        .map(|number| {
            let client = server.client();
            // Half of them do the same each time.
            let random = if number % 2 == 0 { 0 } else { seed };
            let rng = StdRng::seed_from_u64(random + number as u64);
            thread::spawn(move || NativeClient::new(number, client, rng).run_until(end))
        })
        .collect();

    let mut sections = 0;
    let mut operations = Vec::new();
    for thread in native {
        let (entered, noted) = thread.join().unwrap();
        sections += entered;
        operations.extend(noted);
    }
    let native_operations = operations.len();
    for (process, journal) in processes.iter().zip(&journals) {
        let last_waits = Duration::from_millis(LEASE_MS * REDISSON_THREADS as u64);
        let done = process.answer_within("main", last_waits + Duration::from_secs(seconds()));
        sections += done.unwrap().result.parse::<u64>().unwrap();
        operations.extend(read(journal));
    }
    let (native, redisson) = operations.split_at(native_operations);
    let waits = [("native", native), ("Redisson", redisson)].map(|(side, operations)| {
        let grants = operations.iter().filter(|one| granted(one));
        let longest = operations
            .iter()
            .filter(|one| granted(one))
            .map(waited)
            .max();
        let longest = longest.unwrap();
        println!(
            "{side}: {} grants, longest wait {longest:?}",
            grants.count()
        );
        longest
    });
    println!("{sections} critical sections in {} s", seconds());

    assert_eq!(observer.bulk("GET counter"), sections.to_string());
    let history = History {
        operations,
        interferences: Vec::new(),
    };
    let breaches = history::check(&history, TOLERANCE_MS * MS);
    let first = breaches.first();
    assert!(first.is_none(), "{} breaches: {first:?}", breaches.len());
    for longest in waits {
        assert!(longest < Duration::from_millis(LEASE_MS), "{longest:?}");
    }
    server.assert_sound();
}

fn granted(operation: &Operation) -> bool {
    matches!(
        operation.outcome,
        Outcome::Granted(_) | Outcome::GrantedWithoutToken
    )
}

fn waited(operation: &Operation) -> Duration {
    Duration::from_nanos(operation.answered.unwrap() - operation.sent)
}

fn read(journal: &Path) -> Vec<Operation> {
    let lines = BufReader::new(File::open(journal).unwrap()).lines();
    lines
        .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
        .collect()
}

struct NativeClient {
    number: usize,
    client: Client,
    rng: StdRng,
    operations: Vec<Operation>,
}

impl NativeClient {
    fn new(number: usize, client: Client, rng: StdRng) -> Self {
        Self {
            number,
            client,
            rng,
            operations: Vec::new(),
        }
    }

    /// Adds one to a counter that nothing but the lock guards, again and
    /// again. Returns how often, and what it did.
    fn run_until(mut self, end: Instant) -> (u64, Vec<Operation>) {
        let mut entered = 0;
        while Instant::now() < end {
            entered += 1;
            let owner = format!("native-{}-{entered}", self.number);
            let holds = if self.rng.random_ratio(1, 4) { 2 } else { 1 };
            for _ in 0..holds {
                self.acquire(&owner);
            }
            let count: u64 = self.client.bulk("GET counter").parse().unwrap();
            let set = self.client.call(&format!("SET counter {}", count + 1));
            assert_eq!(set, Okay);
            for hold in (1..=holds).rev() {
                self.release(&owner, hold == 1);
            }
            let think_ms = self.rng.random_range(0..=2 * THINK_MS);
            thread::sleep(Duration::from_millis(think_ms));
        }
        (entered, self.operations)
    }

    fn acquire(&mut self, owner: &str) {
        let request = Request::Acquire(Acquire {
            lease_ms: LEASE_MS,
            block_ms: Some(0),
            ..Acquire::default()
        });
        let sent = clock::now();
        let command = format!("LOCK.ACQUIRE lock {owner} LEASE {LEASE_MS} BLOCK 0");
        let Value::Int(token) = self.client.call(&command) else {
            panic!("{command} answers no token");
        };
        self.note(owner, request, sent, Outcome::Granted(token));
    }

    fn release(&mut self, owner: &str, last: bool) {
        let sent = clock::now();
        let reply = self.client.call(&format!("LOCK.RELEASE lock {owner}"));
        assert_eq!(reply, Int(last.into()));
        let outcome = if last {
            Outcome::Released
        } else {
            Outcome::StillHeld
        };
        let request = Request::Release {
            hold: None,
            fence: None,
            all: false,
        };
        self.note(owner, request, sent, outcome);
    }

    fn note(&mut self, owner: &str, request: Request, sent: u64, outcome: Outcome) {
        self.operations.push(Operation {
            client: self.number,
            connection: 0,
            lock: "lock".into(),
            owner: owner.into(),
            request,
            sent,
            answered: Some(clock::now()),
            queued: None,
            outcome,
        });
    }
}
