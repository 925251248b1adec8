//! What `LOCK.LIST` and `LOCK.INFO` say, and what follows from it: who is
//! blocked by whom, and how to break what is stuck.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use redis_lock_client::Error;
use redis_lock_client::redis::{self, FromRedisValue, ParsingError, Value, from_redis_value};
use serde::Serialize;

use crate::connection::Connection;
use crate::failure::Failure;
use crate::quoting::{shown, word};

/// A lock.
#[derive(Debug, Serialize)]
pub struct LockView {
    pub key: String,
    pub state: String,
    pub mode: Option<String>,
    pub limit: Option<u64>,
    /// The newest token.
    pub token: Option<u64>,
    /// Until the last hold ends; negative where there is none.
    pub ttl_ms: i64,
    pub holders: Vec<HolderView>,
    /// How many wait.
    pub waiting: u64,
    /// Who waits, in the order of their turns.
    pub waiters: Vec<WaiterView>,
    /// The command that breaks the lock if it is stuck, and does nothing to
    /// who has it by the time it is typed.
    pub safe_break: Option<String>,
    #[serde(skip)]
    name: Vec<u8>,
}

/// Who has a lock.
#[derive(Debug, Serialize)]
pub struct HolderView {
    pub owner: String,
    pub holds: u64,
    pub token: Option<u64>,
    pub ttl_ms: i64,
    /// The connection to which the hold is tied.
    pub client: Option<u64>,
    /// The locks for which this owner waits itself, as far as they are shown.
    pub waits_for: Vec<String>,
}

/// Who waits for a lock.
#[derive(Debug, Serialize)]
pub struct WaiterView {
    pub owner: String,
    pub mode: String,
    pub client: u64,
    pub addr: String,
    pub waited_ms: u64,
    /// How much longer it waits; none for a wait without end.
    pub timeout_ms: Option<u64>,
    pub blocked_by: Vec<String>,
}

impl LockView {
    /// How long the first in line has waited.
    pub fn longest_wait(&self) -> Option<Duration> {
        let waited = self.waiters.iter().map(|waiter| waiter.waited_ms).max();
        waited.map(Duration::from_millis)
    }

    fn read(name: Vec<u8>, info: Value) -> Result<Self, ParsingError> {
        let mut info = Fields::read(info)?;
        let mut lock = Self {
            key: shown(&name),
            state: info.take("state")?,
            mode: info.take("mode")?,
            limit: info.take("limit")?,
            token: info.take("fence")?,
            ttl_ms: info.take("ttl")?,
            holders: info.list("holders", HolderView::read)?,
            waiting: info.take("waiting")?,
            waiters: info.list("waiters", WaiterView::read)?,
            safe_break: None,
            name,
        };
        for nth in 0..lock.waiters.len() {
            lock.waiters[nth].blocked_by = lock.blocked_by(nth);
        }
        Ok(lock)
    }

    /// Who keeps this waiter from the lock: the holders, or where it could join
    /// them, those before it in the queue that can't.
    fn blocked_by(&self, nth: usize) -> Vec<String> {
        let waiter = &self.waiters[nth];
        let before = self.waiters[..nth].iter();
        let mut blockers: Vec<&String> = match self.admits(waiter) {
            false => self.holders.iter().map(|holder| &holder.owner).collect(),
            true => before
                .filter(|before| !self.admits(before))
                .map(|before| &before.owner)
                .collect(),
        };
        blockers.dedup();
        blockers
            .into_iter()
            .filter(|it| **it != waiter.owner)
            .cloned()
            .collect()
    }

    /// Whether the holders would let a waiter join them if it were the first in
    /// line. Of a limited waiter the limit is not told.
    fn admits(&self, waiter: &WaiterView) -> bool {
        let has_room = match self.limit {
            None | Some(0) => true,
            Some(limit) => (self.holders.len() as u64) < limit,
        };
        has_room && waiter.mode == "shared"
    }
}

