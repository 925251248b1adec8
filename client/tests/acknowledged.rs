//! `lock.min-replicas`: what the client makes of grants and renewals that no replica
//! has acknowledged.

mod support;

use std::time::{Duration, Instant};

use redis_lock_client::{Error, LockGuard, Lost};
use redis_lock_testing::scene::{await_replicas, configure};
use redis_lock_testing::{Client, TestServer, nil, status, text};

use support::{calls, connect, eventually, soon, take};

/// A server, and the replica that has to acknowledge what it tells.
struct Scene {
    server: TestServer,
    replica: TestServer,
    observer: Client,
}

impl Scene {
    fn new() -> Self {
        let server = TestServer::start();
        let replica = server.replica(true);
        let mut observer = server.client();
        await_replicas(&mut observer, 1);
        configure(&mut observer, "min-replicas", 1);
        Self {
            server,
            replica,
            observer,
        }
    }

    /// A reply that no replica acknowledges is withheld for so long.
    fn with_timeout(ms: i64) -> Self {
        let mut scene = Self::new();
        configure(&mut scene.observer, "replicas-timeout", ms);
        scene
    }

    #[track_caller]
    fn assert_free(&mut self) {
        assert_eq!(self.observer.int("EXISTS lock"), 0);
    }

    fn withheld(&mut self) -> i64 {
        self.observer.info("lock_replies_withheld")
    }

    fn calls(&mut self, command: &str) -> u64 {
        calls(&mut self.observer, command)
    }
}

#[track_caller]
fn assert_unsafe(error: &Error) {
    assert_eq!(error.code(), "NOREPLICAS", "{error:?}");
    assert!(
        error.to_string().contains("not known to be safe"),
        "{error}"
    );
    assert!(error.is_retryable(), "{error:?}");
}

#[tokio::test]
async fn a_wait_is_granted_by_a_valkey_that_calls_itself_redis() {
    let mut scene = Scene::new();
    let set = "CONFIG SET extended-redis-compatibility yes";
    if scene.observer.call(set) != status("OK") {
        println!("skipped: only Valkey calls itself Redis");
        return;
    }
    let client = connect(&scene.server).await;
    let held = take(&client, "lock").await;
    let waiting = tokio::spawn(client.lock("lock").acquire());
    eventually("it waits", || scene.server.info("lock_waiters") == 1).await;
    held.release().await.unwrap();
    let guard = soon("its grant", waiting).await.unwrap().unwrap();
    guard.renew().await.unwrap();
    guard.release().await.unwrap();
    scene.assert_free();
}

/// When a hold is over by its client's own count, or a little later.
fn ends(guard: &LockGuard) -> Instant {
    let left = guard.valid_for();
    Instant::now() + left
}

#[tokio::test]
async fn the_servers_own_word_comes_before_the_time_out() {
    // With the settings of both as they are.
    let mut scene = Scene::new();
    let client = connect(&scene.server).await;
    scene.replica.stop();
    let mut error = Error::Invalid("not asked yet");
    // A machine that stalls may take longer than the client waits.
    for _ in 0..3 {
        error = client.lock("lock").try_acquire().await.unwrap_err();
        if error.code() != "UNAVAILABLE" {
            break;
        }
    }
    assert_unsafe(&error);
    soon("it is given back", client.flush()).await;
    scene.assert_free();
    scene.replica.go_on();
}

#[tokio::test]
async fn a_grant_that_stands_all_the_same_is_given_back() {
    let mut scene = Scene::with_timeout(300);
    let client = connect(&scene.server).await;
    scene.replica.stop();
    let lock = client.lock("lock").owner("alice");
    let taking = tokio::spawn(lock.try_acquire());
    eventually("it is withheld", || scene.withheld() == 1).await;
    // The server takes no hold back that another reply waits to tell of, as a
    // fail-over may not.
    configure(&mut scene.observer, "replicas-timeout", 600_000);
    let mut other = scene.server.client();
    other.send("LOCK.ACQUIRE lock alice LEASE 600000 HOLD 1");
    let error = soon("an answer", taking).await.unwrap().unwrap_err();
    assert_unsafe(&error);
    soon("it is given back", client.flush()).await;
    scene.assert_free();
    scene.replica.go_on();
    assert_eq!(other.reply(), nil());
}

