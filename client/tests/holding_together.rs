//! Locks that several hold: readers, permits.

mod support;

use std::time::Duration;

use redis_lock_client::{Error, LockClient, LockGuard};
use redis_lock_testing::TestServer;

use support::{Waiting, connect, eventually, queue, soon, url};

async fn granted(waiting: Waiting) -> LockGuard {
    soon("the grant", waiting).await.unwrap().unwrap()
}

#[tokio::test]
async fn readers_read_together_and_a_writer_alone_each_in_its_turn() {
    let server = TestServer::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    let reader = |client: &LockClient| client.lock("lock").shared();
    let first = reader(&one).acquire().await.unwrap();
    let second = reader(&one).try_acquire().await.unwrap().unwrap();
    let third = reader(&other).acquire().await.unwrap();
    assert!(first.token() < second.token() && second.token() < third.token());

    let writer = queue(&server, &one.lock("lock"), 0).await;
    let late = queue(&server, &reader(&other), 1).await;
    assert!(reader(&other).try_acquire().await.unwrap().is_none());
    first.renew().await.unwrap();
    for reader in [first, second, third] {
        assert!(!writer.is_finished());
        reader.release().await.unwrap();
    }
    let writer = granted(writer).await;
    assert!(!late.is_finished());
    writer.release().await.unwrap();
    assert!(granted(late).await.valid_for() > Duration::from_secs(20));
}

#[tokio::test]
async fn readers_that_wait_come_in_together() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let writer = support::take(&client, "lock").await;
    let reader = client.lock("lock").shared();
    let readers: Vec<_> = (0..20).map(|_| tokio::spawn(reader.acquire())).collect();
    eventually("all wait", || server.info("lock_waiters") == 20).await;
    writer.release().await.unwrap();
    let mut inside = Vec::new();
    for reader in readers {
        inside.push(granted(reader).await);
    }
    assert!(client.lock("lock").try_acquire().await.unwrap().is_none());
    assert!(server.info("connected_clients") <= 2 + server.subscribers());
}

#[tokio::test]
async fn of_three_permits_three_are_had_and_the_fourth_waits_for_one() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let permit = client.lock("pool").limit(3);
    let mut taken = Vec::new();
    for _ in 0..3 {
        taken.push(permit.acquire().await.unwrap());
    }
    assert!(permit.try_acquire().await.unwrap().is_none());
    let waiting = queue(&server, &permit, 0).await;
    taken.remove(1).release().await.unwrap();
    taken.push(granted(waiting).await);
    assert!(permit.try_acquire().await.unwrap().is_none());
    // A permit that is lost is free again.
    let short = Duration::from_secs(2);
    taken.pop();
    let dead = permit
        .clone()
        .lease(short)
        .renew(false)
        .acquire()
        .await
        .unwrap();
    let next = queue(&server, &permit, 0).await;
    assert!(granted(next).await.token() > dead.token());
}

#[tokio::test]
async fn a_reader_that_asks_to_write_is_refused_and_goes_on_reading() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let alice = client.lock("lock").owner("alice");
    let reading = alice.clone().shared().acquire().await.unwrap();
    for stricter in [alice.clone(), alice.clone().limit(9)] {
        let error = stricter.acquire().await.unwrap_err();
        assert!(matches!(error, Error::Upgrade { .. }), "{error:?}");
        assert_eq!(error.code(), "UPGRADE");
    }
    reading.renew().await.unwrap();
    // What nobody knows here the server knows.
    let token = reading.forget();
    let error = alice.acquire().await.unwrap_err();
    assert!(matches!(error, Error::Upgrade { .. }), "{error:?}");
    let again = alice.clone().shared().acquire().await.unwrap();
    assert_eq!(again.token(), token);
    // When it was taken away, there is nothing to upgrade.
    server.client().call("DEL lock");
    let writing = alice.acquire().await.unwrap();
    assert!(writing.token() > token);
}

#[tokio::test]
async fn what_is_refused_to_a_reader_prolongs_nothing() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let lease = Duration::from_secs(60);
    let alice = client.lock("lock").owner("alice");
    let reader = alice.clone().shared().lease(lease).renew(false);
    let reading = reader.acquire().await.unwrap();
    let error = alice.lease(lease * 100).acquire().await.unwrap_err();
    assert!(matches!(error, Error::Upgrade { .. }), "{error:?}");
    assert!(server.client().int("PTTL lock") <= 60_000);
    assert!(reading.valid_for() < lease);
}

#[tokio::test]
async fn a_writer_that_asks_to_read_goes_on_writing() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let alice = client.lock("lock").owner("alice");
    let outer = alice.acquire().await.unwrap();
    let inner = alice.clone().shared().acquire().await.unwrap();
    assert_eq!(outer.token(), inner.token());
    let reader = client.lock("lock").shared();
    assert!(reader.try_acquire().await.unwrap().is_none());
    outer.release().await.unwrap();
    assert!(reader.try_acquire().await.unwrap().is_none());
    inner.release().await.unwrap();
    assert!(reader.try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn a_redlock_can_be_shared_and_has_no_permits() {
    let servers: Vec<_> = (0..3).map(|_| TestServer::start()).collect();
    // The machine that tests may be busy with others.
    let client = LockClient::builder()
        .response_timeout(Duration::from_secs(2))
        .connect_redlock(servers.iter().map(url))
        .await
        .unwrap();
    let lock = client.lock("lock");
    let one = lock.clone().shared().acquire().await.unwrap();
    let two = lock.clone().shared().acquire().await.unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none());
    client.flush().await;
    one.release().await.unwrap();
    two.release().await.unwrap();
    client.flush().await;
    assert!(lock.clone().limit(1).acquire().await.is_ok());
    let error = lock.limit(2).try_acquire().await.unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error:?}");
}

#[tokio::test]
async fn a_limit_that_can_not_be_is_told_before_it_is_sent() {
    let server = TestServer::start();
    let client = connect(&server).await;
    for limit in [0, 1 << 53, u64::MAX] {
        let error = client.lock("lock").limit(limit).acquire().await;
        assert!(matches!(error, Err(Error::Invalid(_))), "{error:?}");
    }
    let most = client.lock("lock").limit((1 << 53) - 1);
    assert!(most.acquire().await.is_ok());
}
