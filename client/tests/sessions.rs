//! Locks that end with a connection.

mod support;

use std::time::{Duration, Instant};

use redis_lock_client::{Error, LockClient, LockGuard, Lost};
use redis_lock_testing::TestServer;

use support::{connect, eventually, soon, take, tied_client};

/// The server does it in 5 ms; the rest is for a busy machine.
const AT_ONCE: Duration = Duration::from_millis(100);

async fn session(client: &LockClient) -> LockGuard {
    let lock = client.lock("lock").session();
    lock.acquire().await.unwrap().unwrap()
}

/// Says how long it takes from `end` until somebody who waits has the lock.
async fn time_to_next<T>(server: &TestServer, end: impl AsyncFnOnce() -> T) -> (Duration, T) {
    let next = connect(server).await;
    let waiting = tokio::spawn(next.lock("lock").acquire());
    eventually("it waits", || server.info("blocked_clients") == 1).await;
    let begun = Instant::now();
    let ended = end().await;
    let granted = soon("its turn", waiting).await.unwrap().unwrap().unwrap();
    let waited = begun.elapsed();
    granted.release().await.unwrap();
    (waited, ended)
}

#[tokio::test]
async fn it_ends_when_it_is_released_or_dropped_and_its_connection_with_it() {
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
    let guard = session(&client).await;
    let (waited, ()) = time_to_next(&server, async || drop(guard)).await;
    assert!(waited < AT_ONCE, "{waited:?}");
    assert_eq!(server.info("lock_sessions"), 0);
}

#[test]
fn it_ends_with_the_runtime() {
    let server = TestServer::start();
    let start = || tokio::runtime::Runtime::new().unwrap();
    let runtime = start();
    let guard = runtime.block_on(async { session(&connect(&server).await).await });
    let (waited, ()) = start().block_on(time_to_next(&server, async || {
        tokio::task::spawn_blocking(move || drop(runtime))
            .await
            .unwrap();
    }));
    assert!(waited < AT_ONCE, "{waited:?}");
    drop(guard);
}

#[tokio::test]
async fn a_connection_that_is_killed_loses_it_at_once_and_its_holder_is_told() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let guard = session(&client).await;
    let kill = format!(
        "CLIENT KILL ID {}",
        tied_client(&mut server.client(), "lock")
    );
    let (waited, (why, told)) = time_to_next(&server, async || {
        let begun = Instant::now();
        server.client().int(&kill);
        (soon("the loss", guard.lost()).await, begun.elapsed())
    })
    .await;
    assert_eq!(why, Lost::Disconnected);
    assert!(waited < AT_ONCE && told < AT_ONCE, "{waited:?}, {told:?}");
    assert_eq!(guard.valid_for(), Duration::ZERO);
    let error = guard.release().await.unwrap_err();
    assert!(
        matches!(error, Error::Lost(Lost::Disconnected)),
        "{error:?}"
    );
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
async fn a_server_stopped_past_the_lease_is_told_in_time_and_does_not_keep_it_up_afterwards() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let lease = Duration::from_millis(600);
    let lock = client.lock("lock").session().lease(lease);
    let guard = lock.acquire().await.unwrap().unwrap();
    server.signal("STOP");
    let begun = Instant::now();
    assert!(guard.valid_for() > Duration::ZERO);
    assert_eq!(soon("the loss", guard.lost()).await, Lost::Expired);
    let told = begun.elapsed();
    assert!(told < lease, "{told:?}");
    server.signal("CONT");
    // The guard is still there, but its connection is not.
    let next = connect(&server).await;
    let granted = soon("another's turn", next.lock("lock").acquire()).await;
    assert!(granted.unwrap().unwrap().token() > guard.token());
    assert!(guard.release().await.is_err());
}

#[tokio::test]
async fn it_outlasts_its_lease_many_times() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let lease = Duration::from_millis(200);
    let lock = client.lock("lock").session().lease(lease).max_renewals(1);
    let guard = lock.acquire().await.unwrap().unwrap();
    let lost = tokio::time::timeout(lease * 5, guard.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    assert!(guard.valid_for() > Duration::ZERO && guard.valid_for() < lease);
    guard.release().await.unwrap();
    assert_eq!(server.client().int("EXISTS lock"), 0);
}

#[tokio::test]
async fn one_that_somebody_took_away_is_told_by_the_next_renewal() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let lock = client.lock("lock").session();
    let lock = lock.lease(Duration::from_millis(300));
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
async fn guards_of_one_owner_share_it_and_it_can_not_be_added_to_a_hold_without() {
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
