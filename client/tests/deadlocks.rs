//! Jobs that would wait for each other without end.

mod support;

use redis_lock_client::{Error, LockClient};
use redis_lock_testing::{Cluster, Server, tag};

use support::{
    assert_nothing_left, cluster_url, connect, connect_blocking, eventually, granted, queue, soon,
};

#[tokio::test]
async fn who_would_close_a_cycle_is_told_and_gets_both_later() {
    let server = Server::start();
    for client in [
        connect(&server).await,
        connect_blocking(&server, LockClient::builder()).await,
    ] {
        let job = |name| client.job().named(name).unwrap();
        let (a, b) = (job("a"), job("b"));
        let first = a.lock("k1").acquire().await.unwrap();
        let second = b.lock("k2").acquire().await.unwrap();
        let waiting = queue(&server, &a.lock("k2"), 0).await;

        let error = soon("the refusal", b.lock("k1").acquire()).await;
        let error = error.unwrap_err();
        assert!(error.is_retryable() && error.code() == "DEADLOCK");
        let Error::Deadlock(cycle) = error else {
            panic!("{error:?}");
        };
        let [a_is, b_is] = [&a, &b].map(|job| String::from_utf8_lossy(job.owner()));
        let expected = format!(
            "'{b_is}' waits for 'k1' held by '{a_is}', '{a_is}' waits for 'k2' held by '{b_is}'"
        );
        assert_eq!(cycle, expected);
        // It has not cost b what it has.
        second.renew().await.unwrap();

        second.release().await.unwrap();
        let both = (first, granted(waiting).await);
        let waiting = queue(&server, &b.lock("k1"), 0).await;
        drop(both);
        drop(granted(waiting).await);
        assert_nothing_left(&server, &client).await;
    }
}

/// There a place is refused by its message, later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cycle_on_a_node_of_a_cluster_is_told() {
    let cluster = Cluster::start();
    let client = LockClient::connect(cluster_url(&cluster)).await.unwrap();
    let [k1, k2] = [0, 1].map(|nth| tag(|slot| slot < 5461, nth));
    let (a, b) = (client.job(), client.job());
    let _first = a.lock(&k1).acquire().await.unwrap();
    let second = b.lock(&k2).acquire().await.unwrap();
    let waiting = queue(&cluster.nodes[0], &a.lock(&k2), 0).await;
    let error = soon("the refusal", b.lock(&k1).acquire()).await;
    assert!(matches!(error, Err(Error::Deadlock { .. })), "{error:?}");
    second.release().await.unwrap();
    drop(granted(waiting).await);
    let waiters = || cluster.nodes[0].info("lock_waiters");
    eventually("nobody waits", || waiters() == 0).await;
}
