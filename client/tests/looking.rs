//! Who has a lock, who waits for it, and taking it away.

mod support;

use std::time::Duration;

use redis_lock_client::{Heard, LockClient, LockEvent, Lost, Mode};
use redis_lock_testing::TestServer;

use support::{connect, queue, soon, take};

#[tokio::test]
async fn what_happens_to_locks_is_heard_once_servers_post_it() {
    let server = TestServer::start();
    let client = LockClient::builder().key_prefix("mine:");
    let url = format!("redis://{}", server.addr());
    let client = client.connect(url).await.unwrap();
    let refused = client.events().await.unwrap_err();
    assert_eq!(refused.code(), "NOEVENTS");
    client.post_events().await.unwrap();
    let mut events = client.events().await.unwrap();
    server.client().int("LOCK.ACQUIRE yours a");
    let guard = client.lock("lock").acquire().await.unwrap();
    guard.release().await.unwrap();
    for expected in [LockEvent::Acquired, LockEvent::Released] {
        let heard = soon("an event", events.next()).await.unwrap();
        let Heard::Event { event, key, .. } = heard else {
            panic!("{heard:?}");
        };
        assert_eq!((event, key), (expected, b"mine:lock".to_vec()));
    }
}

#[tokio::test]
async fn a_free_lock_is_shown_as_free() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let info = client.lock("lock").info().await.unwrap();
    assert_eq!(info.key, b"lock");
    assert!(!info.is_held());
    assert_eq!((info.mode, info.token, info.ttl), (None, None, None));
    assert!(info.holders.is_empty() && info.waiters.is_empty());
    assert_eq!(info.waiting, 0);
}

#[tokio::test]
async fn holders_and_those_who_wait_are_shown() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let permits = client.lock("lock").limit(2);
    let one = permits.clone().owner("one").acquire().await.unwrap();
    let session = client.session().await.unwrap();
    let two = session.lock("lock").limit(2).owner("two");
    let two = two.acquire().await.unwrap();
    let third = queue(&server, &permits.owner("three"), 0).await;

    let info = client.lock("lock").info().await.unwrap();
    assert!(info.is_held());
    assert_eq!(info.mode, Some(Mode::Limited(2)));
    assert_eq!(info.token, Some(two.token()));
    assert!(info.ttl.unwrap() > Duration::from_secs(20));
    let mut holders = info.holders;
    holders.sort_by_key(|holder| holder.owner.clone());
    let [first, second] = &holders[..] else {
        panic!("{holders:?}");
    };
    assert_eq!((first.owner.as_slice(), first.holds), (&b"one"[..], 1));
    assert_eq!((first.token, first.client), (Some(one.token()), None));
    assert!(first.ttl.unwrap() > Duration::from_secs(20));
    assert_eq!(second.token, Some(two.token()));
    assert!(second.client.is_some());
    assert_eq!(info.waiting, 1);
    let [waiter] = &info.waiters[..] else {
        panic!("{:?}", info.waiters);
    };
    assert_eq!(waiter.owner, b"three");
    assert_eq!(waiter.mode, Mode::Limited(2));
    assert!(waiter.client.is_none() && waiter.addr.is_none());
    assert!(waiter.channel.as_ref().unwrap().starts_with(b"redislock:"));
    assert!(waiter.timeout.unwrap() > Duration::from_secs(80_000));
    assert!(waiter.waited < Duration::from_secs(10));

    let contended = client.list(10).await.unwrap();
    let [shown] = &contended[..] else {
        panic!("{contended:?}");
    };
    assert_eq!((shown.key.as_slice(), shown.waiting), (&b"lock"[..], 1));
    assert_eq!(shown.holders.len(), 2);
    assert!(client.list(0).await.unwrap().is_empty());
    drop(one);
    assert!(soon("its turn", third).await.unwrap().is_ok());
}

#[tokio::test]
async fn a_lock_is_broken_only_where_the_token_is_still_the_newest() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let lock = client.lock("lock");
    assert!(!lock.break_any().await.unwrap());
    let guard = take(&client, "lock").await;
    assert!(!lock.break_lock(guard.token() - 1).await.unwrap());
    guard.renew().await.unwrap();
    assert!(lock.break_lock(guard.token()).await.unwrap());
    assert!(guard.renew().await.is_err());
    assert_eq!(soon("the loss", guard.lost()).await, Lost::Refused);
    let guard = take(&client, "lock").await;
    assert!(lock.break_any().await.unwrap());
    assert!(guard.release().await.is_err());
    assert_eq!(server.client().int("EXISTS lock"), 0);
}

#[tokio::test]
async fn the_servers_counters_are_read() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let granted = async || {
        let counters = client.counters().await.unwrap();
        assert_eq!(counters.get("no_such_counter"), None);
        counters.get("lock_grants_immediate").unwrap()
    };
    let before = granted().await;
    drop(take(&client, "one").await);
    drop(take(&client, "other").await);
    assert_eq!(granted().await, before + 2);
}
