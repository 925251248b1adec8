//! Tasks that take, keep and give back locks of a `Redlock`, and write down
//! what they believe.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis_lock_redlock::redis_lock_client::LockClient;
use redis_lock_redlock::{Error, Lock, LockGuard, Redlock};
use tokio::time::{Instant, sleep, timeout};

use crate::clock;
use crate::history::Nanos;
use crate::redlock::beliefs::{Claim, Held, Journal};

/// No lease is longer.
pub const LEASE_MS_MAX: u64 = 2000;

/// How long a server may take to answer.
const RESPONSE: Duration = Duration::from_millis(50);

/// How long it may take to open a connection.
const CONNECT: Duration = Duration::from_millis(500);

/// How often a holder looks until when it may rely upon its hold.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How long each client may take to connect, and for each lock when all servers
/// are well.
const LAST_WAIT: Duration = Duration::from_secs(60);

/// What came of all that was asked for, by kind.
#[derive(Default)]
pub struct Tally {
    counts: Mutex<BTreeMap<String, usize>>,
}

impl Tally {
    fn add(&self, kind: impl fmt::Display) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry(kind.to_string()).or_default() += 1;
    }

    /// How often each came.
    pub fn counts(&self) -> BTreeMap<String, usize> {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.clone()
    }
}

/// What all tasks share.
pub struct Shared {
    /// Where they write down what they believe.
    pub journal: Arc<Journal>,
    /// How often a lock was had, and how often not.
    pub answers: Tally,
    /// The locks.
    pub keys: Vec<String>,
    /// Whether to come to an end.
    pub enough: AtomicBool,
}

/// A client with one connection to each server.
#[derive(Clone)]
pub struct Client {
    redlock: Redlock,
    number: usize,
}

/// What a task asks for.
struct Ask {
    claim: Claim,
    wait: Duration,
}

impl Client {
    /// Connects to the servers.
    pub async fn connect(number: usize, urls: &[String]) -> Result<Self, String> {
        let deadline = Instant::now() + LAST_WAIT;
        loop {
            let client = LockClient::builder().connect_timeout(CONNECT);
            let urls = urls.iter().map(String::as_str);
            match Redlock::connect_with(client, RESPONSE, urls).await {
                Ok(redlock) => return Ok(Self { redlock, number }),
                // A busy machine may answer too late.
                Err(error) if Instant::now() > deadline => return Err(error.to_string()),
                Err(_) => {}
            }
        }
    }

    /// What to take, as claimed.
    pub fn lock(&self, claim: &Claim) -> Lock {
        let lease = Duration::from_millis(claim.lease_ms);
        let lock = self.redlock.lock(&claim.key);
        lock.lease(lease).renew(claim.renewed)
    }

    /// Takes each lock once, now that all servers are well.
    pub async fn take_each(&self, keys: &[String]) -> Result<(), String> {
        for key in keys {
            let lock = self.redlock.lock(key);
            let failed =
                |what: String| format!("client {} can't get {key} in the end: {what}", self.number);
            match lock.acquire_within(LAST_WAIT).await {
                Ok(Some(guard)) => drop(guard),
                Ok(None) => return Err(failed("it is taken".into())),
                Err(error) => return Err(failed(error.to_string())),
            }
        }
        let flushed = timeout(LAST_WAIT, self.redlock.flush()).await;
        flushed.map_err(|_| format!("client {} does not come to rest", self.number))
    }
}

/// One task of a client.
pub struct Worker {
    client: Client,
    number: usize,
    rng: StdRng,
    shared: Arc<Shared>,
}

impl Worker {
    /// A task that does as the seed says.
    pub fn new(client: Client, number: usize, seed: u64, shared: Arc<Shared>) -> Self {
        Self {
            client,
            number,
            rng: StdRng::seed_from_u64(seed),
            shared,
        }
    }

    /// Works until it is enough.
    pub async fn run(mut self) {
        while !self.shared.enough.load(Ordering::SeqCst) {
            self.round().await;
            let pause = self.ms(0, 10);
            sleep(pause).await;
        }
    }

