//! Renewal by the client itself.

mod support;

use std::time::Duration;

use redis_lock_client::{LockClient, Lost};
use redis_lock_testing::TestServer;

use support::{eventually, soon, take, url};

const LEASE: Duration = Duration::from_secs(2);

async fn client_with_short_leases(server: &TestServer) -> LockClient {
    let builder = LockClient::builder().default_lease(LEASE);
    builder.connect(url(server)).await.unwrap()
}

#[tokio::test]
async fn many_locks_outlive_their_leases_by_one_connection() {
    let server = TestServer::start();
    let client = client_with_short_leases(&server).await;
    let mut guards = Vec::new();
    for n in 0..500 {
        guards.push(take(&client, &format!("lock{n}")).await);
    }
    tokio::time::sleep(2 * LEASE).await;
    assert_eq!(server.client().int("DBSIZE"), 500);
    for guard in &guards {
        assert!(guard.valid_for() > Duration::ZERO);
    }
    // The client's one, and the one that asks.
    assert_eq!(server.info("connected_clients"), 2);
    drop(guards);
    client.flush().await;
    assert_eq!(server.client().int("DBSIZE"), 0);
}

#[tokio::test]
async fn renewals_stop_at_their_number() {
    let server = TestServer::start();
    let client = client_with_short_leases(&server).await;
    let lock = client.lock("lock").max_renewals(2);
    let guard = lock.try_acquire().await.unwrap().unwrap();
    assert_eq!(soon("the end of it", guard.lost()).await, Lost::Expired);
    let renewed = server.client().bulk("INFO commandstats");
    assert!(renewed.contains("cmdstat_lock.renew:calls=2,"), "{renewed}");
}

#[tokio::test]
async fn a_lease_that_was_given_is_not_renewed() {
    let server = TestServer::start();
    let client = client_with_short_leases(&server).await;
    let lock = client.lock("lock").lease(LEASE).renew(false);
    let guard = lock.try_acquire().await.unwrap().unwrap();
    assert_eq!(soon("the end of it", guard.lost()).await, Lost::Expired);
}

#[tokio::test]
async fn a_lease_that_was_given_is_renewed_by_hand() {
    let server = TestServer::start();
    let client = client_with_short_leases(&server).await;
    let lock = client.lock("lock").lease(LEASE).renew(false);
    let guard = lock.try_acquire().await.unwrap().unwrap();
    for _ in 0..8 {
        tokio::time::sleep(LEASE / 4).await;
        guard.renew().await.unwrap();
    }
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_races_a_release_brings_nothing_back() {
    let server = TestServer::start();
    let client = client_with_short_leases(&server).await;
    for named in [true, false] {
        for _ in 0..1000 {
            let lock = client.lock("lock");
            let lock = if named { lock.owner("alice") } else { lock };
            let guard = std::sync::Arc::new(lock.acquire().await.unwrap());
            let renewing = std::sync::Arc::clone(&guard);
            let renewing = tokio::spawn(async move { renewing.renew().await });
            tokio::task::yield_now().await;
            drop(guard);
            // A renewal on the way keeps the guard, so it must be on its end.
            let _ = renewing.await.unwrap();
        }
        client.flush().await;
        assert_eq!(server.client().int("EXISTS lock"), 0);
    }
    tokio::time::sleep(LEASE).await;
    assert_eq!(server.client().int("EXISTS lock"), 0);
}

#[tokio::test]
async fn after_a_release_nothing_is_renewed() {
    let server = TestServer::start();
    let client = client_with_short_leases(&server).await;
    for n in 0..50 {
        take(&client, &format!("lock{n}"))
            .await
            .release()
            .await
            .unwrap();
    }
    server.client().call("CONFIG RESETSTAT");
    tokio::time::sleep(LEASE).await;
    let stats = server.client().bulk("INFO commandstats");
    assert!(!stats.contains("lock.renew"), "{stats}");
}

#[tokio::test]
async fn a_short_outage_is_survived() {
    let server = TestServer::start();
    let builder = LockClient::builder()
        .default_lease(Duration::from_secs(3))
        .response_timeout(Duration::from_millis(100));
    let client = builder.connect(url(&server)).await.unwrap();
    let guard = take(&client, "lock").await;
    server.stop();
    // Longer than it takes until the next renewal.
    tokio::time::sleep(Duration::from_millis(1300)).await;
    server.go_on();
    eventually("it is renewed", || {
        guard.valid_for() > Duration::from_secs(2)
    })
    .await;
    guard.release().await.unwrap();
}
