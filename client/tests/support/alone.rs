//! Tests that need a process of their own.

#![allow(dead_code, reason = "no test uses all of it")]

use std::process::Command;
use std::time::{Duration, Instant};

use redis_lock_testing::spawn;

/// How long such a process may take.
const PATIENCE: Duration = Duration::from_secs(90);

/// What the process of a test is told.
const TOLD: &str = "TOLD_TO_A_TEST_ALONE";

/// Runs a test that is ignored otherwise in a process of its own, on its first
/// thread, and tells it this. Fails where it fails.
#[track_caller]
pub fn run(test: &str, told: &str, environment: &[(&str, &str)]) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--ignored", "--nocapture"])
        .arg("--test-threads=1")
        .env(TOLD, told)
        .envs(environment.iter().copied());
    let mut child = spawn(command).unwrap();
    let deadline = Instant::now() + PATIENCE;
    let ended = loop {
        match child.try_wait().unwrap() {
            None if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            None => {
                child.kill().unwrap();
                child.wait().unwrap();
                break None;
            }
            ended => break ended,
        }
    };
    let ended = ended.unwrap_or_else(|| panic!("{test} hangs"));
    assert!(ended.success(), "{test} failed: its words are above");
}

/// What this process is told.
pub fn told() -> String {
    std::env::var(TOLD).expect("this test is run by another one")
}
