//! A task that polls many futures of a client, and some of them not for a while, holds
//! nobody else up.

mod support;

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use redis_lock_client::LockClient;
use redis_lock_testing::TestServer;
use tokio::time::{sleep, timeout};

use support::connect;

const SOON: Duration = Duration::from_secs(10);

async fn poll_once(future: Pin<&mut impl Future>) {
    let mut future = Some(future);
    poll_fn(|cx| {
        if let Some(future) = future.take() {
            let _ = future.poll(cx);
        }
        Poll::Ready(())
    })
    .await;
}

/// Another task takes a lock.
async fn assert_others_go_on(client: &LockClient) {
    let lock = client.lock("of another");
    let taken = timeout(SOON, tokio::spawn(async move { lock.acquire().await })).await;
    let taken = taken.expect("another task waits in vain").unwrap();
    taken.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_acquires_are_handled_as_they_come() {
    let server = TestServer::start();
    for round in 0..10 {
        let client = connect(&server).await;
        drop(client.lock("first").acquire().await.unwrap());
        let locks: Vec<_> = (0..200)
            .map(|n| client.lock(format!("{round}:{n}")))
            .collect();
        let handled = tokio::spawn(async move {
            let mut all: FuturesUnordered<_> = locks.iter().map(|lock| lock.acquire()).collect();
            let mut handled = 0;
            while let Some(guard) = all.next().await {
                guard.unwrap().release().await.unwrap();
                handled += 1;
            }
            handled
        });
        let handled = timeout(SOON, handled).await.expect("all stand still");
        assert_eq!(handled.unwrap(), 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_are_sent_past_many_acquires_that_nobody_polls() {
    const LEASE: Duration = Duration::from_secs(1);
    let server = TestServer::start();
    let client = connect(&server).await;
    let session = client.session().await.unwrap();
    let held = session.lock("held").lease(LEASE).acquire().await.unwrap();
    let renewed = client.lock("renewed").lease(LEASE).acquire().await.unwrap();
    let locks: Vec<_> = (0..400)
        .map(|n| match n % 2 {
            0 => session.lock(format!("{n}")),
            _ => client.lock(format!("{n}")),
        })
        .collect();
    let mut all: Vec<_> = locks.iter().map(|lock| Box::pin(lock.acquire())).collect();
    for acquire in &mut all {
        poll_once(acquire.as_mut()).await;
    }
    sleep(3 * LEASE).await;
    for guard in [&held, &renewed] {
        assert!(!guard.valid_for().is_zero(), "{guard:?}");
    }
    assert_others_go_on(&client).await;
}
