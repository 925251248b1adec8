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
fn reentry_never_shortens_a_lease_and_renewal_sets_it_exactly() {
    check(
        "o > LOCK.ACQUIRE k a LEASE 60000 -> A
        o > LOCK.ACQUIRE k a LEASE 1000 -> A
        o > PTTL k -> 59000..
        o > LOCK.ACQUIRE k a LEASE 90000 -> A
        o > PTTL k -> 89000..
        o > LOCK.RELEASE k a -> 0
        o > PTTL k -> 89000..
        o > LOCK.RENEW k a LEASE 1000 -> 1
        o > PTTL k -> ..1000
        o > LOCK.RENEW k a LEASE 50000 FENCE $A -> 1
        o > LOCK.RENEW k a FENCE 1 -> 0
        o > LOCK.RENEW k b -> 0
        o > LOCK.RENEW absent a -> 0
        o > EXISTS absent -> 0
        o > PTTL k -> 49000..",
    );
}

#[test]
fn commands_that_name_their_hold_are_safe_to_resend() {
    check(
        "o > LOCK.ACQUIRE k a HOLD 1 -> A
        o > LOCK.ACQUIRE k a HOLD 1 -> A
        o > HGET k a -> '1'
        o > LOCK.ACQUIRE k a HOLD 2 -> A
        o > LOCK.ACQUIRE k a HOLD 2 -> A
        o > HGET k a -> '2'
        o > LOCK.RELEASE k a HOLD 2 -> 0
        o > LOCK.RELEASE k a HOLD 2 -> 0
        o > LOCK.RELEASE k a HOLD 1 -> 1
        o > LOCK.RELEASE k a HOLD 1 -> 1
        o > EXISTS k -> 0",
    );
}

#[test]
fn a_hold_that_fits_neither_n_nor_n_less_one_is_an_error() {
    check(
        "o > LOCK.ACQUIRE k a HOLD 2 -> !HOLDCOUNT
        o > EXISTS k -> 0
        o > LOCK.ACQUIRE k a -> A
        o > LOCK.ACQUIRE k a HOLD 3 -> !HOLDCOUNT
        o > LOCK.RELEASE k a HOLD 3 -> !HOLDCOUNT
        o > LOCK.ACQUIRE k b HOLD 2 -> !HOLDCOUNT
        o > LOCK.ACQUIRE k b HOLD 2 BLOCK 0 -> !HOLDCOUNT
        o > LOCK.RELEASE k b HOLD 2 -> !HOLDCOUNT
        o > HGET k a -> '1'
        o > HLEN k -> 2",
    );
}

#[test]
fn a_release_with_another_token_is_refused() {
    check(
        "o > LOCK.ACQUIRE k a -> A
        o > LOCK.ACQUIRE k a -> A
        o > LOCK.RELEASE k a FENCE 1 -> null
        o > HGET k a -> '2'
        o > LOCK.RELEASE k a ALL FENCE $A -> 1
        o > EXISTS k -> 0",
    );
}

#[test]
fn ten_thousand_acquires_and_releases_in_a_row_have_rising_tokens() {
    let mut play = Play::start();
    let (client, mut last) = (play.client("o"), 0);
    for _ in 0..10_000 {
        let token = client.int("LOCK.ACQUIRE k a");
        assert!(token > last);
        last = token;
        assert_eq!(client.int("LOCK.RELEASE k a"), 1);
    }
    play.run("o > DBSIZE -> 0");
}

#[test]
fn a_lock_that_redisson_took_is_a_lock_like_any_other() {
    check(
        "o > HINCRBY k uuid:1 1
        o > PEXPIRE k 30000
        o > LOCK.ACQUIRE k b -> null
        o > LOCK.ACQUIRE k uuid:1 -> A
        o > HGET k @fence -> '$A'
        o > HGET k uuid:1 -> '2'
        o > LOCK.RENEW k uuid:1 LEASE 1000 -> 1
        o > LOCK.RELEASE k uuid:1 ALL -> 1",
    );
}

#[test]
fn databases_have_locks_of_their_own() {
    check(
        "o > LOCK.ACQUIRE k a -> token
        o > SELECT 5
        o > LOCK.ACQUIRE k b -> token
        o > SELECT 0
        o > LOCK.ACQUIRE k b -> null",
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
