//! The module keeps its promises for a quarter of a minute of faults.

use std::path::PathBuf;
use std::process::Command;

#[test]
fn a_short_campaign_finds_no_breach() {
    let server = std::env::var("REDISLOCK_SERVER").unwrap_or_else(|_| "redis-server".into());
    let module = std::env::var_os("REDISLOCK_MODULE").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/release/libredislock.so"),
        PathBuf::from,
    );
    let output = Command::new(env!("CARGO_BIN_EXE_redis-lock-chaos"))
        .args(["--duration", "15", "--server", &server, "--module"])
        .arg(module)
        .output()
        .unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{report}{errors}");
    assert!(report.contains("breaches: 0;"), "{report}{errors}");
}
