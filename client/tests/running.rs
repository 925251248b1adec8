//! Work that runs while a lock is held.

mod support;

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use redis_lock_client::{Error, Lost};
use redis_lock_testing::Server;

use support::{assert_nothing_left, connect_with_leases, eventually, soon, start, take};

const LEASE: Duration = Duration::from_secs(2);

#[tokio::test]
async fn the_lock_is_held_while_it_runs_and_free_after() {
    let (server, client) = start().await;
    let session = client.session().await.unwrap();
    let job = client.job();
    for lock in [client.lock("lock"), session.lock("lock"), job.lock("lock")] {
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
        let next = take(&client, "lock").await;
        assert!(next.token() > token);
        next.release().await.unwrap();
    }
}

#[tokio::test]
async fn it_is_stopped_when_the_lock_is_lost() {
    let server = Server::start();
    let client = connect_with_leases(&server, LEASE).await;
    let inside = Arc::new(());
    let work = Arc::clone(&inside);
    let (lock, mut observer) = (client.lock("lock"), server.client());
    let running = lock.run(|_| async move {
        let _inside = work;
        assert_eq!(observer.int("LOCK.BREAK lock"), 1);
        pending::<()>().await;
    });
    let error = soon("its end", running).await.unwrap_err();
    assert!(matches!(error, Error::Lost(Lost::Refused)), "{error:?}");
    assert_eq!(Arc::strong_count(&inside), 1, "it was not dropped");
}

#[tokio::test]
async fn a_loss_that_shows_when_it_has_ended_is_an_error() {
    let (server, client) = start().await;
    let mut observer = server.client();
    let lock = client.lock("lock");
    let ran = lock.run(|_| async move { observer.int("LOCK.BREAK lock") });
    let error = ran.await.unwrap_err();
    assert!(matches!(error, Error::Lost(Lost::Refused)), "{error:?}");
}

#[tokio::test]
async fn when_it_is_dropped_or_panics_the_lock_is_given_back() {
    let (server, client) = start().await;
    for panics in [true, false] {
        let lock = client.lock("lock");
        let running = tokio::spawn(async move {
            lock.run(|_| async move {
                assert!(!panics, "as it is meant to");
                pending::<()>().await;
            })
            .await
        });
        if !panics {
            eventually("it runs", || server.client().int("EXISTS lock") == 1).await;
            running.abort();
        }
        assert!(soon("its end", running).await.is_err());
        assert_nothing_left(&server, &client).await;
    }
}
