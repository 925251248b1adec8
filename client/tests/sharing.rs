//! Locks that several hold: readers, permits.

mod support;

use std::time::Duration;

use redis_lock_client::{Error, LockClient};
use redis_lock_testing::Server;

use support::{assert_nothing_left, connect, granted, queue, start};

#[tokio::test]
async fn readers_read_together_and_a_writer_alone_each_in_its_turn() {
    let server = Server::start();
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
    drop(granted(late).await);
    assert_nothing_left(&server, &other).await;
}

#[tokio::test]
async fn of_three_permits_three_are_had_and_the_fourth_waits_for_one() {
    let (server, client) = start().await;
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
    let dead = taken.pop().unwrap();
    dead.release().await.unwrap();
    let short = permit.clone().lease(Duration::from_secs(2)).renew(false);
    let dead = short.acquire().await.unwrap();
    let next = queue(&server, &permit, 0).await;
    assert!(granted(next).await.token() > dead.token());
    let most = client.lock("most").limit(1024).acquire().await.unwrap();
    most.release().await.unwrap();
}

#[tokio::test]
async fn a_reader_that_asks_to_write_is_refused_and_goes_on_reading() {
    let (server, client) = start().await;
    let job = client.job();
    let reading = job.lock("lock").shared().acquire().await.unwrap();
    for stricter in [job.lock("lock"), job.lock("lock").limit(9)] {
        for outcome in [
            stricter.acquire().await.err(),
            stricter.try_acquire().await.err(),
        ] {
            let error = outcome.unwrap();
            assert!(matches!(error, Error::Upgrade { .. }), "{error:?}");
            assert!(error.code() == "UPGRADE" && !error.is_retryable());
        }
    }
    reading.renew().await.unwrap();
    let again = job.lock("lock").shared().acquire().await.unwrap();
    assert_eq!(again.token(), reading.token());
    reading.release().await.unwrap();
    again.release().await.unwrap();
    drop(job.lock("lock").acquire().await.unwrap());
    assert_nothing_left(&server, &client).await;
}
