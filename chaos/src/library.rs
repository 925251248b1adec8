//! A campaign against the Rust client and its `Redlock`: three clients, of some tasks each,
//! take locks while connections are cut, delayed and half-closed, and servers are killed.
//!
//! # What is judged
//!
//! Each section is a few operations of one history ([`crate::history`]), by one owner that
//! nobody else is:
//!
//! - An acquire, from when the client was asked until it answered. It shows the token, which
//!   `Redlock` does not know, and of the hold no more than that.
//! - What the guard says of itself (`valid_for`), as one re-entry whose lease is no longer
//!   than that. For so long the section relies upon the lock.
//! - Its end: a release that was sent before the client was asked for one, or before the
//!   loss was told. A hold that the server refused is a release that was answered null.
//!
//! So *no two holders* is that no two sections rely upon one lock at a time, and *possession*
//! that nobody is told that he does not hold what his guard still vouches for. A wait without
//! end is silent. In the end every client has to get every lock, and when all guards are
//! gone, the servers must have neither a lock nor a waiter.
//!
//! # Why a correct client is never found at fault
//!
//! Each belief is what the guard said, dated shorter. One clock dates them all. One server
//! keeps what it was told, and all replicas have to acknowledge it, so a fail-over loses no
//! hold that was told. The client hears of the end of a session a moment after the server
//! ended its holds: then nothing counts of the half second before. What may be done to the
//! servers of a Redlock: [`crate::faults::minority`].
//!
//! # Why it would notice
//!
//! [`Planted`] has the sections do what a wrong client would have them do.

use std::fmt::Display;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis_lock_client::{Error, LockClient, Lost, Session};
use redis_lock_redlock::Redlock;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::campaign::{Campaign, End, Who};
use crate::client::{LEASE_MS_MAX, Shared};
use crate::clock;
use crate::fleet::{Fleet, SIDES};
use crate::history::{Acquire, MS, Nanos, Operation, Outcome, Request};

/// How many tasks each client has.
const TASKS: usize = 6;

/// How long any wait may take, however the servers are hurt meanwhile. A client whose
/// message was lost on a connection that lives asks again after a minute.
const PATIENCE: Duration = Duration::from_secs(130);

/// How much later than the server a process may hear of the end of a session.
const HEARD_LATE: Duration = Duration::from_millis(500);

/// How long to listen for the end of a session after each section.
const LISTENING: Duration = Duration::from_millis(20);

/// How long it may take to connect.
const CONNECTING: Duration = Duration::from_secs(30);

/// How long a server of a Redlock may take to answer, and to open a connection.
const RESPONSE: Duration = Duration::from_millis(50);
const CONNECT: Duration = Duration::from_millis(500);

/// What the sections do wrong, so that it has to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Planted {
    /// Work goes on for a while after the lock was given back.
    ReleasesTooEarly,
    /// Work goes on after the lock was lost.
    IgnoresLoss,
}

/// Connects clients, and has tasks of each take the locks. Returns how to wait until all have
/// taken their last locks, and come to rest.
pub fn start(
    campaign: &Campaign,
    fleet: &Fleet,
    shared: &Arc<Shared>,
    mut rng: StdRng,
) -> Result<End> {
    let runtime = Runtime::new()?;
    let (mut clients, mut tasks) = (Vec::new(), JoinSet::new());
    for number in 0..SIDES {
        let connecting = Library::connect(campaign.client, fleet.urls(number));
        let client = runtime.block_on(connecting)?;
        for task in 1..=TASKS {
            let worker = Worker {
                library: client.clone(),
                session: None,
                id: (number + 1) * 1000 + task,
                acquires: 0,
                rng: StdRng::seed_from_u64(rng.random()),
                planted: campaign.planted,
                shared: Arc::clone(shared),
            };
            tasks.spawn_on(worker.work(), runtime.handle());
        }
        clients.push(client);
    }
    Ok(Box::new(move || {
        runtime.block_on(async {
            while let Some(ended) = tasks.join_next().await {
                ended??;
            }
            for client in &clients {
                let flushed = timeout(PATIENCE, client.flush()).await;
                flushed.context("a client does not come to rest")?;
            }
            Ok(())
        })
    }))
}

