//! Renewal by the client itself.

mod support;

use std::time::Duration;

use redis_lock_client::{Error, LockClient, Lost};
use redis_lock_testing::TestServer;

use support::{calls, eventually, soon, take, url, with_longer_leases};

const LEASE: Duration = Duration::from_secs(2);

async fn client_with_leases(server: &TestServer, lease: Duration) -> LockClient {
    let builder = LockClient::builder().default_lease(lease);
    builder.connect(url(server)).await.unwrap()
}

async fn client_with_short_leases(server: &TestServer) -> LockClient {
    client_with_leases(server, LEASE).await
}

/// Whether the lease was over before.
fn is_lost(done: Result<(), Error>) -> bool {
    match done {
        Ok(()) => false,
        Err(Error::Lost(_)) => true,
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn many_locks_outlive_their_leases_by_one_connection() {
    with_longer_leases(async |lease| {
        let server = TestServer::start();
        let client = client_with_leases(&server, lease).await;
        let mut guards = Vec::new();
        for n in 0..500 {
            guards.push(take(&client, &format!("lock{n}")).await);
        }
        tokio::time::sleep(2 * lease).await;
        if guards.iter().any(|guard| guard.valid_for().is_zero()) {
            return false;
        }
        assert_eq!(server.client().int("DBSIZE"), 500);
        // The client's one, and the one that asks.
        assert_eq!(server.info("connected_clients"), 2);
        drop(guards);
        client.flush().await;
        assert_eq!(server.client().int("DBSIZE"), 0);
        true
    })
    .await;
}

#[tokio::test]
async fn renewals_stop_at_their_number() {
    let server = TestServer::start();
    let client = client_with_short_leases(&server).await;
    let lock = client.lock("lock").max_renewals(2);
    let guard = lock.try_acquire().await.unwrap().unwrap();
    assert_eq!(soon("the end of it", guard.lost()).await, Lost::Expired);
    // Where the machine stands still, the lease is over before the second one.
    let renewed = calls(&mut server.client(), "lock.renew");
    assert!(renewed <= 2, "{renewed} renewals");
}

#[tokio::test]
async fn a_guard_that_has_gone_has_nothing_renewed() {
    let server = TestServer::start();
    let client = client_with_short_leases(&server).await;
    let lock = client.lock("lock").owner("alice");
    let hung = lock.clone().max_renewals(1).acquire().await.unwrap();
    lock.acquire().await.unwrap().release().await.unwrap();
    assert_eq!(soon("the end of it", hung.lost()).await, Lost::Expired);
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
    with_longer_leases(async |lease| {
        let server = TestServer::start();
        let client = client_with_short_leases(&server).await;
        let lock = client.lock("lock").lease(lease).renew(false);
        let guard = lock.try_acquire().await.unwrap().unwrap();
        for _ in 0..8 {
            tokio::time::sleep(lease / 4).await;
            if is_lost(guard.renew().await) {
                return false;
            }
        }
        !is_lost(guard.release().await)
    })
    .await;
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
    with_longer_leases(async |lease| {
        let server = TestServer::start();
        let builder = LockClient::builder()
            .default_lease(lease)
            .response_timeout(lease / 20);
        let client = builder.connect(url(&server)).await.unwrap();
        let guard = take(&client, "lock").await;
        server.stop();
        // Longer than it takes until the next renewal.
        tokio::time::sleep(lease * 2 / 5).await;
        server.go_on();
        eventually("it is renewed or lost", || {
            let left = guard.valid_for();
            left > lease * 2 / 3 || left.is_zero()
        })
        .await;
        !is_lost(guard.release().await)
    })
    .await;
}
