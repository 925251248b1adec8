//! The lock commands as they go over the wire.

use std::time::Duration;

use redis::{Arg, Cmd, Value, cmd};

use crate::clock::whole_ms;
use crate::error::Error;

/// The longest lease: ten years.
pub(crate) const LEASE_MS_MAX: u64 = 315_360_000_000;

/// How long a place is kept at most if it is not asked for again: some times longer than
/// that takes, and not so long that those of a dead process stay in the way.
pub(crate) const PLACE_MAX: Duration = Duration::from_secs(150);

/// The greatest token, and the greatest limit that the server takes.
pub(crate) const NUMBER_MAX: u64 = (1 << 53) - 1;

/// How many may hold a lock together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One owner alone.
    Exclusive,
    /// All that share it, at most `lock.max-holders` of the server.
    Shared,
    /// At most this many owners: each has one of as many permits.
    Limited(u64),
}

/// `LOCK.ACQUIRE` of the owner's `nth` hold, without waiting. The number makes it safe to
/// send again.
pub(crate) fn acquire(key: &[u8], owner: &[u8], lease: Duration, mode: Mode, nth: u64) -> Cmd {
    let mut acquire = cmd("LOCK.ACQUIRE");
    acquire.arg(key).arg(owner);
    acquire.arg("LEASE").arg(whole_ms(lease));
    match mode {
        Mode::Exclusive => {}
        Mode::Shared => _ = acquire.arg("SHARED"),
        Mode::Limited(limit) => _ = acquire.arg("LIMIT").arg(limit),
    }
    acquire.arg("HOLD").arg(nth);
    acquire
}

/// Ties the hold to the connection of the command.
pub(crate) fn tied(mut acquire: Cmd) -> Cmd {
    acquire.arg("SESSION");
    acquire
}

/// Adds a place in the queue, for at most so long, whose end is told on the channel.
pub(crate) fn queue(mut acquire: Cmd, wait: Option<Duration>, channel: &[u8]) -> Cmd {
    let place_ms = whole_ms(wait.unwrap_or(PLACE_MAX).min(PLACE_MAX)).max(1);
    acquire.arg("QUEUE").arg(place_ms).arg(channel);
    acquire
}

/// Has the connection wait, for at most so long; 0 is without end.
pub(crate) fn block(mut acquire: Cmd, wait: Option<Duration>) -> Cmd {
    let block_ms = wait.map_or(0, |wait| whole_ms(wait).max(1));
    acquire.arg("BLOCK").arg(block_ms);
    acquire
}

pub(crate) fn renew(key: &[u8], owner: &[u8], lease: Duration, token: u64) -> Cmd {
    let mut renew = cmd("LOCK.RENEW");
    renew.arg(key).arg(owner).arg("LEASE").arg(whole_ms(lease));
    renew.arg("FENCE").arg(token);
    renew
}

/// `LOCK.RELEASE` of the owner's `nth` hold, or of all.
pub(crate) fn release(key: &[u8], owner: &[u8], token: Option<u64>, nth: Option<u64>) -> Cmd {
    let mut release = cmd("LOCK.RELEASE");
    release.arg(key).arg(owner);
    if let Some(token) = token {
        release.arg("FENCE").arg(token);
    }
    match nth {
        Some(nth) => release.arg("HOLD").arg(nth),
        None => release.arg("ALL"),
    };
    release
}

pub(crate) fn break_lock(key: &[u8], token: Option<u64>) -> Cmd {
    let mut break_lock = cmd("LOCK.BREAK");
    break_lock.arg(key);
    if let Some(token) = token {
        break_lock.arg("FENCE").arg(token);
    }
    break_lock
}

pub(crate) fn info(key: &[u8]) -> Cmd {
    let mut info = cmd("LOCK.INFO");
    info.arg(key);
    info
}

/// `LOCK.GUARD` around a command.
pub(crate) fn guard(key: &[u8], token: u64, command: &Cmd) -> Cmd {
    let mut guard = cmd("LOCK.GUARD");
    guard.arg(key).arg(token);
    for arg in command.args_iter() {
        match arg {
            Arg::Simple(bytes) => _ = guard.arg(bytes),
            // The first cursor of a scan.
            _ => _ = guard.arg(0),
        }
    }
    guard
}

/// Returns whether a command that may have been carried out can be sent again: it does no
/// more then. A guarded command may, and a break takes the lock from the next one.
pub(crate) fn is_repeatable(command: &Cmd) -> bool {
    let name = command.args_iter().next();
    !matches!(name, Some(Arg::Simple(b"LOCK.GUARD" | b"LOCK.BREAK")))
}

/// A token, 0 for a place, or none: the reply of `LOCK.ACQUIRE`.
pub(crate) fn token_in(reply: &Value) -> Result<Option<u64>, Error> {
    match reply {
        Value::Nil => Ok(None),
        Value::Int(number) if *number >= 0 => Ok(Some(number.unsigned_abs())),
        other => Err(Error::unexpected(other)),
    }
}

/// Returns whether the reply is 1, rather than 0 or null.
pub(crate) fn is_one(reply: &Value) -> Result<bool, Error> {
    token_in(reply).map(|number| number == Some(1))
}

/// An owner that no other has.
pub(crate) fn unique_owner() -> Vec<u8> {
    format!("{:032x}", rand::random::<u128>()).into_bytes()
}
