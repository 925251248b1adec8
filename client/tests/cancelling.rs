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
use redis_lock_testing::TestServer;
use tokio::time::timeout;

use support::{SEEDS, calls, connect, eventually, take, url};

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

async fn work(client: LockClient, nth: u64, progress: Arc<Progress>, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let session = client.session().await.unwrap();
    while !progress.is_enough.load(Ordering::Relaxed) {
        let key = format!("lock{}", rng.random_range(0..LOCKS));
        let lock = client.lock(&key);
        let long = Duration::from_secs(10);
        let (lock, wait) = match rng.random_range(0..8) {
            // Its guards share holds, and its acquires queue for each other. A name
            // belongs to one client.
            0 => {
                let owner = format!("{nth}{}", rng.random::<bool>());
                (lock.owner(owner), long)
            }
            1 => (lock, Duration::from_millis(1)),
            2 => (lock.shared(), long),
            3 => (session.lock(&key), long),
            _ => (lock, long),
        };
        match impatient(&mut rng, lock.acquire_within(wait)).await {
            Some(Ok(Some(guard))) => {
                tokio::time::sleep(Duration::from_micros(rng.random_range(0..1500))).await;
                drop(guard);
            }
            // Tasks that share an owner can wait for each other.
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
    let server = TestServer::start();
    let progress = Arc::new(Progress::default());
    let mut clients = Vec::new();
    let mut tasks = tokio::task::JoinSet::new();
    for nth in 0..4 {
        let builder = LockClient::builder();
        let builder = match nth % 2 {
            0 => builder,
            _ => builder.pass_on(5, Duration::from_millis(5)),
        };
        let client = builder.connect(url(&server)).await.unwrap();
        for task in 0..6 {
            let seed = seed ^ (nth * 100 + task);
            tasks.spawn(work(client.clone(), nth, Arc::clone(&progress), seed));
        }
        clients.push(client);
    }
    let mut observer = server.client();
    let begun = Instant::now();
    while !progress.is_enough.load(Ordering::Relaxed) {
        if let Some(ended) = timeout(Duration::from_millis(50), tasks.join_next())
            .await
            .ok()
            .flatten()
        {
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
            eprintln!("{counted}");
        }
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    for client in &clients {
        client.flush().await;
    }
    assert_eq!(observer.info("lock_waiters"), 0);
    assert_eq!(observer.info("lock_sessions"), 0);
    assert_eq!(observer.int("DBSIZE"), 0);
    for client in &clients {
        for n in 0..LOCKS {
            take(client, &format!("lock{n}"))
                .await
                .release()
                .await
                .unwrap();
        }
    }
    server.assert_sound();
}

#[tokio::test]
async fn who_stops_waiting_leaves_no_place() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let _guard = take(&client, "lock").await;
    // Some servers want a second connection for the first wait.
    let first = support::queue(&server, &client.lock("lock"), 0).await;
    first.abort();
    client.flush().await;
    eventually("nobody waits", || server.info("lock_waiters") == 0).await;
    let before = server.info("connected_clients");
    for round in 0..5 {
        let waiting: Vec<_> = (0..100)
            .map(|nth| match nth % 2 {
                0 => client.lock("lock"),
                _ => client.lock("lock").owner(format!("owner{nth}")),
            })
            .map(|lock| tokio::spawn(lock.acquire()))
            .collect();
        if round > 0 {
            eventually("they wait", || server.info("lock_waiters") == 100).await;
        }
        waiting.iter().for_each(tokio::task::JoinHandle::abort);
        support::soon("all is done", async {
            for waiting in waiting {
                assert!(waiting.await.unwrap_err().is_cancelled());
            }
            client.flush().await;
        })
        .await;
        assert_eq!(server.info("lock_waiters"), 0);
        assert_eq!(server.info("connected_clients"), before);
    }
}

#[tokio::test]
async fn who_stops_waiting_lets_the_next_one_pass() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let guard = take(&client, "lock").await;
    let lock = client.lock("lock");
    let first = support::queue(&server, &lock, 0).await;
    let second = tokio::spawn(lock.acquire());
    let third = tokio::spawn(lock.acquire());
    tokio::task::yield_now().await;
    first.abort();
    second.abort();
    drop(guard);
    assert!(support::soon("its turn", third).await.unwrap().is_ok());
}

#[tokio::test]
async fn a_grant_that_nobody_takes_goes_on_to_the_next() {
    let server = TestServer::start();
    let clients = [connect(&server).await, connect(&server).await];
    for _ in 0..200 {
        let guard = take(&clients[0], "lock").await;
        let doomed = tokio::spawn(clients[0].lock("lock").acquire());
        eventually("it waits", || server.info("lock_waiters") == 1).await;
        let next = tokio::spawn(clients[1].lock("lock").acquire());
        eventually("both wait", || server.info("lock_waiters") == 2).await;
        let released = tokio::spawn(guard.release());
        doomed.abort();
        released.await.unwrap().unwrap();
        let next = support::soon("the next one's turn", next).await;
        next.unwrap().unwrap().release().await.unwrap();
        drop(doomed.await);
    }
}

/// The waits were dropped while the server could not be told, for longer than a lease.
#[tokio::test]
async fn a_place_that_could_not_be_given_up_at_once_is_given_up_later() {
    let server = TestServer::start();
    let mut observer = server.client();
    let (client, other) = (connect(&server).await, connect(&server).await);
    let guard = take(&other, "lock").await;
    let lock = client.lock("lock").lease(Duration::from_millis(200));
    let doomed: Vec<_> = (0..5).map(|_| tokio::spawn(lock.acquire())).collect();
    eventually("they wait", || server.info("lock_waiters") == 5).await;
    observer.call("CONFIG SET min-replicas-to-write 1");
    for doomed in doomed {
        doomed.abort();
        drop(doomed.await);
    }
    support::soon("the end of their leases", client.flush()).await;
    assert_eq!(server.info("lock_waiters"), 5);
    observer.call("CONFIG SET min-replicas-to-write 0");
    eventually("none waits", || server.info("lock_waiters") == 0).await;
    guard.release().await.unwrap();
}

/// A wait now and then looks whether its grant was lost on the way. That look
/// must not bring a lock that nobody waits for any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_ends_while_it_looks_leaves_no_hold() {
    for seed in SEEDS {
        end_while_it_looks(StdRng::seed_from_u64(seed)).await;
    }
}

async fn end_while_it_looks(mut rng: StdRng) {
    let server = TestServer::start();
    let clients = [connect(&server).await, connect(&server).await];
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..100 {
        let key = format!("lock{n}");
        let guard = take(&clients[0], &key).await;
        let mut about_two_seconds =
            || Duration::from_micros(rng.random_range(1_997_000..2_005_000));
        let (wait, held) = (about_two_seconds(), about_two_seconds());
        tasks.spawn(async move {
            tokio::time::sleep(held).await;
            drop(guard);
        });
        let waiting = clients[1].lock(&key).acquire_within(wait);
        tasks.spawn(async move { drop(waiting.await.unwrap()) });
    }
    tasks.join_all().await;
    for client in &clients {
        client.flush().await;
    }
    assert_eq!(server.client().int("DBSIZE"), 0);
}
