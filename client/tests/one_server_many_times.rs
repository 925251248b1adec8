//! A Redlock whose servers are not as many as they seem.

mod support;

use redis_lock_client::{Error, LockClient};
use redis_lock_testing::{Proxy, TestServer};

use support::url;

/// What somebody is told who names these servers.
async fn told(urls: Vec<String>) -> Option<Error> {
    // The machine that tests may be busy with others.
    let patient = LockClient::builder().response_timeout(std::time::Duration::from_secs(2));
    patient.connect_redlock(urls).await.err()
}

#[tokio::test]
async fn one_server_named_three_times_is_no_majority() {
    let server = TestServer::start();
    let error = told(vec![url(&server); 3]).await;
    assert!(matches!(error, Some(Error::Invalid(_))), "{error:?}");
}

#[tokio::test]
async fn a_server_with_two_addresses_is_no_majority() {
    let (server, mut down) = (TestServer::start(), TestServer::start());
    down.crash();
    let alias = Proxy::to(server.addr()).unwrap();
    let alias = format!("redis://{}", alias.addr());
    let error = told(vec![url(&server), alias, url(&down)]).await;
    assert!(matches!(error, Some(Error::Invalid(_))), "{error:?}");
}

#[tokio::test]
async fn a_server_that_is_down_is_not_taken_for_another() {
    let mut servers: Vec<_> = (0..5).map(|_| TestServer::start()).collect();
    servers[0].crash();
    servers[1].crash();
    let error = told(servers.iter().map(url).collect()).await;
    assert!(error.is_none(), "{error:?}");
}
