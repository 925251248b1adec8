//! What `LOCK.INFO`, `LOCK.LIST` and `INFO lock` tell.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::{FromRedisValue, ParsingError, Value, from_redis_value};

use crate::commands::text;
use crate::error::Error;
use crate::request::Mode;

/// A lock as the server sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// The lock's key, as the server has it.
    pub key: Vec<u8>,
    /// The mode in which it is held; none if it is free.
    pub mode: Option<Mode>,
    /// The newest token; none if it is free, or held by other means than this
    /// module's commands.
    pub token: Option<u64>,
    /// How long until the last hold ends; none if it is free.
    pub ttl: Option<Duration>,
    /// Those who hold it.
    pub holders: Vec<Holder>,
    /// How many wait for it.
    pub waiting: u64,
    /// Those who wait for it, first in line first.
    pub waiters: Vec<Waiter>,
    /// How long the server will grant nothing yet, because it has just started or been
    /// promoted; none if it grants, or does not tell.
    pub grace: Option<Duration>,
}

/// An owner that holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Its name.
    pub owner: Vec<u8>,
    /// How many times it holds it.
    pub holds: u64,
    /// Its fencing token, if it has one.
    pub token: Option<u64>,
    /// How long until its lease ends.
    pub ttl: Option<Duration>,
    /// The id of the connection to which a session binds the hold.
    pub client: Option<u64>,
}

/// An owner that waits for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiter {
    /// Its name.
    pub owner: Vec<u8>,
    /// The mode that it asks for.
    pub mode: Mode,
    /// The id of the connection that it blocks.
    pub client: Option<u64>,
    /// The address of that connection.
    pub addr: Option<String>,
    /// The channel on which it is told, if it has a place and blocks no connection.
    pub channel: Option<Vec<u8>>,
    /// How long it has waited.
    pub waited: Duration,
    /// How much longer it will wait; none for a wait without end.
    pub timeout: Option<Duration>,
}

/// A lock for which somebody waits.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContendedLock {
    /// The lock's key, as the server has it.
    pub key: Vec<u8>,
    /// The owners that hold it.
    pub holders: Vec<Vec<u8>>,
    /// How many wait for it.
    pub waiting: u64,
    /// How long the first in line has waited.
    pub waited: Duration,
}

/// The counters of `INFO lock`, by name. Of a cluster: the sums over its primaries, and of
/// what is a time, with its unit in its name (`_us`, `_ms`), the greatest. A negative one is
/// left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters(BTreeMap<String, u64>);

impl Counters {
    /// A counter, such as `lock_grants_immediate`.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.0.get(name).copied()
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(name, count)| (name.as_str(), *count))
    }

    pub(crate) fn read(replies: Vec<Value>) -> Self {
        let mut counters = Self::default();
        for reply in replies {
            let info = text(reply).unwrap_or_default();
            for (name, count) in info.lines().filter_map(|line| line.split_once(':')) {
                if let Ok(count) = count.trim().parse::<u64>() {
                    let total = counters.0.entry(name.into()).or_default();
                    *total = match name.split('_').any(|word| matches!(word, "us" | "ms")) {
                        true => count.max(*total),
                        false => total.saturating_add(count),
                    };
                }
            }
        }
        counters
    }
}

impl LockInfo {
    /// Returns whether somebody holds it.
    pub fn is_held(&self) -> bool {
        self.mode.is_some()
    }

    pub(crate) fn read(key: Vec<u8>, reply: Value) -> Result<Self, Error> {
        Self::parse(key, reply).map_err(unexpected)
    }

    fn parse(key: Vec<u8>, reply: Value) -> Result<Self, ParsingError> {
        let mut fields = Fields::read(reply)?;
        Ok(Self {
            key,
            mode: fields.mode()?,
            token: fields.take("fence")?,
            ttl: fields.ms("ttl")?,
            holders: fields.list("holders", Holder::parse)?,
            waiting: fields.take("waiting")?,
            waiters: fields.list("waiters", Waiter::parse)?,
            grace: fields.ms("grace")?.filter(|left| !left.is_zero()),
        })
    }
}

impl Holder {
    fn parse(mut fields: Fields) -> Result<Self, ParsingError> {
        Ok(Self {
            owner: fields.take("owner")?,
            holds: fields.take("holds")?,
            token: fields.take("fence")?,
            ttl: fields.ms("ttl")?,
            client: fields.take("client")?,
        })
    }
}

impl Waiter {
    fn parse(mut fields: Fields) -> Result<Self, ParsingError> {
        Ok(Self {
            owner: fields.take("owner")?,
            mode: fields.mode()?.unwrap_or(Mode::Exclusive),
            client: fields.take("client")?,
            addr: fields.take("addr")?,
            channel: fields.take("channel")?,
            waited: fields.ms("waited")?.unwrap_or_default(),
            timeout: fields.ms("timeout")?,
        })
    }
}

impl ContendedLock {
    pub(crate) fn read_all(reply: Value) -> Result<Vec<Self>, Error> {
        let locks: Vec<Value> = from_redis_value(reply).map_err(unexpected)?;
        let locks = locks.into_iter().map(Self::parse);
        locks.collect::<Result<_, _>>().map_err(unexpected)
    }

    fn parse(reply: Value) -> Result<Self, ParsingError> {
        let mut fields = Fields::read(reply)?;
        Ok(Self {
            key: fields.take("key")?,
            holders: fields.take("holders")?,
            waiting: fields.take("waiting")?,
            waited: fields.ms("waited")?.unwrap_or_default(),
        })
    }
}

