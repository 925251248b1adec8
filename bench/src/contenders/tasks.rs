//! Workloads for lock libraries with an async interface: every client is a task.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Mutex, Notify, Semaphore};
use tokio::time::{sleep, sleep_until, timeout};

use std::sync::Arc;

use crate::measurement::{MS, Measurement, US, histogram, jain};
use crate::server::Server;
use crate::workloads::{Pace, Workload};

/// How long all have to come back to their wait after a hand-off.
const SETTLE: Duration = Duration::from_millis(5);
/// How often one of them comes, at least, at the beginning, until all are there.
const QUEUEING: Duration = Duration::from_millis(50);
/// No hand-off takes longer.
const STUCK_AFTER: Duration = Duration::from_secs(40);

/// A client of a lock library.
pub trait TaskLock: Send + Sync + 'static {
    /// What the library gives to a holder.
    type Guard: Send;
    /// Takes a lock, waiting as long as it takes.
    fn acquire(&self, lock: &str) -> impl Future<Output = Result<Self::Guard>> + Send;
    /// Gives it back.
    fn release(&self, guard: Self::Guard) -> impl Future<Output = Result<()>> + Send;
}

/// Puts clients of a library to a workload, each made by `client`.
pub fn run<L: TaskLock + Clone>(
    work: Workload,
    pace: Pace,
    server: &Server,
    client: impl AsyncFn() -> Result<L>,
) -> Result<Measurement> {
    let clients = async |count| {
        let mut clients = Vec::with_capacity(count);
        for _ in 0..count {
            clients.push(client().await?);
        }
        Ok::<_, anyhow::Error>(clients)
    };
    let measured = async {
        match work {
            Workload::Uncontended { clients: count } => {
                uncontended(pace, server, clients(count).await?).await
            }
            Workload::Contended {
                clients: count,
                section,
            } => contended(pace, server, clients(count).await?, section, 1).await,
            Workload::OneProcess { tasks, locks } => {
                let clients = vec![client().await?; tasks];
                contended(Pace::CROWD, server, clients, Duration::ZERO, locks).await
            }
            Workload::HandOff { waiters } => {
                hand_off(pace, server, clients(waiters + 1).await?).await
            }
            _ => bail!("tasks can't do this"),
        }
    };
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(measured)
}

/// What a task tells of itself.
enum Note {
    Waits(usize, Instant),
    Held(usize, Instant),
    Released(usize, Instant),
}

async fn next_note(notes: &mut UnboundedReceiver<Note>) -> Result<Note> {
    let note = timeout(STUCK_AFTER, notes.recv()).await;
    note.context("nothing happens any more")?
        .context("all clients have failed")
}

/// Spawns a client that takes and gives back without end.
fn spawn<L: TaskLock>(
    n: usize,
    client: L,
    lock: String,
    section: Duration,
    notes: UnboundedSender<Note>,
) {
    tokio::spawn(async move {
        loop {
            let _ = notes.send(Note::Waits(n, Instant::now()));
            let guard = client.acquire(&lock).await?;
            let _ = notes.send(Note::Held(n, Instant::now()));
            if !section.is_zero() {
                sleep(section).await;
            }
            client.release(guard).await?;
            let _ = notes.send(Note::Released(n, Instant::now()));
        }
        #[allow(unreachable_code)]
        Ok::<_, anyhow::Error>(())
    });
}

async fn uncontended<L: TaskLock>(
    pace: Pace,
    server: &Server,
    clients: Vec<L>,
) -> Result<Measurement> {
    let (sender, mut notes) = unbounded_channel();
    let mut began = vec![Instant::now(); clients.len()];
    for (n, client) in clients.into_iter().enumerate() {
        let lock = format!("lock:{n:06}");
        spawn(n, client, lock, Duration::ZERO, sender.clone());
    }
    let start = Instant::now() + pace.warm_up;
    let mut cpu = None;
    let mut latencies = histogram();
    loop {
        match next_note(&mut notes).await? {
            Note::Waits(n, at) => began[n] = at,
            Note::Held(..) => {}
            Note::Released(n, at) if at > start => {
                let cpu = *cpu.get_or_insert(server.cpu_time()?);
                latencies.record((at - began[n]).as_nanos() as u64)?;
                if at > start + pace.measure {
                    let cpu_us = (server.cpu_time()? - cpu).as_secs_f64() * 1e6;
                    let pairs = latencies.len() as f64;
                    let mut measurement = Measurement::default();
                    measurement.figure("pairs/s", pairs / (at - start).as_secs_f64());
                    measurement.figure("server CPU µs/pair", cpu_us / pairs);
                    measurement.quantiles("pair p50 µs", "pair p99 µs", US, &latencies);
                    return Ok(measurement);
                }
            }
            Note::Released(..) => {}
        }
    }
}

