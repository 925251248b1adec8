//! Locks that end with a connection.

#[path = "support/control.rs"]
mod control;
mod support;

use std::time::{Duration, Instant};

use control::Judge;
use redis_lock_client::{Error, LockClient, LockGuard, Lost};
use redis_lock_testing::TestServer;

use support::{connect, eventually, soon, take, tied_client};

/// The server does it in 5 ms.
const AT_ONCE: Duration = Duration::from_millis(100);

const LEASE: Duration = Duration::from_secs(2);

async fn session(client: &LockClient) -> LockGuard {
    let lock = client.lock("lock").session();
    lock.acquire().await.unwrap().unwrap()
}

/// Has somebody wait for the lock until `end` has ended who holds it.
async fn judge_the_hand_off<T>(
    judge: &mut Judge,
    server: &TestServer,
    end: impl AsyncFnOnce() -> T,
) -> T {
    let next = connect(server).await;
    let waiting = tokio::spawn(async move {
        let granted = next.lock("lock").acquire().await;
        (granted, Instant::now())
    });
    eventually("it waits", || server.info("blocked_clients") == 1).await;
    let begun = Instant::now();
    let ended = end().await;
    let (granted, at) = soon("its turn", waiting).await.unwrap();
    judge.judge(begun, at);
    granted.unwrap().unwrap().release().await.unwrap();
    ended
}

#[tokio::test]
async fn it_ends_with_its_guard_and_its_connection_with_it() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let before = server.info("connected_clients");
    let guard = session(&client).await;
    assert_eq!(server.info("lock_sessions"), 1);
    assert_eq!(server.info("connected_clients"), before + 1);
    guard.release().await.unwrap();
    eventually("the connection is closed", || {
        server.info("connected_clients") == before
    })
    .await;
    let mut judge = Judge::new("from a drop to the next holder", AT_ONCE);
    while judge.wants_more() {
        let guard = session(&client).await;
        judge_the_hand_off(&mut judge, &server, async || drop(guard)).await;
        assert_eq!(server.info("lock_sessions"), 0);
    }
}

#[test]
fn it_ends_with_the_runtime() {
    let server = TestServer::start();
    let start = || tokio::runtime::Runtime::new().unwrap();
    let mut judge = Judge::new("from a runtime's end to the next holder", AT_ONCE);
    while judge.wants_more() {
        let runtime = start();
        let guard = runtime.block_on(async { session(&connect(&server).await).await });
        start().block_on(judge_the_hand_off(&mut judge, &server, async || {
            tokio::task::spawn_blocking(move || drop(runtime))
                .await
                .unwrap();
        }));
        drop(guard);
    }
}

#[tokio::test]
async fn a_killed_connection_loses_it_at_once_and_its_holder_is_told() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let mut observer = server.client();
    let mut handed_on = Judge::new("from a kill to the next holder", AT_ONCE);
    let mut told = Judge::new("from a kill until its holder is told", AT_ONCE);
    while handed_on.wants_more() || told.wants_more() {
        let guard = session(&client).await;
        let tied = tied_client(&mut observer, "lock");
        let (begun, why, ended) = judge_the_hand_off(&mut handed_on, &server, async || {
            let begun = Instant::now();
            observer.int(&format!("CLIENT KILL ID {tied}"));
            let why = soon("the loss", guard.lost()).await;
            (begun, why, Instant::now())
        })
        .await;
        told.judge(begun, ended);
        assert_eq!(why, Lost::Disconnected);
        assert_eq!(guard.valid_for(), Duration::ZERO);
        let error = guard.release().await.unwrap_err();
        assert!(
            matches!(error, Error::Lost(Lost::Disconnected)),
            "{error:?}"
        );
    }
    // The client and its other connections are none the worse.
    session(&client).await.release().await.unwrap();
}

#[tokio::test]
async fn a_server_that_dies_takes_it_along() {
    let mut server = TestServer::start();
    let client = connect(&server).await;
    let guard = session(&client).await;
    server.crash();
    assert_eq!(soon("the loss", guard.lost()).await, Lost::Disconnected);
}

