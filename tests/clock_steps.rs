//! Steps of the wall clock are told, and take no lock from a holder of which the module
//! knows: one that others wait for, or one of a session.

use std::time::{Duration, Instant};

use redis::Value;
use redis_lock_testing::scene::{await_replicas, configure};
use redis_lock_testing::{Client, Clock, TestServer, eventually, int, nil, status, token};

/// How much the clock is set by, in seconds. Leases are shorter.
const STEP_S: i64 = 3600;

/// Sets the clock ahead of the right time by so much, as the step of this number.
#[track_caller]
fn set_ahead(clock: &Clock, observer: &mut Client, ahead_s: i64, step: i64) {
    clock.set_ahead(ahead_s);
    eventually("the step is seen", || {
        observer.info("lock_clock_steps") == step
    });
}

/// The owner has its hold, with this token, for hardly more than ten minutes.
#[track_caller]
fn check_holds(client: &mut Client, key: &str, owner: &str, token: i64) {
    let left_ms = client.int(&format!("PTTL {key}"));
    assert!((1..=610_000).contains(&left_ms), "{left_ms}");
    let renew = format!("LOCK.RENEW {key} {owner} LEASE 600000 FENCE {token}");
    assert_eq!(client.call(&renew), int(1));
}

#[test]
fn steps_of_the_wall_clock_are_counted_and_logged() {
    let clock = Clock::new();
    let server = clock.server();
    let mut client = server.client();
    assert_eq!(client.info("lock_clock_steps"), 0);
    for (ahead_s, count, way) in [(STEP_S, 1, "forward"), (0, 2, "backward")] {
        let before = client.info("lock_clock_step_ms_last");
        set_ahead(&clock, &mut client, ahead_s, count);
        let step_ms = client.info("lock_clock_step_ms_last");
        let expected_ms = if count == 1 { STEP_S * 1000 } else { -before };
        assert!((step_ms - expected_ms).abs() < 1000, "{step_ms}");
        let told = format!("the wall clock was set {way} by ");
        assert!(server.log().contains(&told), "{}", server.log());
    }
}

/// A server whose clock is set from one number of seconds ahead to another, and that has
/// not seen it: its own clockwork turns once a second.
fn set_unseen(clock: &Clock, from_s: i64, to_s: i64) -> TestServer {
    let server = clock.server_with(&["--hz", "1"]);
    set_ahead(clock, &mut server.client(), from_s, 1);
    clock.set_ahead(to_s);
    server
}

#[test]
fn a_lock_taken_after_a_step_that_nobody_has_seen_is_not_over_when_it_is() {
    let clock = Clock::new();
    let server = set_unseen(&clock, STEP_S, 0);
    let (mut client, mut waiter) = (server.client(), server.client());
    let holds = client.int("LOCK.ACQUIRE k holder LEASE 600000");
    waiter.send("LOCK.ACQUIRE k waiter LEASE 600000 BLOCK 0");
    server.await_blocked(1);
    eventually("the step is seen", || client.info("lock_clock_steps") == 2);
    clock.await_timers();
    check_holds(&mut client, "k", "holder", holds);
    assert_eq!(client.info("lock_waiters"), 1);
}

#[test]
fn a_session_that_begins_after_a_step_that_nobody_has_seen_has_its_lease_and_no_more() {
    let clock = Clock::new();
    let server = set_unseen(&clock, -STEP_S, 0);
    let mut client = server.client();
    let holds = client.int("LOCK.ACQUIRE k holder SESSION LEASE 600000");
    eventually("the step is seen", || client.info("lock_clock_steps") == 2);
    clock.await_timers();
    check_holds(&mut client, "k", "holder", holds);
}

