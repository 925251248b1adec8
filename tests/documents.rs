//! The documents name what is there.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::iter;
use std::path::{Path, PathBuf};

use redis::{PushKind, Value};
use redis_lock_testing::{Client, TestServer};

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
        Value::Okay => "OK".into(),
        other => format!("{other:?}"),
    }
}

/// A reply, as redis-cli prints it.
fn printed(value: &Value) -> String {
    match value {
        Value::Int(number) => format!("(integer) {number}"),
        Value::BulkString(text) => format!("\"{}\"", String::from_utf8_lossy(text)),
        other => shown(other),
    }
}

/// The tokens in a line: they differ each time.
fn tokens(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split(|c: char| !c.is_ascii_digit());
    words.filter(|word| word.len() == 16)
}

/// What is pushed to who has subscribed, as redis-cli prints it.
fn printed_push(subscriber: &mut Client) -> VecDeque<String> {
    let (kind, data) = subscriber.pushed();
    let kind = match kind {
        PushKind::Subscribe => "\"subscribe\"",
        PushKind::Message => "\"message\"",
        other => panic!("{other:?}"),
    };
    let parts = iter::once(kind.to_owned()).chain(data.iter().map(printed));
    parts
        .zip(1..)
        .map(|(part, n)| format!("{n}) {part}"))
        .collect()
}

#[test]
fn the_session_of_who_waits_without_blocking_is_as_it_is_shown() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = fs::read_to_string(top.join("docs/waiting.md")).unwrap();
    let (_, session) = document.split_once("```session\n").unwrap();
    let (session, _) = session.split_once("```").unwrap();
    let (heading, session) = session.split_once('\n').unwrap();
    // The second terminal is beside the first one.
    let second = heading.find("# terminal 2").unwrap();
    let server = TestServer::start();
    let (mut client, mut subscriber) = (server.client(), server.client().in_resp3());
    let (mut replies, mut pushed) = (VecDeque::new(), VecDeque::new());
    let mut is_now: BTreeMap<String, String> = BTreeMap::new();
    for line in session.lines() {
        let replace = |line: String, (then, now): (&String, &String)| line.replace(then, now);
        let (first, second) = line.split_at(line.len().min(second));
        let now = is_now.iter().fold(first.trim().to_owned(), replace);
        if let Some(command) = now.strip_prefix("> ") {
            assert_eq!(replies.pop_front(), None, "before {line}");
            replies.push_back(printed(&client.call(command)));
            continue;
        }
        let second = second.trim();
        if let Some(command) = second.strip_prefix("> ") {
            subscriber.send(command);
            continue;
        }
        if second.starts_with("Reading messages") {
            continue;
        }
        if !second.is_empty() && pushed.is_empty() {
            pushed = printed_push(&mut subscriber);
        }
        let real = match second.is_empty() {
            true => replies.pop_front().unwrap(),
            false => pushed.pop_front().unwrap(),
        };
        for (then, now) in tokens(line).zip(tokens(&real)) {
            is_now.entry(then.to_owned()).or_insert(now.to_owned());
        }
        let line = is_now.iter().fold(line.trim().to_owned(), replace);
        assert_eq!(line, real);
    }
    assert_eq!((is_now.len(), replies.len(), pushed.len()), (2, 0, 0));
}

/// What stands in backquotes in the first two columns of those rows of tables in
/// `docs/operations.md` that begin with this.
fn documented(begins_with: &str) -> BTreeMap<String, String> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = fs::read_to_string(top.join("docs/operations.md")).unwrap();
    let mut rows = BTreeMap::new();
    for row in document.lines().filter_map(|line| line.strip_prefix("| `")) {
        if row.starts_with(begins_with) {
            let (name, more) = row.split_once("` | ").unwrap();
            let (second, _) = more.split_once(" |").unwrap();
            let before = rows.insert(name.to_owned(), second.to_owned());
            assert_eq!(before, None, "{name} twice");
        }
    }
    rows
}

#[test]
fn the_settings_and_their_defaults_are_those_of_the_server() {
    let module = redis_lock_testing::module();
    let server = TestServer::start_plain(&["--loadmodule", module.to_str().unwrap()]);
    let Value::Array(words) = server.client().call("CONFIG GET lock.*") else {
        panic!("no list");
    };
    let pairs = words
        .chunks(2)
        .map(|pair| (shown(&pair[0]), shown(&pair[1])));
    let pairs: BTreeMap<String, String> = pairs.collect();
    assert_eq!(documented("lock."), pairs);
    assert_eq!(packaged_settings(), pairs);
}

/// The settings in the configuration that a package brings, commented out.
fn packaged_settings() -> BTreeMap<String, String> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let configuration = fs::read_to_string(top.join("packaging/lock.conf")).unwrap();
    let settings = configuration
        .lines()
        .filter(|line| line.starts_with("# lock."));
    let words = settings.filter_map(|line| line["# ".len()..].split_once(' '));
    words
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
}

#[test]
fn the_fields_of_info_lock_are_those_of_the_server() {
    let server = TestServer::start();
    let info = shown(&server.client().call("INFO lock"));
    let fields = info.lines().filter_map(|line| line.split_once(':'));
    let fields: Vec<&str> = fields.map(|(name, _)| name).collect();
    let documented: Vec<String> = documented("lock_").into_keys().collect();
    let mut sorted = fields.clone();
    sorted.sort_unstable();
    assert_eq!(documented, sorted);
}

/// All Markdown files of the project.
fn documents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::from(env!("CARGO_MANIFEST_DIR"))];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let is_built = ["target", "node_modules", "data"].contains(&name.as_str());
            if path.is_dir() && !is_built && !name.starts_with('.') {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found
}

/// The lines of a document that are no code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !is_fence && !in_code
    })
}

/// The anchors of its headings, as GitHub makes them.
fn anchors(text: &str) -> Vec<String> {
    let headings = prose(text).filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let stays = |c: &char| c.is_alphanumeric() || "-_ ".contains(*c);
            title
                .chars()
                .filter(stays)
                .collect::<String>()
                .replace(' ', "-")
        })
        .collect()
}

#[test]
fn links_between_the_documents_lead_somewhere() {
    let mut followed = 0;
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        let links = prose(&text).flat_map(|line| line.split("](").skip(1));
        for link in links.filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => document.clone(),
                file => document.parent().unwrap().join(file),
            };
            let from = document.display();
            assert!(target.exists(), "{from}: {link}");
            if !anchor.is_empty() {
                let text = fs::read_to_string(&target).unwrap();
                let is_there = anchors(&text).iter().any(|known| known == anchor);
                assert!(is_there, "{from}: no heading for {link}");
            }
            followed += 1;
        }
    }
    assert!(followed > 50, "{followed}");
}
