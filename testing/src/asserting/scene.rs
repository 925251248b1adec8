//! What several tests do to a server and ask of it.

use std::fmt::Display;
use std::thread::sleep;
use std::time::{Duration, Instant};

use redis::Value;

use super::{Client, eventually, text};
use crate::{Nil, Okay};

/// New keys of a slot go to node 1. As the next ones, lines of a `Play::moving`.
pub const BEGIN_MOVE: &str = "o@n1 > CLUSTER SETSLOT $slot IMPORTING $id0 -> OK
    o > CLUSTER SETSLOT $slot MIGRATING $id1 -> OK";

/// The key of the lock goes there.
pub const MIGRATE_KEY: &str = "o > MIGRATE 127.0.0.1 $n1 $key 0 5000 -> OK";

/// Node 1 serves the slot from now on.
pub const END_MOVE: &str = "each o@n1 o o@n2: # > CLUSTER SETSLOT $slot NODE $id1 -> OK";

/// Nobody is handed any of these locks, for longer than the module leaves a contended
/// lock alone. For each the owner `waiter` waits.
#[track_caller]
pub fn assert_none_granted(observer: &mut Client, keys: &[&str]) {
    // It is the absence of an event that is observed.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(1500) {
        for key in keys {
            let granted = observer.call(&format!("HGET {key} waiter"));
            assert_eq!(granted, Nil, "{key} was handed on");
        }
        sleep(Duration::from_millis(10));
    }
}

/// Waits until this many replicas are in step.
#[track_caller]
pub fn await_replicas(observer: &mut Client, count: usize) {
    eventually(&format!("{count} replicas are online"), || {
        let info = observer.bulk("INFO replication");
        info.matches("state=online").count() == count
    });
    // The server sends a new replica nothing before its first acknowledgement, which
    // may take it a second.
    observer.call("SET new 1");
    observer.int(&format!("WAIT {count} 0"));
    observer.call("DEL new");
}

/// `CONFIG SET lock.<setting>`
#[track_caller]
pub fn configure(client: &mut Client, setting: &str, value: impl Display) {
    let set = client.call(&format!("CONFIG SET lock.{setting} {value}"));
    assert_eq!(set, Okay);
}

/// The value of a field in a map, or in a flat list of names and values.
#[track_caller]
pub fn field<'r>(map: &'r Value, name: &str) -> &'r Value {
    at(map, name).unwrap_or_else(|| panic!("{map:?} has no {name}"))
}

/// What is there in a reply: `holders.0.owner` is a field of the first of the holders.
pub fn at<'r>(reply: &'r Value, path: &str) -> Option<&'r Value> {
    path.split('.').try_fold(reply, |reply, step| match reply {
        Value::Map(pairs) => Some(&pairs.iter().find(|(name, _)| *name == text(step))?.1),
        Value::Array(items) => match step.parse::<usize>() {
            Ok(nth) => items.get(nth),
            Err(_) => Some(&items.chunks(2).find(|pair| pair[0] == text(step))?[1]),
        },
        _ => None,
    })
}

/// A reply, as redis-cli shows it on one line, but for an error.
pub fn shown(reply: &Value) -> String {
    let list = |parts: Vec<String>| format!("[{}]", parts.join(", "));
    match reply {
        Value::Nil => "null".into(),
        Value::Int(number) => number.to_string(),
        Value::Okay => "OK".into(),
        Value::SimpleString(text) => text.clone(),
        Value::BulkString(text) => format!("'{}'", String::from_utf8_lossy(text)),
        Value::ServerError(error) => {
            format!("!{} {}", error.code(), error.details().unwrap_or_default())
        }
        Value::Array(parts) => list(parts.iter().map(shown).collect()),
        Value::Map(pairs) => {
            let flat = pairs.iter().flat_map(|(name, value)| [name, value]);
            list(flat.map(shown).collect())
        }
        other => format!("{other:?}"),
    }
}
