//! `lock.min-replicas`: what the client makes of grants and renewals that no replica
//! has acknowledged.

mod support;

use std::time::{Duration, Instant};

use redis_lock_client::{Error, LockClient, Lost};
use redis_lock_testing::scene::{await_replicas, configure};
use redis_lock_testing::{Client, Server};

use support::{assert_nothing_left, calls, connect, eventually, granted, queue, soon, take};

/// A server, and the replica that has to acknowledge what it tells.
struct Scene {
    server: Server,
    replica: Server,
    observer: Client,
    client: LockClient,
}

impl Scene {
    /// A reply that no replica acknowledges is withheld for so long.
    async fn new(timeout_ms: i64) -> Self {
        let server = Server::start();
        let replica = server.replica(true);
        let mut observer = server.client();
        await_replicas(&mut observer, 1);
        configure(&mut observer, "min-replicas", 1);
        configure(&mut observer, "replicas-timeout", timeout_ms);
        let client = connect(&server).await;
        Self {
            server,
            replica,
            observer,
            client,
        }
    }

    fn asked(&mut self, command: &str) -> u64 {
        calls(&mut self.observer, command)
    }

    /// The command is sent twice more.
    async fn asks_again(&mut self, command: &str) {
        let before = self.asked(command);
        eventually("it is tried again", || self.asked(command) > before + 2).await;
    }
}

#[track_caller]
fn assert_unsafe(error: &Error) {
    assert!(matches!(error, Error::NoReplicas { .. }), "{error:?}");
    assert_eq!(error.code(), "NOREPLICAS");
    let said = error.to_string();
    assert!(said.contains("not known to be safe"), "{said}");
    assert!(error.is_retryable(), "{error:?}");
}

#[tokio::test]
async fn a_grant_that_no_replica_acknowledges_is_told_and_given_back() {
    // The server's own word comes before the client's time-out.
    let scene = Scene::new(1000).await;
    scene.replica.stop().unwrap();
    let (lock, job) = (scene.client.lock("lock"), scene.client.job());
    assert_unsafe(&lock.try_acquire().await.unwrap_err());
    assert_nothing_left(&scene.server, &scene.client).await;
    let wait = Duration::from_millis(1500);
    let taken = soon("an answer", job.lock("lock").acquire_within(wait)).await;
    assert_unsafe(&taken.unwrap_err());
    assert_nothing_left(&scene.server, &scene.client).await;
    scene.replica.go_on().unwrap();
}

#[tokio::test]
async fn who_waits_has_the_lock_once_a_replica_acknowledges() {
    for waits_in_line in [false, true] {
        let mut scene = Scene::new(50).await;
        let session = scene.client.session().await.unwrap();
        let (client, job) = (&scene.client, scene.client.job());
        for lock in [client.lock("lock"), job.lock("lock"), session.lock("lock")] {
            let held = match waits_in_line {
                true => Some(take(&scene.client, "lock").await),
                false => None,
            };
            let waiting = match &held {
                Some(_) => queue(&scene.server, &lock, 0).await,
                None => tokio::spawn(lock.acquire()),
            };
            scene.replica.stop().unwrap();
            drop(held);
            scene.asks_again("lock.acquire").await;
            assert!(!waiting.is_finished());
            scene.replica.go_on().unwrap();
            let guard = granted(waiting).await;
            guard.renew().await.unwrap();
            assert!(guard.valid_for() > Duration::from_secs(20));
            let holds = [b"HGET", &b"lock"[..], guard.owner()];
            let holds = scene.observer.words(&holds);
            assert_eq!(holds, redis_lock_testing::text("1"));
            guard.release().await.unwrap();
            assert_nothing_left(&scene.server, &scene.client).await;
        }
        assert!(session.is_alive());
    }
}

#[tokio::test]
async fn renewals_that_no_replica_acknowledges_prolong_nothing() {
    let mut scene = Scene::new(50).await;
    for acknowledges_again in [true, false] {
        let lease = Duration::from_secs(if acknowledges_again { 6 } else { 2 });
        let lock = scene.client.lock("lock").lease(lease);
        let guard = lock.acquire().await.unwrap();
        scene.replica.stop().unwrap();
        let ends = Instant::now() + guard.valid_for();
        assert_unsafe(&guard.renew().await.unwrap_err());
        assert!(Instant::now() + guard.valid_for() <= ends + Duration::from_millis(1));
        scene.asks_again("lock.renew").await;
        if acknowledges_again {
            scene.replica.go_on().unwrap();
            eventually("it is renewed", || {
                Instant::now() + guard.valid_for() > ends + Duration::from_secs(1)
            })
            .await;
            guard.release().await.unwrap();
        } else {
            assert_eq!(soon("the loss", guard.lost()).await, Lost::Expired);
            scene.replica.go_on().unwrap();
            assert!(guard.release().await.is_err());
        }
        assert_nothing_left(&scene.server, &scene.client).await;
    }
}

#[tokio::test]
async fn a_re_entry_that_no_replica_acknowledges_takes_the_first_hold_from_nobody() {
    let mut scene = Scene::new(50).await;
    let job = scene.client.job();
    let first = job.lock("lock").acquire().await.unwrap();
    scene.replica.stop().unwrap();
    assert_unsafe(&job.lock("lock").try_acquire().await.unwrap_err());
    soon("nothing is left to do", scene.client.flush()).await;
    let holds = scene.observer.words(&[b"HGET", b"lock", job.owner()]);
    assert_eq!(holds, redis_lock_testing::text("1"));
    assert!(first.valid_for() > Duration::ZERO);
    scene.replica.go_on().unwrap();
    let second = soon("the re-entry", job.lock("lock").acquire()).await;
    let second = second.unwrap();
    assert_eq!(second.token(), first.token());
    drop((first, second));
    assert_nothing_left(&scene.server, &scene.client).await;
}
