//! Waits for each other that would never end.

mod support;

use redis_lock_client::Error;
use redis_lock_testing::TestServer;

use support::{connect, eventually, queue, soon};

#[tokio::test]
async fn who_would_close_a_cycle_is_told_and_gets_both_later() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let lock = |key: &str, owner: &str| client.lock(key).owner(owner);
    let first = lock("k1", "a").acquire().await.unwrap();
    let second = lock("k2", "b").acquire().await.unwrap();
    let a = queue(&server, &lock("k2", "a"), 0).await;

    let error = soon("the refusal", lock("k1", "b").acquire()).await;
    let error = error.unwrap_err();
    assert!(error.is_retryable());
    assert_eq!(error.code(), "DEADLOCK");
    let Error::Deadlock { cycle, .. } = error else {
        panic!("{error:?}");
    };
    assert_eq!(
        cycle,
        "'b' waits for 'k1' held by 'a', 'a' waits for 'k2' held by 'b'"
    );
    // It has not cost b what it has.
    second.renew().await.unwrap();

    second.release().await.unwrap();
    let both = (first, soon("a's turn", a).await.unwrap().unwrap());
    let b = tokio::spawn(lock("k1", "b").acquire());
    drop(both);
    assert!(soon("b's turn", b).await.unwrap().is_ok());
}

/// Tasks of one client that wait for the same lock are all seen.
#[tokio::test]
async fn a_wait_behind_another_task_of_the_same_client_is_seen() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let lock = |key: &str, owner: &str| client.lock(key).owner(owner);
    let _k1 = lock("k1", "alice").acquire().await.unwrap();
    let _k3 = lock("k3", "carol").acquire().await.unwrap();
    let bob = queue(&server, &lock("k1", "bob"), 0).await;
    let carol = queue(&server, &lock("k1", "carol"), 1).await;
    let error = soon("the refusal", lock("k3", "alice").acquire()).await;
    assert!(matches!(error, Err(Error::Deadlock { .. })), "{error:?}");
    bob.abort();
    carol.abort();
    eventually("both are gone", || server.info("lock_waiters") == 0).await;
}
