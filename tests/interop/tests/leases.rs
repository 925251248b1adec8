//! Leases of one side as the other side sees them: renewed, over, shortened.

use std::time::{Duration, Instant};

use redis_lock_chaos::clock;
use redis_lock_chaos::history::{MS, Nanos};
use redis_lock_interop::{Scene, play, versions};
use redis_lock_testing::Judge;

/// How much longer than a lease a waiter may wait.
const SLACK: Duration = Duration::from_millis(250);

const LEASE_MS: u64 = 2000;

/// A moment by the clock that Redisson's processes read as well.
fn moment(time: Nanos) -> Instant {
    Instant::now() - Duration::from_nanos(clock::now().saturating_sub(time))
}

#[test]
#[ignore = "needs Redisson: make interop"]
fn the_watchdog_renews_a_lock_that_a_native_client_waits_for() {
    for version in versions() {
        let mut scene = Scene::set_with_watchdog(version, LEASE_MS);
        scene.run(
            "a: lock k -> ok
            n > LOCK.ACQUIRE k n BLOCK 0 -> ..",
        );
        let taken = Instant::now();
        while taken.elapsed() < Duration::from_millis(2 * LEASE_MS) {
            scene.run(
                "o > PTTL k -> 1..
            blocked_clients = 1",
            );
        }
        scene.run(
            "a: is-held k -> true
            a: unlock k -> ok
            n < token",
        );
    }
}

#[test]
#[ignore = "needs Redisson: make interop"]
fn a_native_waiter_gets_the_lock_when_redissons_lease_is_over() {
    for version in versions() {
        let mut scene = Scene::set(version);
        let mut judge = Judge::new("from Redisson's lease to a native waiter", SLACK);
        while judge.wants_more() {
            scene.redisson.send("a", &format!("lock-for k {LEASE_MS}"));
            let locked = scene.redisson.answer("a");
            scene.run("n > LOCK.ACQUIRE k n BLOCK 0 -> token");
            let granted = clock::now();
            assert!(granted >= locked.sent + LEASE_MS * MS, "it came too early");
            let over = locked.answered + LEASE_MS * MS;
            judge.judge(moment(over.min(granted)), moment(granted));
            scene.run(
                "a: unlock k -> IllegalMonitorStateException
                n > LOCK.RELEASE k n -> 1",
            );
        }
    }
}

#[test]
#[ignore = "needs Redisson: make interop"]
fn redisson_gets_the_lock_when_a_native_lease_is_over() {
    for version in versions() {
        let mut scene = Scene::set(version);
        let mut judge = Judge::new("from a native lease to Redisson", SLACK);
        while judge.wants_more() {
            let sent = clock::now();
            scene.run(&format!("n > LOCK.ACQUIRE k n LEASE {LEASE_MS} -> token"));
            let over = clock::now() + LEASE_MS * MS;
            scene.redisson.send("a", "lock k");
            let locked = scene.redisson.answer("a");
            assert_eq!(locked.result, "ok");
            let told = locked.answered;
            assert!(told >= sent + LEASE_MS * MS, "it came too early");
            judge.judge(moment(over.min(told)), moment(told));
            scene.run(
                "n > LOCK.RELEASE k n -> null
                n > LOCK.RENEW k n -> 0
                a: is-held k -> true
                a: unlock k -> ok",
            );
        }
    }
}

#[test]
#[ignore = "needs Redisson: make interop"]
fn a_native_waiter_gets_the_lock_of_a_process_that_vanished() {
    for version in versions() {
        let mut scene = Scene::set_with_watchdog(version, LEASE_MS);
        scene.run("a: lock k -> ok\n n > LOCK.ACQUIRE k n BLOCK 0 -> ..");
        drop(scene.redisson);
        // How promptly a lease ends is judged above.
        scene.play.run("n < token");
    }
}

#[test]
#[ignore = "needs Redisson: make interop"]
fn reentry_never_shortens_a_lease_that_redisson_began() {
    play(
        "a: owner k -> :owner
        a: lock-for k 60000 -> ok
        n > LOCK.ACQUIRE k $owner LEASE 1000 -> token
        n > PTTL k -> 50001..",
    );
}
