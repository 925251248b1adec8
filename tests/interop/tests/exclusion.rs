//! Either side is refused what the other one holds, and each counts its holds.

use redis_lock_interop::{Scene, versions};
use redis_lock_testing::{int, nil};

#[test]
#[ignore = "needs Redisson: make interop"]
fn native_clients_are_refused_what_redisson_holds() {
    for version in versions() {
        let mut scene = Scene::set(version);
        assert_eq!(scene.redisson.call("a", "lock k"), "ok");
        assert_eq!(scene.native.call("LOCK.ACQUIRE k native"), nil());
        assert_eq!(scene.native.call("LOCK.ACQUIRE k native BLOCK 50"), nil());
        assert_eq!(scene.native.call("LOCK.RELEASE k native"), nil());
        assert_eq!(scene.native.call("LOCK.RENEW k native"), int(0));
        assert_eq!(scene.redisson.call("a", "unlock k"), "ok");
        scene.native.int("LOCK.ACQUIRE k native");
    }
}

#[test]
#[ignore = "needs Redisson: make interop"]
fn redisson_is_refused_what_a_native_client_holds() {
    for version in versions() {
        let mut scene = Scene::set(version);
        scene.native.int("LOCK.ACQUIRE k native");
        assert_eq!(scene.redisson.call("a", "try k 0"), "false");
        assert_eq!(scene.redisson.call("a", "try k 50"), "false");
        let refused = "IllegalMonitorStateException";
        assert_eq!(scene.redisson.call("a", "unlock k"), refused);
        assert_eq!(scene.native.call("LOCK.RELEASE k native"), int(1));
        assert_eq!(scene.redisson.call("a", "try k 0"), "true");
    }
}

#[test]
#[ignore = "needs Redisson: make interop"]
fn redisson_counts_its_holds_while_a_native_client_waits() {
    for version in versions() {
        let mut scene = Scene::set(version);
        assert_eq!(scene.redisson.call("a", "lock k"), "ok");
        scene.native.send("LOCK.ACQUIRE k native BLOCK 0");
        scene.server.await_blocked(1);
        assert_eq!(scene.redisson.call("a", "lock k"), "ok");
        assert_eq!(scene.redisson.call("a", "hold-count k"), "2");
        assert_eq!(scene.redisson.call("a", "unlock k"), "ok");
        assert_eq!(scene.redisson.call("a", "hold-count k"), "1");
        scene.server.await_blocked(1);
        assert_eq!(scene.redisson.call("a", "unlock k"), "ok");
        assert!(matches!(scene.native.reply(), redis::Value::Int(_)));
        assert_eq!(scene.redisson.call("a", "hold-count k"), "0");
    }
}

#[test]
#[ignore = "needs Redisson: make interop"]
fn a_native_client_counts_its_holds_while_redisson_waits() {
    for version in versions() {
        let mut scene = Scene::set(version);
        let token = scene.native.int("LOCK.ACQUIRE k native");
        scene
            .redisson
            .send_and_wait(&mut scene.observer, "a", "lock k");
        assert_eq!(scene.native.call("LOCK.ACQUIRE k native"), int(token));
        assert_eq!(scene.native.call("LOCK.RELEASE k native"), int(0));
        assert_eq!(scene.redisson.call("b", "is-locked k"), "true");
        assert_eq!(scene.redisson.call("b", "try k 0"), "false");
        assert_eq!(scene.native.call("LOCK.RELEASE k native"), int(1));
        assert_eq!(scene.redisson.answer("a").result, "ok");
    }
}

/// One owner may be on either side: who knows its name takes, re-enters and
/// gives back its holds.
#[test]
#[ignore = "needs Redisson: make interop"]
fn both_sides_share_the_holds_of_one_owner() {
    for version in versions() {
        let mut scene = Scene::set(version);
        let owner = scene.redisson.call("a", "owner k");
        assert_eq!(scene.redisson.call("a", "lock k"), "ok");
        let token = scene.native.int(&format!("LOCK.ACQUIRE k {owner}"));
        assert_eq!(scene.redisson.call("a", "hold-count k"), "2");
        let again = scene.native.int(&format!("LOCK.ACQUIRE k {owner}"));
        assert_eq!(again, token);
        assert_eq!(scene.redisson.call("a", "unlock k"), "ok");
        assert_eq!(
            scene.native.call(&format!("LOCK.RELEASE k {owner}")),
            int(0)
        );
        assert_eq!(scene.redisson.call("a", "is-held k"), "true");
        assert_eq!(scene.redisson.call("a", "unlock k"), "ok");
        assert_eq!(scene.observer.call("EXISTS k"), int(0));
    }
}

#[test]
#[ignore = "needs Redisson: make interop"]
fn whoever_waits_gets_the_lock_from_the_other_side_in_turn() {
    for version in versions() {
        let mut scene = Scene::set(version);
        assert_eq!(scene.redisson.call("a", "lock k"), "ok");
        let mut greatest = 0;
        for _ in 0..50 {
            scene.native.send("LOCK.ACQUIRE k native BLOCK 0");
            scene.server.await_blocked(1);
            assert_eq!(scene.redisson.call("a", "unlock k"), "ok");
            let redis::Value::Int(token) = scene.native.reply() else {
                panic!("the native waiter was not granted the lock");
            };
            assert!(token > greatest, "tokens rise");
            greatest = token;
            scene
                .redisson
                .send_and_wait(&mut scene.observer, "a", "lock k");
            assert_eq!(scene.native.call("LOCK.RELEASE k native"), int(1));
            assert_eq!(scene.redisson.answer("a").result, "ok");
            redis_lock_testing::eventually("Redisson listens no more", || {
                redis_lock_interop::listeners(&mut scene.observer, "k") == 0
            });
        }
    }
}
