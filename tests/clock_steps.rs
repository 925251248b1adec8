//! A wall clock that is set moves the ends of leases, as it does those of all keys, and
//! nothing else: whoever waits is served, and waits end in their time.

use std::time::{Duration, Instant};

use redis_lock_testing::{Clock, Play};

/// How much the clock is set by, in seconds. Leases are shorter.
const STEP_S: i64 = 3600;

#[test]
fn a_step_forward_ends_leases_and_serves_who_waits() {
    let clock = Clock::new();
    let mut play = Play::on(clock.server()).and_held();
    play.run(
        "h > LOCK.ACQUIRE free h LONG -> token
        s > LOCK.ACQUIRE session s LONG SESSION -> token
        w > LOCK.ACQUIRE k w BLOCKED -> ..",
    );
    clock.set_ahead(STEP_S);
    // A session whose lease the step ends has its connection closed.
    play.run(
        "w < token
        h > LOCK.RENEW k h -> 0
        o > LOCK.ACQUIRE free o -> token
        s < closed
        o > LOCK.ACQUIRE session o -> token",
    );
    play.run("sound");
}

/// No event tells of a `SET`.
#[test]
fn who_waits_is_served_after_a_step_backward() {
    let clock = Clock::new();
    let mut play = Play::on(clock.server());
    clock.set_ahead(STEP_S);
    play.run(
        "o > CONFIG SET lock.recheck-interval 500
        o > LOCK.ACQUIRE k h LONG -> token
        w > LOCK.ACQUIRE k w BLOCKED -> ..",
    );
    clock.set_ahead(0);
    play.run("o > SET k x \n w < !WRONGTYPE");
    play.run("sound");
}

#[test]
fn a_lease_that_begins_after_a_step_backward_is_handed_on_at_its_end() {
    const LEASE: Duration = Duration::from_secs(1);
    let clock = Clock::new();
    let mut play = Play::on(clock.server());
    clock.set_ahead(STEP_S);
    play.run("h > LOCK.ACQUIRE k h LONG -> H \n w > LOCK.ACQUIRE k w BLOCK 0 -> ..");
    clock.set_ahead(0);
    let start = Instant::now();
    play.run("h > LOCK.RENEW k h LEASE 1000 -> 1 \n w < token");
    let waited = start.elapsed();
    assert!(waited >= LEASE && waited < 30 * LEASE, "{waited:?}");
}

#[test]
fn a_place_is_kept_as_long_as_without_a_step() {
    for ahead_s in [STEP_S, -STEP_S] {
        let clock = Clock::new();
        let mut play = Play::on(clock.server());
        play.run(
            "o > LOCK.ACQUIRE k h LEASE 36000000 -> token
            o > LOCK.ACQUIRE k long QUEUE 600000 ch -> 0
            o > LOCK.ACQUIRE k short QUEUE 3000 ch -> 0",
        );
        clock.set_ahead(ahead_s);
        play.run("until queue k = long");
    }
}

/// Of an hour later the server would take the replica for gone.
#[test]
fn replicas_have_as_long_to_acknowledge_as_without_a_step() {
    let clock = Clock::new();
    let server = clock.server_with(&["--repl-timeout", "100000"]);
    let mut play = Play::on(server).with_replica();
    play.run(
        "o > CONFIG SET lock.min-replicas 1
        o > CONFIG SET lock.replicas-timeout 1800000
        r stops
        a > LOCK.ACQUIRE k a LEASE 36000000 -> ..
        lock_replies_withheld = 1",
    );
    clock.set_ahead(3600);
    play.run(
        "o > LOCK.ACQUIRE k b -> null
        lock_replies_withheld = 1
        r goes on
        a < token
        o > CONFIG SET lock.replicas-timeout 3000
        r stops
        a > LOCK.ACQUIRE k a LEASE 36000000 -> ..",
    );
    clock.set_ahead(0);
    play.run("a < !NOREPLICAS \n r goes on");
}
