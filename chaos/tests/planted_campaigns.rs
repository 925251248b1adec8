//! The random campaign finds what is wrong too: modules with a fault planted in
//! them are caught within a minute. `make planted` runs this.

mod planted;

use std::process::Command;

/// The seeds of the campaigns that must catch a fault, one after the other.
const SEEDS: [u32; 2] = [1, 2];

#[track_caller]
fn assert_caught(fault: &str, promise: &str) {
    // What is found shall be the fault, and not what these alone would show.
    let without = ["--without", "pooled", "--without", "twins"];
    for seed in SEEDS {
        let scratch = tempfile::tempdir().unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_redis-lock-chaos"))
            .args(["--duration", "60", "--seed", &seed.to_string()])
            .args(["--until-breach-of", promise, "--module"])
            .arg(planted::module())
            .arg("--server")
            .arg(redis_lock_testing::binary())
            .args(without)
            .env("REDISLOCK_PLANTED_FAULT", fault)
            .env("TMPDIR", scratch.path())
            .output()
            .unwrap();
        let report = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        let found = format!("breach of {promise}: ");
        assert!(
            report.contains(&found),
            "{fault}, {promise}:\n{report}{errors}"
        );
        println!("{fault}: {}", report.lines().last().unwrap_or_default());
    }
}

#[test]
#[ignore = "random, for `make planted`"]
fn a_lease_that_keeps_nobody_out_is_found() {
    assert_caught("expiry-ignored", "exclusion");
}

#[test]
#[ignore = "random, for `make planted`"]
fn a_release_by_anybody_is_found() {
    assert_caught("owner-not-checked", "possession");
}

#[test]
#[ignore = "random, for `make planted`"]
fn a_token_that_is_used_again_is_found() {
    assert_caught("token-reused", "tokens");
}

#[test]
#[ignore = "random, for `make planted`"]
fn a_stack_in_place_of_a_queue_is_found() {
    assert_caught("last-in-first-out", "order");
}

#[test]
#[ignore = "random, for `make planted`"]
fn a_lock_that_is_handed_to_nobody_is_found() {
    assert_caught("hand-off-skipped", "liveness");
}

#[test]
#[ignore = "random, for `make planted`"]
fn a_shared_lock_that_lets_everybody_in_is_found() {
    assert_caught("limit-ignored", "exclusion");
}

#[test]
#[ignore = "random, for `make planted`"]
fn a_hold_that_outlives_its_session_is_found() {
    assert_caught("session-outlived", "liveness");
}

#[test]
#[ignore = "random, for `make planted`"]
fn a_deadlock_that_nobody_is_told_of_is_found() {
    assert_caught("deadlock-missed", "deadlock");
}

#[test]
#[ignore = "random, for `make planted`"]
fn a_reader_that_passes_the_queue_is_found() {
    assert_caught("reader-barges", "order");
}

#[test]
#[ignore = "random, for `make planted`"]
fn a_waiter_that_is_forgotten_is_found() {
    assert_caught("waiter-dropped", "order");
}

#[test]
#[ignore = "random, for `make planted`"]
fn a_waiter_that_is_rarely_forgotten_is_found() {
    assert_caught("waiter-dropped/50", "order");
}

#[test]
#[ignore = "random, for `make planted`"]
fn a_lease_that_begins_too_early_is_found() {
    assert_caught("lease-from-enqueue", "exclusion");
}

#[test]
#[ignore = "random, for `make planted`"]
fn a_renewal_that_takes_a_lock_is_found() {
    assert_caught("late-renewal", "possession");
}

#[test]
#[ignore = "random, for `make planted`"]
fn a_renewal_that_rarely_takes_a_lock_is_found() {
    assert_caught("late-renewal/50", "possession");
}

#[test]
#[ignore = "random, for `make planted`"]
fn a_token_that_its_owner_gets_again_is_found() {
    assert_caught("own-token-again", "tokens");
}

#[test]
#[ignore = "random, for `make planted`"]
fn a_token_that_its_owner_rarely_gets_again_is_found() {
    assert_caught("own-token-again/50", "tokens");
}

#[test]
#[ignore = "random, for `make planted`"]
fn a_lease_that_replicas_do_not_know_is_found() {
    assert_caught("expiry-not-propagated", "liveness");
}

#[test]
#[ignore = "random, for `make planted`"]
fn a_place_that_is_not_kept_is_found() {
    assert_caught("place-not-kept", "order");
}

#[test]
#[ignore = "random, for `make planted`"]
fn a_grant_to_a_place_of_which_nobody_hears_is_found() {
    assert_caught("grant-unheard", "liveness");
}

#[test]
#[ignore = "random, for `make planted`"]
fn a_session_that_is_kept_up_unclaimed_is_found() {
    assert_caught("unclaimed-kept", "liveness");
}

#[test]
#[ignore = "random, for `make planted`"]
fn a_lock_that_is_handed_on_late_is_found() {
    assert_caught("rechecks-late", "liveness");
}
