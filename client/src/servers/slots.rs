//! Which node of a cluster has a key, as `CLUSTER SLOTS` tells it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Mutex;
use std::time::Duration;

use crc16::{State, XMODEM};
use redis::Value;

use tokio::time::Instant;

use crate::error::Error;
use crate::mutex::locked;

/// How long the map is relied upon. A node that has lost a slot answers `MOVED`.
const KNOWN_FOR: Duration = Duration::from_secs(10);

/// How many slots a cluster has.
const SLOTS: u16 = 16384;

/// The slot of a key: of what is between its first braces, if it has some.
fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = key.get(open + 1..)?;
        let length = rest.iter().position(|byte| *byte == b'}')?;
        rest.get(..length).filter(|tag| !tag.is_empty())
    });
    State::<XMODEM>::calculate(tag.unwrap_or(key)) % SLOTS
}

/// From slot, to slot, and host and port of the primary that has them.
type Range = (u16, u16, (String, u16));

/// What was learned of it, for some time.
#[derive(Default)]
pub(crate) struct Slots {
    ranges: Mutex<Option<(Instant, Vec<Range>)>>,
    /// A tag of each slot that was asked for, which stays what it is.
    tags: Mutex<HashMap<u16, String>>,
}

impl Slots {
    /// A tag that is in the same slot as this key. Keys of one slot have the same.
    pub(crate) fn tag_for(&self, key: &[u8]) -> String {
        let slot = slot_of(key);
        let mut tags = locked(&self.tags);
        let found = || {
            let mut tags = (0_u64..).map(|tag| tag.to_string());
            tags.find(|tag| slot_of(tag.as_bytes()) == slot)
        };
        let tag = tags
            .entry(slot)
            .or_insert_with(|| found().unwrap_or_default());
        tag.clone()
    }

    /// Host and port of the primary that has this key, if that is known.
    pub(crate) fn address_of(&self, key: &[u8]) -> Option<(String, u16)> {
        let known = locked(&self.ranges);
        let (learned_at, ranges) = known.as_ref()?;
        if learned_at.elapsed() > KNOWN_FOR {
            return None;
        }
        let slot = slot_of(key);
        let mut ranges = ranges.iter();
        let range = ranges.find(|(from, to, _)| (*from..=*to).contains(&slot))?;
        Some(range.2.clone())
    }

    /// Reads the reply of `CLUSTER SLOTS` that a node on this host gave.
    pub(crate) fn learn(&self, reply: Value, host: &str) -> Result<(), Error> {
        // From slot, to slot, and for each node host, port, and more.
        let ranges: Vec<Vec<Value>> =
            redis::from_redis_value(reply).map_err(|error| Error::Reply(error.to_string()))?;
        let ranges = ranges.into_iter().filter_map(|told| range(told, host));
        let ranges = ranges.collect();
        let mut known = locked(&self.ranges);
        *known = Some((Instant::now(), ranges));
        Ok(())
    }

    /// Forgets the map, so that the next caller learns it anew.
    pub(crate) fn forget(&self) {
        *locked(&self.ranges) = None;
    }
}

/// Host and port of each node in the reply of `CLUSTER SLOTS` that a node on this host
/// gave, replicas too.
pub(crate) fn nodes(reply: Value, host: &str) -> Result<BTreeSet<(String, u16)>, Error> {
    let ranges: Vec<Vec<Value>> =
        redis::from_redis_value(reply).map_err(|error| Error::Reply(error.to_string()))?;
    let nodes = ranges
        .into_iter()
        .flat_map(|range| range.into_iter().skip(2));
    Ok(nodes.filter_map(|told| node(told, host)).collect())
}

fn range(told: Vec<Value>, host: &str) -> Option<Range> {
    let mut told = told.into_iter();
    let (from, to) = (number(told.next()?)?, number(told.next()?)?);
    Some((from, to, node(told.next()?, host)?))
}

/// A node that names no host of its own is where the client was led.
fn node(told: Value, answered: &str) -> Option<(String, u16)> {
    let Value::Array(told) = told else {
        return None;
    };
    let mut told = told.into_iter();
    let host = match told.next()? {
        Value::Nil => String::new(),
        Value::BulkString(host) => String::from_utf8(host).ok()?,
        _ => return None,
    };
    let host = match host.as_str() {
        "" | "?" => answered.into(),
        _ => host,
    };
    Some((host, number(told.next()?)?))
}

fn number(value: Value) -> Option<u16> {
    redis::from_redis_value(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(host: &str, port: i64) -> Value {
        Value::Array(vec![
            Value::BulkString(host.into()),
            Value::Int(port),
            Value::BulkString(b"id".to_vec()),
        ])
    }

    #[test]
    fn a_tag_in_braces_decides_the_slot() {
        assert_eq!(slot_of(b"foo"), 12182);
        assert_eq!(slot_of(b"x{foo}y"), 12182);
        assert_eq!(slot_of(b"x{foo}{bar}"), 12182);
        assert_ne!(slot_of(b"{}foo"), 12182);
        assert_eq!(slot_of(b"123456789"), 12739);
    }

    #[test]
    fn keys_of_one_slot_have_one_tag_there() {
        let slots = Slots::default();
        for nth in 0..200 {
            let key = format!("lock{nth}");
            let tag = slots.tag_for(key.as_bytes());
            assert_eq!(slot_of(tag.as_bytes()), slot_of(key.as_bytes()));
            assert_eq!(slots.tag_for(format!("x{{{key}}}").as_bytes()), tag);
        }
    }

    #[test]
    fn the_primary_of_a_keys_slot_is_found() {
        let range = |from, to, node| Value::Array(vec![Value::Int(from), Value::Int(to), node]);
        let told = Value::Array(vec![
            range(0, 12181, node("a", 1)),
            range(12182, 12182, node("b", 2)),
            range(
                12183,
                16383,
                Value::Array(vec![Value::Int(0), Value::Int(3)]),
            ),
        ]);
        let slots = Slots::default();
        assert_eq!(slots.address_of(b"foo"), None);
        slots.learn(told, "c").unwrap();
        assert_eq!(slots.address_of(b"foo"), Some(("b".into(), 2)));
        assert_eq!(slots.address_of(b"x{foo}y"), Some(("b".into(), 2)));
        assert_eq!(slots.address_of(b"123456789"), None, "it has no host");
        slots.forget();
        assert_eq!(slots.address_of(b"foo"), None);
    }

    #[test]
    fn a_node_without_a_host_is_on_the_one_that_answered() {
        let unknown = Value::Array(vec![Value::Nil, Value::Int(3)]);
        for node in [node("", 3), node("?", 3), unknown] {
            let range = Value::Array(vec![Value::Int(0), Value::Int(16383), node]);
            let told = Value::Array(vec![range]);
            let slots = Slots::default();
            slots.learn(told.clone(), "c").unwrap();
            assert_eq!(slots.address_of(b"foo"), Some(("c".into(), 3)));
            let all: Vec<_> = nodes(told, "c").unwrap().into_iter().collect();
            assert_eq!(all, [("c".into(), 3)]);
        }
    }
}
