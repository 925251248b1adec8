//! Modules with a fault planted in them are caught, each by a scene that leaves
//! nothing to luck, and that finds nothing wrong without the fault.

mod planted;

use std::path::Path;
use std::time::{Duration, Instant};

use redis_lock_chaos::campaign::write_history;
use redis_lock_chaos::history::{Breach, Outcome, Promise};
use redis_lock_chaos::scene::{Party, Scene};
use redis_lock_testing::{Setup, binary, eventually};

/// A fault that takes each fiftieth chance takes one of this many.
const ROUNDS: usize = 55;

/// A scene is played again if the machine stood still just then.
const ATTEMPTS: usize = 5;

/// What is promised even to those who go from one primary to the next.
const KEPT_OVER_FAIL_OVERS: [Promise; 3] =
    [Promise::Exclusion, Promise::Tokens, Promise::Possession];

fn play(fault: &str, scene: impl Fn(&mut Scene)) -> Vec<Breach> {
    let setup = Setup::of(binary()).module(planted::module());
    let mut stage = Scene::start(setup.environment("REDISLOCK_PLANTED_FAULT", fault));
    scene(&mut stage);
    // For somebody else to judge: the name says what it has to find.
    if let Some(folder) = std::env::var_os("REDISLOCK_HISTORIES") {
        let test = std::thread::current();
        let test = test.name().unwrap_or_default();
        let file = format!("{test}.{}.jsonl", fault.replace('/', "-"));
        write_history(&stage.history(), &Path::new(&folder).join(file)).unwrap();
    }
    stage.breaches()
}

/// Plays the scene with and without the fault.
#[track_caller]
fn assert_caught(fault: &str, promises: &[&str], scene: impl Fn(&mut Scene)) {
    let caught = (0..ATTEMPTS).any(|_| {
        let breaches = play(fault, &scene);
        let names: Vec<String> = breaches.iter().map(|one| one.promise.to_string()).collect();
        promises
            .iter()
            .all(|promise| names.iter().any(|name| name == promise))
    });
    assert!(caught, "{fault} is no breach of {promises:?}");
    let breaches = play("none", &scene);
    assert!(breaches.is_empty(), "without a fault: {breaches:#?}");
}

/// As [`assert_caught`], of a scene in which a primary is lost, with what it told that
/// its replica has not heard of.
#[track_caller]
fn assert_caught_after_loss(fault: &str, promise: Promise, scene: impl Fn(&mut Scene)) {
    let play = |fault: &str| {
        let mut breaches = play(fault, &scene);
        breaches.retain(|one| KEPT_OVER_FAIL_OVERS.contains(&one.promise));
        breaches
    };
    let caught = (0..ATTEMPTS).any(|_| play(fault).iter().any(|one| one.promise == promise));
    assert!(caught, "{fault} is no breach of {promise}");
    let breaches = play("none");
    assert!(breaches.is_empty(), "without a fault: {breaches:#?}");
}

/// Plays short scenes until one shows the fault.
fn repeat(stage: &mut Scene, scene: impl Fn(&mut Scene)) {
    for _ in 0..ROUNDS {
        scene(stage);
        if !stage.breaches_so_far().is_empty() {
            break;
        }
    }
}

fn parties<const N: usize>(stage: &mut Scene, names: [&str; N]) -> [Party; N] {
    names.map(|name| stage.party(name))
}

/// Asks, and waits until that is seen in the queue.
#[track_caller]
fn queue(stage: &Scene, party: &mut Party, lock: &str, options: &str) {
    party.ask(lock, options);
    assert!(stage.sees_queued(party), "{} waits", party.owner);
}

#[test]
fn a_lease_that_keeps_nobody_out_is_a_breach_of_exclusion() {
    assert_caught("expiry-ignored", &["exclusion"], |stage| {
        let [mut a, mut b] = parties(stage, ["a", "b"]);
        a.acquire("l", "LEASE 5000");
        b.acquire("l", "LEASE 5000");
    });
}

#[test]
fn a_release_by_anybody_is_a_breach_of_exclusion_and_possession() {
    let promises = ["exclusion", "possession"];
    assert_caught("owner-not-checked", &promises, |stage| {
        let [mut a, mut b, mut c] = parties(stage, ["a", "b", "c"]);
        a.acquire("l", "LEASE 5000");
        b.release("l");
        c.acquire("l", "LEASE 5000");
        a.renew("l", 5000);
    });
}

#[test]
fn a_token_that_is_used_again_is_a_breach_of_tokens() {
    assert_caught("token-reused", &["tokens"], |stage| {
        let [mut a, mut b] = parties(stage, ["a", "b"]);
        a.acquire("l", "LEASE 5000");
        a.release("l");
        b.acquire("l", "LEASE 5000");
    });
}

