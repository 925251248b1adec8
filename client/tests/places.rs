//! Places in the server's queue: messages that are lost, doubled or late, and
//! connections that break.

mod support;

use std::time::{Duration, Instant};

use redis_lock_client::LockClient;
use redis_lock_testing::{Client, Fate, Judge, Proxy, TestServer, status};
use tokio::task::JoinHandle;

use support::{calls, connect, eventually, queue, soon, take, url};

const LEASE: Duration = Duration::from_secs(60);

/// A pause is longer.
const AT_ONCE: Duration = Duration::from_millis(100);

/// How many wait for one lock.
const MANY: usize = 100;

/// A client that asks again soon, and a proxy between it and its server.
async fn connect_through_proxy(server: &TestServer) -> (LockClient, Proxy) {
    let proxy = Proxy::to(server.addr()).unwrap();
    let builder = LockClient::builder().response_timeout(Duration::from_millis(100));
    let client = builder.connect(format!("redis://{}", proxy.addr()));
    (client.await.unwrap(), proxy)
}

/// The channels to which anybody is subscribed.
fn channels(observer: &mut Client) -> Vec<String> {
    redis::from_redis_value(observer.call("PUBSUB CHANNELS")).unwrap()
}

/// A message as the server writes it.
fn message(key: &str, owner: &str, result: u64) -> Vec<u8> {
    let texts = ["0", key, owner, &result.to_string()];
    let texts = texts.map(|text| format!("{}:{text},", text.len()));
    texts.concat().into_bytes()
}

/// Has many owners wait for a lock in this order. Each notes its turn, in which it
/// holds the lock alone.
async fn many_wait(
    server: &TestServer,
    client: &LockClient,
    turns: &tokio::sync::mpsc::UnboundedSender<usize>,
) -> Vec<JoinHandle<()>> {
    let mut tasks = Vec::new();
    for nth in 0..MANY {
        let lock = client.lock("lock").owner(format!("owner{nth}"));
        let turns = turns.clone();
        let waiting = queue(server, &lock, nth as i64).await;
        tasks.push(tokio::spawn(async move {
            let guard = waiting.await.unwrap().unwrap();
            turns.send(nth).unwrap();
            guard.release().await.unwrap();
        }));
    }
    tasks
}

