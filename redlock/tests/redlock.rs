//! A lock on the majority of several servers, some of which fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redis_lock_redlock::redis_lock_client::LockClient;
use redis_lock_redlock::{Error, LockGuard, Lost, Redlock};
use redis_lock_testing::{Fate, Proxy, SOON, Server};
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};

const LEASE: Duration = Duration::from_secs(60);

/// The machine that tests may be busy with others.
const RESPONSE: Duration = Duration::from_secs(2);

fn servers(count: usize) -> Vec<Server> {
    (0..count).map(|_| Server::start()).collect()
}

fn url(server: &Server) -> String {
    format!("redis://{}", server.addr())
}

fn urls(servers: &[Server]) -> Vec<String> {
    servers.iter().map(url).collect()
}

async fn connect(urls: Vec<String>, response: Duration) -> Result<Redlock, Error> {
    Redlock::connect_with(LockClient::builder(), response, urls).await
}

async fn redlock(servers: &[Server]) -> Redlock {
    connect(urls(servers), RESPONSE).await.unwrap()
}

/// One that does not wait long for a server: what fails is tried again.
async fn hasty_redlock(servers: &[Server]) -> Redlock {
    let response = Duration::from_millis(250);
    connect(urls(servers), response).await.unwrap()
}

/// Holds the lock for long, and does not renew it by itself.
async fn held(redlock: &Redlock) -> LockGuard {
    let lock = redlock.lock("lock").lease(LEASE).renew(false);
    lock.acquire().await.unwrap()
}

async fn is_free(redlock: &Redlock) -> bool {
    redlock.lock("lock").try_acquire().await.unwrap().is_some()
}

/// How many of these servers have the lock.
fn held_on(servers: &[Server]) -> usize {
    let held = servers
        .iter()
        .map(|server| server.client().int("EXISTS lock"));
    usize::try_from(held.sum::<i64>()).unwrap()
}

/// Waits for something that should happen soon.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let done = timeout(SOON, future).await;
    done.unwrap_or_else(|_| panic!("still not so: {what}"))
}

async fn eventually(what: &str, mut ready: impl FnMut() -> bool) {
    let come_true = async {
        while !ready() {
            sleep(Duration::from_millis(2)).await;
        }
    };
    soon(what, come_true).await;
}

fn is_no_majority(error: &Error, of: usize, least: usize) -> bool {
    matches!(error, Error::NoMajority { servers, failed, .. } if *servers == of && *failed >= least)
}

/// Takes, renews and gives back with this many servers killed.
async fn works_with_killed(killed: usize) {
    let mut servers = servers(5);
    let (one, other) = (redlock(&servers).await, redlock(&servers).await);
    for server in &mut servers[..killed] {
        server.crash();
    }
    let alive = &servers[killed..];
    for _ in 0..3 {
        let guard = held(&one).await;
        assert!(guard.valid_for() > LEASE * 9 / 10);
        eventually("all that live have it", || held_on(alive) == 5 - killed).await;
        assert!(!is_free(&other).await);
        guard.renew().await.unwrap();
        guard.release().await.unwrap();
        eventually("all that live are free", || held_on(alive) == 0).await;
    }
    let guard = one.lock("lock").acquire().await.unwrap();
    let lock = other.lock("lock");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    drop(guard);
    let next = soon("the other's turn", waiting).await.unwrap().unwrap();
    drop(next);
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
    let mut servers = servers(5);
    // A client of its own: what a crashed server has not answered is given back for a lease.
    let holder = redlock(&servers).await;
    let lock = holder.lock("held").lease(LEASE * 100).renew(false);
    let held = lock.acquire().await.unwrap();
    let client = redlock(&servers).await;
    for server in &mut servers[..3] {
        server.crash();
    }
    for wait in [Duration::ZERO, Duration::from_millis(500)] {
        let lock = client.lock("lock").lease(Duration::from_secs(5));
        let error = lock.acquire_within(wait).await.unwrap_err();
        assert!(is_no_majority(&error, 5, 3), "{error:?}");
        assert!(error.is_retryable());
    }
    client.flush().await;
    assert_eq!(held_on(&servers[3..]), 0);
    // A hold from before can't be renewed, and is told when it ends.
    let error = held.renew().await.unwrap_err();
    assert!(is_no_majority(&error, 5, 3), "{error:?}");
    assert!(held.valid_for() > Duration::ZERO);
    let error = connect(urls(&servers), RESPONSE).await.unwrap_err();
    assert!(is_no_majority(&error, 5, 3), "{error:?}");
}

