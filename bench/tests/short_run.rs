//! The whole program, against a real server, with little to do.

use std::process::Command;

/// Runs the program, which draws these charts, and returns its report and its figures.
fn run(arguments: &[&str], charts: &[&str]) -> (String, serde_json::Value) {
    let out = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_redis-lock-bench"))
        // What the environment says goes before.
        .env("REDISLOCK_MODULE", redis_lock_testing::module())
        .arg("--out")
        .arg(out.path())
        .args(["--rounds", "1"])
        .args(arguments)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    for chart in charts {
        let svg = std::fs::read_to_string(out.path().join(chart)).unwrap();
        assert!(svg.contains("</svg>"), "{chart} is not whole");
    }
    let report = std::fs::read_to_string(out.path().join("results.md")).unwrap();
    let json = std::fs::read(out.path().join("results.json")).unwrap();
    (report, serde_json::from_slice(&json).unwrap())
}

fn figure(results: &serde_json::Value, contender: &str, metric: &str) -> f64 {
    let figures = results["figures"].as_array().unwrap();
    let figure = figures
        .iter()
        .find(|figure| figure["contender"] == contender && figure["metric"] == metric)
        .unwrap_or_else(|| panic!("no {metric} of {contender}: {results:#}"));
    figure["values"][0].as_f64().unwrap()
}

#[test]
fn a_hand_off_is_measured_judged_and_drawn() {
    let contenders = ["redislock", "blpop", "redisson-scripts", "rslock"];
    let mut arguments = vec!["--only", "hand-off-1", "--contenders"];
    arguments.extend(contenders);
    let charts = ["hand-off-latency.svg", "hand-off-waiters.svg"];
    let (report, results) = run(&arguments, &charts);
    for contender in contenders {
        let p50 = figure(&results, contender, "hand-off p50 µs");
        assert!(p50 > 1.0, "{contender}: {p50} µs");
    }
    // A release and the acquire that queues again, nothing else.
    for contender in ["redislock", "blpop"] {
        let commands = figure(&results, contender, "commands/hand-off");
        assert!((commands - 2.0).abs() < 0.05, "{contender}: {commands}");
    }
    assert!(report.contains("hand-off p50, one waiter, to `LPUSH` → `BLPOP`"));
    assert!(report.contains("Redis ") || report.contains("Valkey "));
}

#[test]
fn pairs_that_a_replica_acknowledges_are_measured() {
    let contenders = ["redislock-acknowledged", "redislock-wait", "set-wait-del"];
    let mut arguments = vec!["--only", "acknowledged", "--contenders"];
    arguments.extend(contenders);
    let (report, results) = run(&arguments, &[]);
    for contender in contenders {
        let p50 = figure(&results, contender, "pair p50 µs");
        let p99 = figure(&results, contender, "pair p99 µs");
        assert!(1.0 < p50 && p50 <= p99, "{contender}: {p50} µs, {p99} µs");
    }
    assert!(report.contains("acknowledged by a replica"), "{report}");
    let ours = report.lines().find(|line| line.contains("min-replicas"));
    assert!(
        ours.is_some_and(|line| line.ends_with(" 1.00 |")),
        "{report}"
    );
}
