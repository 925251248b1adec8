//! Losing a lock: told, and for good.

mod support;

use std::time::Duration;

use redis_lock_client::{Error, Lost};
use redis_lock_testing::{Int, SOON, Server};

use support::{assert_nothing_left, connect, connect_with_leases, free, soon, start, take};

const LEASE: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_lock_that_somebody_took_away_is_told_by_the_next_renewal() {
    let server = Server::start();
    let client = connect_with_leases(&server, LEASE).await;
    let session = client.session().await.unwrap();
    let job = client.job();
    for lock in [client.lock("lock"), session.lock("lock"), job.lock("lock")] {
        let guard = lock.acquire().await.unwrap();
        server.client().call("DEL lock");
        let rival = take(&connect(&server).await, "lock").await;
        assert_eq!(soon("the loss", guard.lost()).await, Lost::Refused);
        assert_eq!(guard.valid_for(), Duration::ZERO);
        let error = guard.renew().await.unwrap_err();
        assert!(matches!(error, Error::Lost(Lost::Refused)), "{error:?}");
        assert!(guard.release().await.is_err());
        // The rival's hold was not touched.
        rival.renew().await.unwrap();
        rival.release().await.unwrap();
    }
    assert!(session.is_alive());
}

#[tokio::test]
async fn what_is_lost_stays_lost_and_is_given_back_even_if_the_server_still_has_it() {
    let (server, client) = start().await;
    let lock = client.lock("lock").lease(LEASE).renew(false);
    let guard = lock.acquire().await.unwrap();
    assert_eq!(server.client().int("PEXPIRE lock 60000"), 1);
    assert_eq!(soon("the loss", guard.lost()).await, Lost::Expired);
    let error = guard.renew().await.unwrap_err();
    assert!(matches!(error, Error::Lost(Lost::Expired)), "{error:?}");
    assert_nothing_left(&server, &client).await;
    assert!(guard.release().await.is_err());
}

#[tokio::test]
async fn the_shortest_lease_is_a_hold_or_an_error_but_never_a_lie() {
    let (server, client) = start().await;
    let shortest = Duration::from_millis(1);
    let lock = client.lock("lock").lease(shortest).renew(false);
    for _ in 0..100 {
        match lock.acquire_within(SOON).await {
            Ok(Some(guard)) => assert!(guard.valid_for() < shortest),
            Ok(None) => panic!("nobody else has it for long"),
            Err(error) => assert!(matches!(error, Error::Lost(Lost::Expired)), "{error:?}"),
        }
    }
    client.flush().await;
    free(&server, "lock").await;
}

#[tokio::test]
async fn a_hold_that_its_owner_has_anew_elsewhere_is_found_lost_with_the_connection() {
    let (server, client) = start().await;
    let guard = take(&client, "lock").await;
    let mut elsewhere = server.client();
    elsewhere.call("DEL lock");
    let acquire = [b"LOCK.ACQUIRE", &b"lock"[..], guard.owner()];
    elsewhere.words(&acquire);
    elsewhere.int("CLIENT KILL USER default SKIPME yes");
    assert_eq!(soon("the loss", guard.lost()).await, Lost::Refused);
    let owner = guard.owner().to_vec();
    drop(guard);
    soon("nothing is left to do", client.flush()).await;
    let renewed = elsewhere.words(&[b"LOCK.RENEW", b"lock", &owner]);
    assert_eq!(renewed, Int(1), "its token was another");
}
