//! The documents name what is there.

use std::fs;
use std::path::Path;

/// Words in backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn each_test_that_holds_a_promise_exists() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = fs::read_to_string(top.join("docs/guarantees.md")).unwrap();
    let (_, tests) = document.split_once("## The tests that hold").unwrap();
    let mut source = String::new();
    let mut named = 0;
    for word in quoted(tests) {
        if word.ends_with(".rs") {
            let path = top.join(word);
            source = fs::read_to_string(&path).unwrap_or_else(|_| panic!("no {word}"));
        } else if !word.contains(['.', ' ']) {
            let is_there = source.contains(&format!("fn {word}("));
            assert!(is_there, "no test {word}");
            named += 1;
        }
    }
    assert!(named > 10, "{named}");
}