#[test]
fn a_stack_in_place_of_a_queue_is_a_breach_of_order() {
    assert_caught("last-in-first-out", &["order"], |stage| {
        let [mut a, mut b, mut c] = parties(stage, ["a", "b", "c"]);
        a.acquire("l", "LEASE 9000");
        queue(stage, &mut b, "l", "LEASE 100 BLOCK 5000");
        queue(stage, &mut c, "l", "LEASE 100 BLOCK 5000");
        a.release("l");
        b.answer();
        c.answer();
    });
}

#[test]
fn a_lock_that_is_handed_to_nobody_is_a_breach_of_liveness() {
    assert_caught("hand-off-skipped", &["liveness"], |stage| {
        let [mut a, mut b] = parties(stage, ["a", "b"]);
        a.acquire("l", "LEASE 5000");
        queue(stage, &mut b, "l", "LEASE 5000 BLOCK 2500");
        a.release("l");
        b.answer();
    });
}

#[test]
fn a_shared_lock_that_lets_everybody_in_is_a_breach_of_exclusion() {
    assert_caught("limit-ignored", &["exclusion"], |stage| {
        for mut party in parties(stage, ["a", "b", "c"]) {
            party.acquire("l", "LEASE 5000 LIMIT 2");
        }
    });
}

#[test]
fn a_hold_that_outlives_its_session_is_a_breach_of_liveness() {
    assert_caught("session-outlived", &["liveness"], |stage| {
        let [mut a, mut b] = parties(stage, ["a", "b"]);
        a.acquire("l", "LEASE 1000 SESSION");
        a.ping("l");
        queue(stage, &mut b, "l", "LEASE 1000 BLOCK 2500");
        a.close("l");
        b.answer();
    });
}

#[test]
fn a_deadlock_that_nobody_is_told_of_is_a_breach() {
    assert_caught("deadlock-missed", &["deadlock"], |stage| {
        let [mut a, mut b] = parties(stage, ["a", "b"]);
        let [mut also_a, mut also_b] = parties(stage, ["a", "b"]);
        a.acquire("1", "LEASE 5000");
        b.acquire("2", "LEASE 5000");
        queue(stage, &mut also_a, "2", "LEASE 5000 BLOCK 700");
        also_b.ask("1", "LEASE 5000 BLOCK 700");
        stage.sees_queued(&also_b);
        also_b.answer();
        also_a.answer();
    });
}

#[test]
fn a_reader_that_passes_the_queue_is_a_breach_of_order() {
    assert_caught("reader-barges", &["order"], |stage| {
        let [mut a, mut b, mut c] = parties(stage, ["a", "b", "c"]);
        a.acquire("l", "LEASE 5000 SHARED");
        queue(stage, &mut b, "l", "LEASE 5000 BLOCK 1000");
        if c.acquire("l", "LEASE 5000 SHARED") != Outcome::NotAvailable {
            c.release("l");
        }
        a.release("l");
        b.answer();
    });
}

/// The second in line is forgotten, so nobody is told that the lock is free.
fn three_in_line(stage: &mut Scene) {
    let [mut a, mut b, mut c] = parties(stage, ["a", "b", "c"]);
    a.acquire("l", "LEASE 5000");
    queue(stage, &mut b, "l", "LEASE 5000 BLOCK 900");
    queue(stage, &mut c, "l", "LEASE 5000 BLOCK 900");
    a.release("l");
    b.answer();
    b.release("l");
    if c.answer() != Outcome::NotAvailable {
        c.release("l");
    }
}

#[test]
fn a_waiter_that_is_forgotten_is_a_breach_of_liveness() {
    assert_caught("waiter-dropped", &["liveness"], three_in_line);
}

#[test]
fn a_waiter_that_is_rarely_forgotten_is_a_breach_of_liveness() {
    assert_caught("waiter-dropped/50", &["liveness"], |stage| {
        repeat(stage, three_in_line);
    });
}

#[test]
fn a_lease_that_begins_too_early_is_a_breach_of_exclusion() {
    assert_caught("lease-from-enqueue", &["exclusion"], |stage| {
        let [mut a, mut b, mut c, mut d] = parties(stage, ["a", "b", "c", "d"]);
        a.acquire("l", "LEASE 5000");
        queue(stage, &mut b, "l", "LEASE 1000 BLOCK 3000");
        std::thread::sleep(Duration::from_millis(700));
        // Its token shows that the grant came later.
        d.acquire("another", "LEASE 100");
        a.release("l");
        b.answer();
        c.acquire("l", "LEASE 5000 BLOCK 3000");
        c.renew("l", 5000);
    });
}

fn renewal_after_release(stage: &mut Scene) {
    let mut a = stage.party("a");
    a.acquire("l", "LEASE 5000");
    a.release("l");
    if a.renew("l", 5000) == Outcome::Renewed {
        a.release("l");
    }
}