#[tokio::test]
async fn a_majority_that_dies_is_told_as_a_loss_in_time() {
    let lease = Duration::from_secs(3);
    let mut servers = servers(5);
    let rival = redlock(&servers).await;
    let builder = LockClient::builder().default_lease(lease);
    let client = Redlock::connect_with(builder, lease / 4, urls(&servers))
        .await
        .unwrap();
    let guard = client.lock("lock").acquire().await.unwrap();
    sleep(lease * 3 / 2).await;
    assert!(!guard.valid_for().is_zero(), "it was not renewed");
    let lost = guard.lost();
    for server in &mut servers[..3] {
        server.crash();
    }
    let crashed = Instant::now();
    assert_eq!(timeout(lease, lost).await, Ok(Lost::Expired));
    // It was told no later than the last renewal's lease ends at a server, and what is left
    // was given back.
    assert!(crashed.elapsed() < lease);
    assert!(guard.valid_for().is_zero());
    eventually("the others are free", || held_on(&servers[3..]) == 0).await;
    assert!(matches!(guard.renew().await, Err(Error::Lost(_))));
    assert!(matches!(
        guard.release().await,
        Err(Error::Lost(Lost::Expired))
    ));
    drop(rival);
}

#[tokio::test]
async fn a_stopped_server_neither_delays_nor_keeps_the_lock() {
    let servers = servers(5);
    let client = redlock(&servers).await;
    servers[0].stop().unwrap();
    let begun = Instant::now();
    for _ in 0..20 {
        let guard = client.lock("lock").acquire().await.unwrap();
        guard.renew().await.unwrap();
        guard.release().await.unwrap();
    }
    // Each waits for the majority, not for the one that is stopped.
    assert!(begun.elapsed() < 5 * RESPONSE, "{:?}", begun.elapsed());
    let begun = Instant::now();
    connect(urls(&servers), RESPONSE).await.unwrap();
    assert!(begun.elapsed() < 2 * RESPONSE, "{:?}", begun.elapsed());
    servers[0].go_on().unwrap();
    let held = client.lock("lock").acquire().await.unwrap();
    held.release().await.unwrap();
    eventually("it is free everywhere", || held_on(&servers) == 0).await;
}

