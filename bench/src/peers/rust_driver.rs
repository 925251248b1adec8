//! The driver of Rust libraries: it takes locks as the lines of standard input say, as
//! those in `drivers/` do.

use std::io::BufRead;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::driver::{Answer, Counts};
use anyhow::{Context, Result, bail, ensure};
use rand::RngExt;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Value};
use redis_lock_client::{LockClient, LockGuard, Session};
use rslock::LockManager;
use tokio::runtime::Builder;
use tokio::sync::Notify;
use tokio::time::{sleep, sleep_until};

/// A client of a library, or of plain commands.
#[derive(Clone)]
enum Client {
    Lease(LockClient),
    Session(Arc<Session>),
    Rslock(LockManager, Duration),
    Plain(Plain),
}

/// A hold.
enum Held {
    Ours(LockGuard),
    Rslock(rslock::LockGuard),
    Plain(Plain, usize),
}

/// Commands in the place of a library. `{k}` is the lock, `{o}` its owner.
#[derive(Clone)]
struct Plain {
    connection: MultiplexedConnection,
    owner: String,
    lease_ms: String,
    /// Whether a replica has to have it.
    waits: bool,
    /// What makes a lock that is not there yet.
    once: &'static str,
    take: &'static str,
    give: &'static str,
}

const RELEASE: &str = "LOCK.RELEASE {k} {o}";

impl Plain {
    async fn connect(kind: &str, url: &str, lease: Duration, n: usize) -> Result<Self> {
        let [once, take, give] = match kind {
            "commands" | "acknowledged" => ["", "LOCK.ACQUIRE {k} {o} LEASE {ms} BLOCK 0", RELEASE],
            "blpop" => ["LPUSH {k} 1", "BLPOP {k} 0", "LPUSH {k} 1"],
            "set-del" | "set-wait" => ["", "SET {k} {o} NX PX {ms}", "DEL {k}"],
            _ => bail!("there is no {kind} here"),
        };
        // Who waits may wait for long.
        let patient = AsyncConnectionConfig::new().set_response_timeout(None);
        let connecting = redis::Client::open(url)?;
        let connecting = connecting.get_multiplexed_async_connection_with_config(&patient);
        Ok(Self {
            connection: connecting.await?,
            owner: format!("3b8a7e52-1d0c-4f6e-9a27-{n:012x}:{}", std::process::id()),
            lease_ms: lease.as_millis().to_string(),
            waits: kind == "set-wait",
            once,
            take,
            give,
        })
    }

    fn command(&self, line: &str, lock: usize) -> redis::Cmd {
        let mut command = redis::Cmd::new();
        for word in line.split(' ') {
            match word {
                "{k}" => command.arg(format!("lock:{lock}")),
                "{o}" => command.arg(&self.owner),
                "{ms}" => command.arg(&self.lease_ms),
                word => command.arg(word),
            };
        }
        command
    }

    async fn call(&mut self, line: &str, lock: usize) -> Result<Value> {
        let command = self.command(line, lock);
        Ok(command.query_async(&mut self.connection).await?)
    }

    /// Makes locks that are not there yet.
    async fn make(&mut self, locks: usize) -> Result<()> {
        for lock in 0..locks {
            let made = format!("SET made:{lock} 1 NX");
            if !self.once.is_empty() && self.call(&made, lock).await? == Value::Okay {
                self.call(self.once, lock).await?;
            }
        }
        Ok(())
    }

    async fn take(&mut self, lock: usize) -> Result<()> {
        let taken = if self.waits {
            // Both in one write.
            let mut both = redis::pipe();
            both.add_command(self.command(self.take, lock));
            both.cmd("WAIT").arg(1).arg(0).ignore();
            both.query_async(&mut self.connection).await?
        } else {
            self.call(self.take, lock).await?
        };
        ensure!(
            taken != Value::Nil,
            "the lock is held, and nobody can wait for it"
        );
        Ok(())
    }
}

impl Client {
    /// The `n`-th client.
    async fn connect(kind: &str, port: u16, lease: Duration, n: usize) -> Result<Self> {
        let url = format!("redis://127.0.0.1:{port}");
        let ours = LockClient::builder().default_lease(lease);
        Ok(match kind {
            "redis-lock-client" | "redis-lock-shared" => Self::Lease(ours.connect(&url).await?),
            "redis-lock-session" => {
                let client = ours.connect(&url).await?;
                Self::Session(Arc::new(client.session().await?))
            }
            "rslock" => Self::Rslock(LockManager::new(vec![url]), lease),
            _ => Self::Plain(Plain::connect(kind, &url, lease, n).await?),
        })
    }

    async fn take(&mut self, lock: usize) -> Result<Held> {
        let name = format!("lock:{lock}");
        Ok(match self {
            Self::Lease(client) => Held::Ours(client.lock(&name).acquire().await?),
            Self::Session(session) => Held::Ours(session.lock(&name).acquire().await?),
            Self::Rslock(manager, lease) => {
                Held::Rslock(manager.acquire(name.as_bytes(), *lease).await?)
            }
            Self::Plain(plain) => {
                plain.take(lock).await?;
                Held::Plain(plain.clone(), lock)
            }
        })
    }
}

impl Held {
    async fn release(self) -> Result<()> {
        match self {
            Self::Ours(guard) => guard.release().await?,
            Self::Rslock(guard) => guard.release().await,
            Self::Plain(mut plain, lock) => {
                plain.call(plain.give, lock).await?;
            }
        }
        Ok(())
    }
}

fn say(answer: &Answer) -> Result<()> {
    println!("{}", serde_json::to_string(answer)?);
    Ok(())
}

