//! The lock commands as they go over the wire.

use redis::{Cmd, Value};

use crate::error::Error;
use crate::mode::Mode;

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

/// Has an acquire wait so long.
pub(crate) fn block(acquire: &mut Cmd, block_ms: u64) {
    acquire.arg("BLOCK").arg(block_ms);
}

/// Has an acquire tie its hold to the connection on which it is sent.
pub(crate) fn tie(acquire: &mut Cmd) {
    acquire.arg("SESSION");
}

/// `LOCK.RENEW`, of the hold with this token if it is known.
pub(crate) fn renew(key: &[u8], owner: &[u8], lease_ms: u64, token: Option<u64>) -> Cmd {
    let mut cmd = redis::cmd("LOCK.RENEW");
    cmd.arg(key).arg(owner).arg("LEASE").arg(lease_ms);
    fence(&mut cmd, token);
    cmd
}

/// `LOCK.RELEASE` of whatever the owner has, or has with this token.
pub(crate) fn release(key: &[u8], owner: &[u8], token: Option<u64>) -> Cmd {
    let mut cmd = redis::cmd("LOCK.RELEASE");
    cmd.arg(key).arg(owner);
    fence(&mut cmd, token);
    cmd.arg("ALL");
    cmd
}

/// `WAIT` until so many replicas have what this connection wrote.
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
        Value::Int(token) => u64::try_from(*token)
            .map(Some)
            .map_err(|_| Error::unexpected(reply)),
        other => Err(Error::unexpected(other)),
    }
}

/// Whether a renewal or a release found the hold.
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
