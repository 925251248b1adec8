//! Jobs: one owner for several locks, and for one lock several times.

mod support;

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis_lock_client::{Error, Job, LockClient, LockGuard, Lost};
use redis_lock_testing::{Client, Fate, Proxy, Server};

use support::{
    IMPATIENT, SEEDS, Waiting, assert_nothing_left, behind_a_proxy, calls, connect_through,
    eventually, give_back, granted, queue, soon, start, take, take_away, waiters,
};

/// How often a job holds a lock, as the server counts it.
fn holds(observer: &mut Client, key: &str, job: &Job) -> Option<String> {
    let count = observer.words(&[b"HGET", key.as_bytes(), job.owner()]);
    redis::from_redis_value(count).unwrap()
}

#[tokio::test]
async fn the_server_counts_how_often_a_job_holds_a_lock() {
    let (server, client) = start().await;
    let (job, mut observer) = (client.job(), server.client());
    let lock = job.lock("lock");
    let mut guards: Vec<LockGuard> = Vec::new();
    for count in 1..=5 {
        guards.push(lock.acquire().await.unwrap());
        let counted = holds(&mut observer, "lock", &job);
        assert_eq!(counted, Some(count.to_string()));
    }
    assert!(guards.iter().all(|it| it.token() == guards[0].token()));
    assert!(guards.iter().all(|it| it.owner() == job.owner()));
    // In no order in particular, given back or dropped.
    for (count, nth) in [(4, 1), (3, 3), (2, 0), (1, 1)] {
        let guard = guards.remove(nth);
        match count % 2 {
            0 => guard.release().await.unwrap(),
            _ => drop(guard),
        }
        soon("it is given back", client.flush()).await;
        let counted = holds(&mut observer, "lock", &job);
        assert_eq!(counted, Some(count.to_string()));
        assert!(client.lock("lock").try_acquire().await.unwrap().is_none());
    }
    guards.remove(0).release().await.unwrap();
    assert_nothing_left(&server, &client).await;
}

#[tokio::test]
async fn a_name_is_seen_by_operators_and_has_a_unique_part() {
    let (_server, client) = start().await;
    let jobs = [(); 2].map(|()| client.job().named("nightly\x00\u{e9}").unwrap());
    assert_ne!(jobs[0].owner(), jobs[1].owner());
    let guard = jobs[0].lock("lock").acquire().await.unwrap();
    assert!(guard.owner().starts_with("nightly\x00\u{e9}".as_bytes()));
    assert!(jobs[1].lock("lock").try_acquire().await.unwrap().is_none());
    let info = client.lock("lock").info().await.unwrap();
    assert_eq!(info.holders[0].owner, jobs[0].owner());
    for bad in [&b""[..], b"@fence", &[b'x'; 961]] {
        let error = client.job().named(bad).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error:?}");
    }
    let longest = client.job().named([b'x'; 960]).unwrap();
    drop(longest.lock("longest").acquire().await.unwrap());
}

#[tokio::test]
async fn a_job_sends_one_request_at_a_time() {
    let (server, client) = start().await;
    let mut stranger = server.client();
    for key in ["one", "two"] {
        take_away(&mut stranger, key);
    }
    let job = client.job();
    let held = job.lock("held").acquire().await.unwrap();
    let first = queue(&server, &job.lock("one"), 0).await;
    let asked = calls(&mut stranger, "lock.acquire");
    let second: Waiting = tokio::spawn(job.lock("two").acquire());
    // What it holds it can renew and give back meanwhile.
    held.renew().await.unwrap();
    soon("a release", held.release()).await.unwrap();
    take(&client, "other").await.release().await.unwrap();
    assert_eq!(calls(&mut stranger, "lock.acquire"), asked + 1);
    assert_eq!(server.info("lock_waiters"), 1);
    give_back(&mut stranger, "one");
    let first = granted(first).await;
    waiters(&server, 1).await;
    give_back(&mut stranger, "two");
    drop((first, granted(second).await));
    assert_nothing_left(&server, &client).await;
}

#[tokio::test]
async fn a_hold_that_is_lost_is_followed_by_a_new_one() {
    let (server, client) = start().await;
    let lock = client.job().lock("lock");
    let [old, inner] = [lock.acquire().await.unwrap(), lock.acquire().await.unwrap()];
    server.client().call("DEL lock");
    let error = old.renew().await.unwrap_err();
    assert!(matches!(error, Error::Lost(Lost::Refused)), "{error:?}");
    assert_eq!(soon("the loss", inner.lost()).await, Lost::Refused);
    let new = soon("a new hold", lock.acquire()).await.unwrap();
    assert!(new.token() > old.token());
    assert!(old.release().await.is_err() && inner.release().await.is_err());
    client.flush().await;
    new.renew().await.unwrap();
    new.release().await.unwrap();
    assert_nothing_left(&server, &client).await;
}