/// What a line asks for.
#[derive(Clone)]
struct Question {
    what: String,
    locks: usize,
    warm_up: Duration,
    measure: Duration,
    settle: Duration,
}

/// Answers all lines.
pub fn drive() -> Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    say(&Answer::Ready(env!("CARGO_PKG_VERSION").into()))?;
    for line in std::io::stdin().lock().lines() {
        runtime.block_on(answer(&line?))?;
    }
    Ok(())
}

async fn answer(line: &str) -> Result<()> {
    let words: Vec<&str> = line.split(' ').collect();
    let [what, kind, port, clients, locks, _section, numbers @ ..] = &words[..] else {
        bail!("what is to be done? {line}");
    };
    let millis = numbers.iter().map(|word| Ok(word.parse()?));
    let millis: Vec<u64> = millis.collect::<Result<_>>()?;
    let [warm_up, measure, lease, settle] = millis[..] else {
        bail!("four times are missing: {line}");
    };
    let question = Question {
        what: (*what).into(),
        locks: locks.parse()?,
        warm_up: Duration::from_millis(warm_up),
        measure: Duration::from_millis(measure),
        settle: Duration::from_millis(settle),
    };
    let mut all = Vec::new();
    for n in 0..clients.parse()? {
        let lease = Duration::from_millis(lease);
        let one_for_all = (*kind == "redis-lock-shared").then(|| all.first().cloned());
        all.push(match one_for_all.flatten() {
            Some(shared) => shared,
            None => Client::connect(kind, port.parse()?, lease, n).await?,
        });
    }
    if let Some(Client::Plain(plain)) = all.first_mut() {
        plain.make(question.locks).await?;
    }
    match *what {
        "hold" => hold(all).await,
        "hand-off" => hand_off(&question, all).await,
        _ => sections(&question, all).await,
    }
}

async fn sections(question: &Question, clients: Vec<Client>) -> Result<()> {
    let begin = Instant::now() + question.warm_up;
    let end = begin + question.measure;
    let own = question.what == "uncontended";
    let mut tasks = Vec::new();
    for (n, mut client) in clients.into_iter().enumerate() {
        let locks = question.locks;
        tasks.push(tokio::spawn(async move {
            let (mut share, mut latencies) = (0, Vec::new());
            while Instant::now() < end {
                let lock = match own {
                    true => n % locks,
                    false => rand::rng().random_range(0..locks),
                };
                let wanted = Instant::now();
                let guard = client.take(lock).await?;
                let held = Instant::now();
                guard.release().await?;
                if held > begin && held <= end {
                    share += 1;
                    if own {
                        latencies.push(nanos(wanted.elapsed()));
                    }
                }
            }
            anyhow::Ok((share, latencies))
        }));
    }
    sleep_until(begin.into()).await;
    say(&Answer::Begin)?;
    sleep_until(end.into()).await;
    say(&Answer::End)?;
    let (mut shares, mut latencies_ns) = (Vec::new(), Vec::new());
    for task in tasks {
        let (share, latencies) = task.await??;
        shares.push(share);
        latencies_ns.extend(latencies);
    }
    say(&Answer::Done(Counts {
        seconds: question.measure.as_secs_f64(),
        latencies_ns,
        shares,
    }))
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Two clients pass one lock to each other.
async fn hand_off(question: &Question, clients: Vec<Client>) -> Result<()> {
    let begin = Instant::now() + question.warm_up;
    let end = begin + question.measure;
    let come_back = Arc::new([Notify::new(), Notify::new()]);
    // When it was given back, and how long each took since.
    let passed = Arc::new(Mutex::new((None::<Instant>, Vec::<u64>::new())));
    let over = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for (n, mut client) in clients.into_iter().take(2).enumerate() {
        let (come_back, passed, over) = (come_back.clone(), passed.clone(), over.clone());
        let settle = question.settle;
        tasks.push(tokio::spawn(async move {
            loop {
                come_back[n].notified().await;
                let guard = client.take(0).await?;
                let held = Instant::now();
                let enough = {
                    let mut passed = passed.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Some(released) = passed.0.filter(|released| *released > begin) {
                        passed.1.push(nanos(held - released));
                    }
                    held > end && !passed.1.is_empty()
                };
                if over.swap(enough, Ordering::Relaxed) {
                    return guard.release().await;
                }
                // The other one waits by the time when this one gives it back.
                come_back[1 - n].notify_one();
                let settle = settle.mul_f64(rand::rng().random_range(1.0..2.0));
                sleep(settle).await;
                passed.lock().unwrap_or_else(PoisonError::into_inner).0 = Some(Instant::now());
                guard.release().await?;
                if enough {
                    return anyhow::Ok(());
                }
            }
        }));
    }
    say(&Answer::Begin)?;
    come_back[0].notify_one();
    for task in tasks {
        task.await??;
    }
    say(&Answer::End)?;
    let passed = Arc::into_inner(passed).context("a task goes on")?;
    let (_, latencies_ns) = passed.into_inner().unwrap_or_else(PoisonError::into_inner);
    say(&Answer::Done(Counts {
        seconds: question.measure.as_secs_f64(),
        shares: vec![latencies_ns.len() as u64],
        latencies_ns,
    }))
}

/// Clients that want one lock and keep it, until this process ends.
async fn hold(clients: Vec<Client>) -> Result<()> {
    say(&Answer::Begin)?;
    let mut tasks = Vec::new();
    for mut client in clients {
        tasks.push(tokio::spawn(async move {
            let guard = client.take(0).await?;
            say(&Answer::Held)?;
            std::future::pending::<()>().await;
            guard.release().await
        }));
    }
    for task in tasks {
        task.await??;
    }
    Ok(())
}