impl HolderView {
    fn read(mut fields: Fields) -> Result<Self, ParsingError> {
        Ok(Self {
            owner: fields.name("owner")?,
            holds: fields.take("holds")?,
            token: fields.take("fence")?,
            ttl_ms: fields.take("ttl")?,
            client: fields.take("client")?,
            waits_for: Vec::new(),
        })
    }
}

impl WaiterView {
    fn read(mut fields: Fields) -> Result<Self, ParsingError> {
        Ok(Self {
            owner: fields.name("owner")?,
            mode: fields.take("mode")?,
            client: fields.take("client")?,
            addr: fields.take("addr")?,
            waited_ms: fields.take("waited")?,
            timeout_ms: u64::try_from(fields.take::<i64>("timeout")?).ok(),
            blocked_by: Vec::new(),
        })
    }
}

/// A map as RESP3 has it, or a flat array as RESP2 has it.
struct Fields(HashMap<String, Value>);

impl Fields {
    fn read(value: Value) -> Result<Self, ParsingError> {
        from_redis_value(value).map(Self)
    }

    /// A field. One that is missing counts as null.
    fn take<T: FromRedisValue>(&mut self, field: &str) -> Result<T, ParsingError> {
        from_redis_value(self.0.remove(field).unwrap_or(Value::Nil))
    }

    fn name(&mut self, field: &str) -> Result<String, ParsingError> {
        Ok(shown(&self.take::<Vec<u8>>(field)?))
    }

    fn list<T>(
        &mut self,
        field: &str,
        read: impl Fn(Self) -> Result<T, ParsingError>,
    ) -> Result<Vec<T>, ParsingError> {
        let items: Vec<Value> = self.take(field)?;
        let items = items.into_iter();
        items.map(|item| read(Self::read(item)?)).collect()
    }
}

/// The contended locks, longest wait first.
pub async fn contended(
    connection: &mut Connection,
    count: u32,
    stuck_after: Duration,
) -> Result<Vec<LockView>, Failure> {
    let list: Vec<Value> = connection
        .ask(redis::cmd("LOCK.LIST").arg("COUNT").arg(count))
        .await?;
    let mut locks = Vec::new();
    for lock in list {
        let name = Fields::read(lock)?.take("key")?;
        match lock_named(connection, name).await {
            Ok(lock) => locks.push(lock),
            // It has become something that is no lock since it was listed.
            Err(Failure::Lock(Error::Server { .. })) => {}
            Err(failure) => return Err(failure),
        }
    }
    // Others are free by now, or their waiters have been served.
    locks.retain(|lock| !lock.waiters.is_empty());
    locks.sort_by_key(|lock| Reverse(lock.longest_wait()));
    tell_what_follows(&mut locks, stuck_after);
    Ok(locks)
}

/// These locks, contended or not.
pub async fn named(
    connection: &mut Connection,
    names: impl Iterator<Item = Vec<u8>>,
    stuck_after: Duration,
) -> Result<Vec<LockView>, Failure> {
    let mut locks = Vec::new();
    for name in names {
        locks.push(lock_named(connection, name).await?);
    }
    tell_what_follows(&mut locks, stuck_after);
    Ok(locks)
}

async fn lock_named(connection: &mut Connection, name: Vec<u8>) -> Result<LockView, Failure> {
    let info = connection.ask(redis::cmd("LOCK.INFO").arg(&name)).await?;
    Ok(LockView::read(name, info)?)
}

fn tell_what_follows(locks: &mut [LockView], stuck_after: Duration) {
    tell_who_waits_elsewhere(locks);
    for lock in locks {
        lock.safe_break = safe_break(lock, stuck_after);
    }
}

/// Fills in for each holder for which of these locks it waits.
fn tell_who_waits_elsewhere(locks: &mut [LockView]) {
    let mut waits: HashMap<String, BTreeSet<String>> = HashMap::new();
    for lock in &*locks {
        for waiter in &lock.waiters {
            let keys = waits.entry(waiter.owner.clone()).or_default();
            keys.insert(lock.key.clone());
        }
    }
    for holder in locks.iter_mut().flat_map(|lock| &mut lock.holders) {
        if let Some(keys) = waits.get(&holder.owner) {
            holder.waits_for = keys.iter().cloned().collect();
        }
    }
}

