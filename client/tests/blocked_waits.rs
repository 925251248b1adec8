//! Waits at servers whose module knows no places, or by users who may not subscribe.

mod support;

use std::time::Duration;

use redis_lock_client::LockClient;
use redis_lock_testing::{Client, Fate, Proxy, TestServer};

use support::{calls, connect_blocking, eventually, queue, soon, take};

const LONG: Duration = Duration::from_secs(20);

/// The id of the one connection that is blocked.
fn blocked_client(observer: &mut Client) -> Option<String> {
    let clients = observer.bulk("CLIENT LIST");
    let mut clients = clients.lines();
    let blocked = clients.find(|line| line.contains("flags=b"))?;
    Some(blocked.strip_prefix("id=")?.split(' ').next()?.to_string())
}

/// Waits of all kinds, each of which blocks a connection of its own.
async fn waits_block(server: &TestServer, client: &LockClient) {
    let before = server.info("connected_clients");
    let held = take(client, "lock").await;
    let first = queue(server, &client.lock("lock"), 0).await;
    let second = queue(server, &client.lock("lock").owner("alice"), 1).await;
    let session = client.session().await.unwrap();
    let third = queue(server, &session.lock("lock"), 2).await;
    let doomed = queue(server, &client.lock("lock"), 3).await;
    assert_eq!(server.info("blocked_clients"), 4);
    let short = Duration::from_millis(50);
    let none = client.lock("lock").acquire_within(short).await.unwrap();
    assert!(none.is_none());
    doomed.abort();
    eventually("one waits no more", || server.info("lock_waiters") == 3).await;
    held.release().await.unwrap();
    for waiting in [first, second, third] {
        let guard = soon("its turn", waiting).await.unwrap().unwrap();
        assert!(guard.valid_for() > Duration::from_secs(20));
        guard.release().await.unwrap();
    }
    session.close().await;
    client.flush().await;
    eventually("their connections are closed", || {
        server.info("connected_clients") <= before + server.subscribers()
    })
    .await;
    assert_eq!(server.client().int("DBSIZE"), 0);
}

#[tokio::test]
async fn who_may_not_subscribe_waits_by_connections() {
    let server = TestServer::start();
    let client = connect_blocking(&server, LockClient::builder()).await;
    waits_block(&server, &client).await;
}

#[tokio::test]
async fn a_module_that_knows_no_places_is_waited_at_by_connections() {
    let server = TestServer::start();
    let proxy = Proxy::to(server.addr()).unwrap();
    let client = LockClient::connect(format!("redis://{}", proxy.addr()));
    let client = client.await.unwrap();
    proxy.set(Fate::Refuses("QUEUE", "ERR syntax error"));
    waits_block(&server, &client).await;
    assert_eq!(proxy.refused(), 1, "it was asked once");
    // Another module may be there by now.
    proxy.set(Fate::Passes);
    server.client().call("CLIENT KILL TYPE normal");
    server.client().call("CLIENT KILL TYPE pubsub");
    let held = take(&client, "lock").await;
    let waiting = queue(&server, &client.lock("lock"), 0).await;
    assert_eq!(server.info("blocked_clients"), 0);
    held.release().await.unwrap();
    assert!(soon("its turn", waiting).await.unwrap().is_ok());
}

#[tokio::test]
async fn a_wait_goes_on_when_it_was_unblocked_with_an_error() {
    let server = TestServer::start();
    let client = connect_blocking(&server, LockClient::builder()).await;
    let mut observer = server.client();
    let guard = take(&client, "lock").await;
    let waiting = tokio::spawn(client.lock("lock").acquire_within(LONG));
    eventually("it waits", || observer.info("lock_waiters") == 1).await;
    let first = blocked_client(&mut observer).unwrap();
    let unblock = format!("CLIENT UNBLOCK {first} ERROR");
    assert_eq!(observer.int(&unblock), 1);
    eventually("it waits again", || {
        blocked_client(&mut observer).is_some_and(|waiting| waiting != first)
    })
    .await;
    guard.release().await.unwrap();
    assert!(soon("the grant", waiting).await.unwrap().unwrap().is_some());
}

