//! Taking, waiting, giving back.

mod support;

use std::time::{Duration, Instant};

use redis_lock_client::{Error, LockClient, Lost};
use redis_lock_testing::{TestServer, int, nil};

use support::{connect, eventually, soon, take, url};

const LEASE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_lock_is_taken_excludes_others_and_is_given_back() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let guard = take(&client, "orders:42").await;
    assert!(
        client
            .lock("orders:42")
            .try_acquire()
            .await
            .unwrap()
            .is_none()
    );
    let first = guard.token();
    assert_eq!(guard.key(), b"orders:42");
    guard.release().await.unwrap();
    let guard = take(&client, "orders:42").await;
    assert!(guard.token() > first);
}

#[tokio::test]
async fn the_lease_is_the_one_asked_for_or_that_of_the_client() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let _given = client
        .lock("given")
        .lease(LEASE)
        .renew(false)
        .try_acquire()
        .await
        .unwrap();
    let _usual = take(&client, "usual").await;
    let mut observer = server.client();
    assert!((55_000..=60_000).contains(&observer.int("PTTL given")));
    assert!((25_000..=30_000).contains(&observer.int("PTTL usual")));
}

#[tokio::test]
async fn who_waits_is_served_when_the_lock_comes_free() {
    let server = TestServer::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    let guard = take(&one, "lock").await;
    let waiting = tokio::spawn(other.lock("lock").lease(LEASE).renew(false).acquire());
    eventually("it waits on the server", || {
        server.info("lock_waiters") == 1
    })
    .await;
    let first = guard.token();
    guard.release().await.unwrap();
    let guard = soon("the grant", waiting).await.unwrap().unwrap();
    assert!(guard.token() > first);
    assert!(guard.valid_for() > Duration::from_secs(55));
}

#[tokio::test]
async fn a_wait_ends_with_none_and_not_sooner() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let _guard = take(&client, "lock").await;
    let begun = Instant::now();
    let wait = Duration::from_millis(300);
    assert!(
        client
            .lock("lock")
            .acquire_within(wait)
            .await
            .unwrap()
            .is_none()
    );
    assert!(begun.elapsed() >= wait);
    assert_eq!(server.info("lock_waiters"), 0);
}

#[tokio::test]
async fn a_wait_of_zero_tries_once() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let lock = client.lock("lock");
    let guard = lock.acquire_within(Duration::ZERO).await.unwrap();
    assert!(guard.is_some());
    let again = lock.acquire_within(Duration::ZERO).await.unwrap();
    assert!(again.is_none());
    drop(guard);
    assert_eq!(server.info("lock_waiters"), 0);
}

#[tokio::test]
async fn a_wait_too_long_for_a_clock_is_without_end() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let guard = take(&client, "lock").await;
    for wait in [Duration::MAX, Duration::from_secs(100 * 365 * 86_400)] {
        let waiting = tokio::spawn(connect(&server).await.lock("lock").acquire_within(wait));
        eventually("it waits on the server", || {
            server.info("lock_waiters") == 1
        })
        .await;
        waiting.abort();
        eventually("it is gone", || server.info("lock_waiters") == 0).await;
    }
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_dropped_guard_gives_the_lock_back_in_the_background() {
    let server = TestServer::start();
    let client = connect(&server).await;
    drop(take(&client, "lock").await);
    client.flush().await;
    assert_eq!(server.client().int("EXISTS lock"), 0);
}

#[tokio::test]
async fn a_forgotten_guard_leaves_the_lock_taken() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let guard = take(&client, "lock").await;
    let lost = guard.lost();
    guard.forget();
    assert_eq!(soon("the end", lost).await, Lost::Released);
    client.flush().await;
    assert_eq!(server.client().int("EXISTS lock"), 1);
}

#[tokio::test]
async fn a_forgotten_hold_stays_whatever_its_other_guards_do() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let lock = client.lock("lock").owner("alice");
    let one = lock.acquire().await.unwrap();
    let other = lock.acquire().await.unwrap();
    one.forget();
    assert!(other.valid_for() > Duration::ZERO);
    other.release().await.unwrap();
    client.flush().await;
    assert_eq!(server.client().int("EXISTS lock"), 1);
    // Its owner can have it again, to release it.
    let again = lock.try_acquire().await.unwrap().unwrap();
    again.release().await.unwrap();
    assert_eq!(server.client().int("EXISTS lock"), 0);
}