#[test]
fn who_waits_is_served_after_a_step_backward() {
    let clock = Clock::new();
    let server = clock.server();
    let (mut client, mut waiter) = (server.client(), server.client());
    set_ahead(&clock, &mut client, STEP_S, 1);
    client.int("LOCK.ACQUIRE k holder LEASE 600000");
    waiter.send("LOCK.ACQUIRE k waiter LEASE 600000 BLOCK 0");
    server.await_blocked(1);
    set_ahead(&clock, &mut client, 0, 2);
    assert_eq!(client.int("LOCK.RELEASE k holder"), 1);
    token(&waiter.reply());
}

#[test]
fn a_step_forward_takes_no_lock_that_somebody_waits_for() {
    let clock = Clock::new();
    let server = clock.server();
    let (mut client, mut waiter) = (server.client(), server.client());
    let holds = client.int("LOCK.ACQUIRE k holder LEASE 600000");
    client.int("LOCK.ACQUIRE k holder LEASE 1");
    waiter.send("LOCK.ACQUIRE k waiter LEASE 600000 BLOCK 0");
    server.await_blocked(1);
    // Beyond the lease, and once more.
    for step in [1, 2] {
        set_ahead(&clock, &mut client, step * STEP_S, step);
        clock.await_timers();
        check_holds(&mut client, "k", "holder", holds);
        assert_eq!(client.info("lock_waiters"), 1);
    }
    // Within it.
    set_ahead(&clock, &mut client, 2 * STEP_S + 300, 3);
    check_holds(&mut client, "k", "holder", holds);
    assert_eq!(client.int("LOCK.RELEASE k holder"), 0);
    assert_eq!(client.int("LOCK.RELEASE k holder"), 1);
    assert!(token(&waiter.reply()) > holds);
}

#[test]
fn the_first_command_after_a_step_finds_the_holder_in_its_place() {
    let clock = Clock::new();
    let server = clock.server();
    let (mut client, mut waiter) = (server.client(), server.client());
    let holds = client.int("LOCK.ACQUIRE k holder LEASE 600000");
    waiter.send("LOCK.ACQUIRE k waiter LEASE 600000 BLOCK 0");
    server.await_blocked(1);
    let firsts = [
        ("LOCK.ACQUIRE k other", nil()),
        ("LOCK.ACQUIRE k holder HOLD 1 LEASE 600000", int(holds)),
        ("LOCK.RENEW k holder LEASE 600000", int(1)),
        ("LOCK.RELEASE k other", nil()),
        (&format!("LOCK.GUARD k {holds} SET x 1"), status("OK")),
    ];
    for ((first, reply), step) in firsts.into_iter().zip(1..) {
        clock.set_ahead(step * STEP_S);
        assert_eq!(client.call(first), reply, "{first}");
        check_holds(&mut client, "k", "holder", holds);
    }
    clock.set_ahead(9 * STEP_S);
    assert_eq!(client.int("LOCK.RELEASE k holder"), 1);
    assert!(token(&waiter.reply()) > holds);
}

#[test]
fn a_wait_that_the_step_ends_leaves_the_holder_the_lock() {
    let clock = Clock::new();
    let server = clock.server();
    let (mut client, mut waiter) = (server.client(), server.client());
    let holds = client.int("LOCK.ACQUIRE k holder LEASE 600000");
    waiter.send("LOCK.ACQUIRE k waiter LEASE 600000 BLOCK 600000");
    server.await_blocked(1);
    clock.set_ahead(STEP_S);
    assert_eq!(waiter.reply(), nil());
    assert_eq!(waiter.call("LOCK.ACQUIRE k waiter"), nil());
    check_holds(&mut client, "k", "holder", holds);
}

#[test]
fn a_step_forward_takes_no_lock_of_a_session() {
    let clock = Clock::new();
    let server = clock.server();
    let (mut client, mut holder) = (server.client(), server.client());
    let k = holder.int("LOCK.ACQUIRE k holder LEASE 600000 SESSION");
    holder.int("LOCK.ACQUIRE k holder LEASE 600000");
    let l = holder.int("LOCK.ACQUIRE l holder LEASE 600000 SESSION LIMIT 2");
    for step in [1, 2] {
        set_ahead(&clock, &mut client, step * STEP_S, step);
        check_holds(&mut client, "k", "holder", k);
        check_holds(&mut client, "l", "holder", l);
        assert_eq!(client.bulk("HGET k holder"), "2");
        token(&client.call("LOCK.ACQUIRE l other LIMIT 2 LEASE 1"));
        assert_eq!(client.info("lock_sessions"), 2);
    }
    drop(holder);
    eventually("all ends with the connection", || {
        client.int("EXISTS k l") == 0
    });
}