fn unexpected(error: ParsingError) -> Error {
    Error::Reply(error.to_string())
}

/// A map as RESP3 has it, or a flat array as RESP2 has it.
struct Fields(std::collections::HashMap<String, Value>);

impl Fields {
    fn read(value: Value) -> Result<Self, ParsingError> {
        from_redis_value(value).map(Self)
    }

    /// A field. One that is missing counts as null.
    fn take<T: FromRedisValue>(&mut self, field: &str) -> Result<T, ParsingError> {
        from_redis_value(self.0.remove(field).unwrap_or(Value::Nil))
    }

    /// None of a free lock. Old servers do not tell the limit of a waiter.
    fn mode(&mut self) -> Result<Option<Mode>, ParsingError> {
        let limit: Option<u64> = self.take("limit")?;
        let mode: Option<String> = self.take("mode")?;
        Ok(match mode.as_deref() {
            Some("exclusive") => Some(Mode::Exclusive),
            Some("shared") => Some(Mode::Shared),
            Some("limited") => Some(Mode::Limited(limit.unwrap_or(1))),
            _ => None,
        })
    }

    /// Milliseconds; none where they are negative or missing.
    fn ms(&mut self, field: &str) -> Result<Option<Duration>, ParsingError> {
        let ms: Option<i64> = self.take(field)?;
        let ms = ms.and_then(|ms| u64::try_from(ms).ok());
        Ok(ms.map(Duration::from_millis))
    }

    fn list<T>(
        &mut self,
        field: &str,
        parse: impl Fn(Self) -> Result<T, ParsingError>,
    ) -> Result<Vec<T>, ParsingError> {
        let items: Vec<Value> = self.take(field)?;
        let items = items.into_iter();
        items.map(|item| parse(Self::read(item)?)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &[u8]) -> Value {
        Value::BulkString(text.into())
    }

    fn map(fields: Vec<(&str, Value)>, resp3: bool) -> Value {
        let fields = fields
            .into_iter()
            .map(|(name, value)| (bytes(name.as_bytes()), value));
        match resp3 {
            true => Value::Map(fields.collect()),
            false => Value::Array(fields.flat_map(|(name, value)| [name, value]).collect()),
        }
    }

    fn info(resp3: bool) -> Value {
        let holder = vec![
            ("owner", bytes(b"\xff")),
            ("holds", Value::Int(2)),
            ("fence", Value::Int(42)),
            ("ttl", Value::Int(1000)),
            ("client", Value::Nil),
        ];
        let waiter = vec![
            ("owner", bytes(b"bob")),
            ("mode", bytes(b"exclusive")),
            ("limit", Value::Int(1)),
            ("client", Value::Int(7)),
            ("addr", bytes(b"10.0.0.1:1")),
            ("waited", Value::Int(20)),
            ("timeout", Value::Int(-1)),
        ];
        let reader = vec![
            ("owner", bytes(b"carol")),
            ("mode", bytes(b"shared")),
            ("limit", Value::Int(0)),
        ];
        let waiters = [waiter, reader].map(|waiter| map(waiter, resp3));
        let info = vec![
            ("state", bytes(b"held")),
            ("mode", bytes(b"limited")),
            ("limit", Value::Int(3)),
            ("fence", Value::Int(42)),
            ("ttl", Value::Int(1000)),
            ("holders", Value::Array(vec![map(holder, resp3)])),
            ("waiting", Value::Int(2)),
            ("waiters", Value::Array(waiters.into())),
            ("grace", Value::Int(1500)),
        ];
        map(info, resp3)
    }

    #[test]
    fn both_protocols_tell_the_same() {
        let [resp2, resp3] =
            [false, true].map(|resp3| LockInfo::read(b"k".to_vec(), info(resp3)).unwrap());
        assert_eq!(resp2, resp3);
        assert!(resp2.is_held());
        assert_eq!(resp2.mode, Some(Mode::Limited(3)));
        assert_eq!(resp2.holders[0].owner, b"\xff");
        assert_eq!(resp2.holders[0].client, None);
        assert_eq!(resp2.grace, Some(Duration::from_millis(1500)));
        assert_eq!(resp2.waiters[0].timeout, None);
        assert_eq!(resp2.waiters[0].waited, Duration::from_millis(20));
        let modes = [0, 1].map(|turn| resp2.waiters[turn].mode);
        assert_eq!(modes, [Mode::Exclusive, Mode::Shared]);
    }

    #[test]
    fn a_free_lock_has_no_mode() {
        let info = vec![
            ("state", bytes(b"free")),
            ("mode", Value::Nil),
            ("limit", Value::Nil),
            ("ttl", Value::Int(-2)),
            ("holders", Value::Array(vec![])),
            ("waiting", Value::Int(0)),
            ("waiters", Value::Array(vec![])),
            ("grace", Value::Int(0)),
        ];
        let info = LockInfo::read(b"k".to_vec(), map(info, true)).unwrap();
        assert!(!info.is_held());
        assert_eq!((info.token, info.ttl, info.grace), (None, None, None));
    }

    #[test]
    fn counters_of_several_servers_are_summed() {
        let info =
            |grants: u8| bytes(format!("# lock\r\nlock_grants:{grants}\r\nx:y\r\n").as_bytes());
        let counters = Counters::read(vec![info(1), info(2)]);
        assert_eq!(counters.get("lock_grants"), Some(3));
        assert_eq!(counters.get("x"), None);
    }
}