/// A hold without a token was not taken by the module, and can't be told from
/// a later one of the same kind.
fn safe_break(lock: &LockView, stuck_after: Duration) -> Option<String> {
    let is_stuck = lock.longest_wait()? >= stuck_after && !lock.holders.is_empty();
    let token = lock.token.filter(|_| is_stuck)?;
    Some(format!("LOCK.BREAK {} FENCE {token}", word(&lock.name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn map(fields: Vec<(&str, Value)>, resp3: bool) -> Value {
        let fields = fields.into_iter().map(|(name, value)| (text(name), value));
        match resp3 {
            true => Value::Map(fields.collect()),
            false => Value::Array(fields.flat_map(|(name, value)| [name, value]).collect()),
        }
    }

    fn waiter(owner: &str, waited: i64, resp3: bool) -> Value {
        let fields = vec![
            ("owner", text(owner)),
            ("mode", text("exclusive")),
            ("client", Value::Int(7)),
            ("addr", text("10.0.0.1:1")),
            ("waited", Value::Int(waited)),
            ("timeout", Value::Int(-1)),
        ];
        map(fields, resp3)
    }

    fn lock(holder: &str, waiters: &[(&str, i64)], resp3: bool) -> LockView {
        let holder = vec![
            ("owner", text(holder)),
            ("holds", Value::Int(1)),
            ("fence", Value::Int(42)),
            ("ttl", Value::Int(1000)),
            ("client", Value::Nil),
        ];
        let waiters: Vec<_> = waiters
            .iter()
            .map(|(owner, waited)| waiter(owner, *waited, resp3))
            .collect();
        let info = vec![
            ("state", text("held")),
            ("mode", text("exclusive")),
            ("limit", Value::Int(1)),
            ("fence", Value::Int(42)),
            ("ttl", Value::Int(1000)),
            ("holders", Value::Array(vec![map(holder, resp3)])),
            ("waiting", Value::Int(2)),
            ("waiters", Value::Array(waiters)),
        ];
        LockView::read(b"a b".to_vec(), map(info, resp3)).unwrap()
    }

    #[test]
    fn both_protocols_tell_the_same() {
        for resp3 in [false, true] {
            let lock = lock("alice", &[("bob", 20_000), ("carol", 5)], resp3);
            assert_eq!(lock.holders[0].owner, "alice");
            assert_eq!(lock.holders[0].client, None);
            assert_eq!(lock.waiters[1].blocked_by, ["alice"]);
            assert_eq!(lock.waiters[0].timeout_ms, None);
            assert_eq!(lock.longest_wait(), Some(Duration::from_secs(20)));
            let safe = safe_break(&lock, Duration::from_secs(10)).unwrap();
            assert_eq!(safe, r#"LOCK.BREAK "a b" FENCE 42"#);
            assert_eq!(safe_break(&lock, Duration::from_secs(30)), None);
        }
    }

    #[test]
    fn a_reader_behind_a_writer_is_blocked_by_the_writer_alone() {
        let mut lock = lock("reader", &[("writer", 2), ("next", 1)], true);
        lock.limit = Some(0);
        lock.waiters[1].mode = "shared".into();
        assert_eq!(lock.blocked_by(0), ["reader"]);
        assert_eq!(lock.blocked_by(1), ["writer"]);
        lock.limit = Some(1);
        assert_eq!(lock.blocked_by(1), ["reader"]);
    }

    #[test]
    fn a_holder_that_waits_elsewhere_is_told() {
        let mut locks = [lock("alice", &[("bob", 1)], true), lock("bob", &[], true)];
        tell_who_waits_elsewhere(&mut locks);
        assert!(locks[0].holders[0].waits_for.is_empty());
        assert_eq!(locks[1].holders[0].waits_for, ["a b"]);
    }
}
