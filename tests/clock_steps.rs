//! A wall clock that is set moves the ends of leases, as it does those of all keys, and
//! nothing else: whoever waits is served, and waits end in their time.

use std::time::{Duration, Instant};

use redis_lock_testing::scene::{await_replicas, configure};
use redis_lock_testing::{Clock, eventually, int, nil, token};

/// How much the clock is set by, in seconds. Leases are shorter.
const STEP_S: i64 = 3600;

#[test]
fn a_step_forward_ends_leases_and_serves_who_waits() {
    let clock = Clock::new();
    let server = clock.server();
    let (mut client, mut waiter) = (server.client(), server.client());
    let held = client.int("LOCK.ACQUIRE k holder LEASE 600000");
    client.int("LOCK.ACQUIRE free holder LEASE 600000");
    waiter.send("LOCK.ACQUIRE k waiter LEASE 600000 BLOCK 0");
    server.await_blocked(1);
    clock.set_ahead(STEP_S);
    assert!(token(&waiter.reply()) > held);
    assert_eq!(client.call("LOCK.RENEW k holder"), int(0));
    token(&client.call("LOCK.ACQUIRE free other"));
    server.assert_sound();
}

#[test]
fn who_waits_is_served_after_a_step_backward() {
    let clock = Clock::new();
    let server = clock.server();
    let (mut client, mut waiter) = (server.client(), server.client());
    client.call("CONFIG SET lock.recheck-interval 500");
    clock.set_ahead(STEP_S);
    client.int("LOCK.ACQUIRE k holder LEASE 600000");
    waiter.send("LOCK.ACQUIRE k waiter LEASE 600000 BLOCK 0");
    server.await_blocked(1);
    clock.set_ahead(0);
    // No event tells of it.
    client.call("SET k x");
    let error = waiter.reply_error();
    assert!(error.starts_with("WRONGTYPE "), "{error}");
    server.assert_sound();
}

#[test]
fn a_lease_that_begins_after_a_step_backward_is_handed_on_at_its_end() {
    const LEASE: Duration = Duration::from_secs(1);
    let clock = Clock::new();
    let server = clock.server();
    let (mut client, mut waiter) = (server.client(), server.client());
    clock.set_ahead(STEP_S);
    client.int("LOCK.ACQUIRE k holder LEASE 600000");
    waiter.send("LOCK.ACQUIRE k waiter BLOCK 0");
    server.await_blocked(1);
    clock.set_ahead(0);
    let start = Instant::now();
    assert_eq!(client.int("LOCK.RENEW k holder LEASE 1000"), 1);
    token(&waiter.reply());
    let waited = start.elapsed();
    assert!(waited >= LEASE && waited < 30 * LEASE, "{waited:?}");
}

#[test]
fn a_session_whose_lease_a_step_ends_has_its_connection_closed() {
    let clock = Clock::new();
    let server = clock.server();
    let (mut observer, mut holder) = (server.client(), server.client());
    let id = holder.int("CLIENT ID");
    holder.int("LOCK.ACQUIRE k holder LEASE 600000 SESSION");
    clock.set_ahead(STEP_S);
    eventually("the connection is closed", || {
        !observer.bulk("CLIENT LIST").contains(&format!("id={id} "))
    });
    token(&observer.call("LOCK.ACQUIRE k other"));
}

#[test]
fn a_place_is_kept_as_long_as_without_a_step() {
    for ahead_s in [STEP_S, -STEP_S] {
        let clock = Clock::new();
        let server = clock.server();
        let mut client = server.client();
        client.int("LOCK.ACQUIRE k holder LEASE 36000000");
        for (owner, ms) in [("long", 600_000), ("short", 3000)] {
            let ask = format!("LOCK.ACQUIRE k {owner} QUEUE {ms} channel");
            assert_eq!(client.call(&ask), int(0));
        }
        clock.set_ahead(ahead_s);
        eventually("the short one ends", || client.info("lock_places") == 1);
    }
}

#[test]
fn replicas_have_as_long_to_acknowledge_as_without_a_step() {
    let clock = Clock::new();
    // Of an hour later the server would take the replica for gone.
    let server = clock.server_with(&["--repl-timeout", "100000"]);
    let replica = server.replica(true);
    let mut observer = server.client();
    await_replicas(&mut observer, 1);
    configure(&mut observer, "min-replicas", 1);
    for (ahead_s, timeout_ms) in [(3600, 1_800_000), (0, 1000)] {
        configure(&mut observer, "replicas-timeout", timeout_ms);
        replica.stop();
        let mut client = server.client();
        client.send("LOCK.ACQUIRE k a LEASE 36000000");
        // On a slow machine its time may be over by now.
        eventually("it is withheld", || {
            observer.info("lock_replies_withheld") + observer.info("lock_replies_unacknowledged")
                > 0
        });
        clock.set_ahead(ahead_s);
        if ahead_s > 0 {
            clock.await_timers();
            assert_eq!(observer.call("LOCK.ACQUIRE k b"), nil());
            assert_eq!(observer.info("lock_replies_withheld"), 1);
            replica.go_on();
            token(&client.reply());
        } else {
            let error = client.reply_error();
            assert!(error.starts_with("NOREPLICAS "), "{error}");
            replica.go_on();
        }
    }
}
