//! A lock on the majority of five servers, some of which fail.

mod support;

use std::time::{Duration, Instant};

use redis_lock_client::{Error, LockClient, LockGuard, Lost, Redlock};
use redis_lock_testing::{Fate, Proxy, SOON, TestServer};
use tokio::runtime::Handle;
use tokio::time::timeout;

use support::{calls, eventually, soon, url, with_longer_leases};

const LEASE: Duration = Duration::from_secs(60);

const RESPONSE: Duration = Duration::from_secs(2);

fn five() -> Vec<TestServer> {
    (0..5).map(|_| TestServer::start()).collect()
}

async fn redlock(servers: &[TestServer]) -> Redlock {
    LockClient::builder()
        // The machine that tests may be busy with others.
        .response_timeout(RESPONSE)
        .connect_redlock(servers.iter().map(url))
        .await
        .unwrap()
}

/// One that does not wait long for a server: what fails is tried again.
async fn hasty_redlock(servers: &[TestServer]) -> Redlock {
    LockClient::builder()
        .response_timeout(Duration::from_millis(250))
        .connect_redlock(servers.iter().map(url))
        .await
        .unwrap()
}

/// Holds the lock for long, and does not renew it by itself.
async fn held(client: &Redlock) -> LockGuard {
    let lock = client.lock("lock").lease(LEASE).renew(false);
    lock.acquire().await.unwrap()
}

/// How many of these servers have the lock.
fn held_on(servers: &[TestServer]) -> usize {
    let held = servers
        .iter()
        .map(|server| server.client().int("EXISTS lock"));
    usize::try_from(held.sum::<i64>()).unwrap()
}

/// Takes, renews and gives back with this many servers killed.
async fn works_with_killed(killed: usize) {
    let mut servers = five();
    let (one, other) = (redlock(&servers).await, redlock(&servers).await);
    for server in &mut servers[..killed] {
        server.crash();
    }
    let alive = &servers[killed..];
    for _ in 0..3 {
        let guard = held(&one).await;
        assert!(guard.valid_for() > LEASE * 9 / 10);
        eventually("all that live have it", || held_on(alive) == 5 - killed).await;
        assert!(other.lock("lock").try_acquire().await.unwrap().is_none());
        guard.renew().await.unwrap();
        guard.release().await.unwrap();
        eventually("all that live are free", || held_on(alive) == 0).await;
    }
    let guard = one.lock("lock").acquire().await.unwrap();
    let waiting = tokio::spawn(other.lock("lock").acquire());
    drop(guard);
    assert!(soon("the other's turn", waiting).await.unwrap().is_ok());
    eventually("it is given back", || held_on(alive) == 0).await;
}

#[tokio::test]
async fn five_of_five_servers_hold_a_lock() {
    works_with_killed(0).await;
}

#[tokio::test]
async fn one_killed_server_of_five_does_not_matter() {
    works_with_killed(1).await;
}

#[tokio::test]
async fn two_killed_servers_of_five_do_not_matter() {
    works_with_killed(2).await;
}

#[tokio::test]
async fn with_three_killed_servers_of_five_nothing_is_held() {
    let mut servers = five();
    let client = redlock(&servers).await;
    let held = client
        .lock("held")
        .lease(LEASE)
        .renew(false)
        .acquire()
        .await
        .unwrap();
    for server in &mut servers[..3] {
        server.crash();
    }
    for wait in [Duration::ZERO, Duration::from_millis(500)] {
        let lock = client
            .lock("lock")
            .lease(Duration::from_secs(1))
            .renew(false);
        let error = lock.acquire_within(wait).await.unwrap_err();
        assert!(
            matches!(
                error,
                Error::NoMajority {
                    servers: 5,
                    failed: 3..,
                    ..
                }
            ),
            "{error:?}"
        );
        assert!(error.is_retryable());
    }
    client.flush().await;
    assert_eq!(held_on(&servers[3..]), 0);
    // A hold from before can't be renewed, and is told when it ends.
    let error = held.renew().await.unwrap_err();
    assert!(matches!(error, Error::NoMajority { .. }), "{error:?}");
    assert!(held.valid_for() > Duration::ZERO);
    assert!(Redlock::connect(servers.iter().map(url)).await.is_err());
}

#[tokio::test]
async fn a_majority_that_dies_is_told_as_a_loss_in_time() {
    with_longer_leases(async |lease| {
        let mut servers = five();
        let client = LockClient::builder()
            .default_lease(lease)
            .response_timeout(lease / 4)
            .connect_redlock(servers.iter().map(url))
            .await
            .unwrap();
        let guard = client.lock("lock").acquire().await.unwrap();
        tokio::time::sleep(lease * 3 / 2).await;
        if guard.valid_for().is_zero() {
            // It was not renewed.
            return false;
        }
        for server in &mut servers[..3] {
            server.crash();
        }
        let lost = timeout(lease + SOON, guard.lost()).await;
        assert_eq!(lost, Ok(Lost::Expired));
        true
    })
    .await;
}