#[tokio::test]
async fn an_acquire_that_waits_asks_again_until_a_replica_acknowledges() {
    for owner in [None, Some("alice")] {
        let mut scene = Scene::with_timeout(50);
        let client = connect(&scene.server).await;
        scene.replica.stop();
        let lock = client.lock("lock");
        let lock = match owner {
            Some(owner) => lock.owner(owner),
            None => lock,
        };
        let waiting = tokio::spawn(lock.acquire());
        eventually("it asks again", || scene.calls("lock.acquire") > 2).await;
        assert!(!waiting.is_finished());
        scene.replica.go_on();
        let guard = soon("the grant", waiting).await.unwrap().unwrap();
        let owner = String::from_utf8(guard.owner().to_vec()).unwrap();
        let holds = scene.observer.call(&format!("HGET lock {owner}"));
        assert_eq!(holds, text("1"));
        guard.release().await.unwrap();
        soon("nothing is left to do", client.flush()).await;
        scene.assert_free();
    }
}

#[tokio::test]
async fn a_wait_ends_with_the_servers_word_and_leaves_nothing() {
    let mut scene = Scene::with_timeout(50);
    let client = connect(&scene.server).await;
    scene.replica.stop();
    let wait = Duration::from_millis(500);
    let taken = soon("an answer", client.lock("lock").acquire_within(wait)).await;
    assert_unsafe(&taken.unwrap_err());
    assert!(scene.calls("lock.acquire") > 1);
    soon("it is given back", client.flush()).await;
    scene.assert_free();
    scene.replica.go_on();
}

#[tokio::test]
async fn who_waits_in_line_has_the_lock_once_a_replica_acknowledges() {
    let mut scene = Scene::with_timeout(50);
    let client = connect(&scene.server).await;
    let held = take(&client, "lock").await;
    let lock = client.lock("lock").owner("alice");
    let waiting = support::queue(&scene.server, &lock, 0).await;
    scene.replica.stop();
    held.release().await.unwrap();
    eventually("it asks again", || scene.calls("lock.acquire") > 4).await;
    assert!(!waiting.is_finished());
    scene.replica.go_on();
    let guard = soon("the grant", waiting).await.unwrap().unwrap();
    assert!(guard.valid_for() > Duration::from_secs(20));
    assert_eq!(scene.observer.call("HGET lock alice"), text("1"));
    guard.release().await.unwrap();
    scene.assert_free();
}

