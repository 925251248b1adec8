//! The campaign finds what is wrong: modules with a fault planted in them are caught.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Within this time a fault must be caught.
const CAUGHT_WITHIN: Duration = Duration::from_secs(60);

/// Builds the module with the feature that lets faults be planted, once.
fn module() -> &'static Path {
    static MODULE: OnceLock<PathBuf> = OnceLock::new();
    MODULE.get_or_init(|| {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("planted");
        let status = Command::new(env!("CARGO"))
            .args([
                "build",
                "--quiet",
                "--locked",
                "--features",
                "planted-faults",
            ])
            .args(["--package", "redis-lock-module", "--target-dir"])
            .arg(&target)
            .status()
            .unwrap();
        assert!(
            status.success(),
            "the module with planted faults is not built"
        );
        target.join("debug/libredislock.so")
    })
}

/// Runs a short campaign against a module with this fault. Returns its report.
fn campaign(fault: &str) -> (bool, String) {
    let server = std::env::var("REDISLOCK_SERVER").unwrap_or_else(|_| "redis-server".into());
    let module = module();
    let scratch = tempfile::tempdir().unwrap();
    let start = Instant::now();
    let output = Command::new(env!("CARGO_BIN_EXE_redis-lock-chaos"))
        .args(["--duration", "4", "--server", &server, "--module"])
        .arg(module)
        .env("REDISLOCK_PLANTED_FAULT", fault)
        .env("TMPDIR", scratch.path())
        .output()
        .unwrap();
    assert!(
        start.elapsed() < CAUGHT_WITHIN,
        "it took {:?}",
        start.elapsed()
    );
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    (output.status.success(), report + &errors)
}

#[track_caller]
fn assert_caught(fault: &str, promises: &[&str]) {
    let (kept, report) = campaign(fault);
    assert!(!kept, "{fault} was not caught:\n{report}");
    for promise in promises {
        let found = format!("breach of {promise}: ");
        assert!(report.contains(&found), "{fault}, {promise}:\n{report}");
    }
}

#[test]
fn a_lease_that_keeps_nobody_out_is_a_breach_of_exclusion() {
    assert_caught("expiry-ignored", &["exclusion"]);
}

#[test]
fn a_release_by_anybody_is_a_breach_of_exclusion_and_of_possession() {
    assert_caught("owner-not-checked", &["exclusion", "possession"]);
}

#[test]
fn a_token_that_is_used_again_is_a_breach_of_tokens() {
    assert_caught("token-reused", &["tokens"]);
}

#[test]
fn a_stack_in_place_of_a_queue_is_a_breach_of_order() {
    assert_caught("last-in-first-out", &["order"]);
}

#[test]
fn a_lock_that_is_handed_to_nobody_is_a_breach_of_liveness() {
    assert_caught("hand-off-skipped", &["liveness"]);
}

#[test]
fn a_shared_lock_that_lets_everybody_in_is_a_breach_of_exclusion() {
    assert_caught("limit-ignored", &["exclusion"]);
}

#[test]
fn a_hold_that_outlives_its_session_is_a_breach_of_liveness() {
    assert_caught("session-outlived", &["liveness"]);
}

#[test]
fn a_deadlock_that_nobody_is_told_of_is_a_breach() {
    assert_caught("deadlock-missed", &["deadlock"]);
}

#[test]
fn the_same_build_without_a_fault_keeps_all_promises() {
    let (kept, report) = campaign("none");
    assert!(kept, "{report}");
}