#[tokio::test]
async fn a_server_stopped_past_the_lease_does_not_keep_it_up_later() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let lock = client.lock("lock").session().lease(LEASE);
    let mut judge = Judge::new("from a lease's end here to the end there", LEASE / 100);
    while judge.wants_more() {
        let guard = lock.acquire().await.unwrap().unwrap();
        server.signal("STOP");
        assert!(guard.valid_for() > Duration::ZERO);
        let ends_here = Instant::now() + guard.valid_for();
        assert_eq!(soon("the loss", guard.lost()).await, Lost::Expired);
        judge.judge(ends_here, Instant::now());
        server.signal("CONT");
        // The guard is still there, but its connection is not.
        let next = connect(&server).await;
        let granted = soon("another's turn", next.lock("lock").acquire()).await;
        let granted = granted.unwrap().unwrap();
        assert!(granted.token() > guard.token());
        assert!(guard.release().await.is_err());
        granted.release().await.unwrap();
    }
}

#[tokio::test]
async fn it_outlasts_its_lease_many_times() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let lock = client.lock("lock").session().lease(LEASE).max_renewals(1);
    let guard = lock.acquire().await.unwrap().unwrap();
    let lost = tokio::time::timeout(LEASE * 3, guard.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    assert!(guard.valid_for() > Duration::ZERO && guard.valid_for() < LEASE);
    guard.release().await.unwrap();
    assert_eq!(server.client().int("EXISTS lock"), 0);
}

#[tokio::test]
async fn one_that_somebody_took_away_is_told_by_the_next_renewal() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let lock = client.lock("lock").session().lease(LEASE);
    let guard = lock.acquire().await.unwrap().unwrap();
    assert_eq!(server.client().int("LOCK.BREAK lock"), 1);
    assert_eq!(soon("the loss", guard.lost()).await, Lost::Refused);
}

#[tokio::test]
async fn who_waits_for_one_has_it_tied_to_the_connection_that_waited() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let guard = take(&client, "lock").await;
    let lock = client.lock("lock").session();
    assert!(lock.try_acquire().await.unwrap().is_none());
    let waiting = tokio::spawn(lock.acquire());
    eventually("it waits", || server.info("blocked_clients") == 1).await;
    guard.release().await.unwrap();
    let guard = soon("its turn", waiting).await.unwrap().unwrap().unwrap();
    assert_eq!(server.info("lock_sessions"), 1);
    // A wait that comes now has a connection of its own.
    let doomed = tokio::spawn(client.lock("lock").session().acquire());
    eventually("it waits", || server.info("blocked_clients") == 1).await;
    assert!(guard.valid_for() > Duration::from_secs(20));
    let before = server.info("connected_clients");
    doomed.abort();
    eventually("its connection is closed", || {
        server.info("blocked_clients") == 0 && server.info("connected_clients") == before - 1
    })
    .await;
    guard.renew().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn guards_of_one_owner_share_it_and_a_plain_hold_gets_none() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let plain = client.lock("lock").owner("alice");
    let lock = plain.clone().session();
    let outer = lock.acquire().await.unwrap().unwrap();
    let inner = plain.acquire().await.unwrap().unwrap();
    let innermost = lock.acquire().await.unwrap().unwrap();
    drop(outer);
    drop(innermost);
    client.flush().await;
    assert_eq!(server.info("lock_sessions"), 1);
    inner.release().await.unwrap();
    let _plain = plain.acquire().await.unwrap().unwrap();
    let error = lock.acquire().await.unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error:?}");
}

#[tokio::test]
async fn an_owner_that_comes_again_at_once_gets_a_new_one_each_time() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let lock = client.lock("lock").owner("alice").session();
    let mut last = 0;
    for _ in 0..100 {
        // The connection of the last one may still be closing.
        let guard = lock.acquire().await.unwrap().unwrap();
        assert!(guard.token() > last);
        last = guard.token();
    }
    client.flush().await;
    assert_eq!(server.client().int("EXISTS lock"), 0);
}

#[tokio::test]
async fn readers_have_sessions_too_and_forgetting_one_ends_it() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let reader = client.lock("lock").shared().session();
    let one = reader.acquire().await.unwrap().unwrap();
    let other = reader.acquire().await.unwrap().unwrap();
    assert_eq!(server.info("lock_sessions"), 2);
    one.forget();
    eventually("it ends", || server.info("lock_sessions") == 1).await;
    other.renew().await.unwrap();
}
