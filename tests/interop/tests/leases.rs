//! Leases of one side as the other side sees them: renewed, over, shortened.

use std::time::{Duration, Instant};

use redis::Value;
use redis_lock_chaos::clock;
use redis_lock_chaos::history::{MS, Nanos};
use redis_lock_interop::{Scene, versions};
use redis_lock_testing::{Judge, int, nil};

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
        assert_eq!(scene.redisson.call("a", "lock k"), "ok");
        scene.native.send("LOCK.ACQUIRE k native BLOCK 0");
        scene.server.await_blocked(1);
        let taken = Instant::now();
        while taken.elapsed() < Duration::from_millis(2 * LEASE_MS) {
            assert!(scene.observer.int("PTTL k") > 0, "the lease is over");
            assert_eq!(scene.server.info("blocked_clients"), 1);
        }
        assert_eq!(scene.redisson.call("a", "is-held k"), "true");
        assert_eq!(scene.redisson.call("a", "unlock k"), "ok");
        assert!(matches!(scene.native.reply(), Value::Int(_)));
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
            scene.native.send("LOCK.ACQUIRE k native BLOCK 0");
            assert!(matches!(scene.native.reply(), Value::Int(_)));
            let granted = clock::now();
            assert!(granted >= locked.sent + LEASE_MS * MS, "it came too early");
            let over = locked.answered + LEASE_MS * MS;
            judge.judge(moment(over.min(granted)), moment(granted));
            let refused = "IllegalMonitorStateException";
            assert_eq!(scene.redisson.call("a", "unlock k"), refused);
            assert_eq!(scene.native.call("LOCK.RELEASE k native"), int(1));
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
            scene
                .native
                .int(&format!("LOCK.ACQUIRE k native LEASE {LEASE_MS}"));
            let over = clock::now() + LEASE_MS * MS;
            scene.redisson.send("a", "lock k");
            let locked = scene.redisson.answer("a");
            assert_eq!(locked.result, "ok");
            let told = locked.answered;
            assert!(told >= sent + LEASE_MS * MS, "it came too early");
            judge.judge(moment(over.min(told)), moment(told));
            assert_eq!(scene.native.call("LOCK.RELEASE k native"), nil());
            assert_eq!(scene.native.call("LOCK.RENEW k native"), int(0));
            assert_eq!(scene.redisson.call("a", "is-held k"), "true");
            assert_eq!(scene.redisson.call("a", "unlock k"), "ok");
        }
    }
}

#[test]
#[ignore = "needs Redisson: make interop"]
fn a_native_waiter_gets_the_lock_of_a_process_that_vanished() {
    for version in versions() {
        let Scene {
            server,
            mut native,
            mut redisson,
            ..
        } = Scene::set_with_watchdog(version, LEASE_MS);
        assert_eq!(redisson.call("a", "lock k"), "ok");
        native.send("LOCK.ACQUIRE k native BLOCK 0");
        server.await_blocked(1);
        drop(redisson);
        // How promptly a lease ends is judged above.
        assert!(matches!(native.reply(), Value::Int(_)));
    }
}

#[test]
#[ignore = "needs Redisson: make interop"]
fn reentry_never_shortens_a_lease_that_redisson_began() {
    for version in versions() {
        let mut scene = Scene::set(version);
        let owner = scene.redisson.call("a", "owner k");
        assert_eq!(scene.redisson.call("a", "lock-for k 60000"), "ok");
        scene
            .native
            .int(&format!("LOCK.ACQUIRE k {owner} LEASE 1000"));
        assert!(scene.observer.int("PTTL k") > 50_000);
    }
}
