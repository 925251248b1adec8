//! Either side is refused what the other one holds, and each counts its holds.

use redis_lock_interop::{NOBODY_LISTENS, Scene, play, versions};

#[test]
#[ignore = "needs Redisson: make interop"]
fn native_clients_are_refused_what_redisson_holds() {
    play(
        "a: lock k -> ok
        n > LOCK.ACQUIRE k n -> null
        n > LOCK.ACQUIRE k n BLOCK 50 -> null
        n > LOCK.RELEASE k n -> null
        n > LOCK.RENEW k n -> 0
        a: unlock k -> ok
        n > LOCK.ACQUIRE k n -> token",
    );
}

#[test]
#[ignore = "needs Redisson: make interop"]
fn redisson_is_refused_what_a_native_client_holds() {
    play(
        "n > LOCK.ACQUIRE k n -> token
        a: try k 0 -> false
        a: try k 50 -> false
        a: unlock k -> IllegalMonitorStateException
        n > LOCK.RELEASE k n -> 1
        a: try k 0 -> true",
    );
}

#[test]
#[ignore = "needs Redisson: make interop"]
fn redisson_counts_its_holds_while_a_native_client_waits() {
    play(
        "a: lock k -> ok
        n > LOCK.ACQUIRE k n BLOCK 0 -> ..
        a: lock k -> ok
        a: hold-count k -> 2
        a: unlock k -> ok
        a: hold-count k -> 1
        blocked_clients = 1
        a: unlock k -> ok
        n < token
        a: hold-count k -> 0",
    );
}

#[test]
#[ignore = "needs Redisson: make interop"]
fn a_native_client_counts_its_holds_while_redisson_waits() {
    play(
        "n > LOCK.ACQUIRE k n -> N
        a: lock k -> ..
        n > LOCK.ACQUIRE k n -> N
        n > LOCK.RELEASE k n -> 0
        b: is-locked k -> true
        b: try k 0 -> false
        n > LOCK.RELEASE k n -> 1
        a: -> ok",
    );
}

/// One owner may be on either side: who knows its name takes, re-enters and
/// gives back its holds.
#[test]
#[ignore = "needs Redisson: make interop"]
fn both_sides_share_the_holds_of_one_owner() {
    play(
        "a: owner k -> :owner
        a: lock k -> ok
        n > LOCK.ACQUIRE k $owner -> N
        a: hold-count k -> 2
        n > LOCK.ACQUIRE k $owner -> N
        a: unlock k -> ok
        n > LOCK.RELEASE k $owner -> 0
        a: is-held k -> true
        a: unlock k -> ok
        n > EXISTS k -> 0",
    );
}

#[test]
#[ignore = "needs Redisson: make interop"]
fn whoever_waits_gets_the_lock_from_the_other_side_in_turn() {
    for version in versions() {
        let mut scene = Scene::set(version);
        scene.run("a: lock k -> ok");
        for round in 0..50 {
            scene.run(&format!(
                "n > LOCK.ACQUIRE k n BLOCK 0 -> ..
                a: unlock k -> ok
                n < T{round}
                a: lock k -> ..
                n > LOCK.RELEASE k n -> 1
                a: -> ok
                {NOBODY_LISTENS}"
            ));
        }
    }
}