/// A client of a library.
#[derive(Clone)]
enum Library {
    Client(LockClient),
    /// Each task has a session of its own.
    Session(LockClient),
    Redlock(Redlock),
}

/// Whoever holds, in the words of either library.
enum Guard {
    One(redis_lock_client::LockGuard),
    Most(redis_lock_redlock::LockGuard),
}

impl Library {
    async fn connect(who: Who, urls: Vec<String>) -> Result<Self> {
        let client = || LockClient::connect(&urls[0]);
        Ok(match who {
            Who::Session => Self::Session(insist(client).await?),
            Who::Commands | Who::Library => Self::Client(insist(client).await?),
            Who::Redlock => {
                let redlock = insist(|| {
                    let client = LockClient::builder().connect_timeout(CONNECT);
                    Redlock::connect_with(client, RESPONSE, urls.iter().map(String::as_str))
                });
                Self::Redlock(redlock.await?)
            }
        })
    }

    async fn flush(&self) {
        match self {
            Self::Client(client) | Self::Session(client) => client.flush().await,
            Self::Redlock(redlock) => redlock.flush().await,
        }
    }

    /// Asks for a lock, as long as `wait` says, by a session that lives where there is one.
    async fn acquire(
        &self,
        session: &mut Option<Session>,
        key: &str,
        (lease, renews): (Duration, bool),
        wait: Option<Duration>,
    ) -> Result<Option<Guard>, Outcome> {
        let lock = match self {
            Self::Client(client) => client.lock(key),
            Self::Session(client) => {
                if session.as_ref().is_none_or(|it| !it.is_alive()) {
                    *session = None;
                    *session = Some(client.session().await.map_err(refused)?);
                }
                match session {
                    Some(session) => session.lock(key),
                    None => client.lock(key),
                }
            }
            Self::Redlock(redlock) => {
                let lock = redlock.lock(key).lease(lease).renew(renews);
                let guard = match wait {
                    Some(wait) => lock.acquire_within(wait).await,
                    None => lock.acquire().await.map(Some),
                };
                // Some servers may have granted it.
                let guard = guard.map_err(|_| Outcome::Lost)?;
                return Ok(guard.map(Guard::Most));
            }
        };
        let lock = lock.lease(lease).renew(renews);
        let guard = match wait {
            Some(wait) => lock.acquire_within(wait).await,
            None => lock.acquire().await.map(Some),
        };
        Ok(guard.map_err(refused)?.map(Guard::One))
    }
}

/// What an acquire comes to that fails.
fn refused(error: Error) -> Outcome {
    match error {
        Error::Unavailable { .. } | Error::NoReplicas(_) | Error::Lost(_) => Outcome::Lost,
        error => Outcome::Error(error.code().into()),
    }
}

impl Guard {
    fn outcome(&self) -> Outcome {
        match self {
            Self::One(guard) => Outcome::Granted(i64::try_from(guard.token()).unwrap_or(i64::MAX)),
            Self::Most(_) => Outcome::GrantedWithoutToken,
        }
    }

    fn valid_for(&self) -> Duration {
        match self {
            Self::One(guard) => guard.valid_for(),
            Self::Most(guard) => guard.valid_for(),
        }
    }

    fn lost(&self) -> Pin<Box<dyn Future<Output = Outcome> + Send>> {
        match self {
            Self::One(guard) => {
                let lost = guard.lost();
                Box::pin(async { lost_as(lost.await) })
            }
            Self::Most(guard) => {
                let lost = guard.lost();
                Box::pin(async {
                    lost.await;
                    Outcome::Lost
                })
            }
        }
    }

