//! The module keeps its promises for a quarter of a minute of faults.

use std::process::Command;

use redis_lock_testing::{binary, module};

#[test]
fn a_short_campaign_finds_no_breach() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redis-lock-chaos"));
    command.args(["--duration", "15", "--seed", "1", "--server", &binary()]);
    command.arg("--module").arg(module());
    let output = command.output().unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    println!("{}", report.lines().last().unwrap_or_default());
    assert!(output.status.success(), "{report}{errors}");
    assert!(report.contains("breaches: 0;"), "{report}{errors}");
}