#[tokio::test]
async fn a_stopped_server_neither_delays_nor_keeps_the_lock() {
    let servers = five();
    let client = redlock(&servers).await;
    servers[0].stop();
    let begun = Instant::now();
    for _ in 0..20 {
        let guard = client.lock("lock").acquire().await.unwrap();
        guard.renew().await.unwrap();
        guard.release().await.unwrap();
    }
    // Each waits for the majority, not for the one that is stopped.
    assert!(begun.elapsed() < 5 * RESPONSE, "{:?}", begun.elapsed());
    servers[0].go_on();
    let held = client.lock("lock").acquire().await.unwrap();
    held.release().await.unwrap();
    eventually("it is free everywhere", || held_on(&servers) == 0).await;
}

#[tokio::test]
async fn a_server_wiped_within_the_lease_does_not_let_another_in() {
    let servers = five();
    let (one, other) = (redlock(&servers).await, redlock(&servers).await);
    let guard = held(&one).await;
    eventually("all have it", || held_on(&servers) == 5).await;
    servers[0].client().call("FLUSHALL");
    servers[1].client().call("FLUSHALL");
    for _ in 0..5 {
        assert!(other.lock("lock").try_acquire().await.unwrap().is_none());
    }
    guard.renew().await.unwrap();
    // A third one would be too many: it is a loss then.
    servers[2].client().call("FLUSHALL");
    let error = guard.renew().await.unwrap_err();
    assert!(matches!(error, Error::Lost(Lost::Refused)), "{error:?}");
    assert!(guard.release().await.is_err());
}

#[tokio::test]
async fn an_acquire_slower_than_its_lease_is_no_hold() {
    let servers = five();
    let client = redlock(&servers).await;
    servers[..3].iter().for_each(TestServer::stop);
    let lock = client
        .lock("lock")
        .lease(Duration::from_millis(50))
        .renew(false);
    // In the end all grant it.
    let (taken, ()) = tokio::join!(lock.try_acquire(), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        servers[..3].iter().for_each(TestServer::go_on);
    });
    assert!(taken.unwrap().is_none());
    soon("it is given back", client.flush()).await;
    eventually("it is free everywhere", || held_on(&servers) == 0).await;
}

#[tokio::test]
async fn what_a_minority_grants_is_no_hold_and_is_given_back() {
    let servers = five();
    let client = hasty_redlock(&servers).await;
    servers[..3].iter().for_each(TestServer::stop);
    let error = client.lock("lock").try_acquire().await.unwrap_err();
    assert!(matches!(error, Error::NoMajority { .. }), "{error:?}");
    servers[..3].iter().for_each(TestServer::go_on);
    soon("it is given back", client.flush()).await;
    eventually("it is free everywhere", || held_on(&servers) == 0).await;
}

#[tokio::test]
async fn many_clients_exclude_each_other() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    let servers = five();
    let inside = Arc::new(AtomicBool::new(false));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let client = hasty_redlock(&servers).await;
        let inside = Arc::clone(&inside);
        tasks.spawn(async move {
            for _ in 0..5 {
                let guard = client.lock("lock").acquire().await.unwrap();
                assert!(!inside.swap(true, Ordering::SeqCst), "two at a time");
                tokio::time::sleep(Duration::from_millis(1)).await;
                inside.store(false, Ordering::SeqCst);
                match guard.release().await {
                    // It goes on in the background.
                    Ok(()) | Err(Error::NoMajority { .. }) => {}
                    Err(error) => panic!("{error:?}"),
                }
            }
            client.flush().await;
        });
    }
    let all = tokio::time::timeout(LEASE, tasks.join_all()).await;
    all.expect("all have their turns");
    assert_eq!(held_on(&servers), 0);
}

#[tokio::test]
async fn a_dropped_acquire_leaves_nothing_on_any_server() {
    let servers = five();
    let client = redlock(&servers).await;
    for micros in (0..4000).step_by(20) {
        let lock = client.lock("lock");
        let patience = Duration::from_micros(micros);
        drop(tokio::time::timeout(patience, lock.acquire()).await);
    }
    client.flush().await;
    assert_eq!(held_on(&servers), 0);
}

#[tokio::test]
async fn an_owner_re_enters_on_a_majority() {
    let servers = five();
    let client = redlock(&servers).await;
    let lock = client.lock("lock").owner("alice");
    let outer = lock.acquire().await.unwrap();
    let inner = lock.acquire().await.unwrap();
    outer.release().await.unwrap();
    assert!(client.lock("lock").try_acquire().await.unwrap().is_none());
    inner.release().await.unwrap();
    assert!(client.lock("lock").acquire().await.is_ok());
}

#[tokio::test]
async fn replicas_are_not_for_independent_servers() {
    let servers = five();
    let client = redlock(&servers).await;
    let lock = client.lock("lock").replicas(1, LEASE);
    assert!(matches!(lock.acquire().await, Err(Error::Invalid(_))));
}

