//! Work that runs while a lock is held.

mod support;

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use redis_lock_client::{Error, LockClient, Lost};
use redis_lock_testing::TestServer;

use support::{connect, eventually, soon, take, url};

const LEASE: Duration = Duration::from_secs(2);

/// Says when it is dropped.
struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn the_lock_is_held_while_it_runs_and_free_after() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let lock = client.lock("lock");
    let mut observer = server.client();
    let token = lock.run(|hold| async move {
        assert!(hold.valid_for() > Duration::from_secs(20));
        let stored = observer.bulk("HGET lock @fence");
        assert_eq!(stored, hold.token().to_string());
        hold.renew().await.unwrap();
        hold.token()
    });
    let token = token.await.unwrap();
    assert_eq!(server.client().int("EXISTS lock"), 0);
    assert!(take(&client, "lock").await.token() > token);
}

#[tokio::test]
async fn it_is_stopped_when_the_lock_is_lost() {
    let server = TestServer::start();
    let builder = LockClient::builder().default_lease(LEASE);
    let client = builder.connect(url(&server)).await.unwrap();
    let stopped = Arc::new(AtomicBool::new(false));
    let guard = Dropped(Arc::clone(&stopped));
    let (lock, mut observer) = (client.lock("lock"), server.client());
    let running = lock.run(|_| async move {
        let _guard = guard;
        assert_eq!(observer.int("LOCK.BREAK lock"), 1);
        std::future::pending::<()>().await;
    });
    let error = soon("its end", running).await.unwrap_err();
    assert!(matches!(error, Error::Lost(Lost::Refused)), "{error:?}");
    assert!(stopped.load(Ordering::SeqCst));
}

/// Lets `run` look after the lock, and goes on at once: no timer comes between.
async fn go_on() {
    let mut is_first = true;
    poll_fn(|cx| match std::mem::take(&mut is_first) {
        true => {
            cx.waker().wake_by_ref();
            Poll::Pending
        }
        false => Poll::Ready(()),
    })
    .await;
}

#[tokio::test]
async fn it_goes_no_further_after_it_has_stood_still_for_longer_than_the_lease() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let lease = Duration::from_millis(200);
    let steps = Arc::new(AtomicUsize::new(0));
    let (lock, done) = (client.lock("lock").lease(lease), Arc::clone(&steps));
    // A task that runs again before the runtime looks at its timers.
    let running = tokio::spawn(async move {
        lock.run(|_| async move {
            std::thread::sleep(lease * 2);
            for _ in 0..1000 {
                go_on().await;
                done.fetch_add(1, Ordering::SeqCst);
            }
        })
        .await
    });
    let error = soon("its end", running).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Lost(Lost::Expired)), "{error:?}");
    assert_eq!(steps.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_loss_that_shows_when_it_has_ended_is_an_error() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let mut observer = server.client();
    let lock = client.lock("lock");
    let ran = lock.run(|_| async move { observer.int("LOCK.BREAK lock") });
    let error = ran.await.unwrap_err();
    assert!(matches!(error, Error::Lost(Lost::Refused)), "{error:?}");
}

#[tokio::test]
async fn when_it_is_dropped_or_panics_the_lock_is_given_back() {
    let server = TestServer::start();
    let client = connect(&server).await;
    for panics in [true, false] {
        let lock = client.lock("lock");
        let running = tokio::spawn(async move {
            lock.run(|_| async move {
                assert!(!panics, "as it is meant to");
                std::future::pending::<()>().await;
            })
            .await
        });
        if !panics {
            eventually("it runs", || server.client().int("EXISTS lock") == 1).await;
            running.abort();
        }
        assert!(soon("its end", running).await.is_err());
        soon("it is given back", client.flush()).await;
        assert_eq!(server.client().int("EXISTS lock"), 0);
    }
}

#[tokio::test]
async fn a_handle_keeps_nothing_and_hears_of_the_end() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let guard = take(&client, "lock").await;
    let handle = guard.handle();
    assert_eq!(handle.token(), guard.token());
    assert_eq!(handle.key(), guard.key());
    assert_eq!(handle.owner(), guard.owner());
    handle.clone().renew().await.unwrap();
    assert!(handle.valid_for() > Duration::ZERO);
    let lost = tokio::spawn(handle.lost());
    drop(guard);
    assert_eq!(soon("the end", lost).await.unwrap(), Lost::Released);
    assert_eq!(handle.valid_for(), Duration::ZERO);
    assert!(handle.renew().await.is_err());
    client.flush().await;
    assert_eq!(server.client().int("EXISTS lock"), 0);
}
