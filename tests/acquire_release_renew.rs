//! The three commands on a lock that nobody waits for.

use redis_lock_testing::Play;

#[track_caller]
fn check(lines: &str) {
    Play::start().run(lines);
}

#[test]
fn holds_nest_and_only_the_last_release_frees_the_lock() {
    check(
        "o > LOCK.ACQUIRE k a -> A
        o > LOCK.ACQUIRE k a -> A
        o > LOCK.ACQUIRE k b -> null
        o > HGET k a -> '2'
        o > LOCK.RELEASE k b -> null
        o > LOCK.RELEASE k a -> 0
        o > LOCK.ACQUIRE k b -> null
        o > LOCK.RELEASE k a -> 1
        o > EXISTS k -> 0
        o > LOCK.RELEASE k a -> null
        o > LOCK.ACQUIRE k b -> B",
    );
}

/// A token is of 53 bits.
#[test]
fn a_lock_is_the_hash_that_redisson_knows_with_a_token() {
    check(
        "o > LOCK.ACQUIRE k a LEASE 60000 -> 1..9007199254740991
        o > LOCK.ACQUIRE k a LEASE 60000 -> A
        o > HLEN k -> 2
        o > HGET k @fence -> '$A'
        o > HGET k a -> '2'
        o > PTTL k -> 59000..60000",
    );
}

#[test]
fn the_default_lease_is_a_setting() {
    check(
        "o > LOCK.ACQUIRE k a
        o > PTTL k -> 29000..30000
        o > CONFIG SET lock.default-lease 5000
        o > LOCK.RENEW k a -> 1
        o > PTTL k -> 4000..5000",
    );
}

#[test]
fn a_lock_that_was_only_looked_at_does_not_fail_a_watch() {
    check(
        "o > LOCK.ACQUIRE k a
        w > WATCH k
        o > LOCK.ACQUIRE k b -> null
        o > LOCK.RELEASE k b -> null
        w >> PING -> PONG
        w > WATCH k
        o > LOCK.RELEASE k a -> 1
        w >> PING -> null",
    );
}