#[tokio::test]
async fn an_old_release_that_comes_late_spares_the_owners_new_hold() {
    let mut servers: Vec<_> = (0..3).map(|_| TestServer::start()).collect();
    let proxy = Proxy::to(servers[2].addr()).unwrap();
    let mut urls: Vec<_> = servers.iter().map(url).collect();
    urls[2] = format!("redis://{}", proxy.addr());
    let response = RESPONSE / 2;
    let client = LockClient::builder()
        .connect_timeout(response)
        .response_timeout(response)
        .connect_redlock(urls)
        .await
        .unwrap();
    let lock = client.lock("lock").owner("alice");
    // Where there is no connection nothing is asked, and nothing is released.
    while calls(&mut servers[2].client(), "lock.acquire") == 0 {
        lock.acquire().await.unwrap().release().await.unwrap();
    }
    // The third server hears nothing of the first hold, and then does not take
    // its release.
    proxy.set(Fate::CommandsSwallowed);
    let first = lock.acquire().await.unwrap();
    eventually("the third does not hear of it", || proxy.swallowed() > 0).await;
    first.release().await.unwrap();
    proxy.set(Fate::Refuses("LOCK.RELEASE", "LOADING for a while"));
    eventually("its release is tried there", || proxy.refused() > 0).await;

    let guard = lock.acquire().await.unwrap();
    eventually("all have the new hold", || held_on(&servers) == 3).await;
    proxy.set(Fate::Passes);
    // Now one server of three fails.
    servers[0].crash_and_restart();
    soon("the release has arrived", client.flush()).await;
    let rival = redlock(&servers).await;
    let both = rival.lock("lock").try_acquire().await.unwrap();
    assert!(
        both.is_none(),
        "a rival has it, and this one for {:?}",
        guard.valid_for()
    );
    guard.renew().await.unwrap();
}

#[tokio::test]
async fn a_task_that_is_not_polled_keeps_nobody_from_its_turn() {
    const LEASE: Duration = Duration::from_secs(1);
    let servers = five();
    let client = redlock(&servers).await;
    let lock = client.lock("lock").lease(LEASE);
    let held = lock.try_acquire().await.unwrap().unwrap();
    let mut asleep = Box::pin(lock.acquire());
    let mut behind = Box::pin(lock.acquire());
    for waiting in [&mut asleep, &mut behind] {
        assert!(futures_util::poll!(waiting).is_pending());
    }
    held.release().await.unwrap();
    for _ in 0..3 {
        // Each of the two misses its turn after two or three seconds, and lets a lease go by.
        let next = timeout(3 * SOON, lock.acquire()).await.unwrap().unwrap();
        next.release().await.unwrap();
    }
    drop((asleep, behind));
    soon("all is given back", client.flush()).await;
    assert_eq!(held_on(&servers), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_pile_nothing_up_while_a_server_is_down() {
    const LOCKS: usize = 100;
    let mut servers: Vec<TestServer> = (0..3).map(|_| TestServer::start()).collect();
    let client = LockClient::builder().connect_redlock(servers.iter().map(url));
    let client = client.await.unwrap();
    servers[2].crash();
    for n in 0..LOCKS {
        let lock = client.lock(n.to_string()).lease(LEASE * 100);
        let guard = lock.acquire().await.unwrap();
        guard.release().await.unwrap();
    }
    eventually("nothing is left to be done", || {
        Handle::current().metrics().num_alive_tasks() < LOCKS / 2
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_pile_nothing_up_while_a_server_is_down() {
    pile_up(|server| server.crash()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_pile_nothing_up_while_a_server_is_silent() {
    pile_up(|server| server.stop()).await;
}

async fn pile_up(fail: impl FnOnce(&mut TestServer)) {
    const WAITS: usize = 50;
    let mut servers: Vec<TestServer> = (0..3).map(|_| TestServer::start()).collect();
    let client = LockClient::builder()
        .response_timeout(Duration::from_millis(200))
        .connect_redlock(servers.iter().map(url))
        .await
        .unwrap();
    fail(&mut servers[2]);
    let keys: Vec<String> = (0..WAITS).map(|n| n.to_string()).collect();
    for server in &servers[..2] {
        let mut rival = server.client();
        for key in &keys {
            rival.int(&format!("LOCK.ACQUIRE {key} rival LEASE 600000"));
        }
    }
    let waits: Vec<_> = keys
        .iter()
        .map(|key| tokio::spawn(client.lock(key.as_str()).lease(LEASE * 100).acquire()))
        .collect();
    let tried = |server: &TestServer| calls(&mut server.client(), "lock.acquire");
    let enough = 40 * WAITS as u64;
    eventually("each has tried often", || tried(&servers[0]) > enough).await;
    let tasks = Handle::current().metrics().num_alive_tasks();
    assert!(tasks < 20 * WAITS, "{tasks} tasks");
    for wait in waits {
        wait.abort();
    }
}
