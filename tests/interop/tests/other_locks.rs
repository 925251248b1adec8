//! Other kinds of locks on one key: Redisson's, with what the migration guide
//! warns of, and native ones that `RLock` doesn't know.

use redis_lock_chaos::clock;
use redis_lock_chaos::history::MS;
use redis_lock_interop::{Scene, play, versions};

#[test]
#[ignore = "needs Redisson: make interop"]
fn fair_and_fenced_locks_and_native_clients_exclude_each_other() {
    for kind in ["fair", "fenced"] {
        play(&format!(
            "a: {kind}:lock k -> ok
            n > LOCK.ACQUIRE k n -> null
            n > LOCK.ACQUIRE k n BLOCK 0 -> ..
            a: {kind}:unlock k -> ok
            n < token
            b: {kind}:try k 0 -> false
            n > LOCK.RELEASE k n -> 1"
        ));
    }
}

#[test]
#[ignore = "needs Redisson: make interop"]
fn a_waiter_of_a_fenced_lock_is_woken_by_a_native_release() {
    play(
        "n > LOCK.ACQUIRE k n -> token
        a: fenced:lock k -> ..
        n > LOCK.RELEASE k n -> 1
        a: -> ok",
    );
}

/// Each listens on a channel of its own.
#[test]
#[ignore = "needs Redisson: make interop"]
fn a_fair_lock_is_had_only_when_the_lease_that_it_saw_is_over() {
    for version in versions() {
        let mut scene = Scene::set(version);
        scene.run(
            "n > LOCK.ACQUIRE k n LEASE 3000 -> token
            a: fair:lock k -> ..
            n > LOCK.RELEASE k n -> 1",
        );
        let released = clock::now();
        let locked = scene.redisson.answer("a");
        assert_eq!(locked.result, "ok");
        assert!(locked.answered > released + 1000 * MS, "it was woken");
    }
}

#[test]
#[ignore = "needs Redisson: make interop"]
fn a_native_client_is_refused_the_key_of_a_read_write_lock() {
    play(
        "a: read:lock k -> ok
        n > LOCK.ACQUIRE k n -> !NOTALOCK
        a: read:unlock k -> ok
        a: write:lock k -> ok
        n > LOCK.ACQUIRE k n -> !NOTALOCK
        a: write:unlock k -> ok",
    );
}

#[test]
#[ignore = "needs Redisson: make interop"]
fn a_read_write_lock_takes_a_key_that_a_native_client_holds() {
    play(
        "n > LOCK.ACQUIRE k n -> token
        a: write:try k 0 -> true",
    );
}

#[test]
#[ignore = "needs Redisson: make interop"]
fn redisson_is_woken_when_the_last_shared_holder_is_gone() {
    play(
        "n > LOCK.ACQUIRE k n SHARED LEASE 60000 -> token
        other > LOCK.ACQUIRE k other SHARED LEASE 60000 -> token
        a: lock k -> ..
        n > LOCK.RELEASE k n -> 1
        b: try k 0 -> false
        other > LOCK.RELEASE k other -> 1
        a: -> ok
        n > LOCK.ACQUIRE k n SHARED -> null
        n > LOCK.ACQUIRE k n LIMIT 5 -> null",
    );
}

#[test]
#[ignore = "needs Redisson: make interop"]
fn redisson_is_woken_when_the_connection_of_a_session_ends() {
    play(
        "n > LOCK.ACQUIRE k n SESSION -> token
        a: lock k -> ..
        n drops
        a: -> ok",
    );
}
