//! What Redisson's `RLock` says of a lock that a native client holds, and
//! what it does to it by force.

use redis::Value;
use redis_lock_interop::{Scene, versions};
use redis_lock_testing::{int, nil};

#[test]
#[ignore = "needs Redisson: make interop"]
fn redisson_sees_who_holds_a_native_lock_and_for_how_long() {
    for version in versions() {
        let mut scene = Scene::set(version);
        let redisson = &mut scene.redisson;
        assert_eq!(redisson.call("a", "is-locked k"), "false");
        assert_eq!(redisson.call("a", "ttl k"), "-2");
        scene.native.int("LOCK.ACQUIRE k native LEASE 60000");
        assert_eq!(redisson.call("a", "is-locked k"), "true");
        assert_eq!(redisson.call("a", "is-held k"), "false");
        assert_eq!(redisson.call("a", "hold-count k"), "0");
        let ttl_ms: i64 = redisson.call("a", "ttl k").parse().unwrap();
        assert!((50_000..=60_000).contains(&ttl_ms), "{ttl_ms}");
        assert_eq!(scene.native.call("LOCK.RENEW k native LEASE 5000"), int(1));
        let ttl_ms: i64 = redisson.call("a", "ttl k").parse().unwrap();
        assert!((1..=5_000).contains(&ttl_ms), "{ttl_ms}");
        assert_eq!(scene.native.call("LOCK.RELEASE k native"), int(1));
        assert_eq!(redisson.call("a", "is-locked k"), "false");
    }
}

#[test]
#[ignore = "needs Redisson: make interop"]
fn redisson_sees_the_holds_that_a_native_client_took_for_it() {
    for version in versions() {
        let mut scene = Scene::set(version);
        let owner = scene.redisson.call("a", "owner k");
        scene.native.int(&format!("LOCK.ACQUIRE k {owner}"));
        scene.native.int(&format!("LOCK.ACQUIRE k {owner}"));
        assert_eq!(scene.redisson.call("a", "is-held k"), "true");
        assert_eq!(scene.redisson.call("a", "hold-count k"), "2");
        assert_eq!(scene.redisson.call("b", "is-held k"), "false");
        assert_eq!(scene.redisson.call("b", "hold-count k"), "0");
    }
}

#[test]
#[ignore = "needs Redisson: make interop"]
fn force_unlock_passes_a_native_lock_on_to_the_next_native_waiter() {
    for version in versions() {
        let mut scene = Scene::set(version);
        let token = scene.native.int("LOCK.ACQUIRE k native");
        let mut waiter = scene.server.client();
        waiter.send("LOCK.ACQUIRE k waiter BLOCK 0");
        scene.server.await_blocked(1);
        assert_eq!(scene.redisson.call("a", "force-unlock k"), "true");
        let Value::Int(next) = waiter.reply() else {
            panic!("the waiter was not granted the lock");
        };
        assert!(next > token);
        assert_eq!(scene.native.call("LOCK.RELEASE k native"), nil());
        assert_eq!(waiter.call("LOCK.RELEASE k waiter"), int(1));
        assert_eq!(scene.redisson.call("a", "force-unlock k"), "false");
    }
}
