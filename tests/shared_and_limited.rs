//! Locks that several owners hold together.

use std::time::{Duration, Instant};

use redis_lock_testing::{LONG, Play, TestServer, eventually, int, nil, text, token};

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
    let server = TestServer::start();
    let mut client = server.client();
    for reader in ["a", "b", "c"] {
        client.int(&format!("LOCK.ACQUIRE k {reader} {LONG} SHARED"));
    }
    // Each of these fits in when one more reader has gone.
    let mut waiters = Vec::new();
    for (limit, owner) in [(3, "after a"), (2, "after c"), (1, "after b")] {
        let mut waiter = server.client();
        let (owner, limit) = (owner.as_bytes(), limit.to_string());
        let limit = limit.as_bytes();
        waiter.send_words(&[
            b"LOCK.ACQUIRE",
            b"k",
            owner,
            b"LEASE",
            b"600000",
            b"LIMIT",
            limit,
            b"BLOCK",
            b"0",
        ]);
        waiters.push((waiter, owner));
        server.await_blocked(i64::try_from(waiters.len()).unwrap());
    }
    let start = Instant::now();
    client.send_bytes(
        b"LOCK.RENEW k a LEASE 100\r\nLOCK.RENEW k b LEASE 300\r\nLOCK.RENEW k c LEASE 200\r\n",
    );
    for _ in 0..3 {
        assert_eq!(client.reply(), int(1));
    }
    let ttl = client.int("PTTL k");
    assert!(ttl <= 300, "{ttl}: the key lives as long as the last");
    for ((mut waiter, owner), lease_ms) in waiters.into_iter().zip([100, 200, 300]) {
        token(&waiter.reply());
        let waited = start.elapsed();
        let in_time = waited >= Duration::from_millis(lease_ms) - WHOLE_MS;
        assert!(in_time, "{lease_ms} ms: in after {waited:?}");
        assert_eq!(waiter.words(&[b"LOCK.RELEASE", b"k", owner]), int(1));
    }
}

#[test]
fn a_reader_that_asks_to_write_is_refused_at_once_and_keeps_reading() {
    let mut play = Play::start();
    play.run("o > LOCK.ACQUIRE k r SHARED -> R \n o > LOCK.ACQUIRE k p LIMIT 4 -> P");
    let before = play.client("o").hash("k");
    for request in ["r", "r BLOCK 0", "r LIMIT 1000", "p LIMIT 3"] {
        play.run(&format!("o > LOCK.ACQUIRE k {request} -> !UPGRADE"));
    }
    assert_eq!(play.client("o").hash("k"), before);
    play.run("o > LOCK.ACQUIRE k p SHARED -> P");
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
    let mut server = TestServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let replica = server.replica(false);
    let mut client = server.client();
    for n in 0..5 {
        client.int(&format!("LOCK.ACQUIRE k r{n} {LONG} SHARED"));
    }
    let mut waiter = server.client();
    waiter.send_and_block(
        &mut client,
        &format!("LOCK.ACQUIRE k w {LONG} LIMIT 3 BLOCK 0"),
    );
    client.call("LOCK.RENEW k r3 LEASE 700000");
    client.call("LOCK.ACQUIRE k r4 SHARED");
    for n in 0..3 {
        assert_eq!(client.call(&format!("LOCK.RELEASE k r{n}")), int(1));
    }
    let token = token(&waiter.reply());
    server.assert_same_data(&replica);
    let (stored, end) = (client.hash("k"), client.int("PEXPIRETIME k"));
    drop(replica);
    server.crash_and_restart();
    let mut client = server.client();
    assert_eq!(client.hash("k"), stored);
    assert_eq!(client.int("PEXPIRETIME k"), end);
    assert_eq!(client.call("LOCK.ACQUIRE k w LIMIT 3 HOLD 1"), int(token));
    assert_eq!(client.call("LOCK.ACQUIRE k another SHARED"), nil());
}

#[test]
fn the_servers_renewal_keeps_a_permit_after_a_foreign_expiry() {
    for mode in ["SHARED", "LIMIT 3"] {
        let server = TestServer::start();
        let (mut session, mut client) = (server.client(), server.client());
        let token = session.int(&format!("LOCK.ACQUIRE k a LEASE 60000 {mode}"));
        // The lease that is kept up is shorter than the one that it has.
        let bound = format!("LOCK.ACQUIRE k a LEASE 3000 {mode} SESSION");
        assert_eq!(session.int(&bound), token);
        assert_eq!(client.int("PEXPIRE k 2500"), 1);
        let end = client.int("PEXPIRETIME k");
        eventually("the renewal keeps the key", || {
            let now = client.int("PEXPIRETIME k");
            assert!(now > 0, "{mode}: the lock is gone");
            now > end
        });
        assert_eq!(client.call("HGET k @fence"), text(token.to_string()));
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
