//! Whoever was told that it holds a lock holds it, whatever becomes of other
//! connections of the same owner.

use redis_lock_chaos::history::Outcome;
use redis_lock_chaos::scene::{Party, Scene};
use redis_lock_testing::{Setup, binary, module};

const ROUNDS: usize = 20;

fn stage() -> Scene {
    Scene::start(Setup::of(binary()).module(module()))
}

#[track_caller]
fn assert_sound(stage: &Scene) {
    let breaches = stage.breaches();
    let first = breaches.first().map(|breach| &breach.evidence);
    assert!(
        breaches.is_empty(),
        "{} breaches: {first:?}",
        breaches.len()
    );
}

/// A party that holds the lock by its connection, and another that waits for it.
fn session_and_waiter(stage: &mut Scene, options: &str) -> (Party, Party) {
    let mut session = stage.party("x");
    let granted = session.acquire("l", &format!("{options} SESSION LEASE 60000"));
    assert!(matches!(granted, Outcome::Granted(_)), "{granted:?}");
    session.ping("l");
    let mut other = stage.party("n");
    other.ask("l", "LEASE 60000 BLOCK 5000");
    assert!(stage.sees_queued(&other));
    (session, other)
}

/// The owner of a session has asked again, and heard this.
fn both_part(pooled: &mut Party, told: &Outcome, mut other: Party) {
    if matches!(told, Outcome::Granted(_)) {
        pooled.renew("l", 60_000);
        pooled.release("l");
    }
    other.answer();
    other.renew("l", 60_000);
    other.release("l");
}

#[test]
fn what_is_told_after_a_connection_was_killed_stays() {
    for options in ["", "HOLD 1", "SESSION", "HOLD 1 SESSION"] {
        let mut stage = stage();
        let mut pooled = stage.party("x");
        let (session, other) = session_and_waiter(&mut stage, "HOLD 1");
        let again = format!("{options} LEASE 60000");
        let told = pooled.kill_and_acquire("l", session, again.trim());
        both_part(&mut pooled, &told, other);
        assert_sound(&stage);
    }
}

#[test]
fn what_is_told_after_a_connection_closed_stays() {
    for options in ["", "HOLD 1", "SESSION", "HOLD 1 SESSION"] {
        let mut stage = stage();
        for _ in 0..ROUNDS {
            let mut pooled = stage.party("x");
            let (session, other) = session_and_waiter(&mut stage, "HOLD 1");
            let again = format!("{options} LEASE 60000");
            session.close("l");
            let told = pooled.acquire("l", again.trim());
            std::thread::sleep(std::time::Duration::from_millis(3));
            both_part(&mut pooled, &told, other);
        }
        assert_sound(&stage);
    }
}

#[test]
fn a_hold_survives_another_request_of_its_owner() {
    let mut stage = stage();
    for _ in 0..ROUNDS {
        let [mut a, mut first, mut twin, mut other] =
            ["a", "x", "x", "n"].map(|owner| stage.party(owner));
        a.acquire("l", "LEASE 60000");
        for waiter in [&mut first, &mut twin] {
            waiter.ask("l", "HOLD 1 LEASE 60000 BLOCK 5000");
            assert!(stage.sees_queued(waiter));
        }
        other.ask("l", "LEASE 60000 BLOCK 5000");
        assert!(stage.sees_queued(&other));
        a.release_and_kill("l", twin);
        first.answer();
        std::thread::sleep(std::time::Duration::from_millis(3));
        first.renew("l", 60_000);
        first.release("l");
        other.answer();
        other.release("l");
    }
    assert_sound(&stage);
}
