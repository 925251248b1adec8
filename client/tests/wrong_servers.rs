//! A server that was given by its own address, and that does not decide.

mod support;

use redis_lock_client::{Error, LockClient};
use redis_lock_testing::{Cluster, TestServer, tag};

use support::{soon, url};

/// What somebody is told who wants a lock that this server can't give.
async fn told(server: &TestServer, key: &str) -> Error {
    let client = match LockClient::connect(url(server)).await {
        Ok(client) => client,
        Err(error) => return error,
    };
    let acquired = soon("an answer", client.lock(key).acquire()).await;
    acquired.unwrap_err()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_of_a_cluster_is_told_to_be_no_cluster() {
    let cluster = Cluster::start();
    let elsewhere = format!("{{{}}}lock", tag(|slot| slot > 10923, 0));
    let error = told(&cluster.nodes[0], &elsewhere).await;
    assert!(matches!(error, Error::WrongServer { .. }), "{error:?}");
    assert!(error.to_string().contains("redis-cluster://"), "{error}");
    assert!(!error.is_retryable());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_told_to_be_no_primary() {
    let primary = TestServer::start();
    let replica = primary.replica(true);
    let error = told(&replica, "lock").await;
    assert!(matches!(error, Error::WrongServer { .. }), "{error:?}");
    assert!(error.to_string().contains("redis-sentinel://"), "{error}");
    assert!(!error.is_retryable());
}
