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

/// Runs another program of this package, and returns what it prints.
fn printed(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .env("REDISLOCK_MODULE", redis_lock_testing::module())
        .args(arguments)
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    String::from_utf8(output.stdout).unwrap()
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

#[test]
fn libraries_that_need_no_other_server_are_measured_beside_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let document = folder.path().join("performance.md");
    let committed = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/performance.md");
    std::fs::copy(committed, &document).unwrap();
    let document = document.to_str().unwrap();
    let mut arguments = vec!["--document", document, "--only"];
    arguments.extend(["redis-lock-client", "redis-lock-session", "rslock"]);
    arguments.extend([
        "--contenders",
        "1",
        "4",
        "--locks",
        "1",
        "2",
        "--waiters",
        "4",
    ]);
    arguments.extend(["--seconds", "0.1", "--lease", "1"]);
    let table = printed(env!("CARGO_BIN_EXE_peers"), &arguments);
    let rows: Vec<&str> = table
        .lines()
        .filter(|line| line.contains("| fast: "))
        .collect();
    assert_eq!(rows.len(), 3, "{table}");
    // Each cell has a figure, of each row with AOF, too.
    assert!(
        !table.contains("| - |") && !table.contains("Not measured"),
        "{table}"
    );
    assert!(
        table.contains("sections/s ↑ on 2 locks of 1 / 4"),
        "{table}"
    );
    let written = std::fs::read_to_string(document).unwrap();
    assert!(written.contains(table.trim()), "{written}");
}

#[test]
fn what_a_crowd_costs_is_measured_and_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let growth = env!("CARGO_BIN_EXE_growth");
    let few = ["--crowd", "200", "--locks", "200"];
    let out = ["--only", "curves", "--out", folder.path().to_str().unwrap()];
    let table = printed(growth, &[&few[..], &out].concat());
    assert!(
        table.contains("| renew, holders of the lock: 100 |"),
        "{table}"
    );
    let svg = std::fs::read_to_string(folder.path().join("growth.svg")).unwrap();
    assert!(svg.contains("</svg>"), "the chart is not whole");
    let one = ["--only", "crowd-events", "--event", "SET in a lock's place"];
    let table = printed(growth, &[&few[..], &one].concat());
    assert!(table.contains("waiters on it: 200 | over after"), "{table}");
    assert!(table.contains("floor, FLUSHALL, hashes: 200"), "{table}");
}
