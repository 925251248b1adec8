//! A process of the campaign: tasks that take, keep and give back locks by one client.

use std::io::Read;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis_lock_client::{Error, Lock, LockClient, LockGuard, Lost, Session};
use tokio::time::{Instant, sleep, timeout};

use crate::clock;
use crate::history::{MS, Mode, Nanos, Operation, Outcome, Request};
use crate::journal::Journal;

/// No lease is longer.
pub const LEASE_MS_MAX: u64 = 2000;

/// How long any wait may take, however the servers are hurt meanwhile. A client whose
/// message was lost on a connection that lives asks again after a minute.
const PATIENCE: Duration = Duration::from_secs(130);

/// How much later than the server a process may hear of the end of a session.
const HEARD_LATE: Duration = Duration::from_millis(500);

/// How long to listen for the end of a session after each section.
const LISTENING: Duration = Duration::from_millis(20);

/// How long it may take to connect.
const CONNECTING: Duration = Duration::from_secs(30);

/// How the locks are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// With a lease that the client renews.
    Plain,
    /// In a session, by its connection.
    Session,
}

/// What the sections do wrong, so that it has to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Planted {
    /// Work goes on for a while after the lock was given back.
    ReleasesTooEarly,
    /// Work goes on after the lock was lost.
    IgnoresLoss,
}

/// What all tasks of a process share.
pub struct Shared {
    /// Where they write down what they do.
    pub journal: Journal,
    /// The locks.
    pub locks: Vec<String>,
    /// How they are held.
    pub kind: Kind,
    /// What is done wrong.
    pub planted: Option<Planted>,
    enough: AtomicBool,
}

/// Runs tasks by one client, and writes what they do to the standard output, until the
/// standard input ends.
pub fn run(
    (number, tasks, seed): (usize, usize, u64),
    url: &str,
    locks: Vec<String>,
    kind: Kind,
    planted: Option<Planted>,
) -> Result<(), String> {
    let shared = Arc::new(Shared {
        journal: Journal::echoing(),
        locks,
        kind,
        planted,
        enough: AtomicBool::new(false),
    });
    let ending = Arc::clone(&shared);
    thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        ending.enough.store(true, Ordering::SeqCst);
    });
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let client = connect(url).await?;
        let mut rng = StdRng::seed_from_u64(seed);
        let mut working = tokio::task::JoinSet::new();
        for task in 1..=tasks {
            let worker = Worker {
                client: client.clone(),
                session: None,
                id: number * 1000 + task,
                acquires: 0,
                rng: StdRng::seed_from_u64(rng.random()),
                shared: Arc::clone(&shared),
            };
            working.spawn(worker.work());
        }
        while let Some(ended) = working.join_next().await {
            ended.map_err(|error| error.to_string())??;
        }
        let flushed = timeout(PATIENCE, client.flush()).await;
        flushed.map_err(|_| format!("client {number} does not come to rest"))
    })
}

