//! Losing a lock: told, and for good.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis_lock_client::{Error, LockClient, LockGuard, Lost};
use redis_lock_testing::{SOON, TestServer};

use support::{connect, eventually, soon, take, url};

const LEASE: Duration = Duration::from_secs(2);

/// How many releases come at once.
const AT_ONCE: usize = 2000;

#[tokio::test]
async fn a_lock_that_somebody_took_away_is_told_by_the_next_renewal() {
    let server = TestServer::start();
    let builder = LockClient::builder().default_lease(LEASE);
    let client = builder.connect(url(&server)).await.unwrap();
    let guard = take(&client, "lock").await;
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

#[tokio::test]
async fn a_lease_that_was_given_ends_and_the_lock_is_anothers() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let lock = client.lock("lock").lease(LEASE).renew(false);
    let guard = lock.acquire().await.unwrap();
    assert!(guard.valid_for() < LEASE * 99 / 100);
    let waiting = tokio::spawn(client.lock("lock").acquire());
    assert_eq!(soon("the loss", guard.lost()).await, Lost::Expired);
    let rival = soon("the rival's turn", waiting).await.unwrap().unwrap();
    let error = guard.release().await.unwrap_err();
    assert!(matches!(error, Error::Lost(Lost::Expired)), "{error:?}");
    client.flush().await;
    rival.renew().await.unwrap();
}

#[tokio::test]
async fn what_is_lost_stays_lost_even_if_the_server_still_has_it() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let mut observer = server.client();
    let guard = loop {
        let lock = client.lock("lock").lease(LEASE).renew(false);
        let guard = lock.acquire().await.unwrap();
        guard.lost().await;
        // Here the hold ends a few milliseconds sooner than there, unless the
        // machine is busy.
        if observer.int("PEXPIRE lock 60000") == 1 {
            break guard;
        }
    };
    let error = guard.renew().await.unwrap_err();
    assert!(matches!(error, Error::Lost(Lost::Expired)), "{error:?}");
    drop(guard);
    client.flush().await;
    assert_eq!(server.client().int("EXISTS lock"), 0, "it is given back");
}

#[tokio::test]
async fn a_lost_hold_is_replaced_by_a_new_one_of_the_same_owner() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let lock = client.lock("lock").owner("alice").lease(LEASE).renew(false);
    let old = lock.acquire().await.unwrap();
    old.lost().await;
    // Whether or not the server has noticed by now.
    server.client().call("PEXPIRE lock 60000");
    let new = lock
        .lease(Duration::from_secs(60))
        .renew(false)
        .acquire()
        .await
        .unwrap();
    assert!(new.token() > old.token());
    assert!(old.release().await.is_err());
    client.flush().await;
    new.renew().await.unwrap();
    new.release().await.unwrap();
    assert_eq!(server.client().int("EXISTS lock"), 0);
}

#[tokio::test]
async fn the_shortest_lease_is_a_hold_or_an_error_but_never_a_lie() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let lock = client
        .lock("lock")
        .lease(Duration::from_millis(1))
        .renew(false);
    for _ in 0..100 {
        match lock.clone().acquire_within(SOON).await {
            Ok(Some(guard)) => assert!(guard.valid_for() < Duration::from_millis(1)),
            Ok(None) => panic!("nobody else has it for long"),
            Err(error) => assert!(matches!(error, Error::Lost(Lost::Expired)), "{error:?}"),
        }
    }
    client.flush().await;
    eventually("it is free", || server.client().int("EXISTS lock") == 0).await;
}

#[tokio::test]
async fn giving_back_ends_it_for_those_who_watch() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let guard = take(&client, "lock").await;
    let watching = tokio::spawn(guard.lost());
    guard.release().await.unwrap();
    assert_eq!(soon("the end", watching).await.unwrap(), Lost::Released);
}

