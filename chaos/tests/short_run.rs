//! The module keeps its promises for a quarter of a minute of faults.

use std::process::Command;

use redis_lock_testing::{binary, module};

/// Finds no breach in a campaign with this seed, or with a random one, which it
/// prints.
#[track_caller]
fn assert_sound(seed: Option<u32>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redis-lock-chaos"));
    command.args(["--duration", "15", "--server", &binary(), "--module"]);
    command.arg(module());
    if let Some(seed) = seed {
        command.args(["--seed", &seed.to_string()]);
    }
    let output = command.output().unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    println!("{}", report.lines().last().unwrap_or_default());
    assert!(output.status.success(), "{report}{errors}");
    assert!(report.contains("breaches: 0;"), "{report}{errors}");
}

#[test]
fn a_short_campaign_finds_no_breach() {
    assert_sound(Some(1));
}

#[test]
fn a_short_campaign_of_a_random_seed_finds_no_breach() {
    assert_sound(None);
}