#[tokio::test]
async fn a_wait_goes_on_when_its_connection_was_killed() {
    let server = TestServer::start();
    let client = connect_blocking(&server, LockClient::builder()).await;
    let mut observer = server.client();
    let guard = take(&client, "lock").await;
    let waiting = tokio::spawn(client.lock("lock").acquire());
    eventually("it waits", || observer.info("lock_waiters") == 1).await;
    let first = blocked_client(&mut observer).unwrap();
    observer.int(&format!("CLIENT KILL ID {first}"));
    eventually("it waits again", || {
        blocked_client(&mut observer).is_some_and(|waiting| waiting != first)
    })
    .await;
    guard.release().await.unwrap();
    assert!(soon("the grant", waiting).await.unwrap().is_ok());
}

#[tokio::test]
async fn waits_beyond_the_limit_of_connections_get_their_turns() {
    let server = TestServer::start();
    let builder = LockClient::builder().max_waiting_connections(2);
    let client = connect_blocking(&server, builder).await;
    let mut guards = Vec::new();
    let mut waiting = Vec::new();
    for n in 0..6 {
        guards.push(take(&client, &format!("lock{n}")).await);
        waiting.push(tokio::spawn(client.lock(format!("lock{n}")).acquire()));
    }
    eventually("two wait", || server.info("lock_waiters") == 2).await;
    assert!(server.info("connected_clients") <= 4 + server.subscribers());
    drop(guards);
    for waiting in waiting {
        drop(soon("its turn", waiting).await.unwrap().unwrap());
    }
}

#[tokio::test]
async fn a_free_lock_is_had_while_all_connections_wait_for_others() {
    let server = TestServer::start();
    let builder = LockClient::builder().max_waiting_connections(1);
    let client = connect_blocking(&server, builder).await;
    let mut holder = server.client();
    holder.int("LOCK.ACQUIRE busy holder LEASE 600000");
    holder.int("LOCK.ACQUIRE soon-free holder LEASE 600000");
    let waiting = queue(&server, &client.lock("busy"), 0).await;
    let asked = calls(&mut holder, "lock.acquire");
    let next = tokio::spawn(client.lock("soon-free").acquire());
    eventually("it has asked", || {
        calls(&mut holder, "lock.acquire") > asked
    })
    .await;
    assert_eq!(holder.int("LOCK.RELEASE soon-free holder"), 1);
    let guard = soon("its turn", next).await.unwrap().unwrap();
    guard.release().await.unwrap();
    assert!(!waiting.is_finished());
    assert_eq!(holder.int("LOCK.RELEASE busy holder"), 1);
    let guard = soon("the other's turn", waiting).await.unwrap();
    assert!(guard.is_ok());
}

/// A client behind a proxy that may only wait on blocked connections, and who holds `lock`.
async fn behind_a_proxy() -> (TestServer, Proxy, LockClient, Client) {
    let server = TestServer::start();
    let proxy = Proxy::to(server.addr()).unwrap();
    let mut holder = server.client();
    holder.call("ACL SETUSER blocking on >secret ~* resetchannels +@all");
    let url = format!("redis://blocking:secret@{}", proxy.addr());
    let client = LockClient::connect(url).await.unwrap();
    holder.int("LOCK.ACQUIRE lock holder LEASE 600000");
    (server, proxy, client, holder)
}

#[tokio::test]
async fn a_wait_gets_in_line_however_long_it_takes_to_open_its_connection() {
    let (server, proxy, client, mut holder) = behind_a_proxy().await;
    proxy.set(Fate::Delayed(Duration::from_millis(300)));
    let waiting = queue(&server, &client.lock("lock"), 0).await;
    assert_eq!(holder.int("LOCK.RELEASE lock holder"), 1);
    assert!(soon("its turn", waiting).await.unwrap().is_ok());
}

#[tokio::test]
async fn a_wait_whose_connection_falls_silent_is_begun_anew() {
    let (server, proxy, client, mut holder) = behind_a_proxy().await;
    let waiting = queue(&server, &client.lock("lock").owner("alice"), 0).await;
    proxy.set(Fate::RepliesSwallowed(100));
    assert_eq!(holder.int("LOCK.RELEASE lock holder"), 1);
    // The reply to this grant never comes.
    eventually("it was granted", || proxy.lost() > 0).await;
    proxy.set(Fate::Passes);
    let guard = redis_lock_testing::SOON * 2;
    let guard = tokio::time::timeout(guard, waiting).await.unwrap();
    guard.unwrap().unwrap().release().await.unwrap();
    assert_eq!(server.client().int("EXISTS lock"), 0);
}
