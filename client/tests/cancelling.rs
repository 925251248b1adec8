//! Acquires that are dropped leave nothing on the server.

mod support;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis_lock_client::{Error, LockClient};
use redis_lock_testing::Server;
use tokio::time::timeout;

use support::{
    SEEDS, assert_nothing_left, calls, connect, connect_blocking, granted, queue, soon, take,
    waiters,
};

const LOCKS: u32 = 8;

/// With each seed.
const CANCELLATIONS: u64 = 5000;

/// How long they may take.
const PATIENCE: Duration = Duration::from_secs(180);

/// Polls a future at most this many times, or for this long.
async fn impatient<T>(rng: &mut StdRng, future: impl Future<Output = T>) -> Option<T> {
    if rng.random() {
        let mut future = pin!(future);
        let mut polls = rng.random_range(0..8);
        poll_fn(|cx| {
            polls -= 1;
            match future.as_mut().poll(cx) {
                Poll::Ready(done) => Poll::Ready(Some(done)),
                Poll::Pending if polls < 0 => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    } else {
        let patience = Duration::from_micros(rng.random_range(0..3000));
        timeout(patience, future).await.ok()
    }
}

#[derive(Default)]
struct Progress {
    cancelled: AtomicU64,
    is_enough: AtomicBool,
}

async fn work(client: LockClient, progress: Arc<Progress>, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let session = client.session().await.unwrap();
    let job = client.job();
    while !progress.is_enough.load(Ordering::Relaxed) {
        let key = format!("lock{}", rng.random_range(0..LOCKS));
        let long = Duration::from_secs(10);
        let (lock, wait) = match rng.random_range(0..8) {
            0 => (job.lock(&key), long),
            1 => (client.lock(&key), Duration::from_millis(1)),
            2 => (client.lock(&key).shared(), long),
            3 => (session.lock(&key), long),
            4 => (client.lock(&key).limit(2), long),
            _ => (client.lock(&key), long),
        };
        match impatient(&mut rng, lock.acquire_within(wait)).await {
            Some(Ok(Some(guard))) => {
                tokio::time::sleep(Duration::from_micros(rng.random_range(0..1500))).await;
                drop(guard);
            }
            Some(Ok(None) | Err(Error::Deadlock { .. })) => {}
            Some(Err(error)) => panic!("{error:?}"),
            None => {
                progress.cancelled.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_cancellations_leave_no_waiter_and_no_hold() {
    for seed in SEEDS {
        cancel_again_and_again(seed).await;
    }
}

async fn cancel_again_and_again(seed: u64) {
    let server = Server::start();
    let progress = Arc::new(Progress::default());
    let mut tasks = tokio::task::JoinSet::new();
    let clients = [
        connect(&server).await,
        connect(&server).await,
        connect_blocking(&server, LockClient::builder()).await,
    ];
    for (nth, client) in (0..).zip(&clients) {
        for task in 0..6 {
            let seed = seed ^ (nth * 100 + task);
            tasks.spawn(work(client.clone(), Arc::clone(&progress), seed));
        }
    }
    let mut observer = server.client();
    let begun = Instant::now();
    while !progress.is_enough.load(Ordering::Relaxed) {
        let next = timeout(Duration::from_millis(50), tasks.join_next()).await;
        if let Ok(Some(ended)) = next {
            ended.unwrap();
        }
        // Most have to ask the server, and many to wait there.
        let cancelled = progress.cancelled.load(Ordering::Relaxed);
        let asked = calls(&mut observer, "lock.acquire");
        let released = calls(&mut observer, "lock.release");
        let counted = format!("{cancelled} cancelled, {asked} asked, {released} released");
        assert!(begun.elapsed() < PATIENCE, "{counted}");
        if cancelled >= CANCELLATIONS && asked > CANCELLATIONS / 2 && released > CANCELLATIONS / 2 {
            progress.is_enough.store(true, Ordering::Relaxed);
        }
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    for client in &clients {
        soon("all is done", client.flush()).await;
    }
    waiters(&server, 0).await;
    support::eventually("sessions have ended", || {
        observer.info("lock_sessions") == 0
    })
    .await;
    for client in &clients {
        assert_nothing_left(&server, client).await;
        for n in 0..LOCKS {
            let guard = take(client, &format!("lock{n}")).await;
            guard.release().await.unwrap();
        }
    }
    server.assert_sound();
}

#[tokio::test]
async fn a_grant_that_nobody_takes_goes_on_to_the_next() {
    let server = Server::start();
    let clients = [connect(&server).await, connect(&server).await];
    for _ in 0..200 {
        let guard = take(&clients[0], "lock").await;
        let doomed = queue(&server, &clients[0].lock("lock"), 0).await;
        let next = queue(&server, &clients[1].lock("lock"), 1).await;
        let released = tokio::spawn(guard.release());
        doomed.abort();
        released.await.unwrap().unwrap();
        granted(next).await.release().await.unwrap();
        drop(doomed.await);
        clients[0].flush().await;
    }
    assert_nothing_left(&server, &clients[0]).await;
}
