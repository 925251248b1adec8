//! Servers that restart, change their role or hang while somebody waits.

mod support;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use redis_lock_client::{Error, LockClient, Lost};
use redis_lock_testing::{Judge, TestServer};

use support::{connect, eventually, soon, take, url};

const LONG: Duration = Duration::from_secs(20);

const LEASE: Duration = Duration::from_secs(30);

/// So soon after a reconnect holds are looked at: much sooner than a renewal
/// is due.
const LOOKED_AFTER: Duration = Duration::from_secs(3);

#[tokio::test]
async fn a_server_that_becomes_a_replica_is_told_to_who_waits() {
    let server = TestServer::start();
    let other = TestServer::start();
    let client = connect(&server).await;
    let guard = take(&client, "lock").await;
    let waiting = tokio::spawn(client.lock("lock").acquire_within(LONG));
    eventually("it waits", || server.info("lock_waiters") == 1).await;
    let addr = other.addr();
    server
        .client()
        .call(&format!("REPLICAOF {} {}", addr.ip(), addr.port()));
    // It was given by its own address, so no other can be meant.
    let error = client.lock("lock").try_acquire().await.unwrap_err();
    assert!(matches!(error, Error::WrongServer { .. }), "{error:?}");
    let error = soon("the end of the wait", waiting).await.unwrap();
    assert!(matches!(error, Err(Error::WrongServer { .. })), "{error:?}");
    assert!(guard.release().await.is_err());
    server.client().call("REPLICAOF NO ONE");
    soon("it is given back", client.flush()).await;
    take(&client, "lock").await.release().await.unwrap();
}

#[tokio::test]
async fn a_restart_is_waited_out() {
    let mut server = TestServer::start();
    let client = connect(&server).await;
    let guard = take(&client, "lock").await;
    let waiting = tokio::spawn(client.lock("lock").acquire_within(LONG));
    eventually("it waits", || server.info("lock_waiters") == 1).await;
    // It forgets the lock.
    server.crash_and_restart();
    let granted = soon("the grant", waiting).await.unwrap().unwrap();
    assert!(granted.unwrap().token() > guard.token());
    assert!(guard.renew().await.is_err());
    assert!(guard.release().await.is_err());
}

/// On a socket all connections have the same addresses.
#[tokio::test]
async fn on_a_socket_no_connection_of_others_is_closed_after_a_restart() {
    let path = std::env::temp_dir().join(format!("redislock-{}", std::process::id()));
    let path = path.to_str().unwrap();
    let mut server = TestServer::start_with(&["--unixsocket", path]);
    let client = LockClient::connect(format!("unix://{path}")).await.unwrap();
    let session = client.session().await.unwrap();
    let lock = session.lock("lock").acquire().await.unwrap();
    // Nothing of the client runs while this thread is blocked.
    server.crash_and_restart();
    let mut others: Vec<_> = (0..30)
        .map(|_| UnixStream::connect(path).unwrap())
        .collect();
    for other in &mut others {
        assert!(is_answered(other));
    }
    soon("the loss", lock.lost()).await;
    take(&client, "lock").await.release().await.unwrap();
    session.close().await;
    assert!(others.iter_mut().all(is_answered));
    std::fs::remove_file(path).unwrap();
}

fn is_answered(connection: &mut UnixStream) -> bool {
    let mut reply = [0; 7];
    let asked = connection.write_all(b"PING\r\n");
    asked
        .and_then(|()| connection.read_exact(&mut reply))
        .is_ok()
}

#[tokio::test]
async fn an_idle_client_finds_its_server_again_after_a_restart() {
    let mut server = TestServer::start();
    let client = connect(&server).await;
    let guard = take(&client, "lock").await;
    let waiting = tokio::spawn(client.lock("lock").acquire());
    eventually("it waits", || server.info("lock_waiters") == 1).await;
    drop(guard);
    drop(waiting.await.unwrap().unwrap());
    client.flush().await;
    // Both of its idle connections are closed by now.
    server.crash_and_restart();
    let guard = take(&client, "lock").await;
    let waiting = tokio::spawn(client.lock("lock").acquire());
    eventually("it waits", || server.info("lock_waiters") == 1).await;
    drop(guard);
    assert!(soon("the grant", waiting).await.unwrap().is_ok());
}

#[tokio::test]
async fn a_wait_at_a_server_that_hangs_ends_soon_after_its_time() {
    let server = TestServer::start();
    let response = Duration::from_secs(1);
    let builder = LockClient::builder().response_timeout(response);
    let client = builder.connect(url(&server)).await.unwrap();
    let _guard = take(&client, "lock").await;
    let wait = Duration::from_secs(3);
    let mut judge = Judge::new("from a wait's begin to its end", wait + 2 * response);
    while judge.wants_more() {
        let waiting = tokio::spawn(client.lock("lock").acquire_within(wait));
        let begun = Instant::now();
        eventually("it waits", || server.info("lock_waiters") == 1).await;
        server.stop();
        let error = soon("its end", waiting).await.unwrap().unwrap_err();
        judge.judge(begun, Instant::now());
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        server.go_on();
        soon("nothing is left", client.flush()).await;
        eventually("the waiter is gone", || server.info("lock_waiters") == 0).await;
    }
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

#[tokio::test]
async fn a_hold_that_a_restart_forgot_is_told_as_lost_soon() {
    let mut judge = Judge::new("from a rival's grant until the loss is told", LOOKED_AFTER);
    while judge.wants_more() {
        let mut server = TestServer::start();
        let builder = LockClient::builder().default_lease(LEASE);
        let client = builder.connect(url(&server)).await.unwrap();
        let guard = take(&client, "lock").await;
        server.crash_and_restart();
        let rival = take(&connect(&server).await, "lock").await;
        let begun = Instant::now();
        let why = tokio::time::timeout(LEASE, guard.lost()).await;
        judge.judge(begun, Instant::now());
        assert_eq!(why.unwrap(), Lost::Refused);
        rival.release().await.unwrap();
    }
}
