//! A Redlock whose servers are not as many as they seem.

mod support;

use std::time::Duration;

use redis_lock_client::{Error, LockClient};
use redis_lock_testing::{Proxy, TestServer};

use support::{soon, url};

/// What somebody is told who names these servers.
async fn told(urls: Vec<String>) -> Option<Error> {
    // The machine that tests may be busy with others.
    let patient = LockClient::builder().response_timeout(Duration::from_secs(2));
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

#[tokio::test]
async fn servers_whose_addresses_change_places_are_as_many_as_before() {
    let servers = [(); 3].map(|()| TestServer::start());
    let proxies = servers.each_ref().map(|it| Proxy::to(it.addr()).unwrap());
    let urls = proxies
        .each_ref()
        .map(|it| format!("redis://{}", it.addr()));
    let client = LockClient::builder().response_timeout(Duration::from_secs(2));
    let client = client.connect_redlock(urls).await.unwrap();
    let lock = client.lock("lock");
    lock.acquire().await.unwrap().release().await.unwrap();
    proxies[0].lead_to(servers[1].addr());
    proxies[1].lead_to(servers[0].addr());
    for proxy in &proxies {
        proxy.swallow_on(|| true);
        proxy.close_swallowing();
    }
    let taken = async {
        loop {
            if let Ok(guard) = lock.acquire().await {
                return guard;
            }
        }
    };
    let guard = soon("a majority grants it", taken).await;
    guard.release().await.unwrap();
}

#[tokio::test]
async fn an_address_that_comes_to_lead_to_another_servers_is_no_majority_with_that() {
    let (server, mut other) = (TestServer::start(), TestServer::start());
    let mut down = TestServer::start();
    let alias = Proxy::to(other.addr()).unwrap();
    let urls = [
        url(&server),
        format!("redis://{}", alias.addr()),
        url(&down),
    ];
    let client = LockClient::builder().response_timeout(Duration::from_secs(2));
    let client = client.connect_redlock(urls).await.unwrap();
    client
        .lock("lock")
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    down.crash();
    alias.lead_to(server.addr());
    other.crash();
    for _ in 0..10 {
        let error = client.lock("lock").try_acquire().await.unwrap_err();
        assert_eq!(error.code(), "NOMAJORITY", "{error:?}");
    }
}