#[test]
fn all_who_share_a_lock_keep_it_over_a_step() {
    let clock = Clock::new();
    let server = clock.server();
    let (mut client, mut waiter) = (server.client(), server.client());
    let first = client.int("LOCK.ACQUIRE k first SHARED LEASE 600000");
    let second = client.int("LOCK.ACQUIRE k second SHARED LEASE 300000");
    waiter.send("LOCK.ACQUIRE k waiter LEASE 600000 BLOCK 0");
    server.await_blocked(1);
    // Beyond both leases, and beyond the shorter one.
    for (ahead_s, step) in [(STEP_S, 1), (STEP_S + 450, 2)] {
        set_ahead(&clock, &mut client, ahead_s, step);
        for (owner, token) in [("first", first), ("second", second)] {
            check_holds(&mut client, "k", owner, token);
        }
        assert_eq!(client.info("lock_waiters"), 1);
    }
    assert_eq!(client.int("LOCK.RELEASE k first"), 1);
    assert_eq!(client.int("LOCK.RELEASE k second"), 1);
    token(&waiter.reply());
}

/// A lease that has begun before a step of the clock, from one number of seconds ahead to
/// another, ends in its time.
fn a_lease_ends_in_its_time_over_a_step(from_s: i64, to_s: i64) {
    const LEASE: Duration = Duration::from_secs(2);
    let clock = Clock::new();
    let server = clock.server();
    let (mut client, mut waiter) = (server.client(), server.client());
    set_ahead(&clock, &mut client, from_s, 1);
    let start = Instant::now();
    client.int(&format!(
        "LOCK.ACQUIRE k holder LEASE {}",
        LEASE.as_millis()
    ));
    waiter.send("LOCK.ACQUIRE k waiter BLOCK 0");
    server.await_blocked(1);
    clock.set_ahead(to_s);
    token(&waiter.reply());
    let waited = start.elapsed();
    assert!(waited >= LEASE, "{waited:?}");
    eventually("the step is seen", || client.info("lock_clock_steps") == 2);
}

#[test]
fn a_lease_that_is_over_is_handed_on_after_a_step_forward() {
    a_lease_ends_in_its_time_over_a_step(STEP_S, 2 * STEP_S);
}

#[test]
fn a_lease_that_is_over_is_handed_on_after_a_step_backward() {
    a_lease_ends_in_its_time_over_a_step(STEP_S, 0);
}

#[test]
fn a_lock_that_somebody_deletes_after_a_step_is_free() {
    let clock = Clock::new();
    let server = clock.server();
    let (mut client, mut waiter) = (server.client(), server.client());
    client.int("LOCK.ACQUIRE k holder LEASE 600000");
    waiter.send("LOCK.ACQUIRE k waiter LEASE 600000 BLOCK 0");
    server.await_blocked(1);
    set_ahead(&clock, &mut client, STEP_S, 1);
    eventually("the holder has it still", || client.int("DEL k") == 1);
    token(&waiter.reply());
    assert_eq!(client.call("LOCK.RENEW k holder"), int(0));
    assert_eq!(client.call("LOCK.RENEW k waiter"), int(1));
}

