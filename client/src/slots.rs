//! Which node of a cluster has a key, as `CLUSTER SLOTS` tells it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Mutex;

use crc16::{State, XMODEM};
use redis::{ConnectionInfo, Value};

use crate::connection::{Closed, Connection, Timeouts};
use crate::error::Error;
use crate::mutex::locked;

/// How many slots a cluster has.
const SLOTS: u16 = 16384;

/// Host and port of a node.
pub(crate) type Address = (String, u16);

/// The slot of a key: of what is between its first braces, if it has some.
pub(crate) fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = key.get(open + 1..)?;
        let length = rest.iter().position(|byte| *byte == b'}')?;
        rest.get(..length).filter(|tag| !tag.is_empty())
    });
    State::<XMODEM>::calculate(tag.unwrap_or(key)) % SLOTS
}

/// A tag for each slot that was asked for, which stays what it is.
#[derive(Default)]
pub(crate) struct Tags(Mutex<HashMap<u16, String>>);

impl Tags {
    /// A tag that is in the same slot as this key. Keys of one slot have the same.
    pub(crate) fn tag_for(&self, key: &[u8]) -> String {
        let slot = slot_of(key);
        let mut tags = locked(&self.0);
        let found = || {
            let mut tags = (0_u64..).map(|tag| tag.to_string());
            tags.find(|tag| slot_of(tag.as_bytes()) == slot)
        };
        let tag = tags.entry(slot);
        tag.or_insert_with(|| found().unwrap_or_default()).clone()
    }
}

/// The primary of each slot.
#[derive(Clone)]
pub(crate) struct Map(Vec<Option<Address>>);

impl Map {
    pub(crate) fn of(&self, key: &[u8]) -> Option<Address> {
        self.0.get(usize::from(slot_of(key)))?.clone()
    }

    pub(crate) fn set(&mut self, slot: u16, address: Option<Address>) {
        if let Some(known) = self.0.get_mut(usize::from(slot)) {
            *known = address;
        }
    }

    pub(crate) fn primaries(&self) -> BTreeSet<Address> {
        self.0.iter().flatten().cloned().collect()
    }

    /// Reads the answer of a node that is known by this host.
    fn read(reply: Value, host: &str) -> Result<Self, Error> {
        // From slot, to slot, and for each node, the primary first, host, port, and more.
        let ranges: Vec<Vec<Value>> =
            redis::from_redis_value(reply).map_err(|error| Error::Reply(error.to_string()))?;
        let mut map = Self(vec![None; usize::from(SLOTS)]);
        for range in ranges {
            let mut range = range.into_iter();
            if let (Some(from), Some(to), Some(primary)) =
                (range.next(), range.next(), range.next())
                && let (Some(from), Some(to), Some(primary)) =
                    (number(from), number(to), node(primary, host))
            {
                (from..=to).for_each(|slot| map.set(slot, Some(primary.clone())));
            }
        }
        let alone = || Error::from_line("CLUSTERDOWN it has left the cluster");
        let knows_some = map.0.iter().any(Option::is_some);
        knows_some.then_some(map).ok_or_else(alone)
    }
}

/// Asks these nodes one after another, until one answers.
pub(crate) async fn ask(
    nodes: impl IntoIterator<Item = ConnectionInfo>,
    timeouts: Timeouts,
) -> Result<Map, Error> {
    let mut ask = redis::cmd("CLUSTER");
    ask.arg("SLOTS");
    let mut failure = Error::timed_out();
    for node in nodes {
        let asked = async {
            let closed = Closed::default();
            let node = Connection::open(&node, timeouts.connect, None, &closed).await?;
            Map::read(node.ask(&ask, timeouts.response).await?, node.host())
        };
        match asked.await {
            Ok(map) => return Ok(map),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// A node that names no host of its own is where the client was led.
fn node(told: Value, answered: &str) -> Option<Address> {
    let Value::Array(told) = told else {
        return None;
    };
    let mut told = told.into_iter();
    let host = match told.next()? {
        Value::BulkString(host) => String::from_utf8(host).ok()?,
        Value::Nil => String::new(),
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

    #[test]
    fn a_tag_in_braces_decides_the_slot() {
        for key in [&b"foo"[..], b"x{foo}y", b"x{foo}{bar}"] {
            assert_eq!(slot_of(key), 12182);
        }
        assert_ne!(slot_of(b"{}foo"), 12182);
        assert_eq!(slot_of(b"123456789"), 12739);
    }

    #[test]
    fn keys_of_one_slot_have_one_tag_there() {
        let tags = Tags::default();
        for nth in 0..200 {
            let key = format!("lock{nth}");
            let tag = tags.tag_for(key.as_bytes());
            assert_eq!(slot_of(tag.as_bytes()), slot_of(key.as_bytes()));
            assert_eq!(tags.tag_for(format!("x{{{key}}}").as_bytes()), tag);
        }
    }

    #[test]
    fn the_primary_of_a_keys_slot_is_found() {
        let told = b"*3\r\n*3\r\n:0\r\n:12181\r\n*2\r\n$1\r\na\r\n:1\r\n\
            *3\r\n:12182\r\n:12182\r\n*2\r\n$0\r\n\r\n:2\r\n\
            *3\r\n:12183\r\n:16383\r\n*2\r\n:0\r\n:3\r\n";
        let map = Map::read(redis::parse_redis_value(told).unwrap(), "here").unwrap();
        assert_eq!(map.of(b"foo"), Some(("here".into(), 2)), "it names no host");
        assert_eq!(map.of(b"123456789"), None, "it has no host");
        assert_eq!(map.primaries().len(), 2);
        assert!(Map::read(Value::Array(vec![]), "left").is_err());
    }
}