    /// What it says then shows in `valid_for`.
    async fn renew(&self) {
        match self {
            Self::One(guard) => drop(guard.renew().await),
            Self::Most(guard) => drop(guard.renew().await),
        }
    }

    async fn release(self) -> Outcome {
        match self {
            Self::One(guard) => match guard.release().await {
                Ok(()) => Outcome::Released,
                Err(Error::Lost(why)) => lost_as(why),
                Err(_) => Outcome::Lost,
            },
            // Whatever comes of it goes on in the background.
            Self::Most(guard) => {
                let released = guard.release().await;
                released.map_or(Outcome::Lost, |()| Outcome::Released)
            }
        }
    }
}

/// Connects, however often that takes.
async fn insist<T, E: Display>(mut connect: impl AsyncFnMut() -> Result<T, E>) -> Result<T> {
    let deadline = Instant::now() + CONNECTING;
    loop {
        match connect().await {
            Ok(client) => return Ok(client),
            Err(error) if Instant::now() > deadline => bail!("{error}"),
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

struct Worker {
    library: Library,
    session: Option<Session>,
    id: usize,
    acquires: usize,
    rng: StdRng,
    planted: Option<Planted>,
    shared: Arc<Shared>,
}

/// A hold, as it is written down.
struct Section<'w> {
    worker: &'w Worker,
    lock: String,
    owner: String,
    granted: Outcome,
    /// What was written down of it so far ends then.
    known_until: Nanos,
}

impl Worker {
    async fn work(mut self) -> Result<()> {
        while !self.shared.is_over() {
            self.round().await?;
            let pause = self.ms(0, 10);
            sleep(pause).await;
        }
        // All is well now.
        for key in self.shared.locks.names.clone() {
            let deadline = Instant::now() + PATIENCE;
            while !self.take(&key, Some(PATIENCE), None).await? {
                if Instant::now() > deadline {
                    bail!("{} can't get {key} in the end", self.id);
                }
            }
        }
        match self.session {
            Some(session) => timeout(PATIENCE, session.close())
                .await
                .context("a session does not close"),
            None => Ok(()),
        }
    }

    fn ms(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.rng.random_range(from..=to))
    }

    async fn round(&mut self) -> Result<()> {
        let key = self.shared.locks.any_at_all(&mut self.rng);
        let wait = match self.rng.random_range(0..10) {
            0..3 => Some(Duration::ZERO),
            3..7 => Some(self.ms(1, 2000)),
            _ => None,
        };
        let patience = self.rng.random_bool(0.15).then(|| self.ms(0, 60));
        self.take(&key, wait, patience).await.map(drop)
    }

    fn operation(&self, lock: &str, owner: &str, request: Request) -> Operation {
        Operation::sent_now((self.id, 0), lock, owner, request)
    }

    /// Takes a lock, keeps it for a while, and gives it back in some way. Returns whether it
    /// had it.
    async fn take(
        &mut self,
        key: &str,
        wait: Option<Duration>,
        patience: Option<Duration>,
    ) -> Result<bool> {
        let ignores_loss = self.planted == Some(Planted::IgnoresLoss) && self.rng.random_bool(0.1);
        let (least_ms, renews) = match self.library {
            Library::Redlock(_) => (100, self.rng.random_bool(0.4)),
            _ => (300, !ignores_loss),
        };
        let lease = self.ms(least_ms, LEASE_MS_MAX);
        self.acquires += 1;
        let owner = format!("{}-{}", self.id, self.acquires);
        let shared = Arc::clone(&self.shared);
        let noted = (shared.journal).began(self.operation(key, &owner, acquire(1, wait)));
        let limit = patience.unwrap_or(PATIENCE + wait.unwrap_or_default());
        let asked = (self.library).acquire(&mut self.session, key, (lease, renews), wait);
        let answer = timeout(limit, asked).await;
        let answered = clock::now();
        let end = |outcome| shared.journal.ended(noted, answered, outcome);
        let guard = match answer {
            Ok(Ok(Some(guard))) => guard,
            Ok(asked) => {
                end(asked.err().unwrap_or(Outcome::NotAvailable));
                return Ok(false);
            }
            Err(_) if patience.is_some() => {
                end(Outcome::GivenUp);
                return Ok(false);
            }
            Err(_) => {
                end(Outcome::Silent);
                bail!("{owner} waits for {key} without end");
            }
        };
        let granted = guard.outcome();
        end(granted.clone());
        let time = match self.shared.is_over() {
            true => Duration::ZERO,
            false => self.any_time(lease),
        };
        let ends = self.rng.random_range(0..10);
        // Few sections have so many looks.
        let renewed_at = self.rng.random_range(1..50);
        let mut section = Section {
            worker: self,
            lock: key.into(),
            owner,
            granted,
            known_until: 0,
        };
        if ignores_loss {
            section.believe(lease * 3);
            sleep(lease * 2).await;
            section.over(Outcome::Lost);
            return Ok(true);
        }
        if let Some(guard) = section.keep(guard, renewed_at, time).await {
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
    Request::Acquire(Acquire {
        lease_ms,
        block_ms: match wait {
            None => Some(0),
            Some(Duration::ZERO) => None,
            Some(wait) => u64::try_from(wait.as_millis()).ok(),
        },
        ..Acquire::default()
    })
}

impl Section<'_> {
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
            believed.outcome = self.granted.clone();
            self.worker.shared.journal.began(believed);
        }
    }

    /// From now on nothing is relied upon.
    fn ending(&self) -> usize {
        self.worker.shared.journal.began(self.release())
    }

    fn release(&self) -> Operation {
        let request = Request::Release {
            hold: Some(1),
            fence: self.granted.token(),
            all: false,
        };
        self.worker.operation(&self.lock, &self.owner, request)
    }

    fn over(&self, outcome: Outcome) {
        self.ended(self.ending(), outcome);
    }

    fn ended(&self, noted: usize, outcome: Outcome) {
        let journal = &self.worker.shared.journal;
        journal.ended(noted, clock::now(), outcome);
    }

    /// Claims nothing of the last moments, if the connection of the session has ended.
    async fn look_at_session(&self) {
        let over = clock::now();
        if let Some(session) = &self.worker.session {
            sleep(LISTENING).await;
            if !session.is_alive() {
                let mut ended = self.release();
                ended.sent = over - HEARD_LATE.as_nanos() as Nanos;
                ended.answered = Some(over);
                ended.outcome = Outcome::Lost;
                self.worker.shared.journal.began(ended);
            }
        }
    }

    /// Keeps the lock for this long, unless it is lost.
    async fn keep(&mut self, guard: Guard, renewed_at: u32, time: Duration) -> Option<Guard> {
        let until = Instant::now() + time;
        let mut lost = guard.lost();
        self.believe(guard.valid_for());
        let mut looks = 0;
        while Instant::now() < until {
            let pause = Duration::from_millis(10).min(until - Instant::now());
            tokio::select! {
                biased;
                why = &mut lost => {
                    self.over(why);
                    return None;
                }
                () = sleep(pause) => self.believe(guard.valid_for()),
            }
            looks += 1;
            if looks == renewed_at {
                guard.renew().await;
                self.believe(guard.valid_for());
            }
        }
        Some(guard)
    }

    /// Gives the lock back in some way.
    async fn end(&self, guard: Guard, how: u32) {
        match self.worker.planted {
            Some(Planted::ReleasesTooEarly) if how == 0 => {
                guard.release().await;
                sleep(Duration::from_millis(50)).await;
                self.over(Outcome::Lost);
            }
            _ if how < 3 => {
                self.over(Outcome::GivenUp);
                drop(guard);
            }
            _ => {
                let noted = self.ending();
                self.ended(noted, guard.release().await);
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
