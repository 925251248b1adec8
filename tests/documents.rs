//! The documents name what is there.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::Path;

use redis::{PushKind, Value};
use redis_lock_testing::{Subscriber, TestServer};

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

/// A reply, as the documents show it.
fn shown(value: &Value) -> String {
    match value {
        Value::Int(number) => number.to_string(),
        Value::BulkString(text) => String::from_utf8_lossy(text).into_owned(),
        other => format!("{other:?}"),
    }
}

/// The tokens in a line: they differ each time.
fn tokens(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split(|c: char| !c.is_ascii_digit());
    words.filter(|word| word.len() == 16)
}

#[test]
fn the_session_of_who_waits_without_blocking_is_as_it_is_shown() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = fs::read_to_string(top.join("docs/waiting.md")).unwrap();
    let (_, session) = document.split_once("```session\n").unwrap();
    let (session, _) = session.split_once("```").unwrap();
    let server = TestServer::start();
    let (mut client, mut hello) = (Subscriber::at(server.client()), false);
    let mut replies = VecDeque::new();
    let mut is_now: BTreeMap<String, String> = BTreeMap::new();
    for line in session.lines() {
        let now = |line: &str, is_now: &BTreeMap<String, String>| {
            let replace = |line: String, (then, now): (&String, &String)| line.replace(then, now);
            is_now.iter().fold(line.to_owned(), replace)
        };
        if line == "> HELLO 3" {
            hello = true;
            continue;
        }
        if let Some(command) = line.strip_prefix("> ") {
            assert_eq!(replies.pop_front(), None, "before {line}");
            let command = now(command, &is_now);
            if command.starts_with("SUBSCRIBE ") {
                client.send(&command);
            } else {
                let reply = client.call(&command);
                replies.push_back(format!("(integer) {}", shown(&reply)));
            }
            continue;
        }
        let real = match line.starts_with("push: ") {
            true => {
                let (kind, data) = client.pushed();
                let kind = match kind {
                    PushKind::Subscribe => "subscribe",
                    PushKind::Message => "message",
                    other => panic!("{other:?}"),
                };
                let data: Vec<String> = data.iter().map(shown).collect();
                format!("push: {kind} {}", data.join(" "))
            }
            false => replies.pop_front().unwrap(),
        };
        for (then, now) in tokens(line).zip(tokens(&real)) {
            is_now.entry(then.to_owned()).or_insert(now.to_owned());
        }
        assert_eq!(now(line, &is_now), real);
    }
    assert!(hello && is_now.len() == 2, "{is_now:?}");
}
