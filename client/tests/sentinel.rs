//! A primary that fails, and sentinels that put another in its place.

#[path = "support/alone.rs"]
mod alone;
mod support;

use std::time::Duration;

use redis_lock_client::LockClient;
use redis_lock_testing::scene::configure;
use redis_lock_testing::{Client, Int, Okay, SOON, Sentinels, Server, eventually_within};

use support::{give_back, granted, queue, soon, take_away, within};

/// How long a fail-over may take, the discovery of the death and elections
/// without a winner included.
const FAILOVER: Duration = Duration::from_secs(60);

fn url(addrs: impl IntoIterator<Item = std::net::SocketAddr>) -> String {
    let addrs = addrs.into_iter().map(|addr| addr.to_string());
    let addrs = addrs.collect::<Vec<_>>().join(",");
    format!("redis-sentinel://{addrs}/locks")
}

/// The replica at which somebody waits.
async fn successor(group: &Sentinels) -> &Server {
    // Sentinels close all connections of a server that they reconfigure.
    let waits = |server: &&Server| server.connect().unwrap().info("lock_waiters").ok() == Some(1);
    within(FAILOVER, "somebody waits at a successor", async {
        loop {
            match group.replicas.iter().find(waits) {
                Some(successor) => break successor,
                None => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    })
    .await
}

/// It dies, or hangs while its connections stay open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fail_over_is_waited_out_and_what_replicas_have_is_kept() {
    for hangs in [false, true] {
        // By this thread: with it the servers end.
        let mut group = Sentinels::start();
        let client = LockClient::connect(url(group.addrs())).await.unwrap();
        let safe = client.lock("safe").lease(2 * FAILOVER);
        let safe = safe.acquire().await.unwrap();
        let mut stranger = group.primary.client();
        take_away(&mut stranger, "held");
        assert_eq!(stranger.call("WAIT 2 5000"), Int(2));
        let waiting = queue(&group.primary, &client.lock("held"), 0).await;

        match hangs {
            true => group.primary.stop().unwrap(),
            false => group.primary.crash(),
        }
        // Asked at once, answered when there is a primary again.
        let fresh = client.lock("fresh").acquire_within(FAILOVER).await;
        let fresh = fresh.unwrap().unwrap();
        assert!(fresh.token() > safe.token());
        let primary = successor(&group).await;
        safe.renew().await.unwrap();
        let rival = client.lock("safe").try_acquire().await.unwrap();
        assert!(rival.is_none(), "the lock was forgotten");
        give_back(&mut primary.client(), "held");
        granted(waiting).await.release().await.unwrap();
        safe.release().await.unwrap();
        fresh.release().await.unwrap();
        support::assert_nothing_left(primary, &client).await;
    }
}

/// A primary that its sentinels have replaced, and that does not know: it is cut off from
/// them and from its replicas, and still reached by its clients.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_at_a_primary_that_is_cut_off_waits_at_its_successor() {
    let group = Sentinels::start();
    let waiter = LockClient::connect(url(group.addrs())).await.unwrap();
    let other = LockClient::connect(url(group.addrs())).await.unwrap();
    let mut primary = group.primary.client();
    primary.call("CONFIG SET lock.min-replicas 3");
    let waiting = queue(&group.primary, &waiter.lock("lock"), 0).await;
    let refused = other.lock("other").try_acquire().await.unwrap_err();
    assert_eq!(refused.code(), "NOREPLICAS");

    let successor = Server::start();
    let port = successor.addr().port();
    for addr in group.addrs() {
        let mut sentinel = Client::open(addr).unwrap();
        sentinel.call("SENTINEL REMOVE locks");
        sentinel.call(&format!("SENTINEL MONITOR locks 127.0.0.1 {port} 2"));
    }
    // The client asks its sentinels again after ten seconds.
    let granted = within(3 * SOON, "the grant", waiting).await;
    granted.unwrap().unwrap().release().await.unwrap();
    let taken = async {
        loop {
            if let Ok(Some(taken)) = other.lock("other").try_acquire().await {
                return taken;
            }
        }
    };
    drop(soon("it is not refused any more", taken).await);
}

/// What one process of the fleet does until it is told that it is enough. A server of its
/// own keeps count, and knows whether somebody is inside.
#[tokio::test]
#[ignore = "needs a process of its own"]
async fn one_of_a_fleet() {
    let told = alone::told();
    let [url, count_keeper, name] = told.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{told}");
    };
    let mut count_keeper = Client::open(count_keeper.parse().unwrap()).unwrap();
    let client = LockClient::connect(url).await.unwrap();
    while count_keeper.int("EXISTS enough") == 0 {
        let guard = client.lock("lock").acquire().await.unwrap();
        let alone = count_keeper.call(&format!("SET inside {name} NX"));
        assert_eq!(alone, Okay, "somebody else is inside");
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(!guard.valid_for().is_zero());
        count_keeper.call("DEL inside");
        count_keeper.call(&format!("INCR {name}"));
        // Where it fails it goes on by itself.
        let _ = guard.release().await;
    }
    client.flush().await;
}

#[test]
fn a_fleet_of_processes_goes_on_one_at_a_time_past_the_death_of_a_primary() {
    const FLEET: [&str; 3] = ["a", "b", "c"];
    let (mut group, count_keeper) = (Sentinels::start(), Server::start());
    configure(&mut group.primary.client(), "min-replicas", 2);
    for replica in &group.replicas {
        configure(&mut replica.client(), "min-replicas", 1);
    }
    let mut counts = count_keeper.client();
    let mut all_work = || {
        for name in FLEET {
            let mut sections = || counts.int(&format!("INCRBY {name} 0"));
            let before = sections();
            eventually_within(FAILOVER, name, || sections() > before + 5);
        }
    };
    let sentinels = url(group.addrs());
    std::thread::scope(|scope| {
        for name in FLEET {
            let told = format!("{sentinels} {} {name}", count_keeper.addr());
            scope.spawn(move || alone::run("one_of_a_fleet", &told, &[]));
        }
        all_work();
        group.primary.crash();
        all_work();
        count_keeper.client().call("SET enough 1");
    });
}
