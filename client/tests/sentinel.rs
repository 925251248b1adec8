//! A primary that fails, and sentinels that put another in its place.

mod support;

use std::time::{Duration, Instant};

use redis_lock_client::LockClient;
use redis_lock_testing::{Client, Sentinels, TestServer};

use support::{eventually, soon};

/// How long a fail-over may take, the discovery of the death and elections
/// without a winner included.
const FAILOVER: Duration = Duration::from_secs(60);

async fn connect(group: &Sentinels) -> LockClient {
    let sentinels = group.addrs().map(|addr| addr.to_string()).join(",");
    let url = format!("redis-sentinel://{sentinels}/locks");
    LockClient::connect(url).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fail_over_is_waited_out_and_what_replicas_have_is_kept() {
    // By this thread: with it the servers end.
    let mut group = Sentinels::start();
    let client = connect(&group).await;
    // A lock that the replicas have, renewed by the client.
    let safe = client.lock("safe").replicas(2, Duration::from_secs(5));
    let safe = safe.acquire().await.unwrap();
    // A lock that a stranger has and replicas too; somebody waits for it.
    let mut stranger = group.primary.client();
    let held = stranger.int("LOCK.ACQUIRE held stranger LEASE 600000");
    assert_eq!(stranger.call("WAIT 2 5000"), redis_lock_testing::int(2));
    let waiting = tokio::spawn(client.lock("held").acquire_within(FAILOVER));
    eventually("it waits", || group.primary.info("lock_waiters") == 1).await;

    let died = Instant::now();
    let old = group.primary.addr();
    group.primary.crash();
    // Asked at once, answered when there is a primary again.
    let fresh = client
        .lock("fresh")
        .acquire_within(FAILOVER)
        .await
        .unwrap()
        .unwrap();
    eprintln!("a grant after {:?}", died.elapsed());
    assert!(fresh.token() > u64::try_from(held).unwrap());
    assert!(fresh.token() > safe.token());
    safe.renew().await.unwrap();
    let rival = client.lock("safe").try_acquire().await.unwrap();
    assert!(rival.is_none(), "the lock was forgotten");

    let sentinel = group.addrs()[0];
    let new = Sentinels::primary(sentinel)
        .filter(|addr| *addr != old)
        .unwrap();
    let primary = group
        .replicas
        .iter()
        .find(|replica| replica.addr() == new)
        .unwrap();
    eventually("it waits there again", || {
        primary.client().try_info("lock_waiters") == Some(1)
    })
    .await;
    assert_eq!(primary.client().int("LOCK.RELEASE held stranger"), 1);
    let granted = tokio::time::timeout(FAILOVER, waiting).await.unwrap();
    assert!(granted.unwrap().unwrap().is_some());
    safe.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_at_a_primary_that_hangs_waits_at_its_successor() {
    let group = Sentinels::start();
    let client = connect(&group).await;
    let mut stranger = group.primary.client();
    stranger.int("LOCK.ACQUIRE held stranger LEASE 600000");
    assert_eq!(stranger.call("WAIT 2 5000"), redis_lock_testing::int(2));
    let waiting = tokio::spawn(client.lock("held").acquire_within(FAILOVER));
    eventually("it waits", || group.primary.info("lock_waiters") == 1).await;

    // Its connections stay open, and nothing comes.
    group.primary.stop();
    let deadline = Instant::now() + FAILOVER;
    let successor = loop {
        assert!(Instant::now() < deadline, "nobody waits at a successor");
        // Sentinels close all connections of a server that they reconfigure.
        let waits = |server: &&TestServer| server.client().try_info("lock_waiters") == Some(1);
        match group.replicas.iter().find(waits) {
            Some(successor) => break successor,
            None => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    assert_eq!(successor.client().int("LOCK.RELEASE held stranger"), 1);
    let granted = tokio::time::timeout(FAILOVER, waiting).await.unwrap();
    assert!(granted.unwrap().unwrap().is_some());
}

/// A primary that its sentinels have replaced, and that does not know: it is cut off from
/// them and from its replicas, and still reached by its clients.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_at_a_primary_that_is_cut_off_waits_at_its_successor() {
    let group = Sentinels::start();
    let (waiter, other) = (connect(&group).await, connect(&group).await);
    let mut primary = group.primary.client();
    primary.call("CONFIG SET lock.min-replicas 3");
    let waiting = tokio::spawn(waiter.lock("lock").acquire());
    eventually("it waits", || group.primary.info("lock_waiters") == 1).await;
    let refused = other.lock("other").try_acquire().await.unwrap_err();
    assert_eq!(refused.code(), "NOREPLICAS");

    let successor = TestServer::start();
    let port = successor.addr().port();
    for addr in group.addrs() {
        let mut sentinel = Client::try_connect(addr).unwrap();
        sentinel.call("SENTINEL REMOVE locks");
        sentinel.call(&format!("SENTINEL MONITOR locks 127.0.0.1 {port} 2"));
    }
    let granted = soon("the grant", waiting).await.unwrap().unwrap();
    granted.release().await.unwrap();
    let taken = async {
        loop {
            if let Ok(Some(taken)) = other.lock("other").try_acquire().await {
                return taken;
            }
        }
    };
    drop(soon("it is not refused any more", taken).await);
}