    fn ms(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.rng.random_range(from..=to))
    }

    fn ask(&mut self) -> Ask {
        let renewed = self.rng.random_bool(0.4);
        let lease_ms = match self.rng.random_range(0..4) {
            0 => self.rng.random_range(100..=500),
            1 => self.rng.random_range(500..=1000),
            _ => self.rng.random_range(1000..=LEASE_MS_MAX),
        };
        let key = self.rng.random_range(0..self.shared.keys.len());
        let wait = match self.rng.random_range(0..10) {
            0..3 => Duration::ZERO,
            _ => self.ms(20, 800),
        };
        Ask {
            claim: Claim {
                key: self.shared.keys[key].clone(),
                task: (self.client.number, self.number),
                lease_ms,
                renewed,
            },
            wait,
        }
    }

    /// Takes a lock, keeps it for a while, and gives it back in some way.
    async fn round(&mut self) {
        let ask = self.ask();
        if let Some((guard, held)) = self.acquire(&ask).await {
            self.keep(&ask, guard, held).await;
        }
    }

    async fn acquire(&mut self, ask: &Ask) -> Option<(LockGuard, Held)> {
        let asked = self.shared.journal.ask(ask.claim.clone());
        let answer = if self.rng.random_bool(0.15) {
            let patience = Duration::from_micros(self.rng.random_range(0..=60_000));
            let lock = self.client.lock(&ask.claim);
            match timeout(patience, lock.acquire()).await {
                Ok(answer) => answer.map(Some),
                Err(_) => {
                    self.shared.answers.add("dropped");
                    return None;
                }
            }
        } else {
            let lock = self.client.lock(&ask.claim);
            lock.acquire_within(ask.wait).await
        };
        match answer {
            Ok(Some(guard)) => {
                self.shared.answers.add("granted");
                let mut held = asked.granted();
                look(&mut held, || guard.valid_for());
                Some((guard, held))
            }
            Ok(None) => {
                self.shared.answers.add("taken");
                None
            }
            Err(error) => {
                self.shared.answers.add(kind_of(&error));
                None
            }
        }
    }

    /// How long to keep a lock: mostly a moment, and sometimes longer than its
    /// lease.
    fn any_time(&mut self, ask: &Ask) -> Duration {
        let lease_ms = ask.claim.lease_ms;
        let most_ms = match ask.claim.renewed {
            true => lease_ms * 3 / 2,
            false => lease_ms + 50,
        };
        match self.rng.random_range(0..20) {
            0..12 => self.ms(0, 15),
            12..17 => self.ms(15, 200),
            _ => self.ms(100, most_ms),
        }
    }

    async fn keep(&mut self, ask: &Ask, guard: LockGuard, mut held: Held) {
        let until = Instant::now() + self.any_time(ask);
        let mut lost = pin!(guard.lost());
        while Instant::now() < until && !self.shared.enough.load(Ordering::SeqCst) {
            let pause = LOOK_EVERY.min(until - Instant::now());
            tokio::select! {
                biased;
                why = &mut lost => {
                    held.end(format_args!("lost: {why}"));
                    return;
                }
                () = sleep(pause) => look(&mut held, || guard.valid_for()),
            }
            if self.rng.random_bool(0.02) {
                self.shared.journal.operated();
                // What it says then shows in `valid_for`.
                let _ = guard.renew().await;
                look(&mut held, || guard.valid_for());
            }
        }
        look(&mut held, || guard.valid_for());
        match self.rng.random_range(0..20) {
            0..5 => {
                held.end("dropped");
                drop(guard);
            }
            _ => {
                self.shared.journal.operated();
                held.end("released");
                // Whatever comes of it goes on in the background.
                let _ = guard.release().await;
            }
        }
    }
}

/// Notes how long a hold may be relied upon from now.
pub fn look(held: &mut Held, valid_for: impl FnOnce() -> Duration) {
    // The clock is read before, so that what is noted is no later than what is so.
    let now = clock::now();
    let left = valid_for();
    if !left.is_zero() {
        held.valid_for(now, Nanos::try_from(left.as_nanos()).unwrap_or(Nanos::MAX));
    }
}

/// What an error is counted as.
fn kind_of(error: &Error) -> String {
    error.code().to_lowercase()
}