#[test]
fn replicas_hold_what_the_primary_holds_after_a_step() {
    let clock = Clock::new();
    let server = clock.server();
    let replica = server.replica(false);
    let mut client = server.client();
    let holds = client.int("LOCK.ACQUIRE k holder LEASE 600000");
    client.int("LOCK.ACQUIRE l holder SHARED LEASE 600000");
    client.int("LOCK.ACQUIRE l other SHARED LEASE 500000");
    client.int("LOCK.ACQUIRE s session SESSION LEASE 600000");
    let mut waiters = [server.client(), server.client()];
    for (waiter, key) in waiters.iter_mut().zip(["k", "l"]) {
        waiter.send(&format!("LOCK.ACQUIRE {key} waiter BLOCK 0"));
    }
    server.await_blocked(2);
    for step in [1, 2] {
        set_ahead(&clock, &mut client, step * STEP_S, step);
        check_holds(&mut client, "k", "holder", holds);
        eventually("all are in their places", || {
            client.int("EXISTS k l s") == 3
        });
        server.assert_same_data(&replica);
        let mut there = replica.client();
        for key in ["k", "l", "s"] {
            assert_eq!(there.hash(key), client.hash(key));
            let end = format!("PEXPIRETIME {key}");
            eventually("it ends there when it does here", || {
                there.int(&end) == client.int(&end)
            });
        }
    }
}

/// As the documents say: of this lock the module knows nothing.
#[test]
fn a_lock_that_nobody_waits_for_and_that_is_of_no_session_is_lost_in_a_step() {
    let clock = Clock::new();
    let server = clock.server();
    let mut client = server.client();
    client.int("LOCK.ACQUIRE k holder LEASE 600000");
    set_ahead(&clock, &mut client, STEP_S, 1);
    token(&client.call("LOCK.ACQUIRE k other"));
    assert_eq!(client.call("LOCK.RENEW k holder"), int(0));
}

/// What comes in between by other means has the lock.
#[test]
fn a_lock_that_a_script_takes_after_a_step_is_not_taken_from_it() {
    let clock = Clock::new();
    let server = clock.server();
    let mut client = server.client();
    let mut waiters = [server.client(), server.client()];
    for (waiter, key) in waiters.iter_mut().zip(["k", "l"]) {
        client.int(&format!("LOCK.ACQUIRE {key} holder LEASE 600000"));
        waiter.send(&format!("LOCK.ACQUIRE {key} waiter LEASE 600000 BLOCK 0"));
    }
    server.await_blocked(2);
    // The server reads its clock before each command: one of these sees the step first.
    let script = "if redis.call('EXISTS', KEYS[1]) == 0 then \
                  redis.call('HSET', KEYS[1], 'script', 1) \
                  redis.call('PEXPIRE', KEYS[1], 600000) end";
    let take = |key: &str| ["EVAL", script, "1", key].map(str::to_owned);
    clock.set_ahead(STEP_S);
    for key in ["k", "l"] {
        let words = take(key);
        let words: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
        assert_eq!(client.words(&words), Value::Nil);
    }
    for key in ["k", "l"] {
        // One of them holds it, and never both.
        let renewed = ["holder", "script"].map(|owner| {
            let renew = format!("LOCK.RENEW {key} {owner} LEASE 600000");
            client.int(&renew)
        });
        assert_eq!(renewed.iter().sum::<i64>(), 1, "{renewed:?}");
    }
    assert_eq!(client.info("lock_waiters"), 2);
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
        let steps = observer.info("lock_clock_steps");
        replica.stop();
        let mut client = server.client();
        client.send("LOCK.ACQUIRE k a LEASE 36000000");
        // On a slow machine its time may be over by now.
        eventually("it is withheld", || {
            observer.info("lock_replies_withheld") + observer.info("lock_replies_unacknowledged")
                > 0
        });
        clock.set_ahead(ahead_s);
        eventually("the step is seen", || {
            observer.info("lock_clock_steps") == steps + 1
        });
        if ahead_s > 0 {
            assert_eq!(observer.info("lock_replies_withheld"), 1);
            replica.go_on();
            redis_lock_testing::token(&client.reply());
        } else {
            let error = client.reply_error();
            assert!(error.starts_with("NOREPLICAS "), "{error}");
            replica.go_on();
        }
    }
}
