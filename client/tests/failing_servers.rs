//! Servers that restart, change their role or hang while somebody waits.

mod support;

use std::time::{Duration, Instant};

use redis_lock_client::{Error, LockClient};
use redis_lock_testing::TestServer;

use support::{connect, eventually, soon, take, url};

const LONG: Duration = Duration::from_secs(20);

/// The id of the client that waits.
fn waiting_client(server: &TestServer) -> Option<String> {
    let clients = server.client().bulk("CLIENT LIST");
    let mut clients = clients.lines();
    let waiting =
        clients.find(|line| line.contains("cmd=lock.acquire") && line.contains("flags=b"));
    Some(waiting?.strip_prefix("id=")?.split(' ').next()?.to_string())
}

#[tokio::test]
async fn a_wait_goes_on_when_it_was_unblocked_with_an_error() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let guard = take(&client, "lock").await;
    let waiting = tokio::spawn(client.lock("lock").wait(LONG).acquire());
    eventually("it waits", || server.info("blocked_clients") == 1).await;
    let first = waiting_client(&server).unwrap();
    assert_eq!(
        server
            .client()
            .int(&format!("CLIENT UNBLOCK {first} ERROR")),
        1
    );
    eventually("it waits again", || {
        waiting_client(&server).is_some_and(|waiting| waiting != first)
    })
    .await;
    guard.release().await.unwrap();
    assert!(soon("the grant", waiting).await.unwrap().unwrap().is_some());
}

#[tokio::test]
async fn a_wait_goes_on_when_its_connection_was_killed() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let guard = take(&client, "lock").await;
    let waiting = tokio::spawn(client.lock("lock").acquire());
    eventually("it waits", || server.info("blocked_clients") == 1).await;
    let first = waiting_client(&server).unwrap();
    server.client().int(&format!("CLIENT KILL ID {first}"));
    eventually("it waits again", || {
        waiting_client(&server).is_some_and(|waiting| waiting != first)
    })
    .await;
    guard.release().await.unwrap();
    assert!(soon("the grant", waiting).await.unwrap().unwrap().is_some());
}

#[tokio::test]
async fn a_demotion_is_waited_out() {
    let server = TestServer::start();
    let other = TestServer::start();
    let client = connect(&server).await;
    let guard = take(&client, "lock").await;
    let waiting = tokio::spawn(client.lock("lock").wait(LONG).acquire());
    eventually("it waits", || server.info("blocked_clients") == 1).await;
    let addr = other.addr();
    server
        .client()
        .call(&format!("REPLICAOF {} {}", addr.ip(), addr.port()));
    let error = client.lock("lock").try_acquire().await.unwrap_err();
    assert_eq!(error.code(), Some("READONLY"));
    assert!(error.is_retryable());
    server.client().call("REPLICAOF NO ONE");
    drop(guard);
    assert!(soon("the grant", waiting).await.unwrap().unwrap().is_some());
}

#[tokio::test]
async fn a_restart_is_waited_out() {
    let mut server = TestServer::start();
    let client = connect(&server).await;
    let guard = take(&client, "lock").await;
    let waiting = tokio::spawn(client.lock("lock").wait(LONG).acquire());
    eventually("it waits", || server.info("blocked_clients") == 1).await;
    // It forgets the lock.
    server.crash_and_restart();
    let granted = soon("the grant", waiting).await.unwrap().unwrap();
    assert!(granted.unwrap().token() > guard.token());
    assert!(guard.renew().await.is_err());
    assert!(guard.release().await.is_err());
}

#[tokio::test]
async fn an_idle_client_finds_its_server_again_after_a_restart() {
    let mut server = TestServer::start();
    let client = connect(&server).await;
    let guard = take(&client, "lock").await;
    let waiting = tokio::spawn(client.lock("lock").acquire());
    eventually("it waits", || server.info("blocked_clients") == 1).await;
    drop(guard);
    drop(waiting.await.unwrap().unwrap());
    client.flush().await;
    // Both of its idle connections are closed by now.
    server.crash_and_restart();
    let guard = take(&client, "lock").await;
    let waiting = tokio::spawn(client.lock("lock").acquire());
    eventually("it waits", || server.info("blocked_clients") == 1).await;
    drop(guard);
    assert!(soon("the grant", waiting).await.unwrap().unwrap().is_some());
}

#[tokio::test]
async fn a_wait_at_a_server_that_hangs_ends_soon_after_its_time() {
    let server = TestServer::start();
    let response = Duration::from_secs(1);
    let builder = LockClient::builder().response_timeout(response);
    let client = builder.connect(url(&server)).await.unwrap();
    let _guard = take(&client, "lock").await;
    let wait = Duration::from_secs(3);
    let waiting = tokio::spawn(client.lock("lock").wait(wait).acquire());
    eventually("it waits", || server.info("blocked_clients") == 1).await;
    let begun = Instant::now();
    server.signal("STOP");
    let error = waiting.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    assert!(
        begun.elapsed() < wait + 2 * response,
        "{:?}",
        begun.elapsed()
    );
    server.signal("CONT");
    soon("nothing is left", client.flush()).await;
    eventually("the waiter is gone", || server.info("blocked_clients") == 0).await;
}

#[tokio::test]
async fn a_release_that_was_dropped_is_carried_out_all_the_same() {
    let server = TestServer::start();
    let client = connect(&server).await;
    for polls in 0..3 {
        let guard = take(&client, "lock").await;
        let mut release = Box::pin(guard.release());
        for _ in 0..polls {
            let _ = futures_util::poll!(&mut release);
        }
        drop(release);
        client.flush().await;
        assert_eq!(server.client().int("EXISTS lock"), 0);
    }
}
