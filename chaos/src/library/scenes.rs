//! Many acquires that are given up, and many holds and waits, of one client.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis_lock_client::LockClient;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::workers::connect;
use crate::fleet::Fleet;

/// How many tasks give acquires up at the same time.
const TASKS: usize = 64;

/// How many locks they want.
const LOCKS: usize = 8;

/// How long either scene may take for each thousand.
const PATIENCE: Duration = Duration::from_secs(60);

/// No lease ends within a scene.
const LEASE: Duration = Duration::from_secs(600);

fn patience(count: usize) -> Duration {
    PATIENCE * u32::try_from(count / 1000 + 1).unwrap_or(u32::MAX)
}

/// Gives so many acquires up, each at some moment, while others get the lock: at the
/// servers nothing may be left. Returns how many were granted before.
pub async fn cancels(fleet: &Fleet, count: usize, seed: u64) -> Result<usize, String> {
    let client = connect(&fleet.urls(0)[0]).await?;
    let (asked, granted) = (Arc::default(), Arc::new(AtomicUsize::new(0)));
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (client, prefix) = (client.clone(), fleet.prefix());
        let (asked, granted): (Arc<AtomicUsize>, _) = (Arc::clone(&asked), Arc::clone(&granted));
        let mut rng = StdRng::seed_from_u64(seed.wrapping_add(task as u64));
        tasks.spawn(async move {
            while asked.fetch_add(1, Ordering::Relaxed) < count {
                let key = format!("{prefix}cancel-{}", rng.random_range(0..LOCKS));
                let acquire = client.lock(key).lease(LEASE).acquire();
                let most_us = [2_000, 20_000, 80_000][rng.random_range(0..3)];
                let limit = Duration::from_micros(rng.random_range(0..most_us));
                // A guard is dropped at once.
                if let Ok(Ok(_guard)) = timeout(limit, acquire).await {
                    granted.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
    let all = timeout(patience(count), tasks.join_all()).await;
    all.map_err(|_| "acquires that are given up have no end")?;
    come_to_rest(&client, fleet, "after acquires that were given up").await?;
    Ok(granted.load(Ordering::Relaxed))
}

/// Holds so many locks, and waits for each: when they are given back, all are granted.
/// Returns how long the last one took.
pub async fn crowd(fleet: &Fleet, count: usize) -> Result<Duration, String> {
    let client = connect(&fleet.urls(0)[0]).await?;
    let key = |n| format!("{}crowd-{n}", fleet.prefix());
    let mut holds = Vec::new();
    for n in 0..count {
        let lock = client.lock(key(n)).lease(LEASE);
        let guard = lock
            .try_acquire()
            .await
            .map_err(|error| error.to_string())?;
        holds.push(guard.ok_or("a lock that nobody has is taken")?);
    }
    let mut waits = JoinSet::new();
    for n in 0..count {
        waits.spawn(client.lock(key(n)).lease(LEASE).acquire());
    }
    let deadline = Instant::now() + patience(count);
    while fleet.left()?.1 < i64::try_from(count).unwrap_or(i64::MAX) {
        if Instant::now() > deadline {
            return Err(format!("{} of {count} wait", fleet.left()?.1));
        }
        sleep(Duration::from_millis(20)).await;
    }
    let begun = Instant::now();
    let releases: JoinSet<_> = holds.into_iter().map(|guard| guard.release()).collect();
    let released = timeout(patience(count), releases.join_all()).await;
    let granted = timeout(patience(count), waits.join_all()).await;
    let took = begun.elapsed();
    let released = released.map_err(|_| "releases have no end")?;
    let granted = granted.map_err(|_| "a waiter is lost")?;
    for released in released {
        released.map_err(|error| format!("a release of a crowd: {error}"))?;
    }
    for guard in granted {
        drop(guard.map_err(|error| format!("a wait of a crowd: {error}"))?);
    }
    come_to_rest(&client, fleet, "after a crowd").await?;
    Ok(took)
}

async fn come_to_rest(client: &LockClient, fleet: &Fleet, when: &str) -> Result<(), String> {
    let flushed = timeout(PATIENCE, client.flush()).await;
    flushed.map_err(|_| format!("the client does not come to rest {when}"))?;
    let empty = fleet.await_empty();
    empty.map_err(|error| format!("{error}, {when}"))
}