#[test]
fn a_renewal_that_takes_a_lock_is_a_breach_of_possession() {
    assert_caught("late-renewal", &["possession"], renewal_after_release);
}

#[test]
fn a_renewal_that_rarely_takes_a_lock_is_a_breach_of_possession() {
    assert_caught("late-renewal/50", &["possession"], |stage| {
        repeat(stage, renewal_after_release);
    });
}

fn one_owner_twice(stage: &mut Scene) {
    let mut a = stage.party("a");
    for _ in 0..2 {
        a.acquire("l", "LEASE 5000");
        a.release("l");
    }
}

#[test]
fn a_token_that_its_owner_gets_again_is_a_breach_of_tokens() {
    assert_caught("own-token-again", &["tokens"], one_owner_twice);
}

#[test]
fn a_token_that_its_owner_rarely_gets_again_is_a_breach_of_tokens() {
    assert_caught("own-token-again/50", &["tokens"], |stage| {
        repeat(stage, one_owner_twice);
    });
}

#[test]
fn a_lease_that_replicas_do_not_know_is_a_breach_of_liveness() {
    assert_caught("expiry-not-propagated", &["liveness"], |stage| {
        stage.add_replica();
        let mut a = stage.party("a");
        a.acquire("l", "LEASE 1500");
        stage.fail_over();
        let mut b = stage.party("b");
        b.ask("l", "LEASE 100 BLOCK 4000");
        stage.sees_queued(&b);
        b.answer();
    });
}

#[test]
fn a_lock_that_is_handed_on_late_is_a_breach_of_liveness() {
    assert_caught("rechecks-late", &["liveness"], |stage| {
        for lock in ["1", "2", "3"] {
            let [mut a, mut b] = parties(stage, ["a", "b"]);
            a.acquire(lock, "LEASE 60");
            b.ask(lock, "LEASE 100 BLOCK 2000");
            stage.sees_queued(&b);
            b.answer();
        }
    });
}

#[test]
fn a_place_that_is_not_kept_is_a_breach_of_order() {
    assert_caught("place-not-kept", &["order"], |stage| {
        let mut a = stage.party("a");
        let [mut b, mut c] = ["b", "c"].map(|owner| stage.listener(owner));
        a.acquire("l", "LEASE 9000");
        b.queue("l", "LEASE 100", 5000);
        c.queue("l", "LEASE 100", 5000);
        b.queue_again("l", "LEASE 100", 5000);
        a.release("l");
        b.told();
        c.told();
    });
}

#[test]
fn a_grant_to_a_place_of_which_nobody_hears_is_a_breach_of_liveness() {
    assert_caught("grant-unheard", &["liveness"], |stage| {
        stage.set_claim_timeout(1000);
        let [mut a, mut c] = parties(stage, ["a", "c"]);
        let mut b = stage.listener("b");
        a.acquire("l", "LEASE 9000");
        b.queue("l", "LEASE 1000", 9000);
        b.stop_listening();
        // Nobody may suppose any more that it was granted before.
        std::thread::sleep(Duration::from_millis(1200));
        queue(stage, &mut c, "l", "LEASE 1000 BLOCK 5000");
        a.release("l");
        c.answer();
    });
}

#[test]
fn a_session_that_is_kept_up_unclaimed_is_a_breach_of_liveness() {
    assert_caught("unclaimed-kept", &["liveness"], |stage| {
        let [mut a, mut c] = parties(stage, ["a", "c"]);
        let mut b = stage.listener("b");
        a.acquire("l", "LEASE 9000");
        b.queue("l", "LEASE 1000 SESSION", 5000);
        queue(stage, &mut c, "l", "LEASE 1000 BLOCK 2500");
        a.release("l");
        b.told();
        c.answer();
    });
}

#[test]
fn a_grant_to_a_place_that_has_ended_is_a_breach_of_possession() {
    assert_caught("place-outlived", &["possession"], |stage| {
        let mut a = stage.party("a");
        let mut b = stage.listener("b");
        a.acquire("l", "LEASE 9000");
        b.queue("l", "LEASE 1000 SESSION", 5000);
        a.kill_acquire_and_release(&mut b, "another", "l");
        b.told();
    });
}

/// Nothing is told before the replica has acknowledged it, however long that takes.
fn add_replica_to_await(stage: &mut Scene) {
    stage.add_replica();
    stage.admin("CONFIG SET lock.min-replicas 1 lock.replicas-timeout 600000");
}

fn grant_that_is_lost(stage: &mut Scene) {
    add_replica_to_await(stage);
    let mut a = stage.party("a");
    stage.cut_off_replica();
    a.ask("l", "LEASE 60000");
    stage.sees_withheld(&a);
    stage.lose_primary();
    a.answer();
    stage.party("b").acquire("l", "LEASE 60000");
}