async fn contended<L: TaskLock>(
    pace: Pace,
    server: &Server,
    clients: Vec<L>,
    section: Duration,
    locks: usize,
) -> Result<Measurement> {
    let (sender, mut notes) = unbounded_channel();
    let mut sections = vec![0; clients.len()];
    let mut waits_since = vec![None; clients.len()];
    for (n, client) in clients.into_iter().enumerate() {
        let lock = format!("lock:contended:{}", n % locks);
        spawn(n, client, lock, section, sender.clone());
    }
    let start = Instant::now() + pace.warm_up;
    let end = start + pace.measure;
    let mut cpu = None;
    let mut waits = histogram();
    loop {
        let note = tokio::select! {
            note = next_note(&mut notes) => Some(note?),
            () = sleep_until(end.into()) => None,
        };
        match note {
            Some(Note::Waits(n, at)) => waits_since[n] = Some(at),
            Some(Note::Held(n, at)) => {
                let since = waits_since[n].take();
                if at > start && at < end {
                    cpu.get_or_insert(server.cpu_time()?);
                    sections[n] += 1;
                    if let Some(since) = since {
                        waits.record((at - since).as_nanos() as u64)?;
                    }
                }
            }
            Some(Note::Released(..)) => {}
            None => break,
        }
    }
    let now = server.cpu_time()?;
    let cpu_us = (now - cpu.unwrap_or(now)).as_secs_f64() * 1e6;
    for since in waits_since.into_iter().flatten() {
        waits.record(end.saturating_duration_since(since).as_nanos() as u64)?;
    }
    let all = sections.iter().sum::<u64>() as f64;
    let mut measurement = Measurement::default();
    measurement.figure("sections/s", all / pace.measure.as_secs_f64());
    measurement.figure("Jain's fairness", jain(&sections));
    measurement.figure("server CPU µs/section", cpu_us / all);
    measurement.quantiles("wait p50 ms", "wait p99 ms", MS, &waits);
    Ok(measurement)
}

async fn next_holder(holders: &mut UnboundedReceiver<Instant>) -> Result<Instant> {
    let held = timeout(STUCK_AFTER, holders.recv()).await;
    held.context("nothing happens any more")?
        .context("all clients have failed")
}

/// Waits until those who wait in the server are there, if any do.
async fn queued(server: &Server) -> Result<()> {
    let mut observer = server.connect()?;
    let mut before = -1;
    loop {
        // Those of this module wait by places, the others block their connections.
        let places = observer.info("lock_waiters").unwrap_or_default();
        let now = places.max(observer.info("blocked_clients")?);
        if now == before {
            return Ok(());
        }
        before = now;
        sleep(QUEUEING).await;
    }
}

async fn hand_off<L: TaskLock>(
    pace: Pace,
    server: &Server,
    clients: Vec<L>,
) -> Result<Measurement> {
    let (sender, mut holders) = unbounded_channel();
    let release = Arc::new(Notify::new());
    // Who gave the lock back waits again when another one has it, not before.
    let come_back = Arc::new(Semaphore::new(0));
    // The one clock for both ends: when the release was about to be sent.
    let released_at = Arc::new(Mutex::new(Instant::now()));
    for client in clients {
        let (sender, released_at) = (sender.clone(), released_at.clone());
        let (release, come_back) = (release.clone(), come_back.clone());
        tokio::spawn(async move {
            loop {
                let guard = client.acquire("lock:hand-off").await?;
                let _ = sender.send(Instant::now());
                release.notified().await;
                *released_at.lock().await = Instant::now();
                client.release(guard).await?;
                come_back.acquire().await?.forget();
            }
            #[allow(unreachable_code)]
            Ok::<_, anyhow::Error>(())
        });
    }
    let mut latencies = histogram();
    next_holder(&mut holders).await?;
    queued(server).await?;
    let start = Instant::now() + pace.warm_up;
    while latencies.is_empty() || start.elapsed() < pace.measure {
        sleep(SETTLE).await;
        let warm = Instant::now() > start;
        release.notify_one();
        let held_at = next_holder(&mut holders).await?;
        come_back.add_permits(1);
        if warm {
            latencies.record((held_at - *released_at.lock().await).as_nanos() as u64)?;
        }
    }
    let mut measurement = Measurement::default();
    measurement.quantiles("hand-off p50 µs", "hand-off p99 µs", US, &latencies);
    Ok(measurement)
}
