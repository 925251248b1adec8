//! Other kinds of locks on one key: Redisson's, with what the migration guide
//! warns of, and native ones that `RLock` doesn't know.

use redis::Value;
use redis_lock_chaos::clock;
use redis_lock_chaos::history::MS;
use redis_lock_interop::{Scene, versions};
use redis_lock_testing::{int, nil};

#[test]
#[ignore = "needs Redisson: make interop"]
fn fair_and_fenced_locks_and_native_clients_exclude_each_other() {
    for version in versions() {
        let mut scene = Scene::set(version);
        for kind in ["fair", "fenced"] {
            assert_eq!(scene.redisson.call("a", &format!("{kind}:lock k")), "ok");
            assert_eq!(scene.native.call("LOCK.ACQUIRE k native"), nil());
            scene.native.send("LOCK.ACQUIRE k native BLOCK 0");
            scene.server.await_blocked(1);
            assert_eq!(scene.redisson.call("a", &format!("{kind}:unlock k")), "ok");
            assert!(matches!(scene.native.reply(), Value::Int(_)));
            assert_eq!(
                scene.redisson.call("b", &format!("{kind}:try k 0")),
                "false"
            );
            assert_eq!(scene.native.call("LOCK.RELEASE k native"), int(1));
        }
    }
}

#[test]
#[ignore = "needs Redisson: make interop"]
fn a_waiter_of_a_fenced_lock_is_woken_by_a_native_release() {
    for version in versions() {
        let mut scene = Scene::set(version);
        scene.native.int("LOCK.ACQUIRE k native");
        scene
            .redisson
            .send_and_wait(&mut scene.observer, "a", "fenced:lock k");
        assert_eq!(scene.native.call("LOCK.RELEASE k native"), int(1));
        assert_eq!(scene.redisson.answer("a").result, "ok");
    }
}

/// Each listens on a channel of its own.
#[test]
#[ignore = "needs Redisson: make interop"]
fn a_fair_lock_is_had_only_when_the_lease_that_it_saw_is_over() {
    for version in versions() {
        let mut scene = Scene::set(version);
        scene.native.int("LOCK.ACQUIRE k native LEASE 3000");
        scene
            .redisson
            .send_and_wait(&mut scene.observer, "a", "fair:lock k");
        assert_eq!(scene.native.call("LOCK.RELEASE k native"), int(1));
        let released = clock::now();
        let locked = scene.redisson.answer("a");
        assert_eq!(locked.result, "ok");
        assert!(locked.answered > released + 1000 * MS, "it was woken");
    }
}

#[test]
#[ignore = "needs Redisson: make interop"]
fn a_native_client_is_refused_the_key_of_a_read_write_lock() {
    for version in versions() {
        let mut scene = Scene::set(version);
        for side in ["read", "write"] {
            assert_eq!(scene.redisson.call("a", &format!("{side}:lock k")), "ok");
            let refused = scene.native.error("LOCK.ACQUIRE k native");
            assert!(refused.starts_with("NOTALOCK "), "{refused}");
            assert_eq!(scene.redisson.call("a", &format!("{side}:unlock k")), "ok");
        }
    }
}

#[test]
#[ignore = "needs Redisson: make interop"]
fn a_read_write_lock_takes_a_key_that_a_native_client_holds() {
    for version in versions() {
        let mut scene = Scene::set(version);
        scene.native.int("LOCK.ACQUIRE k native");
        assert_eq!(scene.redisson.call("a", "write:try k 0"), "true");
    }
}

#[test]
#[ignore = "needs Redisson: make interop"]
fn redisson_is_woken_when_the_last_shared_holder_is_gone() {
    for version in versions() {
        let mut scene = Scene::set(version);
        let mut other = scene.server.client();
        scene.native.int("LOCK.ACQUIRE k native SHARED LEASE 60000");
        other.int("LOCK.ACQUIRE k other SHARED LEASE 60000");
        scene
            .redisson
            .send_and_wait(&mut scene.observer, "a", "lock k");
        assert_eq!(scene.native.call("LOCK.RELEASE k native"), int(1));
        assert_eq!(scene.redisson.call("b", "try k 0"), "false");
        assert_eq!(other.call("LOCK.RELEASE k other"), int(1));
        assert_eq!(scene.redisson.answer("a").result, "ok");
        assert_eq!(scene.native.call("LOCK.ACQUIRE k native SHARED"), nil());
        assert_eq!(scene.native.call("LOCK.ACQUIRE k native LIMIT 5"), nil());
    }
}

#[test]
#[ignore = "needs Redisson: make interop"]
fn redisson_is_woken_when_the_connection_of_a_session_ends() {
    for version in versions() {
        let mut scene = Scene::set(version);
        scene.native.int("LOCK.ACQUIRE k native SESSION");
        scene
            .redisson
            .send_and_wait(&mut scene.observer, "a", "lock k");
        drop(scene.native);
        assert_eq!(scene.redisson.answer("a").result, "ok");
    }
}
