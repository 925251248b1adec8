//! The whole program, against a real server, with little to do.

use std::process::Command;

/// Runs the program, and returns what it prints.
fn printed(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_redis-lock-bench"))
        // What the environment says goes before.
        .env("REDISLOCK_MODULE", redis_lock_testing::module())
        .args(arguments)
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    String::from_utf8(output.stdout).unwrap()
}

/// The table that it makes of these libraries, whose clients are two, and eight.
fn table(target: &str, libraries: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let document = folder.path().join("performance.md");
    let committed = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/performance.md");
    std::fs::copy(committed, &document).unwrap();
    let mut arguments = vec![target, "--document", document.to_str().unwrap()];
    arguments.extend("--contenders 1 4 --locks 1 2 --waiters 4 --seconds 0.1 --lease 1".split(' '));
    arguments.push("--only");
    arguments.extend(libraries);
    let table = printed(&arguments);
    let written = std::fs::read_to_string(document).unwrap();
    assert!(written.contains(table.trim()), "{written}");
    let without_aof = table.lines().filter(|line| line.contains("no AOF"));
    assert_eq!(without_aof.count(), libraries.len(), "{table}");
    assert!(!table.contains("Not measured"), "{table}");
    assert!(
        table.contains("sections/s ↑ on 2 locks of 1 / 4"),
        "{table}"
    );
    table
}

#[test]
fn libraries_that_need_no_other_server_are_measured_beside_each_other() {
    let table = table(
        "peers",
        &["redis-lock-client", "redis-lock-session", "rslock"],
    );
    // Each cell has a figure, of each row with AOF, too.
    assert!(!table.contains("| - |"), "{table}");
}

#[test]
fn commands_are_measured_beside_those_in_their_place() {
    let table = table(
        "main",
        &[
            "commands",
            "blpop",
            "set-del",
            "acknowledged",
            "set-wait",
            "redis-lock-shared",
        ],
    );
    let without = |name: &str| {
        let row = table.lines().find(|line| line.contains(name)).unwrap();
        row.split('|').filter(|cell| cell.trim() == "-").count()
    };
    // A list's element has no lease, and nobody waits for `SET`.
    assert_eq!(without("bare commands"), 0, "{table}");
    assert_eq!(without("`BLPOP`"), 1, "{table}");
    for pairs_alone in ["`SET NX PX` and", "`WAIT 1`", "min-replicas"] {
        assert_eq!(without(pairs_alone), 5, "{table}");
    }
    assert_eq!(without("one Rust client"), 0, "{table}");
}

#[test]
fn what_a_crowd_costs_is_measured() {
    for (only, expected) in [
        ("renew", "| renew, holders of the lock: 100 |"),
        ("SET in a lock's place", "waiters on it: 200 | over after"),
        ("floor", "floor, FLUSHALL, hashes: 200 | over after"),
        (
            "memory",
            "| memory of a client in BLPOP, and its connection | ",
        ),
        ("LOCK.LIST", "| LOCK.LIST, contended locks: 200 |"),
    ] {
        let table = printed(&["growth", "--crowd", "200", "--locks", "200", "--only", only]);
        assert!(table.contains(expected), "{table}");
    }
}