#[tokio::test]
async fn what_a_lost_hold_leaves_is_given_back_before_the_next_one() {
    let (server, client) = start().await;
    for nth in 0..15 {
        let lock = client.job().lock(format!("lock {nth}"));
        let lock = lock.lease(Duration::from_millis(150)).renew(false);
        let guards = [lock.acquire().await.unwrap(), lock.acquire().await.unwrap()];
        assert_eq!(guards[0].lost().await, Lost::Expired);
        let next = soon("a new hold", lock.acquire()).await;
        assert!(!matches!(next, Err(Error::HoldCount(_))), "{next:?}");
    }
    assert_nothing_left(&server, &client).await;
}

#[tokio::test]
async fn a_longer_lease_that_is_refused_leaves_the_hold_as_it_was() {
    let (server, client) = start().await;
    server.client().call("CONFIG SET lock.max-lease 30000");
    let lock = client.job().lock("lock");
    let guard = lock.acquire().await.unwrap();
    let longer = lock.lease(Duration::from_secs(31)).acquire().await;
    assert_eq!(longer.unwrap_err().code(), "ERR");
    guard.renew().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_replies_count_no_hold_twice() {
    for seed in SEEDS {
        let server = Server::start();
        let proxy = Proxy::seeded(server.addr(), seed).unwrap();
        let client = connect_through(&proxy, IMPATIENT).await;
        let mut observer = server.client();
        for _ in 0..20 {
            let job = client.job();
            proxy.set(Fate::RepliesLost(20));
            let mut guards = Vec::new();
            for _ in 0..3 {
                guards.push(soon("a hold", job.lock("lock").acquire()).await.unwrap());
            }
            assert_eq!(holds(&mut observer, "lock", &job), Some("3".into()));
            assert!(guards.iter().all(|it| it.token() == guards[0].token()));
            for guard in guards {
                match guard.release().await {
                    Ok(()) | Err(Error::Unavailable { .. }) => {}
                    Err(error) => panic!("{error:?}"),
                }
            }
            proxy.set(Fate::Passes);
            assert_nothing_left(&server, &client).await;
        }
        assert!(proxy.affected() > 3);
    }
}

/// Some tasks use one job, drop acquires at any moment, and guards in any order.
async fn use_one_job(client: &LockClient, seed: u64) {
    let job = client.job();
    let mut tasks = tokio::task::JoinSet::new();
    for nth in 0..4 {
        let (job, mut rng) = (job.clone(), StdRng::seed_from_u64(seed + nth));
        tasks.spawn(async move {
            let mut guards: Vec<LockGuard> = Vec::new();
            for _ in 0..100 {
                let key = format!("lock{}", rng.random_range(0..2));
                let lease = Duration::from_secs(rng.random_range(20..40));
                let lock = job.lock(key).lease(lease);
                let acquire = lock.acquire_within(Duration::from_secs(10));
                let patience = Duration::from_micros(rng.random_range(0..2000));
                if let Ok(taken) = tokio::time::timeout(patience, acquire).await {
                    guards.extend(taken.unwrap());
                }
                if rng.random_range(0..3) > 0 && !guards.is_empty() {
                    let guard = guards.swap_remove(rng.random_range(0..guards.len()));
                    match rng.random() {
                        true => guard.release().await.unwrap(),
                        false => drop(guard),
                    }
                }
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_dropped_the_counts_come_to_nothing() {
    for seed in SEEDS {
        let (server, client) = start().await;
        let others = tokio::spawn({
            let client = client.clone();
            async move {
                for _ in 0..100 {
                    drop(client.lock("lock0").acquire().await.unwrap());
                }
            }
        });
        support::within(
            Duration::from_secs(60),
            "all is done",
            use_one_job(&client, seed),
        )
        .await;
        soon("the others", others).await.unwrap();
        assert_nothing_left(&server, &client).await;
    }
}

#[tokio::test]
async fn a_job_begins_before_the_claim_in_its_first_wait_for_a_lock_only() {
    let server = Server::start();
    let mut stranger = server.client();
    stranger.call("CONFIG SET lock.claim-timeout 600000");
    let (proxy, client) = behind_a_proxy(&server).await;
    let job = client.job();
    for (key, begins_at_once) in [("lock", true), ("lock", false), ("other", true)] {
        take_away(&mut stranger, key);
        // Longer than the first lease, or there is nothing to claim.
        let lock = job.lock(key).lease(Duration::from_secs(1200));
        let waiting = queue(&server, &lock, 0).await;
        let refused = proxy.affected();
        proxy.set(Fate::Refuses("LOCK.RENEW", "NOREPLICAS for now"));
        give_back(&mut stranger, key);
        eventually("its claim is refused", || proxy.affected() > refused).await;
        if begins_at_once {
            let guard = granted(waiting).await;
            proxy.set(Fate::Passes);
            guard.release().await.unwrap();
        } else {
            assert!(!waiting.is_finished());
            proxy.set(Fate::Passes);
            granted(waiting).await.release().await.unwrap();
        }
    }
    assert_nothing_left(&server, &client).await;
}
