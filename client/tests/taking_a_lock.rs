//! Taking, waiting, giving back at one server.

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis_lock_client::{Error, Job, Lock, LockClient, LockGuard, LockInfo, Lost, Session};
use redis_lock_testing::{Int, Server};

use support::{assert_nothing_left, connect, granted, queue, soon, start, take, url, url_as};

const LEASE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_lock_is_taken_excludes_others_and_is_given_back() {
    let (server, client) = start().await;
    // The key may be any bytes.
    for key in [&b"orders:42"[..], b"\x00\xff key \r\n"] {
        let lock = client.lock(key);
        let guard = lock.try_acquire().await.unwrap().unwrap();
        assert!(lock.try_acquire().await.unwrap().is_none());
        assert_eq!(guard.key(), key);
        let mut observer = server.client();
        let held = observer.words(&[b"HGET", key, guard.owner()]);
        assert_eq!(held, redis_lock_testing::text("1"));
        let (first, owner) = (guard.token(), guard.owner().to_vec());
        guard.release().await.unwrap();
        assert_eq!(observer.words(&[b"EXISTS", key]), Int(0));
        // Each acquire has an owner of its own.
        let guard = lock.try_acquire().await.unwrap().unwrap();
        assert!(guard.token() > first && guard.owner() != owner);
        drop(guard);
        assert_nothing_left(&server, &client).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_tasks_hold_it_one_at_a_time() {
    let server = Server::start();
    let clients = [connect(&server).await, connect(&server).await];
    let inside = Arc::new(AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for nth in 0..1000 {
        let (lock, inside) = (clients[nth % 2].lock("lock"), Arc::clone(&inside));
        tasks.spawn(async move {
            let guard = lock.acquire().await.unwrap();
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at a time");
            tokio::task::yield_now().await;
            inside.fetch_sub(1, Ordering::SeqCst);
            let token = guard.token();
            match nth % 3 {
                0 => drop(guard),
                _ => guard.release().await.unwrap(),
            }
            token
        });
    }
    let mut tokens = tasks.join_all().await;
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 1000);
    for client in &clients {
        client.flush().await;
    }
    assert_nothing_left(&server, &clients[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_all_clients_get_it_in_the_order_in_which_they_asked() {
    let server = Server::start();
    let clients = [connect(&server).await, connect(&server).await];
    let session = clients[0].session().await.unwrap();
    let holder = take(&clients[0], "lock").await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for nth in 0..50 {
        let lock = match nth % 4 {
            0 => session.lock("lock"),
            1 => clients[0].lock("lock").lease(LEASE),
            2 => clients[1].job().lock("lock"),
            _ => clients[1].lock("lock"),
        };
        let waiting = queue(&server, &lock, nth).await;
        let order = Arc::clone(&order);
        tasks.push(tokio::spawn(async move {
            let guard = granted(waiting).await;
            order.lock().unwrap().push(nth);
            guard.release().await.unwrap();
        }));
    }
    holder.release().await.unwrap();
    for task in tasks {
        soon("every task's turn", task).await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), (0..50).collect::<Vec<_>>());
    assert_eq!(server.client().int("EXISTS lock"), 0);
}

#[tokio::test]
async fn a_wait_ends_with_none_not_sooner_and_leaves_no_place() {
    let (server, client) = start().await;
    let _guard = take(&client, "lock").await;
    for wait_ms in [0, 1, 10, 100, 300] {
        let begun = Instant::now();
        let wait = Duration::from_millis(wait_ms);
        let taken = client.lock("lock").acquire_within(wait).await.unwrap();
        assert!(taken.is_none() && begun.elapsed() >= wait, "{wait_ms}");
        client.flush().await;
        assert_eq!(server.info("lock_waiters"), 0, "{wait_ms}");
    }
}

#[tokio::test]
async fn a_guard_ends_as_it_is_told_to() {
    let (server, client) = start().await;
    let guard = take(&client, "lock").await;
    let watching = tokio::spawn(guard.lost());
    guard.release().await.unwrap();
    assert_eq!(soon("the end", watching).await.unwrap(), Lost::Released);

    let guard = take(&client, "lock").await;
    let lost = guard.lost();
    drop(guard);
    assert_eq!(soon("the end", lost).await, Lost::Released);
    assert_nothing_left(&server, &client).await;

    let guard = take(&client, "lock").await;
    let (lost, token) = (guard.lost(), guard.token());
    assert_eq!(guard.forget(), token);
    assert_eq!(soon("the end", lost).await, Lost::Released);
    client.flush().await;
    let stored = server.client().bulk("HGET lock @fence");
    assert_eq!(stored, token.to_string());
}

#[tokio::test]
async fn a_release_that_was_dropped_is_carried_out_all_the_same() {
    let (server, client) = start().await;
    for polls in 0..3 {
        let guard = take(&client, "lock").await;
        let mut release = Box::pin(guard.release());
        for _ in 0..polls {
            let _ = support::poll_once(&mut release).await;
        }
        drop(release);
        assert_nothing_left(&server, &client).await;
    }
}

#[tokio::test]
async fn requests_that_can_not_be_are_told_before_they_are_sent() {
    let (server, client) = start().await;
    let lock = || client.lock("lock");
    for bad in [
        lock().lease(Duration::ZERO),
        lock().lease(Duration::from_micros(999)),
        lock().lease(Duration::MAX),
        lock().limit(0),
        lock().limit(1 << 53),
    ] {
        let error = bad.try_acquire().await.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{bad:?}: {error:?}");
        assert!(!error.is_retryable() && error.code() == "INVALID");
    }
    assert_eq!(support::calls(&mut server.client(), "lock.acquire"), 0);
}

#[tokio::test]
async fn each_refusal_is_an_error_of_its_own() {
    let (server, client) = start().await;
    let mut observer = server.client();
    observer.call("SET text x");
    observer.call("HSET hash a b");
    for (key, code) in [("text", "WRONGTYPE"), ("hash", "NOTALOCK")] {
        let error = client.lock(key).acquire().await.unwrap_err();
        assert!(matches!(error, Error::NotALock { .. }), "{error:?}");
        assert!(error.code() == code && !error.is_retryable());
    }
    let url = url_as(&server, "few", "resetkeys ~locks:*");
    let few = LockClient::connect(url).await.unwrap();
    let error = few.lock("others").acquire_within(LEASE).await.unwrap_err();
    assert!(matches!(error, Error::NoPermission { .. }), "{error:?}");
    assert_eq!(error.code(), "NOPERM");
}

#[tokio::test]
async fn a_full_queue_is_waited_for_within_the_wait() {
    let server = Server::start();
    server.client().call("CONFIG SET lock.max-waiters 1");
    let client = connect(&server).await;
    let lock = client.lock("lock");
    let guard = take(&client, "lock").await;
    let queued = queue(&server, &lock, 0).await;
    match lock.acquire_within(Duration::from_millis(100)).await {
        // The wait was over between two tries.
        Ok(None) => {}
        Ok(Some(guard)) => panic!("{guard:?}"),
        Err(error) => {
            assert!(matches!(error, Error::QueueFull { .. }), "{error:?}");
            assert!(error.code() == "QUEUEFULL" && error.is_retryable());
        }
    }
    let late = tokio::spawn(lock.acquire());
    guard.release().await.unwrap();
    drop(granted(queued).await);
    drop(granted(late).await);
    assert_nothing_left(&server, &client).await;
}

#[tokio::test]
async fn who_is_not_there_is_an_error_that_says_so() {
    let mut server = Server::start();
    let client = connect(&server).await;
    server.crash();
    let error = client.lock("lock").try_acquire().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(error.is_retryable() && error.code() == "UNAVAILABLE");
    let wait = Duration::from_millis(200);
    let error = client.lock("lock").acquire_within(wait).await.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    let error = LockClient::connect(url(&server)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
}

#[test]
fn everything_can_be_sent_between_threads_and_shared() {
    fn check<T: Send + Sync + std::fmt::Debug + 'static>() {}
    check::<LockClient>();
    check::<Lock>();
    check::<LockGuard>();
    check::<Job>();
    check::<Session>();
    check::<Error>();
    check::<LockInfo>();
}