#[tokio::test]
async fn a_grant_that_is_told_after_its_lease_is_an_error_and_is_given_back() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let lease = Duration::from_millis(50);
    let lock = client.lock("lock").lease(lease).renew(false);
    server.stop();
    let (taken, ()) = tokio::join!(lock.try_acquire(), async {
        tokio::time::sleep(lease * 2).await;
        server.go_on();
    });
    let error = taken.unwrap_err();
    assert!(matches!(error, Error::Lost(Lost::Expired)), "{error:?}");
    soon("it is given back", client.flush()).await;
    eventually("it is free", || server.client().int("EXISTS lock") == 0).await;
}

#[tokio::test]
async fn a_hold_that_its_owner_has_anew_elsewhere_is_found_lost_with_the_connection() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let lock = client.lock("lock").owner("alice").renew(false);
    let guard = lock.acquire().await.unwrap();
    let mut elsewhere = server.client();
    elsewhere.call("DEL lock");
    elsewhere.int("LOCK.ACQUIRE lock alice LEASE 600000");
    elsewhere.int("CLIENT KILL USER default SKIPME yes");
    assert_eq!(soon("the loss", guard.lost()).await, Lost::Refused);
    assert_eq!(elsewhere.int("LOCK.RENEW lock alice"), 1);
}

#[test]
fn a_guard_that_outlives_its_runtime_is_no_hold() {
    let server = TestServer::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let guard = runtime.block_on(async {
        let builder = LockClient::builder().default_lease(LEASE);
        let client = builder.connect(url(&server)).await.unwrap();
        take(&client, "lock").await
    });
    drop(runtime);
    // Nobody renews it any more.
    redis_lock_testing::eventually("it is free", || server.client().int("EXISTS lock") == 0);
    assert_eq!(guard.valid_for(), Duration::ZERO);
    drop(guard);
}

#[test]
fn a_client_that_outlives_its_runtime_says_so() {
    let server = TestServer::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = runtime.block_on(async {
        let client = connect(&server).await;
        drop(take(&client, "lock").await);
        client.flush().await;
        client
    });
    drop(runtime);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let lock = client.lock("lock");
        let error = soon("an answer", lock.try_acquire()).await.unwrap_err();
        assert!(matches!(error, Error::Stopped), "{error:?}");
        let error = soon("an answer", lock.acquire()).await.unwrap_err();
        assert!(matches!(error, Error::Stopped), "{error:?}");
        soon("nothing is left to do", client.flush()).await;
    });
    assert_eq!(server.client().int("EXISTS lock"), 0);
}

/// Releases two guards as much at once as two threads can.
async fn release_at_once(guards: [LockGuard; 2]) -> [Result<(), Error>; 2] {
    let ready = Arc::new(AtomicUsize::new(0));
    let [one, other] = guards.map(|guard| {
        let (ready, runtime) = (Arc::clone(&ready), tokio::runtime::Handle::current());
        tokio::task::spawn_blocking(move || {
            ready.fetch_add(1, Ordering::SeqCst);
            while ready.load(Ordering::SeqCst) < 2 {
                std::thread::yield_now();
            }
            runtime.block_on(guard.release())
        })
    });
    [one.await.unwrap(), other.await.unwrap()]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_releases_at_once_do_not_hide_a_loss() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let mut observer = server.client();
    let lock = client.lock("lock").owner("alice");
    for round in 0..AT_ONCE {
        let is_broken = round % 8 > 0;
        let outer = lock.acquire().await.unwrap();
        let inner = lock.acquire().await.unwrap();
        if is_broken {
            assert_eq!(observer.int("LOCK.BREAK lock"), 1);
        }
        let released = release_at_once([outer, inner]).await;
        let told = released
            .iter()
            .any(|outcome| matches!(outcome, Err(Error::Lost(_))));
        assert_eq!(told, is_broken, "round {round}: {released:?}");
        assert_eq!(observer.int("EXISTS lock"), 0, "round {round}");
    }
}
