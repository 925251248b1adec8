//! Whoever was told that it holds a lock holds it, whatever becomes of other
//! connections of the same owner.

use redis_lock_chaos::scene::Scene;
use redis_lock_testing::{Setup, binary, module};

/// Plays a scene so often, with each of these options of `x` in place of `{options}`.
#[track_caller]
fn assert_sound(rounds: usize, options: &[&str], lines: &str) {
    for options in options {
        let mut scene = Scene::start(&Setup::of(binary()).module(module()));
        for _ in 0..rounds {
            scene.play(&lines.replace(" {options}", options));
            scene.clear();
        }
        let breaches = scene.breaches();
        let first = breaches.first().map(|breach| &breach.evidence);
        assert!(first.is_none(), "{} breaches: {first:?}", breaches.len());
    }
}

const OPTIONS: [&str; 4] = ["", " HOLD 1", " SESSION", " HOLD 1 SESSION"];

#[test]
fn what_is_told_after_a_connection_was_killed_stays() {
    assert_sound(
        1,
        &OPTIONS,
        "x' pings l
        x takes l LEASE 60000 HOLD 1 SESSION
        x pings l
        n waits l LEASE 60000 BLOCK 5000
        x' takes l LEASE 60000 {options}, killing x
        x' renews l 60000 if held
        x' releases l if held
        n answered
        n renews l 60000
        n releases l",
    );
}

#[test]
fn what_is_told_after_a_connection_closed_stays() {
    assert_sound(
        20,
        &OPTIONS,
        "x' pings l
        x takes l LEASE 60000 HOLD 1 SESSION
        x pings l
        n waits l LEASE 60000 BLOCK 5000
        x closes l
        x' takes l LEASE 60000 {options}
        after 3 ms
        x' renews l 60000 if held
        x' releases l if held
        n answered
        n renews l 60000
        n releases l",
    );
}

#[test]
fn a_hold_survives_another_request_of_its_owner() {
    assert_sound(
        20,
        &[""],
        "a takes l LEASE 60000
        x waits l LEASE 60000 HOLD 1 BLOCK 5000
        x' waits l LEASE 60000 HOLD 1 BLOCK 5000
        n waits l LEASE 60000 BLOCK 5000
        a releases l, killing x'
        x answered
        after 3 ms
        x renews l 60000
        x releases l
        n answered
        n releases l",
    );
}
