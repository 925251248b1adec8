//! Renewal by the client itself.

mod support;

use std::sync::Arc;
use std::time::Duration;

use redis_lock_client::Lost;
use redis_lock_testing::Server;

use support::{assert_nothing_left, calls, connect_with_leases, soon};

const LEASE: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_hold_is_renewed_as_often_as_it_was_asked_for() {
    let server = Server::start();
    let client = connect_with_leases(&server, LEASE).await;
    let job = client.job();
    for (lock, at_most) in [
        (client.lock("lock").max_renewals(2), 2),
        (client.lock("lock").max_renewals(0), 0),
        (client.lock("lock").lease(LEASE).renew(false), 0),
        (job.lock("lock").max_renewals(1), 1),
    ] {
        server.client().call("CONFIG RESETSTAT");
        let guard = lock.try_acquire().await.unwrap().unwrap();
        assert_eq!(soon("the end of it", guard.lost()).await, Lost::Expired);
        // Where the machine stands still, the lease is over before the last one.
        let renewed = calls(&mut server.client(), "lock.renew");
        assert!(renewed <= at_most, "{renewed} renewals: {lock:?}");
        drop(guard);
        assert_nothing_left(&server, &client).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_races_a_release_brings_nothing_back() {
    let server = Server::start();
    let client = connect_with_leases(&server, LEASE).await;
    let job = client.job();
    for lock in [client.lock("lock"), job.lock("lock")] {
        for _ in 0..500 {
            let guard = Arc::new(lock.acquire().await.unwrap());
            let renewing = Arc::clone(&guard);
            let renewing = tokio::spawn(async move { renewing.renew().await });
            tokio::task::yield_now().await;
            drop(guard);
            let _ = renewing.await.unwrap();
        }
        assert_nothing_left(&server, &client).await;
    }
    server.client().call("CONFIG RESETSTAT");
    tokio::time::sleep(LEASE).await;
    assert_eq!(calls(&mut server.client(), "lock.renew"), 0);
    assert_eq!(server.client().int("EXISTS lock"), 0);
}