#[tokio::test]
async fn keys_and_owners_are_any_bytes() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let key = b"\x00\xff key \r\n";
    let owner = b"\xfe\x00owner";
    let lock = client.lock(key).owner(owner);
    let guard = lock.try_acquire().await.unwrap().unwrap();
    assert_eq!((guard.key(), guard.owner()), (&key[..], &owner[..]));
    let held = server.client().words(&[b"HGET", key, owner]);
    assert_eq!(held, redis_lock_testing::text("1"));
    assert!(client.lock(key).try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    assert_eq!(server.client().words(&[b"EXISTS", key]), int(0));
}

#[tokio::test]
async fn guards_of_one_owner_share_a_hold_that_ends_with_the_last() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let lock = client.lock("lock").owner("alice");
    let outer = lock.acquire().await.unwrap();
    let inner = lock.acquire().await.unwrap();
    let innermost = lock.try_acquire().await.unwrap().unwrap();
    assert_eq!(outer.token(), inner.token());
    drop(innermost);
    outer.release().await.unwrap();
    assert!(
        client
            .lock("lock")
            .owner("bob")
            .try_acquire()
            .await
            .unwrap()
            .is_none()
    );
    let first = inner.token();
    inner.release().await.unwrap();
    let again = lock.try_acquire().await.unwrap().unwrap();
    assert!(again.token() > first);
}

#[tokio::test]
async fn an_owner_re_enters_while_others_wait() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let lock = client.lock("lock").owner("alice");
    let outer = lock.acquire().await.unwrap();
    let rival = tokio::spawn(client.lock("lock").acquire());
    eventually("the rival waits", || server.info("lock_waiters") == 1).await;
    let inner = soon("re-entry", lock.acquire()).await.unwrap();
    drop((outer, inner));
    assert!(soon("the rival's turn", rival).await.unwrap().is_ok());
}

#[tokio::test]
async fn an_owner_that_comes_again_at_once_gets_a_new_hold_each_time() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let lock = client.lock("lock").owner("alice");
    let mut last = 0;
    for _ in 0..200 {
        // The release of the last hold is still under way in the background.
        let guard = lock.try_acquire().await.unwrap().unwrap();
        assert!(guard.token() > last);
        last = guard.token();
    }
    client.flush().await;
    assert_eq!(server.client().int("EXISTS lock"), 0);
}

#[tokio::test]
async fn an_inner_lease_never_cuts_an_outer_one_short() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let lock = client.lock("lock").owner("alice");
    let outer = lock
        .clone()
        .lease(LEASE)
        .renew(false)
        .try_acquire()
        .await
        .unwrap()
        .unwrap();
    let inner = lock
        .lease(LEASE / 60)
        .renew(false)
        .try_acquire()
        .await
        .unwrap()
        .unwrap();
    inner.renew().await.unwrap();
    assert!(outer.valid_for() > LEASE * 9 / 10);
    assert!(server.client().int("PTTL lock") > 50_000);
}

#[tokio::test]
async fn requests_that_can_not_be_are_told_before_they_are_sent() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let lock = client.lock("lock");
    for bad in [
        lock.clone().lease(Duration::ZERO).renew(false),
        lock.clone().lease(Duration::from_micros(999)).renew(false),
        lock.clone().lease(Duration::MAX).renew(false),
        lock.clone().owner(""),
        lock.clone().owner("@fence"),
        lock.clone().owner([b'x'; 1025]),
    ] {
        let error = bad.try_acquire().await.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error:?}");
        assert!(!error.is_retryable());
    }
}

#[tokio::test]
async fn the_servers_refusal_keeps_its_code() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let mut observer = server.client();
    observer.call("SET text x");
    observer.call("HSET hash a b");
    for (key, code) in [("text", "WRONGTYPE"), ("hash", "NOTALOCK")] {
        let error = client.lock(key).acquire().await.unwrap_err();
        assert_eq!(error.code(), code);
        assert!(!error.is_retryable());
    }
}