/// Connects, however often that takes.
pub async fn connect(url: &str) -> Result<LockClient, String> {
    let deadline = Instant::now() + CONNECTING;
    loop {
        match LockClient::connect(url).await {
            Ok(client) => return Ok(client),
            Err(error) if Instant::now() > deadline => return Err(format!("{url}: {error}")),
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

struct Worker {
    client: LockClient,
    session: Option<Session>,
    id: usize,
    acquires: usize,
    rng: StdRng,
    shared: Arc<Shared>,
}

/// A hold, as it is written down.
struct Section<'w> {
    worker: &'w Worker,
    lock: String,
    owner: String,
    token: i64,
    /// What was written down of it so far ends then.
    known_until: Nanos,
}

impl Worker {
    async fn work(mut self) -> Result<(), String> {
        while !self.shared.enough.load(Ordering::SeqCst) {
            self.round().await?;
            let pause = self.ms(0, 10);
            sleep(pause).await;
        }
        // All is well now.
        for key in self.shared.locks.clone() {
            let deadline = Instant::now() + PATIENCE;
            while !self.take(&key, Some(PATIENCE), None).await? {
                if Instant::now() > deadline {
                    return Err(format!("{} can't get {key} in the end", self.id));
                }
            }
        }
        match self.session.take() {
            Some(session) => timeout(PATIENCE, session.close())
                .await
                .map_err(|_| "a session does not close".into()),
            None => Ok(()),
        }
    }

    fn ms(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.rng.random_range(from..=to))
    }

    async fn round(&mut self) -> Result<(), String> {
        let key = self.rng.random_range(0..self.shared.locks.len());
        let key = self.shared.locks[key].clone();
        let wait = match self.rng.random_range(0..10) {
            0..3 => Some(Duration::ZERO),
            3..7 => Some(self.ms(1, 2000)),
            _ => None,
        };
        let patience = self.rng.random_bool(0.15).then(|| self.ms(0, 60));
        self.take(&key, wait, patience).await.map(drop)
    }

    /// The lock, by a session that lives if one is wanted.
    async fn lock(&mut self, key: &str, lease: Duration) -> Option<Lock> {
        let lock = match self.shared.kind {
            Kind::Plain => self.client.lock(key),
            Kind::Session => {
                if self.session.as_ref().is_none_or(|it| !it.is_alive()) {
                    self.session = None;
                    self.session = Some(self.client.session().await.ok()?);
                }
                self.session.as_ref()?.lock(key)
            }
        };
        Some(lock.lease(lease))
    }

    fn operation(&self, lock: &str, owner: &str, request: Request) -> Operation {
        let sent = clock::now();
        Operation {
            client: self.id,
            connection: 0,
            lock: lock.to_owned(),
            owner: owner.to_owned(),
            request,
            sent,
            answered: None,
            queued: None,
            outcome: Outcome::Pending,
        }
    }

    /// Takes a lock, keeps it for a while, and gives it back in some way. Returns whether it
    /// had it.
    async fn take(
        &mut self,
        key: &str,
        wait: Option<Duration>,
        patience: Option<Duration>,
    ) -> Result<bool, String> {
        let lease = self.ms(300, LEASE_MS_MAX);
        let Some(mut lock) = self.lock(key, lease).await else {
            return Ok(false);
        };
        let ignores_loss =
            self.shared.planted == Some(Planted::IgnoresLoss) && self.rng.random_bool(0.1);
        if ignores_loss {
            lock = lock.renew(false);
        }
        self.acquires += 1;
        let owner = format!("{}-{}", self.id, self.acquires);
        let journal = &self.shared.journal;
        let noted = journal.began(self.operation(key, &owner, acquire(1, wait)));
        let asked = async {
            match wait {
                Some(wait) => lock.acquire_within(wait).await,
                None => lock.acquire().await.map(Some),
            }
        };
        let limit = patience.unwrap_or(PATIENCE + wait.unwrap_or_default());
        let answer = timeout(limit, asked).await;
        let answered = clock::now();
        let end = |outcome| journal.ended(noted, answered, outcome);
        let guard = match answer {
            Ok(Ok(Some(guard))) => guard,
            Ok(Ok(None)) => {
                end(Outcome::NotAvailable);
                return Ok(false);
            }
            Ok(Err(error)) => {
                end(match error {
                    Error::Unavailable { .. } | Error::NoReplicas(_) | Error::Lost(_) => {
                        Outcome::Lost
                    }
                    error => Outcome::Error(error.code().into()),
                });
                return Ok(false);
            }
            Err(_) if patience.is_some() => {
                end(Outcome::GivenUp);
                return Ok(false);
            }
            Err(_) => {
                end(Outcome::Silent);
                return Err(format!("{owner} waits for {key} without end"));
            }
        };
        let token = i64::try_from(guard.token()).unwrap_or(i64::MAX);
        end(Outcome::Granted(token));
        let time = match self.shared.enough.load(Ordering::SeqCst) {
            true => Duration::ZERO,
            false => self.any_time(lease),
        };
        let ends = self.rng.random_range(0..10);
        let mut section = Section {
            worker: self,
            lock: key.into(),
            owner,
            token,
            known_until: 0,
        };
        if ignores_loss {
            section.believe(lease * 3);
            sleep(lease * 2).await;
            section.over(Outcome::Lost);
            return Ok(true);
        }
        if let Some(guard) = section.keep(guard, time).await {
            section.end(guard, ends).await;
        }
        section.look_at_session().await;
        Ok(true)
    }

    /// How long to keep a lock: mostly a moment, sometimes longer than its lease.
    fn any_time(&mut self, lease: Duration) -> Duration {
        match self.rng.random_range(0..20) {
            0..13 => self.ms(0, 15),
            13..19 => self.ms(15, 200),
            _ => lease * 3 / 2,
        }
    }
}

fn acquire(lease_ms: u64, wait: Option<Duration>) -> Request {
    Request::Acquire {
        lease_ms,
        block_ms: match wait {
            None => Some(0),
            Some(Duration::ZERO) => None,
            Some(wait) => u64::try_from(wait.as_millis()).ok(),
        },
        mode: Mode::Exclusive,
        session: false,
        claim_ms: None,
    }
}

impl Section<'_> {
    fn journal(&self) -> &Journal {
        &self.worker.shared.journal
    }

    /// Relies upon the lock for this long.
    fn believe(&mut self, valid_for: Duration) {
        let Ok(lease_ms @ 1..) = u64::try_from(valid_for.as_millis()) else {
            return;
        };
        let request = acquire(lease_ms, Some(Duration::ZERO));
        let mut believed = self.worker.operation(&self.lock, &self.owner, request);
        // What was said once stands until the end is told.
        let until = believed.sent + lease_ms * MS;
        if until > self.known_until + lease_ms * MS / 5 {
            self.known_until = until;
            believed.answered = Some(believed.sent);
            believed.outcome = Outcome::Granted(self.token);
            self.journal().began(believed);
        }
    }

    /// From now on nothing is relied upon.
    fn ending(&self) -> usize {
        let release = Request::Release {
            hold: Some(1),
            fence: Some(self.token),
        };
        let release = self.worker.operation(&self.lock, &self.owner, release);
        self.journal().began(release)
    }

    fn over(&self, outcome: Outcome) {
        let noted = self.ending();
        self.journal().ended(noted, clock::now(), outcome);
    }

    /// Claims nothing of the last moments, if the connection of the session has ended.
    async fn look_at_session(&self) {
        let over = clock::now();
        if let Some(session) = &self.worker.session {
            sleep(LISTENING).await;
            if !session.is_alive() {
                let fence = Some(self.token);
                let request = Request::Release {
                    hold: Some(1),
                    fence,
                };
                let mut ended = self.worker.operation(&self.lock, &self.owner, request);
                ended.sent = over - HEARD_LATE.as_nanos() as Nanos;
                ended.answered = Some(over);
                ended.outcome = Outcome::Lost;
                self.journal().began(ended);
            }
        }
    }

    /// Keeps the lock for this long, unless it is lost.
    async fn keep(&mut self, guard: LockGuard, time: Duration) -> Option<LockGuard> {
        let until = Instant::now() + time;
        let mut lost = pin!(guard.lost());
        self.believe(guard.valid_for());
        while Instant::now() < until {
            let pause = Duration::from_millis(10).min(until - Instant::now());
            tokio::select! {
                biased;
                why = &mut lost => {
                    self.over(lost_as(why));
                    return None;
                }
                () = sleep(pause) => self.believe(guard.valid_for()),
            }
        }
        Some(guard)
    }

    /// Gives the lock back in some way.
    async fn end(&self, guard: LockGuard, how: u32) {
        match self.worker.shared.planted {
            Some(Planted::ReleasesTooEarly) if how == 0 => {
                let _ = guard.release().await;
                sleep(Duration::from_millis(50)).await;
                self.over(Outcome::Lost);
            }
            _ if how < 3 => {
                self.over(Outcome::GivenUp);
                drop(guard);
            }
            _ => {
                let noted = self.ending();
                let outcome = match guard.release().await {
                    Ok(()) => Outcome::Released,
                    Err(Error::Lost(why)) => lost_as(why),
                    Err(_) => Outcome::Lost,
                };
                self.journal().ended(noted, clock::now(), outcome);
            }
        }
    }
}

fn lost_as(why: Lost) -> Outcome {
    match why {
        Lost::Refused => Outcome::NotHeld,
        _ => Outcome::Lost,
    }
}
