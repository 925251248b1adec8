//! Grants that replicas have to have.

mod support;

use std::time::Duration;

use redis_lock_client::{Error, LockClient};
use redis_lock_testing::TestServer;

use support::{connect, eventually, queue, soon, take, url};

const WITHIN: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_grant_counts_once_the_replicas_have_it() {
    let server = TestServer::start_with(&["--repl-diskless-sync-delay", "0"]);
    let replica = server.replica(true);
    let client = connect(&server).await;
    for n in 0..20 {
        let key = format!("lock{n}");
        let lock = client.lock(&key).owner("alice").replicas(1, WITHIN);
        let _guard = lock.try_acquire().await.unwrap().unwrap();
        let there = replica.client().bulk(&format!("HGET {key} alice"));
        assert_eq!(there, "1");
    }
}

#[tokio::test]
async fn a_queued_grant_counts_once_the_replicas_have_it() {
    let server = TestServer::start_with(&["--repl-diskless-sync-delay", "0"]);
    let replica = server.replica(true);
    let client = connect(&server).await;
    let guard = take(&client, "lock").await;
    let lock = client.lock("lock").owner("alice").replicas(1, WITHIN);
    let waiting = tokio::spawn(lock.acquire());
    eventually("it waits", || server.info("lock_waiters") == 1).await;
    guard.release().await.unwrap();
    let guard = soon("the grant", waiting).await.unwrap().unwrap();
    assert_eq!(replica.client().bulk("HGET lock alice"), "1");
    assert!(guard.valid_for() > Duration::from_secs(20));
}

#[tokio::test]
async fn without_enough_replicas_the_lock_is_free_again() {
    let server = TestServer::start_with(&["--repl-diskless-sync-delay", "0"]);
    let _replica = server.replica(true);
    let client = connect(&server).await;
    let lock = client.lock("lock").replicas(2, Duration::from_millis(50));
    for waits in [true, false] {
        let error = match waits {
            true => lock.acquire().await.unwrap_err(),
            false => lock.try_acquire().await.unwrap_err(),
        };
        let Error::NotReplicated {
            wanted, reached, ..
        } = error
        else {
            panic!("{error:?}");
        };
        assert!(wanted == 2 && reached < 2, "{reached} of {wanted}");
        assert_eq!(server.client().int("EXISTS lock"), 0);
    }
}

#[tokio::test]
async fn a_replica_that_is_stopped_does_not_count() {
    let server = TestServer::start_with(&["--repl-diskless-sync-delay", "0"]);
    let replica = server.replica(true);
    let client = connect(&server).await;
    replica.stop();
    let lock = client.lock("lock").replicas(1, Duration::from_millis(100));
    let error = lock.acquire().await.unwrap_err();
    assert!(
        matches!(error, Error::NotReplicated { reached: 0, .. }),
        "{error:?}"
    );
    replica.go_on();
    eventually("it counts again", || {
        server.client().call("WAIT 1 1000") == redis_lock_testing::int(1)
    })
    .await;
    assert!(lock.replicas(1, WITHIN).acquire().await.is_ok());
}

/// A client that may not ask for replicas.
async fn connect_without_wait(server: &TestServer) -> LockClient {
    server
        .client()
        .call("ACL SETUSER locks on >secret ~* &* +@all -wait");
    let url = format!("redis://locks:secret@{}", server.addr());
    LockClient::connect(url).await.unwrap()
}

#[tokio::test]
async fn who_may_not_ask_for_replicas_does_not_keep_the_lock() {
    let server = TestServer::start();
    let client = connect_without_wait(&server).await;
    for waits in [true, false] {
        let lock = client.lock("lock").replicas(1, WITHIN);
        let error = match waits {
            true => lock.acquire().await.unwrap_err(),
            false => lock.try_acquire().await.unwrap_err(),
        };
        assert_eq!(error.code(), "NOPERM", "{error:?}");
        soon("it is given back", client.flush()).await;
        assert_eq!(server.client().int("EXISTS lock"), 0);
    }
}

#[tokio::test]
async fn who_may_not_ask_for_replicas_keeps_no_session() {
    let server = TestServer::start();
    let client = connect_without_wait(&server).await;
    let session = client.session().await.unwrap();
    let lock = session.lock("lock").replicas(1, WITHIN);
    let error = lock.acquire().await.unwrap_err();
    assert_eq!(error.code(), "NOPERM", "{error:?}");
    soon("it is given back", client.flush()).await;
    assert_eq!(server.info("lock_sessions"), 0);
    assert_eq!(server.client().int("EXISTS lock"), 0);
}

#[tokio::test]
async fn too_long_a_time_for_replicas_does_not_keep_the_lock() {
    let server = TestServer::start();
    let _replica = server.replica(true);
    let client = connect(&server).await;
    let lock = client.lock("lock").replicas(1, Duration::MAX);
    drop(soon("an answer", lock.acquire()).await);
    soon("it is given back", client.flush()).await;
    assert_eq!(server.client().int("EXISTS lock"), 0);
}

#[tokio::test]
async fn replicas_are_asked_while_all_connections_wait_for_others() {
    let server = TestServer::start();
    let replica = server.replica(true);
    let builder = LockClient::builder().max_waiting_connections(1);
    let client = builder.connect(url(&server)).await.unwrap();
    let _busy = take(&client, "busy").await;
    let waiting = queue(&server, &client.lock("busy"), 0).await;
    let lock = client.lock("lock").owner("alice").replicas(1, WITHIN);
    let _guard = soon("the grant", lock.acquire()).await.unwrap();
    assert_eq!(replica.client().bulk("HGET lock alice"), "1");
    assert!(!waiting.is_finished());
}
