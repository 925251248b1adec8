//! The commands: each reads its words, asks the manager and replies. One file
//! a command; its grammar stands in the file's first lines.

pub(crate) mod acquire;
mod args;
pub(crate) mod docs;
pub(crate) mod release;
pub(crate) mod renew;

use redis_module::{Context, RedisError, RedisResult, RedisString, RedisValue};

use crate::commands::args::Args;
use crate::error::{LockError, Usage};
use crate::server::guard;
use crate::server::keyspace::LockKey;

/// Runs a command of the form `NAME key owner [options]`. A body that panics
/// answers with an error.
fn run(
    ctx: &Context,
    words: &[RedisString],
    body: impl FnOnce(LockKey<'_>, Args<'_>) -> Result<RedisValue, LockError>,
) -> RedisResult {
    let [name, key, rest @ ..] = words else {
        return Err(RedisError::WrongArity);
    };
    if rest.is_empty() {
        return Err(RedisError::WrongArity);
    }
    let rest: Vec<&[u8]> = rest.iter().map(RedisString::as_slice).collect();
    guard::catch(&name.to_string_lossy(), || {
        body(LockKey::new(ctx, key), Args::new(&rest))
    })
    .unwrap_or_else(|| Err(Usage::Internal.into()))
    .map_err(|error| RedisError::from(&error))
}
