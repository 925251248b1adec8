//! A primary that fails, and sentinels that put another in its place.

mod support;

use std::time::Duration;

use redis_lock_client::LockClient;
use redis_lock_testing::{Client, Sentinels, TestServer, int};

use support::{give_back, granted, queue, soon, take_away, within};

/// How long a fail-over may take, the discovery of the death and elections
/// without a winner included.
const FAILOVER: Duration = Duration::from_secs(60);

fn url(addrs: impl IntoIterator<Item = std::net::SocketAddr>) -> String {
    let addrs = addrs.into_iter().map(|addr| addr.to_string());
    let addrs = addrs.collect::<Vec<_>>().join(",");
    format!("redis-sentinel://{addrs}/locks")
}

/// The replica at which somebody waits.
async fn successor(group: &Sentinels) -> &TestServer {
    // Sentinels close all connections of a server that they reconfigure.
    let waits = |server: &&TestServer| server.client().try_info("lock_waiters") == Some(1);
    within(FAILOVER, "somebody waits at a successor", async {
        loop {
            match group.replicas.iter().find(waits) {
                Some(successor) => break successor,
                None => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    })
    .await
}

/// It dies, or hangs while its connections stay open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fail_over_is_waited_out_and_what_replicas_have_is_kept() {
    for hangs in [false, true] {
        // By this thread: with it the servers end.
        let mut group = Sentinels::start();
        let client = LockClient::connect(url(group.addrs())).await.unwrap();
        let safe = client.lock("safe").lease(2 * FAILOVER);
        let safe = safe.acquire().await.unwrap();
        let mut stranger = group.primary.client();
        take_away(&mut stranger, "held");
        assert_eq!(stranger.call("WAIT 2 5000"), int(2));
        let waiting = queue(&group.primary, &client.lock("held"), 0).await;

        match hangs {
            true => group.primary.stop(),
            false => group.primary.crash(),
        }
        // Asked at once, answered when there is a primary again.
        let fresh = client.lock("fresh").acquire_within(FAILOVER).await;
        let fresh = fresh.unwrap().unwrap();
        assert!(fresh.token() > safe.token());
        let primary = successor(&group).await;
        safe.renew().await.unwrap();
        let rival = client.lock("safe").try_acquire().await.unwrap();
        assert!(rival.is_none(), "the lock was forgotten");
        give_back(&mut primary.client(), "held");
        granted(waiting).await.release().await.unwrap();
        safe.release().await.unwrap();
        fresh.release().await.unwrap();
        support::assert_nothing_left(primary, &client).await;
    }
}

/// A primary that its sentinels have replaced, and that does not know: it is cut off from
/// them and from its replicas, and still reached by its clients.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_at_a_primary_that_is_cut_off_waits_at_its_successor() {
    let group = Sentinels::start();
    let waiter = LockClient::connect(url(group.addrs())).await.unwrap();
    let other = LockClient::connect(url(group.addrs())).await.unwrap();
    let mut primary = group.primary.client();
    primary.call("CONFIG SET lock.min-replicas 3");
    let waiting = queue(&group.primary, &waiter.lock("lock"), 0).await;
    let refused = other.lock("other").try_acquire().await.unwrap_err();
    assert_eq!(refused.code(), "NOREPLICAS");

    let successor = TestServer::start();
    let port = successor.addr().port();
    for addr in group.addrs() {
        let mut sentinel = Client::try_connect(addr).unwrap();
        sentinel.call("SENTINEL REMOVE locks");
        sentinel.call(&format!("SENTINEL MONITOR locks 127.0.0.1 {port} 2"));
    }
    granted(waiting).await.release().await.unwrap();
    let taken = async {
        loop {
            if let Ok(Some(taken)) = other.lock("other").try_acquire().await {
                return taken;
            }
        }
    };
    drop(soon("it is not refused any more", taken).await);
}
