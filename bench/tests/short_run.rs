//! The whole program, against a real server, with little to do.

use std::process::Command;

const OURS: &str = "**this module**";
const PLACES: &str = "**this module**, `QUEUE`";
const BLPOP: &str = "`LPUSH` → `BLPOP`";

/// Runs the program, which draws these charts, and returns its report.
fn run(arguments: &[&str], charts: &[&str]) -> String {
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
    std::fs::read_to_string(out.path().join("results.md")).unwrap()
}

/// The first words of a line's cells.
fn cells(line: &str) -> Vec<&str> {
    let cells = line.trim_matches('|').split('|');
    cells
        .map(|cell| cell.split(" (").next().unwrap().trim())
        .collect()
}

/// A figure of a scenario's table, by the contender's title.
#[track_caller]
fn figure(report: &str, scenario: &str, title: &str, metric: &str) -> f64 {
    let from = report.find(&format!("`{scenario}`\n")).expect(report);
    let mut lines = report[from..].lines().filter(|line| line.starts_with('|'));
    let columns = cells(lines.next().unwrap());
    let column = columns
        .iter()
        .position(|name| *name == metric)
        .expect(metric);
    let row = lines.map(cells).find(|row| row[0] == title).expect(title);
    row[column].parse().unwrap()
}

#[test]
fn a_hand_off_is_measured_judged_and_drawn() {
    let contenders = [
        "redislock",
        "redislock-places",
        "blpop",
        "redisson-scripts",
        "rslock",
    ];
    let mut arguments = vec!["--only", "hand-off-1", "--contenders"];
    arguments.extend(contenders);
    let report = run(&arguments, &["hand-off-waiters.svg"]);
    for title in [
        OURS,
        PLACES,
        BLPOP,
        "Redisson's scripts and pub/sub",
        "rslock",
    ] {
        let p50 = figure(&report, "hand-off-1", title, "hand-off p50 µs");
        assert!(p50 > 1.0, "{title}: {p50} µs");
    }
    // A release and the acquire that queues again, nothing else; of a place also the claim.
    for (title, expected) in [(OURS, 2.0), (BLPOP, 2.0), (PLACES, 3.0)] {
        let commands = figure(&report, "hand-off-1", title, "commands/hand-off");
        assert!((commands - expected).abs() < 0.05, "{title}: {commands}");
    }
    assert!(report.contains("hand-off p50, one waiter, to `LPUSH` → `BLPOP`"));
    assert!(report.contains("Redis ") || report.contains("Valkey "));
}

#[test]
fn pairs_that_a_replica_acknowledges_are_measured() {
    let contenders = ["redislock-acknowledged", "redislock-wait", "set-wait-del"];
    let mut arguments = vec!["--only", "acknowledged", "--contenders"];
    arguments.extend(contenders);
    let report = run(&arguments, &[]);
    for title in [
        "**this module**, `lock.min-replicas 1`",
        "`LOCK.ACQUIRE` + `WAIT 1`, `LOCK.RELEASE`",
        "`SET NX PX` + `WAIT 1`, `DEL`",
    ] {
        let p50 = figure(&report, "acknowledged", title, "pair p50 µs");
        let p99 = figure(&report, "acknowledged", title, "pair p99 µs");
        assert!(1.0 < p50 && p50 <= p99, "{title}: {p50} µs, {p99} µs");
    }
    assert!(report.contains("acknowledged by a replica"), "{report}");
    let ours = report.lines().find(|line| line.contains("min-replicas"));
    assert!(
        ours.is_some_and(|line| line.ends_with(" 1.00 |")),
        "{report}"
    );
}

#[test]
fn what_many_places_cost_is_measured_and_judged() {
    let arguments = [
        "--only",
        "places",
        "memory-waiter",
        "--contenders",
        "redislock",
    ];
    let report = run(&[&arguments[..], &["redislock-places"]].concat(), &[]);
    let bytes = figure(&report, "places", PLACES, "bytes/wait");
    assert!(100.0 < bytes && bytes < 1024.0, "{bytes}");
    assert!(report.contains("memory of a place, to that of a blocked client's wait"));
    assert!(!report.contains("Not measured"), "{report}");
}