#[tokio::test]
async fn a_grant_that_was_waited_for_has_all_of_its_lease() {
    let server = TestServer::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    for key in ["lock", "k:1,2:x,\r\n{}"] {
        let guard = take(&one, key).await;
        let lock = other.lock(key).lease(LEASE).renew(false);
        let waiting = queue(&server, &lock, 0).await;
        assert_eq!(server.info("blocked_clients"), 0);
        guard.release().await.unwrap();
        let guard = soon("the grant", waiting).await.unwrap().unwrap();
        assert!(guard.valid_for() > LEASE * 9 / 10);
        let left = server.client().words(&[b"PTTL", key.as_bytes()]);
        let left: u128 = redis::from_redis_value(left).unwrap();
        assert!(left > guard.valid_for().as_millis(), "{left} ms");
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_grant_is_heard_in_the_pause_before_it_is_asked_again() {
    let server = TestServer::start();
    let proxy = Proxy::to(server.addr()).unwrap();
    let client = LockClient::connect(format!("redis://{}", proxy.addr()));
    let client = client.await.unwrap();
    let mut holder = server.client();
    let mut judge = Judge::new("from a release to the next holder", AT_ONCE);
    while judge.wants_more() {
        holder.int("LOCK.ACQUIRE lock holder LEASE 600000");
        let waiting = queue(&server, &client.lock("lock"), 0).await;
        let waiting = tokio::spawn(async move { (waiting.await.unwrap(), Instant::now()) });
        let refused = proxy.refused();
        proxy.set(Fate::Refuses("LOCK.ACQUIRE", "NOREPLICAS for now"));
        holder.int("CLIENT KILL TYPE pubsub");
        // Pauses are longest then.
        eventually("it has asked often", || proxy.refused() > refused + 6).await;
        proxy.set(Fate::Passes);
        let begun = Instant::now();
        assert_eq!(holder.int("LOCK.RELEASE lock holder"), 1);
        let (granted, at) = soon("its turn", waiting).await.unwrap();
        judge.judge(begun, at);
        granted.unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn order_is_kept_when_the_connection_that_subscribes_is_killed() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let mut holder = server.client();
    holder.int("LOCK.ACQUIRE lock holder LEASE 600000");
    let (turns, mut order) = tokio::sync::mpsc::unbounded_channel();
    let tasks = many_wait(&server, &client, &turns).await;
    let asked = calls(&mut holder, "lock.acquire");
    assert_eq!(holder.int("CLIENT KILL TYPE pubsub"), 1);
    eventually("all have asked again", || {
        calls(&mut holder, "lock.acquire") == asked + MANY as u64
    })
    .await;
    assert_eq!(server.info("lock_waiters"), MANY as i64);
    assert_eq!(holder.int("LOCK.RELEASE lock holder"), 1);
    for task in tasks {
        soon("its turn", task).await.unwrap();
    }
    for nth in 0..MANY {
        assert_eq!(order.recv().await, Some(nth));
    }
}

#[tokio::test]
async fn a_grant_while_nobody_listens_is_asked_for_again() {
    let server = TestServer::start();
    let (client, proxy) = connect_through_proxy(&server).await;
    let mut holder = server.client();
    for named in [false, true] {
        holder.int("LOCK.ACQUIRE lock holder LEASE 600000");
        let lock = client.lock("lock");
        let lock = match named {
            true => lock.owner("alice"),
            false => lock,
        };
        let waiting = queue(&server, &lock, 0).await;
        proxy.set(Fate::Down);
        holder.call("CLIENT KILL TYPE pubsub");
        assert_eq!(holder.int("LOCK.RELEASE lock holder"), 1);
        eventually("nobody waits", || server.info("lock_waiters") == 0).await;
        proxy.set(Fate::Passes);
        let guard = soon("the grant", waiting).await.unwrap().unwrap();
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_message_that_is_lost_is_made_good() {
    let server = TestServer::start();
    let (client, proxy) = connect_through_proxy(&server).await;
    let guard = take(&client, "lock").await;
    let waiting = queue(&server, &client.lock("lock").lease(LEASE), 0).await;
    proxy.set(Fate::MessagesLost);
    guard.release().await.unwrap();
    eventually("it is lost", || proxy.lost() == 1).await;
    let guard = soon("the grant", waiting).await.unwrap().unwrap();
    assert!(guard.valid_for() > LEASE * 9 / 10);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_message_that_comes_twice_is_one_grant() {
    let server = TestServer::start();
    let (client, proxy) = connect_through_proxy(&server).await;
    proxy.set(Fate::MessagesDoubled);
    let lock = client.lock("lock").owner("alice");
    let mut last = 0;
    for _ in 0..20 {
        let held = take(&client, "lock").await;
        let waiting = queue(&server, &lock, 0).await;
        held.release().await.unwrap();
        let guard = soon("the grant", waiting).await.unwrap().unwrap();
        assert!(guard.token() > last);
        last = guard.token();
        assert_eq!(server.client().bulk("HGET lock alice"), "1");
        guard.release().await.unwrap();
        assert_eq!(server.client().int("EXISTS lock"), 0);
    }
}

#[tokio::test]
async fn a_message_that_is_not_true_gives_nobody_the_lock() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let mut holder = server.client();
    let token = holder.int("LOCK.ACQUIRE lock holder LEASE 600000");
    let lock = client.lock("lock").owner("alice");
    let waiting = queue(&server, &lock, 0).await;
    let channel = channels(&mut holder).pop().unwrap();
    let token = u64::try_from(token).unwrap();
    let results = [token, token + 1, 0];
    for result in results {
        let asked = calls(&mut holder, "lock.acquire");
        let message = message("lock", "alice", result);
        holder.words(&[b"PUBLISH", channel.as_bytes(), &message]);
        eventually("it asks again", || {
            calls(&mut holder, "lock.acquire") > asked
        })
        .await;
    }
    holder.words(&[b"PUBLISH", channel.as_bytes(), b"nonsense"]);
    assert!(!waiting.is_finished());
    assert_eq!(server.info("lock_waiters"), 1);
    assert_eq!(holder.int("LOCK.RELEASE lock holder"), 1);
    let guard = soon("the grant", waiting).await.unwrap().unwrap();
    assert_eq!(holder.bulk("HGET lock alice"), "1");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn what_is_refused_later_is_told() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let _guard = take(&client, "lock").await;
    let waiting = queue(&server, &client.lock("lock"), 0).await;
    server.client().call("SET lock something");
    let error = soon("the error", waiting).await.unwrap().unwrap_err();
    assert_eq!(error.code(), "WRONGTYPE", "{error:?}");
}

#[tokio::test]
async fn a_claim_that_comes_too_late_is_a_wait_that_goes_on() {
    let server = TestServer::start();
    let mut observer = server.client();
    let (client, proxy) = connect_through_proxy(&server).await;
    let held = take(&connect(&server).await, "lock").await;
    let mut waiting = Vec::new();
    for nth in 0..4 {
        waiting.push(queue(&server, &client.lock("lock"), nth).await);
    }
    let turns = waiting.into_iter().map(|waiting| {
        let client = client.clone();
        tokio::spawn(async move {
            let guard = waiting.await.unwrap().unwrap();
            let holders = client.lock("lock").info().await.unwrap().holders;
            assert_eq!(holders.len(), 1);
            assert_eq!(holders[0].token, Some(guard.token()));
            guard.release().await.unwrap();
        })
    });
    let turns: Vec<_> = turns.collect();
    let short = "CONFIG SET lock.claim-timeout 1";
    assert_eq!(observer.call(short), status("OK"));
    proxy.set(Fate::Delayed(Duration::from_millis(20)));
    let claims = calls(&mut observer, "lock.renew");
    held.release().await.unwrap();
    eventually("all claims come too late", || {
        calls(&mut observer, "lock.renew") >= claims + 4
    })
    .await;
    let long = "CONFIG SET lock.claim-timeout 2000";
    assert_eq!(observer.call(long), status("OK"));
    proxy.set(Fate::Passes);
    for turn in turns {
        soon("its turn", turn).await.unwrap();
    }
}

#[tokio::test]
async fn a_wait_that_is_over_leaves_no_place() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let _guard = take(&client, "lock").await;
    for wait_ms in [1, 10, 100] {
        let begun = Instant::now();
        let wait = Duration::from_millis(wait_ms);
        let taken = client.lock("lock").acquire_within(wait).await.unwrap();
        assert!(taken.is_none() && begun.elapsed() >= wait);
        assert_eq!(server.info("lock_waiters"), 0);
    }
}

#[tokio::test]
async fn ten_thousand_ask_again_without_being_in_the_way() {
    let server = TestServer::start();
    let client = LockClient::builder().connect(url(&server)).await.unwrap();
    let mut observer = server.client();
    let mut tasks = tokio::task::JoinSet::new();
    for nth in 0..10_000 {
        observer.int(&format!("LOCK.ACQUIRE lock{nth} holder LEASE 600000"));
        tasks.spawn(client.lock(format!("lock{nth}")).acquire());
    }
    let all_wait = || server.info("lock_waiters") == 10_000;
    eventually("all wait", all_wait).await;
    let asked = calls(&mut observer, "lock.acquire");
    assert_eq!(observer.int("CLIENT KILL TYPE pubsub"), 1);
    let mut answered = 0;
    while calls(&mut observer, "lock.acquire") < asked + 10_000 {
        client.lock("lock1").info().await.unwrap();
        answered += 1;
    }
    assert!(answered > 1, "{answered} others were answered meanwhile");
    assert!(all_wait());
    assert_eq!(observer.int("LOCK.RELEASE lock77 holder"), 1);
    let guard = soon("a turn", tasks.join_next()).await.unwrap();
    assert_eq!(guard.unwrap().unwrap().key(), b"lock77");
}
