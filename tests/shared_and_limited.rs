//! Locks that several owners hold together.

use std::time::{Duration, Instant};

use redis_lock_testing::{Play, TestServer};

/// Leases begin and end with a whole millisecond. Redis 7.4 and later may delete
/// a key within the one in which it expires (`activeExpireCycleTryExpire`).
const WHOLE_MS: Duration = Duration::from_millis(1);

/// These owners share `k`.
#[track_caller]
fn shared(owners: &[&str]) -> Play {
    let mut play = Play::start();
    for (nth, owner) in (1..).zip(owners) {
        play.run(&format!(
            "{owner} > LOCK.ACQUIRE k {owner} LONG SHARED -> T{nth}"
        ));
    }
    play
}

/// Nothing but the leaving tells the module of it.
#[test]
fn a_writer_that_leaves_the_queue_lets_the_readers_behind_it_in_at_once() {
    for (timeout_ms, leave) in [
        (0, "o > CLIENT KILL ID $w -> 1"),
        (0, "o > CLIENT UNBLOCK $w -> 1"),
        (0, "o > CLIENT UNBLOCK $w ERROR -> 1"),
        (0, "w closes"),
        (1500, "w < null"),
    ] {
        shared(&["a"]).run(&format!(
            "w > LOCK.ACQUIRE k w BLOCK {timeout_ms} -> ..
            b > LOCK.ACQUIRE k b SHARED BLOCK 0 -> ..
            {leave}
            b < token"
        ));
    }
}

#[test]
fn readers_with_different_leases_each_end_on_time() {
    let mut play = shared(&["a", "b", "c"]);
    // Each of these fits in when one more reader has gone.
    play.run("each 3 2 1: w# > LOCK.ACQUIRE k w# BLOCKED LIMIT # -> ..");
    let start = Instant::now();
    play.run(
        "o > LOCK.RENEW k a LEASE 100 | LOCK.RENEW k b LEASE 300 | LOCK.RENEW k c LEASE 200 \
         -> 1 | 1 | 1
        o > PTTL k -> ..300",
    );
    for (waiter, lease_ms) in [("w3", 100), ("w2", 200), ("w1", 300)] {
        play.run(&format!("{waiter} < token"));
        let waited = start.elapsed();
        let in_time = waited >= Duration::from_millis(lease_ms) - WHOLE_MS;
        assert!(in_time, "{lease_ms} ms: in after {waited:?}");
        play.run(&format!("o > LOCK.RELEASE k {waiter} -> 1"));
    }
}

#[test]
fn a_reader_that_asks_to_write_is_refused_at_once_and_keeps_reading() {
    let mut play = Play::start();
    play.run(
        "o > LOCK.ACQUIRE k r SHARED -> R
        o > LOCK.ACQUIRE k p LIMIT 4 -> P",
    );
    let requests = ["r", "r BLOCK 0", "r LIMIT 1000", "p LIMIT 3"];
    play.refuses(
        "UPGRADE",
        &requests.map(|request| format!("LOCK.ACQUIRE k {request}")),
    )
    .run("o > LOCK.ACQUIRE k p SHARED -> P");
}

#[test]
fn a_permit_is_reentrant_fenced_and_safe_to_resend() {
    shared(&["other", "a"]).run(
        "a > LOCK.ACQUIRE k a SHARED HOLD 1 -> T2
        a > LOCK.ACQUIRE k a SHARED HOLD 2 -> T2
        a > HGET k a -> '2'
        a > LOCK.RELEASE k a FENCE $T1 -> null
        a > LOCK.RENEW k a FENCE $T1 -> 0
        a > LOCK.RENEW k a FENCE $T2 LEASE 5000 -> 1
        a > LOCK.RELEASE k a HOLD 2 -> 0
        a > LOCK.RELEASE k a HOLD 2 -> 0
        a > LOCK.RELEASE k a HOLD 1 -> 1
        a > LOCK.RELEASE k a HOLD 1 -> 1
        a > HGET k other -> '1'
        a > LOCK.ACQUIRE k a SHARED -> T3",
    );
}

#[test]
fn foreign_commands_on_a_shared_lock_let_waiters_in_and_strangers_never() {
    for free in [
        "DEL k",
        "PEXPIRE k 1",
        "HDEL k a b",
        "RENAME k elsewhere",
        "FLUSHALL",
    ] {
        shared(&["a", "b"]).run(&format!(
            "w > LOCK.ACQUIRE k w BLOCK 0 -> ..
            o > {free}
            w < W
            o > HLEN k -> 2"
        ));
    }
    shared(&["a", "b"]).run(
        "o > HDEL k a
        a > LOCK.RELEASE k a -> null
        b > LOCK.RELEASE k b -> 1",
    );
    for broken in ["HSET k stranger 1", "HSET k @permit:a x", "HSET k a x"] {
        shared(&["a", "b"]).run(&format!(
            "o > {broken}
            o > LOCK.ACQUIRE k c SHARED -> !NOTALOCK"
        ));
    }
}

#[test]
fn the_replica_and_the_aof_hold_the_same_permits() {
    let options = ["--appendonly", "yes", "--appendfsync", "always"];
    Play::on(TestServer::start_with(&options))
        .with_replica()
        .run(
            "each 0..4: o > LOCK.ACQUIRE k r# LONG SHARED
        w > LOCK.ACQUIRE k w BLOCKED LIMIT 3 -> ..
        o > LOCK.RENEW k r3 LEASE 700000 -> 1
        o > LOCK.ACQUIRE k r4 SHARED -> token
        each 0..2: o > LOCK.RELEASE k r# -> 1
        w < W
        in step
        o > PEXPIRETIME k -> :end
        o > DEBUG DIGEST -> :digest
        crash
        o > PEXPIRETIME k -> $end
        o > DEBUG DIGEST -> $digest
        o > LOCK.ACQUIRE k w LIMIT 3 HOLD 1 -> W
        o > LOCK.ACQUIRE k another SHARED -> null",
        );
}

/// The lease that is kept up is shorter than the one that it has.
#[test]
fn the_servers_renewal_keeps_a_permit_after_a_foreign_expiry() {
    for mode in ["SHARED", "LIMIT 3"] {
        Play::start().run(&format!(
            "s > LOCK.ACQUIRE k a LEASE 60000 {mode} -> A
            s > LOCK.ACQUIRE k a LEASE 3000 {mode} SESSION -> A
            o > PEXPIRE k 2500 -> 1
            o > PEXPIRETIME k -> :end
            until o > PEXPIRETIME k -> $end+1..
            o > HGET k @fence -> '$A'"
        ));
    }
}

/// Who holds it stays, and nobody comes in while there are as many as may be.
#[test]
fn a_lock_has_no_more_holders_than_it_may() {
    let mut play = shared(&["a", "b"]);
    play.run(
        "o > CONFIG SET lock.max-holders 2
        o > LOCK.ACQUIRE k c LIMIT 3 -> !ERR LIMIT is greater than lock.max-holders; ask for less
        o > LOCK.ACQUIRE k c SHARED -> null
        c > LOCK.ACQUIRE k c BLOCKED SHARED -> ..
        o > CONFIG SET lock.max-holders 1
        b > LOCK.RENEW k b -> 1
        a > LOCK.RELEASE k a -> 1
        queue k = c
        b > LOCK.RELEASE k b -> 1
        c < token",
    );
}
