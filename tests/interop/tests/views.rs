//! What each side says of a lock that the other one holds, and what it does to
//! it by force.

use redis::Value;
use redis_lock_interop::{Scene, versions};
use redis_lock_testing::{int, nil, text};

/// A field of a map, which the older protocol writes as a flat list.
#[track_caller]
fn field(map: &Value, name: &str) -> Value {
    let Value::Array(words) = map else {
        panic!("{map:?} is no map");
    };
    let mut pairs = words.chunks_exact(2);
    let pair = pairs.find(|pair| pair[0] == text(name));
    pair.unwrap_or_else(|| panic!("{map:?} has no {name}"))[1].clone()
}

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
fn force_unlock_passes_a_native_lock_on_to_the_next_waiter() {
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

#[test]
#[ignore = "needs Redisson: make interop"]
fn lock_info_tells_of_a_lock_that_redisson_holds() {
    for version in versions() {
        let mut scene = Scene::set(version);
        let owner = scene.redisson.call("a", "owner k");
        assert_eq!(scene.redisson.call("a", "lock k"), "ok");
        assert_eq!(scene.redisson.call("a", "lock k"), "ok");
        scene.native.send("LOCK.ACQUIRE k native BLOCK 0");
        scene.server.await_blocked(1);
        let info = scene.observer.call("LOCK.INFO k");
        assert_eq!(field(&info, "state"), text("held"));
        assert_eq!(field(&info, "mode"), text("exclusive"));
        assert_eq!(field(&info, "fence"), nil());
        assert_eq!(field(&info, "waiting"), int(1));
        let Value::Array(holders) = field(&info, "holders") else {
            panic!("{info:?} has no list of holders");
        };
        assert_eq!(holders.len(), 1);
        assert_eq!(field(&holders[0], "owner"), text(owner));
        assert_eq!(field(&holders[0], "holds"), int(2));
        let Value::Int(ttl_ms) = field(&holders[0], "ttl") else {
            panic!("{info:?} tells no lease");
        };
        assert!((20_000..=30_000).contains(&ttl_ms), "{ttl_ms}");
    }
}

#[test]
#[ignore = "needs Redisson: make interop"]
fn lock_break_takes_a_lock_from_redisson_and_wakes_its_next() {
    for version in versions() {
        let mut scene = Scene::set(version);
        assert_eq!(scene.redisson.call("a", "lock k"), "ok");
        scene
            .redisson
            .send_and_wait(&mut scene.observer, "b", "lock k");
        assert_eq!(scene.native.call("LOCK.BREAK k"), int(1));
        assert_eq!(scene.redisson.answer("b").result, "ok");
        let refused = "IllegalMonitorStateException";
        assert_eq!(scene.redisson.call("a", "unlock k"), refused);
    }
}
