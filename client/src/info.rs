//! What `LOCK.INFO` tells.

use std::collections::HashMap;
use std::time::Duration;

use redis::{FromRedisValue, ParsingError, Value, from_redis_value};

use crate::command::Mode;
use crate::error::Error;

/// A lock as the server sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// The lock's key, as the server has it.
    pub key: Vec<u8>,
    /// The mode in which it is held; none if it is free.
    pub mode: Option<Mode>,
    /// The newest token; none if it is free, or held by other means than this module's
    /// commands.
    pub token: Option<u64>,
    /// How long until the last hold ends; none if it is free.
    pub ttl: Option<Duration>,
    /// Those who hold it, at most the first 1,024.
    pub holders: Vec<Holder>,
    /// How many hold it.
    pub holding: u64,
    /// How many wait for it.
    pub waiting: u64,
    /// Those who wait for it, first in line first, at most the first 1,024.
    pub waiters: Vec<Waiter>,
    /// How long the server will grant nothing yet, because it has just started or been
    /// promoted; none if it grants.
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
    /// The id of the newest connection to which a session ties the hold.
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

impl LockInfo {
    /// Returns whether somebody holds it.
    pub fn is_held(&self) -> bool {
        self.mode.is_some()
    }

    pub(crate) fn read(key: Vec<u8>, reply: Value) -> Result<Self, Error> {
        Self::parse(key, reply).map_err(|error| Error::Reply(error.to_string()))
    }

    fn parse(key: Vec<u8>, reply: Value) -> Result<Self, ParsingError> {
        let mut fields = Fields(from_redis_value(reply)?);
        let holders = fields.list("holders", |mut holder| {
            Ok(Holder {
                owner: holder.take("owner")?,
                holds: holder.take("holds")?,
                token: holder.take("fence")?,
                ttl: holder.ms("ttl")?,
                client: holder.take("client")?,
            })
        })?;
        let waiters = fields.list("waiters", |mut waiter| {
            Ok(Waiter {
                owner: waiter.take("owner")?,
                mode: waiter.mode()?.unwrap_or(Mode::Exclusive),
                client: waiter.take("client")?,
                addr: waiter.take("addr")?,
                channel: waiter.take("channel")?,
                waited: waiter.ms("waited")?.unwrap_or_default(),
                timeout: waiter.ms("timeout")?,
            })
        })?;
        let holding: Option<u64> = fields.take("holding")?;
        Ok(Self {
            key,
            mode: fields.mode()?,
            token: fields.take("fence")?,
            ttl: fields.ms("ttl")?,
            holding: holding.unwrap_or(holders.len() as u64),
            holders,
            waiting: fields.take("waiting")?,
            waiters,
            grace: fields.ms("grace")?.filter(|left| !left.is_zero()),
        })
    }
}

/// A map as RESP3 has it, or a flat array as RESP2 has it.
struct Fields(HashMap<String, Value>);

impl Fields {
    /// A field. One that is missing counts as null.
    fn take<T: FromRedisValue>(&mut self, field: &str) -> Result<T, ParsingError> {
        from_redis_value(self.0.remove(field).unwrap_or(Value::Nil))
    }

    /// None of a free lock.
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
        let items: Vec<HashMap<String, Value>> = self.take(field)?;
        items.into_iter().map(|item| parse(Self(item))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_protocols_tell_the_same() {
        let resp2 = b"*14\r\n$5\r\nstate\r\n$4\r\nheld\r\n$4\r\nmode\r\n$7\r\nlimited\r\n\
            $5\r\nlimit\r\n:3\r\n$5\r\nfence\r\n:42\r\n$3\r\nttl\r\n:1000\r\n$7\r\nholders\r\n\
            *1\r\n*4\r\n$5\r\nowner\r\n$1\r\n\xff\r\n$5\r\nholds\r\n:2\r\n$7\r\nwaiting\r\n:1\r\n";
        let resp3 = b"%7\r\n$5\r\nstate\r\n$4\r\nheld\r\n$4\r\nmode\r\n$7\r\nlimited\r\n\
            $5\r\nlimit\r\n:3\r\n$5\r\nfence\r\n:42\r\n$3\r\nttl\r\n:1000\r\n$7\r\nholders\r\n\
            *1\r\n%2\r\n$5\r\nowner\r\n$1\r\n\xff\r\n$5\r\nholds\r\n:2\r\n$7\r\nwaiting\r\n:1\r\n";
        let read = |reply: &[u8]| {
            LockInfo::read(b"k".to_vec(), redis::parse_redis_value(reply).unwrap()).unwrap()
        };
        let info = read(resp2);
        assert_eq!(info, read(resp3));
        assert!(info.is_held());
        assert_eq!(info.mode, Some(Mode::Limited(3)));
        assert_eq!(
            (info.holders[0].owner.as_slice(), info.holding),
            (&b"\xff"[..], 1)
        );
        assert_eq!((info.grace, info.waiters.len()), (None, 0));
    }
}
