//! Tokens that somebody else wrote into a lock count for that lock alone.

use std::time::{SystemTime, UNIX_EPOCH};

use redis::Value;
use redis_lock_testing::scene::await_waiting;
use redis_lock_testing::{Client, LONG, TestServer, int, status};

const GREATEST: i64 = (1 << 53) - 1;
const AHEAD: i64 = 9_007_199_254_000_000;

/// A token of the wall clock in microseconds, as every lock gets it that
/// nobody has written to.
#[track_caller]
fn assert_of_the_clock(token: i64, what: &str) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let ahead = token - i64::try_from(now.as_micros()).unwrap();
    assert!(ahead.abs() < 60_000_000, "{what}: {ahead} us ahead");
}

#[track_caller]
fn check_others(client: &mut Client, what: &str) {
    for (key, options) in [("new", ""), ("shared", " SHARED"), ("pool", " LIMIT 3")] {
        let command = format!("LOCK.ACQUIRE {key} alice {LONG}{options}");
        match client.call(&command) {
            Value::Int(token) => assert_of_the_clock(token, what),
            other => panic!("{what}: {command}: {other:?}"),
        }
        assert_eq!(client.call(&format!("LOCK.RELEASE {key} alice")), int(1));
    }
}

#[test]
fn the_greatest_token_ends_the_tokens_of_its_own_lock_alone() {
    let server = TestServer::start();
    let mut admin = server.client();
    let rules = "ACL SETUSER evil on nopass ~evil:* +hset +lock.acquire";
    assert_eq!(admin.call(rules), status("OK"));
    let mut evil = server.client();
    assert_eq!(evil.call("AUTH evil x"), status("OK"));
    evil.int(&format!("HSET evil:1 @fence {}", GREATEST - 1));
    assert_eq!(evil.call("LOCK.ACQUIRE evil:1 x"), int(GREATEST));
    check_others(&mut admin, "the greatest token was given");

    evil.int(&format!("HSET evil:2 @fence {GREATEST}"));
    let error = evil.error("LOCK.ACQUIRE evil:2 x");
    assert!(error.starts_with("ERR "), "{error}");
    check_others(&mut admin, "the greatest token was written");

    // Until the key is deleted.
    for key in ["evil:1", "evil:2"] {
        assert_eq!(admin.call(&format!("DEL {key}")), int(1));
        let command = format!("LOCK.ACQUIRE {key} x");
        match evil.call(&command) {
            Value::Int(token) => assert_of_the_clock(token, &command),
            other => panic!("{command}: {other:?}"),
        }
    }
}

#[test]
fn a_token_far_ahead_rises_in_its_own_lock_alone() {
    let server = TestServer::start();
    let (mut client, mut waiter) = (server.client(), server.client());
    client.int(&format!("HSET evil @fence {AHEAD}"));
    let command = format!("LOCK.ACQUIRE evil x {LONG}");
    assert_eq!(client.call(&command), int(AHEAD + 1));
    check_others(&mut client, "granted");
    assert_eq!(client.call(&command), int(AHEAD + 1));
    check_others(&mut client, "entered again");
    waiter.send(&format!("LOCK.ACQUIRE evil y {LONG} BLOCK 0"));
    await_waiting(&mut client, "evil", 1);
    assert_eq!(client.call("LOCK.RELEASE evil x ALL"), int(1));
    assert_eq!(waiter.reply(), int(AHEAD + 2));
    check_others(&mut client, "handed on");
    assert_eq!(client.call("LOCK.RENEW evil y LEASE 600000"), int(1));
    assert_eq!(client.call("DEBUG RELOAD"), status("OK"));
    check_others(&mut client, "loaded");
}

#[test]
fn a_lock_written_by_somebody_else_keeps_its_token_to_itself() {
    let server = TestServer::start();
    let mut client = server.client();
    client.int(&format!("HSET evil x 1 @fence {AHEAD}"));
    assert_eq!(client.int("PEXPIRE evil 600000"), 1);
    let command = format!("LOCK.ACQUIRE evil x {LONG}");
    assert_eq!(client.call(&command), int(AHEAD));
    check_others(&mut client, "entered again");
    // A reader beside a reader has a token of its own in the same lock.
    client.int(&format!("HSET readers @fence {AHEAD}"));
    for (n, token) in [(1, AHEAD + 1), (2, AHEAD + 2)] {
        let command = format!("LOCK.ACQUIRE readers r{n} {LONG} SHARED");
        assert_eq!(client.call(&command), int(token));
    }
    check_others(&mut client, "shared");
}

#[test]
fn a_promoted_replica_leaves_aside_what_is_far_ahead() {
    let server = TestServer::start_with(&["--repl-diskless-sync-delay", "0"]);
    let mut client = server.client();
    client.int(&format!("HSET evil @fence {AHEAD}"));
    let replica = server.replica(true);
    let command = format!("LOCK.ACQUIRE evil x {LONG}");
    assert_eq!(client.call(&command), int(AHEAD + 1));
    check_others(&mut client, "on the primary");
    server.assert_same_data(&replica);
    let mut client = replica.client();
    assert_eq!(client.call("REPLICAOF NO ONE"), status("OK"));
    check_others(&mut client, "after the promotion");
}
