//! The lock commands as they go over the wire.

use redis::{Cmd, Value};

use crate::error::Error;
use crate::request::Mode;

/// The `BLOCK` of a wait without end.
pub(crate) const BLOCK_WITHOUT_END: u64 = 0;

/// `LOCK.ACQUIRE`, without waiting. It always asks for the first hold, because
/// a client counts the guards of one owner by itself; that makes it safe to
/// send again.
pub(crate) fn acquire(key: &[u8], owner: &[u8], lease_ms: u64, mode: Mode) -> Cmd {
    let mut cmd = redis::cmd("LOCK.ACQUIRE");
    cmd.arg(key).arg(owner).arg("LEASE").arg(lease_ms);
    match mode {
        Mode::Exclusive => {}
        Mode::Shared => {
            cmd.arg("SHARED");
        }
        Mode::Limited(limit) => {
            cmd.arg("LIMIT").arg(limit);
        }
    }
    cmd.arg("HOLD").arg(1);
    cmd
}

/// Adds `BLOCK`.
pub(crate) fn block(acquire: &mut Cmd, block_ms: u64) {
    acquire.arg("BLOCK").arg(block_ms);
}

/// Adds `QUEUE`: a place in the queue, whose end is told on the channel.
pub(crate) fn queue(acquire: &mut Cmd, place_ms: u64, channel: &[u8]) {
    acquire.arg("QUEUE").arg(place_ms).arg(channel);
}

/// Adds `SESSION`, which binds the hold to the connection of the command.
pub(crate) fn bind(acquire: &mut Cmd) {
    acquire.arg("SESSION");
}

/// `LOCK.RENEW`, of the hold with this token if it is known.
pub(crate) fn renew(key: &[u8], owner: &[u8], lease_ms: u64, token: Option<u64>) -> Cmd {
    let mut cmd = redis::cmd("LOCK.RENEW");
    cmd.arg(key).arg(owner).arg("LEASE").arg(lease_ms);
    fence(&mut cmd, token);
    cmd
}

/// `LOCK.RELEASE` of all that the owner has, or has with this token.
pub(crate) fn release(key: &[u8], owner: &[u8], token: Option<u64>) -> Cmd {
    let mut cmd = redis::cmd("LOCK.RELEASE");
    cmd.arg(key).arg(owner);
    fence(&mut cmd, token);
    cmd.arg("ALL");
    cmd
}

/// `LOCK.BREAK`, if this is the newest token, or whatever that is.
pub(crate) fn break_lock(key: &[u8], token: Option<u64>) -> Cmd {
    let mut cmd = redis::cmd("LOCK.BREAK");
    cmd.arg(key);
    fence(&mut cmd, token);
    cmd
}

/// `LOCK.INFO`.
pub(crate) fn info(key: &[u8]) -> Cmd {
    let mut cmd = redis::cmd("LOCK.INFO");
    cmd.arg(key);
    cmd
}

/// `LOCK.LIST`.
pub(crate) fn list(count: u64) -> Cmd {
    let mut cmd = redis::cmd("LOCK.LIST");
    cmd.arg("COUNT").arg(count);
    cmd
}

/// `INFO lock`.
pub(crate) fn counters() -> Cmd {
    let mut cmd = redis::cmd("INFO");
    cmd.arg("lock");
    cmd
}

/// `INFO server`.
pub(crate) fn server_info() -> Cmd {
    let mut cmd = redis::cmd("INFO");
    cmd.arg("server");
    cmd
}

/// A field of what `INFO` answers.
pub(crate) fn info_field<'i>(info: &'i str, name: &str) -> Option<&'i str> {
    let mut lines = info.lines();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

/// `SUBSCRIBE`, or `SSUBSCRIBE` in a cluster.
pub(crate) fn subscribe(channel: &[u8], is_sharded: bool) -> Cmd {
    let mut cmd = redis::cmd(match is_sharded {
        true => "SSUBSCRIBE",
        false => "SUBSCRIBE",
    });
    cmd.arg(channel);
    cmd
}

/// `CLUSTER SLOTS`.
#[cfg(feature = "cluster")]
pub(crate) fn cluster_slots() -> Cmd {
    let mut cmd = redis::cmd("CLUSTER");
    cmd.arg("SLOTS");
    cmd
}

/// `CONFIG GET notify-keyspace-events`, or `SET` to these.
pub(crate) fn flags_of_events(set: Option<&str>) -> Cmd {
    let mut cmd = redis::cmd("CONFIG");
    cmd.arg(if set.is_some() { "SET" } else { "GET" });
    cmd.arg("notify-keyspace-events").arg(set);
    cmd
}

/// `HELLO`, which every user may send.
pub(crate) fn hello() -> Cmd {
    redis::cmd("HELLO")
}

/// `PING`.
pub(crate) fn ping() -> Cmd {
    redis::cmd("PING")
}

/// `WAIT` until this many replicas have what this connection wrote.
pub(crate) fn wait_for_replicas(replicas: usize, timeout_ms: u64) -> Cmd {
    let mut cmd = redis::cmd("WAIT");
    cmd.arg(replicas).arg(timeout_ms);
    cmd
}

fn fence(cmd: &mut Cmd, token: Option<u64>) {
    if let Some(token) = token {
        cmd.arg("FENCE").arg(token);
    }
}

/// The token of a grant, or none where another owner has the lock.
pub(crate) fn token(reply: &Value) -> Result<Option<u64>, Error> {
    match reply {
        Value::Nil => Ok(None),
        Value::Int(token @ 1..) => Ok(Some(token.unsigned_abs())),
        other => Err(Error::unexpected(other)),
    }
}

/// The token of a grant, or none where there is a place in the queue.
pub(crate) fn token_or_place(reply: &Value) -> Result<Option<u64>, Error> {
    match reply {
        Value::Int(0) => Ok(None),
        Value::Nil => Err(Error::unexpected(reply)),
        other => token(other),
    }
}

/// Whether a renewal, a release or a break found a hold.
pub(crate) fn found(reply: &Value) -> Result<bool, Error> {
    match reply {
        Value::Int(1) => Ok(true),
        Value::Int(0) | Value::Nil => Ok(false),
        other => Err(Error::unexpected(other)),
    }
}

/// How many replicas confirmed.
pub(crate) fn count(reply: &Value) -> Result<usize, Error> {
    match reply {
        Value::Int(count) => usize::try_from(*count).map_err(|_| Error::unexpected(reply)),
        other => Err(Error::unexpected(other)),
    }
}

/// A reply that is text.
pub(crate) fn text(reply: Value) -> Option<String> {
    redis::from_redis_value(reply).ok()
}
