//! By which addresses a client connects, and what it is told where it can't lock.

mod support;

use std::time::Duration;

use redis_lock_client::{Error, LockClient, Servers, redis};
use redis_lock_testing::{Cluster, SOON, Sentinels, Server};

use support::{granted, key_of, queue, soon, take, url, url_as};

#[tokio::test]
async fn a_server_without_the_module_is_told_by_one_clear_sentence() {
    let server = Server::start_plain(&[]);
    let error = LockClient::connect(url(&server)).await.unwrap_err();
    assert!(matches!(error, Error::NoModule), "{error:?}");
    assert!(error.to_string().contains("module") && !error.is_retryable());
    // Who connects later is told then.
    let client = LockClient::builder().connect_lazy(url(&server)).unwrap();
    for outcome in [
        soon("an answer", client.lock("lock").try_acquire())
            .await
            .err(),
        soon("an answer", client.lock("lock").acquire()).await.err(),
        soon("an answer", client.lock("lock").info()).await.err(),
    ] {
        assert!(matches!(outcome, Some(Error::NoModule)), "{outcome:?}");
    }
}

#[tokio::test]
async fn a_user_who_may_not_ask_for_the_module_connects() {
    let server = Server::start();
    for rules in [
        "-command",
        "-info -module",
        "-@all +lock.acquire +lock.release",
    ] {
        let client = LockClient::connect(url_as(&server, "worker", rules)).await;
        let guard = take(&client.unwrap(), "lock").await;
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn addresses_that_are_none_are_told_without_a_password() {
    for address in [
        "no address",
        "",
        "http://127.0.0.1",
        "redis-sentinel://:secret@127.0.0.1",
        "redis-sentinel://:secret@/locks",
        "redis-cluster://",
        "redis-cluster://:secret@127.0.0.1:port",
    ] {
        let refused = [
            LockClient::connect(address).await.err(),
            LockClient::builder().connect_lazy(address.to_owned()).err(),
            Servers::try_from(address).err(),
        ];
        for error in refused {
            let error = error.unwrap_or_else(|| panic!("{address} is taken"));
            assert!(matches!(error, Error::Address(_)), "{address}: {error:?}");
            assert!(!error.is_retryable() && error.code() == "ADDRESS");
            assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
        }
    }
}

#[tokio::test]
async fn what_debugging_shows_holds_no_password() {
    let servers = Servers::try_from("redis-cluster://u:secret@127.0.0.1:1").unwrap();
    assert!(!format!("{servers:?}").contains("secret"), "{servers:?}");
    let client = LockClient::builder().connect_lazy("redis://u:secret@127.0.0.1:1");
    assert!(!format!("{client:?}").contains("secret"), "{client:?}");
}

#[tokio::test]
async fn a_lazy_client_waits_for_a_server_that_is_not_up() {
    let mut server = Server::start();
    server.crash();
    let client = LockClient::builder().connect_lazy(url(&server)).unwrap();
    let error = client.lock("lock").try_acquire().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let waiting = tokio::spawn(client.lock("lock").acquire());
    server.restart().unwrap();
    granted(waiting).await.release().await.unwrap();
}

#[tokio::test]
async fn a_client_of_the_redis_crate_is_a_server() {
    let server = Server::start();
    let url = url_as(&server, "worker", "");
    let bare = redis::Client::open(url).unwrap();
    let client = LockClient::connect(bare.clone()).await.unwrap();
    let guard = take(&client, "lock").await;
    let waiting = queue(&server, &client.lock("lock"), 0).await;
    guard.release().await.unwrap();
    granted(waiting).await.release().await.unwrap();
    let primaries = Servers::from(bare).primaries(SOON).await.unwrap();
    assert_eq!(primaries.len(), 1);
}

/// Where each of these answers.
async fn ports(servers: &Servers) -> Vec<u16> {
    let primaries = soon("the primaries", servers.primaries(SOON)).await;
    let mut ports = Vec::new();
    for primary in primaries.unwrap() {
        let mut connection = primary.get_multiplexed_async_connection().await.unwrap();
        let mut ask = redis::cmd("CONFIG");
        ask.arg("GET").arg("port");
        let port: (String, u16) = ask.query_async(&mut connection).await.unwrap();
        ports.push(port.1);
    }
    ports.sort_unstable();
    ports
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_servers_that_take_locks_now_are_told() {
    let mut server = Server::start();
    let one = Servers::try_from(url(&server)).unwrap();
    assert_eq!(ports(&one).await, [server.port]);
    server.crash();
    let _ = one.primaries(Duration::from_millis(100)).await;

    let cluster = Cluster::start();
    let all = Servers::try_from(format!("redis-cluster://{}", cluster.nodes[1].addr()));
    let mut expected: Vec<_> = cluster.nodes.iter().map(|node| node.port).collect();
    expected.sort_unstable();
    assert_eq!(ports(&all.unwrap()).await, expected);

    let group = Sentinels::start();
    let by_name = format!("redis-sentinel://{}/locks", group.addrs()[2]);
    let by_name = Servers::try_from(by_name).unwrap();
    assert_eq!(ports(&by_name).await, [group.primary.port]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_does_not_decide_is_told_with_what_to_do() {
    let cluster = Cluster::start();
    let replica = primary_and_replica();
    for (server, key, scheme) in [
        (&cluster.nodes[0], key_of(2), "redis-cluster://"),
        (&replica.1, "lock".into(), "redis-sentinel://"),
    ] {
        let told = match LockClient::connect(url(server)).await {
            Ok(client) => soon("an answer", client.lock(key).acquire()).await.err(),
            Err(error) => Some(error),
        };
        let error = told.unwrap();
        assert!(matches!(error, Error::WrongServer { .. }), "{error:?}");
        assert!(error.to_string().contains(scheme), "{error}");
        assert!(!error.is_retryable());
    }
}

/// A primary and its replica.
fn primary_and_replica() -> (Server, Server) {
    let primary = Server::start();
    let replica = primary.replica(true);
    (primary, replica)
}