#[tokio::test]
async fn a_renewal_that_no_replica_acknowledges_prolongs_nothing() {
    let scene = Scene::with_timeout(50);
    let client = connect(&scene.server).await;
    let lock = client.lock("lock").lease(Duration::from_secs(600));
    let guard = lock.acquire().await.unwrap();
    scene.replica.stop();
    let ends = ends(&guard);
    assert_unsafe(&guard.renew().await.unwrap_err());
    assert!(Instant::now() + guard.valid_for() <= ends);
    scene.replica.go_on();
    guard.renew().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_hold_whose_renewals_no_replica_acknowledges_is_lost_in_time() {
    let mut scene = Scene::with_timeout(50);
    let client = connect(&scene.server).await;
    let lease = Duration::from_secs(2);
    let lock = client.lock("lock").lease(lease);
    let guard = lock.acquire().await.unwrap();
    scene.replica.stop();
    let before = scene.calls("lock.renew");
    eventually("it is tried again", || {
        scene.calls("lock.renew") > before + 2
    })
    .await;
    assert!(guard.valid_for() < lease * 2 / 3);
    assert_eq!(soon("the loss", guard.lost()).await, Lost::Expired);
    assert_eq!(guard.valid_for(), Duration::ZERO);
    scene.replica.go_on();
    assert!(guard.release().await.is_err());
    scene.assert_free();
}

#[tokio::test]
async fn a_hold_is_kept_where_a_replica_acknowledges_in_time_again() {
    let mut scene = Scene::with_timeout(50);
    let client = connect(&scene.server).await;
    let lock = client.lock("lock").lease(Duration::from_secs(6));
    let guard = lock.acquire().await.unwrap();
    scene.replica.stop();
    let before = scene.calls("lock.renew");
    eventually("it is tried again", || {
        scene.calls("lock.renew") > before + 1
    })
    .await;
    let ends = ends(&guard);
    scene.replica.go_on();
    eventually("it is renewed", || {
        Instant::now() + guard.valid_for() > ends + Duration::from_secs(1)
    })
    .await;
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_second_guard_of_an_owner_takes_the_first_ones_hold_from_nobody() {
    let mut scene = Scene::with_timeout(50);
    let client = connect(&scene.server).await;
    let lock = client.lock("lock").owner("alice");
    let first = lock.acquire().await.unwrap();
    scene.replica.stop();
    assert_unsafe(&lock.try_acquire().await.unwrap_err());
    soon("nothing is left to do", client.flush()).await;
    assert_eq!(scene.observer.call("HGET lock alice"), text("1"));
    assert!(first.valid_for() > Duration::ZERO);
    scene.replica.go_on();
    assert_eq!(lock.acquire().await.unwrap().token(), first.token());
}

#[tokio::test]
async fn a_session_that_the_server_closes_is_lost_at_once() {
    let mut scene = Scene::new();
    let client = connect(&scene.server).await;
    let session = client.session().await.unwrap();
    let lasting = session.lock("lasting").lease(Duration::from_secs(600));
    let lasting = lasting.acquire().await.unwrap();
    let lock = session.lock("lock").lease(Duration::from_secs(4));
    let guard = lock.acquire().await.unwrap();
    scene.replica.stop();
    // What the server does before the lease is over here.
    let why = soon("the loss", lasting.lost()).await;
    assert!(matches!(why, Lost::Disconnected | Lost::Expired), "{why:?}");
    assert_eq!(guard.valid_for(), Duration::ZERO);
    assert_eq!(lasting.valid_for(), Duration::ZERO);
    assert!(!session.is_alive());
    eventually("nothing is left", || {
        scene.server.info("lock_sessions") == 0 && scene.observer.int("EXISTS lock lasting") == 0
    })
    .await;
    scene.replica.go_on();
}

#[tokio::test]
async fn a_grant_that_no_replica_acknowledges_leaves_a_session_as_it_was() {
    let mut scene = Scene::with_timeout(50);
    let client = connect(&scene.server).await;
    let session = client.session().await.unwrap();
    let other = session.lock("other").lease(Duration::from_secs(600));
    let other = other.acquire().await.unwrap();
    scene.replica.stop();
    let lock = session.lock("lock").owner("alice");
    assert_unsafe(&lock.try_acquire().await.unwrap_err());
    soon("it is given back", client.flush()).await;
    scene.assert_free();
    assert!(session.is_alive() && other.valid_for() > Duration::ZERO);
    let waiting = tokio::spawn(lock.acquire());
    eventually("it asks again", || scene.calls("lock.acquire") > 4).await;
    scene.replica.go_on();
    let guard = soon("the grant", waiting).await.unwrap().unwrap();
    assert_eq!(scene.server.info("lock_sessions"), 2);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_server_that_may_not_write_is_waited_for() {
    let mut scene = Scene::new();
    let client = connect(&scene.server).await;
    configure(&mut scene.observer, "min-replicas", 0);
    let demand = "CONFIG SET min-replicas-to-write 2";
    assert_eq!(scene.observer.call(demand), status("OK"));
    let error = client.lock("lock").try_acquire().await.unwrap_err();
    assert_eq!(error.code(), "NOREPLICAS", "{error:?}");
    let waiting = tokio::spawn(client.lock("lock").acquire());
    eventually("it asks again", || {
        let refused = scene.observer.bulk("INFO errorstats");
        let refused = refused.split_once("errorstat_NOREPLICAS:count=").unwrap().1;
        refused
            .trim()
            .split('\r')
            .next()
            .unwrap()
            .parse::<u64>()
            .unwrap()
            > 4
    })
    .await;
    let relent = "CONFIG SET min-replicas-to-write 0";
    assert_eq!(scene.observer.call(relent), status("OK"));
    let guard = soon("the grant", waiting).await.unwrap().unwrap();
    guard.release().await.unwrap();
    soon("nothing is left to do", client.flush()).await;
    scene.assert_free();
}

#[tokio::test]
async fn within_the_grace_period_a_lock_is_busy() {
    let server = TestServer::start_with(&["--lock.grace-period", "600000"]);
    let client = connect(&server).await;
    let lock = client.lock("lock");
    assert!(lock.try_acquire().await.unwrap().is_none());
    let wait = Duration::from_millis(100);
    assert!(lock.acquire_within(wait).await.unwrap().is_none());
    assert!(lock.info().await.unwrap().grace.is_some());
    let waiting = support::queue(&server, &lock, 0).await;
    let end = "CONFIG SET lock.grace-period 0";
    assert_eq!(server.client().call(end), status("OK"));
    let guard = soon("the grant", waiting).await.unwrap().unwrap();
    guard.release().await.unwrap();
}
