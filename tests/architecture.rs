//! The house keeps its floors.

use std::fs;
use std::path::{Path, PathBuf};

fn sources(under: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(under)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    assert!(!found.is_empty());
    found
}

/// Lines of code, without comments.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter(|line| !line.trim_start().starts_with("//"))
}

#[track_caller]
fn check_absent(under: &str, words: &[&str], except: &[&str]) {
    for (path, text) in sources(under) {
        let shown = path.display().to_string();
        if except.iter().any(|part| shown.contains(part)) {
            continue;
        }
        for line in code(&text) {
            for word in words {
                assert!(!line.contains(word), "{shown} names {word}: {line}");
            }
        }
    }
}

#[test]
fn the_core_knows_neither_redis_nor_a_clock() {
    let words = [
        "redis_module",
        "std::time",
        "Instant",
        "SystemTime",
        "std::io",
        "std::net",
    ];
    // A fault of debug builds reads the clock, where no right code would.
    check_absent("src/lock", &words, &["src/lock/planted.rs"]);
}

#[test]
fn only_the_server_floor_is_unsafe() {
    check_absent("src", &["unsafe "], &["src/server/"]);
}

#[test]
fn imports_run_down_only() {
    let above_server = ["crate::manager", "crate::commands", "crate::events"];
    check_absent("src/server", &above_server, &[]);
    check_absent(
        "src/lock",
        &[above_server.as_slice(), &["crate::server"]].concat(),
        &[],
    );
    check_absent(
        "src",
        &["crate::commands", "crate::events"],
        &["src/commands/", "src/lib.rs"],
    );
}

#[test]
fn error_codes_are_spelled_in_one_place() {
    let codes = ["\"ERR ", "WRONGTYPE", "NOTALOCK", "HOLDCOUNT", "QUEUEFULL"];
    check_absent("src", &codes, &["src/error.rs", "/tests.rs"]);
}