#[test]
fn a_grant_that_waits_for_no_replica_is_a_breach_of_exclusion() {
    let fault = "acknowledgement-not-awaited";
    assert_caught_after_loss(fault, Promise::Exclusion, grant_that_is_lost);
}

#[test]
fn a_grant_that_waits_for_what_was_written_before_it_is_a_breach_of_exclusion() {
    assert_caught_after_loss("offset-too-early", Promise::Exclusion, grant_that_is_lost);
}

#[test]
fn a_hand_off_that_waits_for_no_replica_is_a_breach_of_possession() {
    assert_caught_after_loss("hand-off-not-covered", Promise::Possession, |stage| {
        add_replica_to_await(stage);
        let [mut a, mut b] = parties(stage, ["a", "b"]);
        a.acquire("l", "LEASE 60000");
        queue(stage, &mut b, "l", "LEASE 60000 BLOCK 0");
        stage.cut_off_replica();
        a.release("l");
        stage.sees_withheld(&b);
        stage.lose_primary();
        b.answer();
        stage.party("b").renew("l", 60_000);
    });
}

#[test]
fn a_message_that_waits_for_no_replica_is_a_breach_of_possession() {
    assert_caught_after_loss("hand-off-not-covered", Promise::Possession, |stage| {
        add_replica_to_await(stage);
        stage.set_claim_timeout(60_000);
        let mut a = stage.party("a");
        let mut b = stage.listener("b");
        a.acquire("l", "LEASE 60000");
        b.queue("l", "LEASE 60000", 60_000);
        stage.cut_off_replica();
        a.release("l");
        stage.sees_withheld(&b);
        stage.lose_primary();
        b.told();
        stage.party("b").renew("l", 60_000);
    });
}

#[test]
fn a_renewal_that_waits_for_no_replica_is_a_breach_of_exclusion() {
    assert_caught_after_loss("renewal-not-covered", Promise::Exclusion, |stage| {
        add_replica_to_await(stage);
        let mut a = stage.party("a");
        a.acquire("l", "LEASE 1500");
        stage.cut_off_replica();
        a.ask_to_renew("l", 60_000);
        stage.sees_withheld(&a);
        stage.lose_primary();
        a.answer();
        stage.party("b").acquire("l", "LEASE 60000 BLOCK 6000");
    });
}

fn add_replica_with_grace(stage: &mut Scene) {
    stage.add_replica();
    stage.configure("lock.max-lease 60000 lock.grace-period 72000");
}

#[test]
fn a_grant_in_the_grace_period_is_a_breach_of_exclusion() {
    assert_caught_after_loss("grace-ignored", Promise::Exclusion, |stage| {
        add_replica_with_grace(stage);
        let mut a = stage.party("a");
        stage.cut_off_replica();
        a.acquire("l", "LEASE 60000");
        stage.lose_primary();
        stage.party("b").acquire("l", "LEASE 60000");
    });
}

#[test]
fn a_reentry_in_the_grace_period_is_a_breach_of_exclusion() {
    assert_caught_after_loss("reentry-in-grace", Promise::Exclusion, |stage| {
        add_replica_with_grace(stage);
        let [mut a, mut b] = parties(stage, ["a", "b"]);
        a.acquire("l", "LEASE 60000 HOLD 1");
        stage.await_replica();
        stage.cut_off_replica();
        a.release("l");
        b.acquire("l", "LEASE 60000 HOLD 1");
        stage.lose_primary();
        stage.party("a").acquire("l", "LEASE 60000 HOLD 1");
    });
}

/// Whether the server takes no writes of its clients.
fn refuses(party: &mut Party) -> bool {
    party.renew("another", 1000) == Outcome::Error("NOREPLICAS".to_owned())
}

#[test]
fn a_primary_that_hands_on_without_its_replica_is_a_breach_of_exclusion() {
    assert_caught_after_loss("not-fenced", Promise::Exclusion, |stage| {
        let lease = Duration::from_secs(4);
        stage.add_replica();
        stage.admin("CONFIG SET min-replicas-to-write 1 min-replicas-max-lag 1");
        let [mut a, mut b, mut other] = parties(stage, ["a", "b", "other"]);
        eventually("the replica counts", || !refuses(&mut other));
        let asked = Instant::now();
        a.acquire("l", "LEASE 4000");
        b.ask("l", "LEASE 60000 BLOCK 7000");
        let waits = stage.sees_queued(&b);
        stage.await_replica();
        stage.cut_off_replica();
        stage.promote();
        eventually("the replica counts no more", || refuses(&mut other));
        // On a slow machine the old primary may have been right to hand it on.
        if waits && asked.elapsed() < lease {
            stage.party("c").acquire("l", "LEASE 60000 BLOCK 7000");
            b.answer();
        }
    });
}