#[tokio::test]
async fn a_full_queue_is_waited_for_within_the_wait() {
    let server = TestServer::start();
    server.client().call("CONFIG SET lock.max-waiters 1");
    let clients = [
        connect(&server).await,
        connect(&server).await,
        connect(&server).await,
    ];
    let guard = take(&clients[0], "lock").await;
    let queued = tokio::spawn(clients[1].lock("lock").acquire());
    eventually("one waits", || server.info("lock_waiters") == 1).await;
    let lock = clients[2].lock("lock");
    match lock
        .clone()
        .acquire_within(Duration::from_millis(100))
        .await
    {
        // The wait was over between two tries.
        Ok(None) => {}
        Ok(Some(guard)) => panic!("{guard:?}"),
        Err(error) => assert_eq!(error.code(), "QUEUEFULL"),
    }
    let late = tokio::spawn(lock.acquire());
    guard.release().await.unwrap();
    drop(soon("the first", queued).await.unwrap().unwrap());
    assert!(soon("the second", late).await.unwrap().is_ok());
}

#[tokio::test]
async fn a_server_without_the_module_is_told_by_name() {
    let server = TestServer::start_plain(&[]);
    let client = connect(&server).await;
    let error = client.lock("lock").acquire().await.unwrap_err();
    assert!(matches!(error, Error::NoModule), "{error:?}");
}

#[tokio::test]
async fn a_user_who_may_do_nothing_but_lock_can_lock() {
    let server = TestServer::start();
    server
        .client()
        .call("ACL SETUSER worker on >secret ~locks:* +lock.acquire +lock.release +lock.renew");
    let url = format!("redis://worker:secret@{}", server.addr());
    let client = LockClient::connect(url).await.unwrap();
    let guard = take(&client, "locks:1").await;
    let waiting = tokio::spawn(client.lock("locks:1").acquire());
    eventually("it waits", || server.info("lock_waiters") == 1).await;
    guard.release().await.unwrap();
    let guard = soon("the grant", waiting).await.unwrap().unwrap();
    let dropped = tokio::spawn(client.lock("locks:1").acquire());
    eventually("it waits", || server.info("lock_waiters") == 1).await;
    dropped.abort();
    eventually("it is gone", || server.info("lock_waiters") == 0).await;
    guard.release().await.unwrap();
    let error = client.lock("others:1").try_acquire().await.unwrap_err();
    assert_eq!(error.code(), "NOPERM");
}

#[tokio::test]
async fn who_is_not_there_is_an_error_that_says_so() {
    let mut server = TestServer::start();
    let client = connect(&server).await;
    server.crash();
    let error = client.lock("lock").try_acquire().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }) && error.is_retryable());
    let wait = Duration::from_millis(200);
    let error = client.lock("lock").acquire_within(wait).await.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    assert!(LockClient::connect(url(&server)).await.is_err());
    assert!(LockClient::connect("no address").await.is_err());
}

#[tokio::test]
async fn a_lock_of_redisson_is_respected() {
    let server = TestServer::start();
    let mut redisson = server.client();
    redisson.call("HSET lock uuid:1 1");
    redisson.call("PEXPIRE lock 60000");
    let client = connect(&server).await;
    assert!(client.lock("lock").try_acquire().await.unwrap().is_none());
    let waiting = tokio::spawn(client.lock("lock").acquire());
    eventually("it waits", || server.info("lock_waiters") == 1).await;
    redisson.call("DEL lock");
    assert!(soon("the grant", waiting).await.unwrap().is_ok());
    assert_eq!(redisson.call("LOCK.ACQUIRE lock uuid:1"), nil());
}

#[test]
fn everything_can_be_sent_between_threads_and_shared() {
    fn check<T: Send + Sync + std::fmt::Debug + 'static>() {}
    check::<LockClient>();
    check::<redis_lock_client::Redlock>();
    check::<redis_lock_client::Lock>();
    check::<redis_lock_client::LockGuard>();
    check::<Error>();
}
