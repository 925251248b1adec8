//! What each side says of a lock that the other one holds, and what it does to
//! it by force.

use redis_lock_interop::play;

#[test]
#[ignore = "needs Redisson: make interop"]
fn redisson_sees_who_holds_a_native_lock_and_for_how_long() {
    play(
        "a: is-locked k -> false
        a: ttl k -> -2
        n > LOCK.ACQUIRE k n LEASE 60000 -> token
        a: is-locked k -> true
        a: is-held k -> false
        a: hold-count k -> 0
        a: ttl k -> 50000..60000
        n > LOCK.RENEW k n LEASE 5000 -> 1
        a: ttl k -> 1..5000
        n > LOCK.RELEASE k n -> 1
        a: is-locked k -> false",
    );
}

#[test]
#[ignore = "needs Redisson: make interop"]
fn redisson_sees_the_holds_that_a_native_client_took_for_it() {
    play(
        "a: owner k -> :owner
        n > LOCK.ACQUIRE k $owner -> N
        n > LOCK.ACQUIRE k $owner -> N
        a: is-held k -> true
        a: hold-count k -> 2
        b: is-held k -> false
        b: hold-count k -> 0",
    );
}

#[test]
#[ignore = "needs Redisson: make interop"]
fn force_unlock_passes_a_native_lock_on_to_the_next_waiter() {
    play(
        "n > LOCK.ACQUIRE k n -> N
        w > LOCK.ACQUIRE k w BLOCK 0 -> ..
        a: force-unlock k -> true
        w < W
        n > LOCK.RELEASE k n -> null
        w > LOCK.RELEASE k w -> 1
        a: force-unlock k -> false",
    );
}

#[test]
#[ignore = "needs Redisson: make interop"]
fn lock_info_tells_of_a_lock_that_redisson_holds() {
    play(
        "a: owner k -> :owner
        a: lock k -> ok
        a: lock k -> ok
        n > LOCK.ACQUIRE k n BLOCK 0 -> ..
        o > LOCK.INFO k -> {state 'held' mode 'exclusive' fence null waiting 1 holders.1 nothing}
        o > LOCK.INFO k -> {holders.0.owner '$owner' holders.0.holds 2 holders.0.ttl 20000..30000}",
    );
}

#[test]
#[ignore = "needs Redisson: make interop"]
fn lock_break_takes_a_lock_from_redisson_and_wakes_its_next() {
    play(
        "a: lock k -> ok
        b: lock k -> ..
        n > LOCK.BREAK k -> 1
        b: -> ok
        a: unlock k -> IllegalMonitorStateException",
    );
}