#[tokio::test]
async fn a_grant_that_comes_late_joins_the_hold() {
    let mut servers = servers(3);
    let slow = Proxy::to(servers[2].addr()).unwrap();
    let mut urls = urls(&servers);
    urls[2] = format!("redis://{}", slow.addr());
    let client = connect(urls, RESPONSE).await.unwrap();
    slow.set(Fate::Delayed(Duration::from_millis(100)));
    let guard = held(&client).await;
    eventually("all have it", || held_on(&servers) == 3).await;
    servers[0].crash();
    // The late one counts as soon as its answer is here.
    let renewed = async {
        while guard.renew().await.is_err() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    soon("both renew it", renewed).await;
    assert!(guard.valid_for() > LEASE * 9 / 10);
    guard.release().await.unwrap();
    eventually("it is free", || held_on(&servers[1..]) == 0).await;
}

#[tokio::test]
async fn a_server_wiped_within_the_lease_does_not_let_another_in() {
    let servers = servers(5);
    let (one, other) = (redlock(&servers).await, redlock(&servers).await);
    let guard = held(&one).await;
    eventually("all have it", || held_on(&servers) == 5).await;
    servers[0].client().call("FLUSHALL");
    servers[1].client().call("FLUSHALL");
    for _ in 0..5 {
        assert!(!is_free(&other).await);
    }
    guard.renew().await.unwrap();
    // A third one would be too many: it is a loss then.
    servers[2].client().call("FLUSHALL");
    let error = guard.renew().await.unwrap_err();
    assert!(matches!(error, Error::Lost(Lost::Refused)), "{error:?}");
    assert!(guard.release().await.is_err());
    other
        .lock("lock")
        .acquire_within(SOON)
        .await
        .unwrap()
        .unwrap();
}

/// A holder's server is killed and started again within the lease.
async fn restarted(forgets: bool) {
    let options = ["--appendonly", "yes", "--appendfsync", "always"];
    let start = |_| Server::start_with(&options);
    let mut servers: Vec<_> = (0..3).map(start).collect();
    let (one, other) = (redlock(&servers).await, redlock(&servers).await);
    let guard = held(&one).await;
    eventually("all have it", || held_on(&servers) == 3).await;
    servers[0].crash();
    if forgets {
        std::fs::remove_dir_all(servers[0].dir.join("appendonlydir")).unwrap();
    }
    servers[0].restart().unwrap();
    assert_eq!(held_on(&servers[..1]), usize::from(!forgets));
    for _ in 0..5 {
        assert!(!is_free(&other).await);
    }
    guard.renew().await.unwrap();
    guard.release().await.unwrap();
    eventually("it is free everywhere", || held_on(&servers) == 0).await;
    let taken = other.lock("lock").acquire_within(SOON).await.unwrap();
    taken.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_server_killed_and_started_with_its_data_keeps_its_part() {
    restarted(false).await;
}

#[tokio::test]
async fn a_server_killed_and_started_without_its_data_is_one_of_a_minority() {
    restarted(true).await;
}

#[tokio::test]
async fn an_acquire_slower_than_its_lease_is_no_hold() {
    let servers = servers(5);
    let client = redlock(&servers).await;
    servers[..3].iter().try_for_each(Server::stop).unwrap();
    let lock = client.lock("lock").lease(Duration::from_millis(50));
    // In the end all grant it.
    let lock = lock.renew(false);
    let (taken, ()) = tokio::join!(lock.try_acquire(), async {
        sleep(Duration::from_millis(100)).await;
        servers[..3].iter().try_for_each(Server::go_on).unwrap();
    });
    assert!(!matches!(taken, Ok(Some(_))), "{taken:?}");
    soon("it is given back", client.flush()).await;
    eventually("it is free everywhere", || held_on(&servers) == 0).await;
}

#[tokio::test]
async fn what_a_minority_grants_is_no_hold_and_is_given_back() {
    let servers = servers(5);
    let client = hasty_redlock(&servers).await;
    servers[..3].iter().try_for_each(Server::stop).unwrap();
    let lock = client.lock("lock").lease(LEASE);
    let error = lock.try_acquire().await.unwrap_err();
    assert!(is_no_majority(&error, 5, 3), "{error:?}");
    servers[..3].iter().try_for_each(Server::go_on).unwrap();
    soon("it is given back", client.flush()).await;
    eventually("it is free everywhere", || held_on(&servers) == 0).await;
}

#[tokio::test]
async fn many_clients_exclude_each_other() {
    let servers = servers(5);
    let inside = Arc::new(AtomicBool::new(false));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let client = hasty_redlock(&servers).await;
        for _ in 0..2 {
            let (client, inside) = (client.clone(), Arc::clone(&inside));
            tasks.spawn(async move {
                for _ in 0..3 {
                    let guard = client.lock("lock").acquire().await.unwrap();
                    assert!(!inside.swap(true, Ordering::SeqCst), "two at a time");
                    sleep(Duration::from_millis(1)).await;
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
    }
    let all = timeout(LEASE, tasks.join_all()).await;
    all.expect("all have their turns");
    assert_eq!(held_on(&servers), 0);
}

#[tokio::test]
async fn a_dropped_acquire_leaves_nothing_on_any_server() {
    let servers = servers(5);
    let client = redlock(&servers).await;
    for micros in (0..4000).step_by(20) {
        let lock = client.lock("lock");
        let patience = Duration::from_micros(micros);
        drop(timeout(patience, lock.acquire()).await);
    }
    soon("all is given back", client.flush()).await;
    assert_eq!(held_on(&servers), 0);
}

#[tokio::test]
async fn an_old_release_that_comes_late_spares_the_next_hold() {
    let mut servers = servers(3);
    let proxy = Proxy::to(servers[2].addr()).unwrap();
    let mut ways = urls(&servers);
    ways[2] = format!("redis://{}", proxy.addr());
    let client = connect(ways, RESPONSE / 2).await.unwrap();
    let lock = client.lock("lock").lease(LEASE);
    // The third server hears nothing of the first hold, and then does not take its release.
    proxy.set(Fate::CommandsSwallowed);
    let first = lock.acquire().await.unwrap();
    eventually("the third does not hear of it", || proxy.affected() > 0).await;
    first.release().await.unwrap();
    proxy.set(Fate::Refuses("LOCK.RELEASE", "LOADING for a while"));
    let before = proxy.affected();
    eventually("its release is tried there", || proxy.affected() > before).await;

    let guard = lock.acquire().await.unwrap();
    eventually("all have the new hold", || held_on(&servers) == 3).await;
    proxy.set(Fate::Passes);
    // Now one server of three fails.
    servers[0].restart().unwrap();
    soon("the release has arrived", client.flush()).await;
    let rival = redlock(&servers).await;
    assert!(!is_free(&rival).await, "{:?}", guard.valid_for());
    guard.renew().await.unwrap();
}

#[tokio::test]
async fn a_release_waits_for_a_majority_though_a_server_has_not_answered_a_renewal() {
    let servers = servers(3);
    let guard = held(&redlock(&servers).await).await;
    // The third grant may come late.
    let mut third = servers[2].client();
    while !third.bulk("INFO commandstats").contains("lock.renew") {
        guard.renew().await.unwrap();
    }
    servers[2].stop().unwrap();
    guard.renew().await.unwrap();
    servers[1].stop().unwrap();
    let released = guard.release().await;
    assert!(released.is_err_and(|error| is_no_majority(&error, 3, 2)));
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_pile_nothing_up_while_a_server_is_down() {
    pile_up(|server| server.crash(), |_| ()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_pile_nothing_up_while_a_server_is_silent() {
    // What it has not answered before it may still grant.
    pile_up(
        |server| server.stop().unwrap(),
        |server| server.go_on().unwrap(),
    )
    .await;
}

async fn pile_up(fail: impl FnOnce(&mut Server), heal: impl FnOnce(&Server)) {
    const WAITS: usize = 50;
    let mut servers = servers(3);
    let response = Duration::from_millis(200);
    let client = connect(urls(&servers), response).await.unwrap();
    fail(&mut servers[2]);
    let keys: Vec<String> = (0..WAITS).map(|n| n.to_string()).collect();
    for server in &servers[..2] {
        let mut rival = server.client();
        for key in &keys {
            rival.int(&format!("LOCK.ACQUIRE {key} rival LEASE 600000"));
        }
    }
    let lock = |key: &String| client.lock(key).lease(LEASE * 100);
    let waits: Vec<_> = keys
        .iter()
        .map(|key| {
            let lock = lock(key);
            tokio::spawn(async move { lock.acquire().await })
        })
        .collect();
    sleep(20 * response).await;
    let tasks = Handle::current().metrics().num_alive_tasks();
    assert!(tasks < 20 * WAITS, "{tasks} tasks");
    for wait in &waits {
        wait.abort();
    }
    // Nor do holds that come and go.
    for n in 0..WAITS {
        let guard = client.lock(format!("own-{n}")).lease(LEASE * 100);
        guard.acquire().await.unwrap().release().await.unwrap();
    }
    heal(&servers[2]);
    eventually("nothing is left to be done", || {
        Handle::current().metrics().num_alive_tasks() < WAITS / 2
    })
    .await;
}

#[tokio::test]
async fn a_server_that_was_down_at_the_start_joins_later() {
    let mut servers = servers(5);
    servers[0].crash();
    servers[1].crash();
    let client = redlock(&servers).await;
    for server in &mut servers[..2] {
        server.restart().unwrap();
    }
    let guards = async {
        loop {
            let guard = held(&client).await;
            sleep(Duration::from_millis(50)).await;
            if held_on(&servers) == 5 {
                break drop(guard);
            }
        }
    };
    soon("all grant it", guards).await;
}
