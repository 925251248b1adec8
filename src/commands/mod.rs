//! The commands: each reads its words, asks the manager and replies. One file
//! a command; its grammar stands in the file's first lines.

mod acquire;
mod args;
mod break_lock;
mod docs;
mod info;
mod list;
mod release;
mod renew;

use redis_module::Context;
use smallvec::SmallVec;

use crate::commands::args::Args;
use crate::error::{LockError, Usage};
use crate::server::command::{WORDS_INLINE, register as add};
use crate::server::keyspace::LockKey;
use crate::server::registration::add_acl_category;
use crate::server::word::Word;

/// Adds all commands to the server.
pub(crate) fn register(ctx: &Context) -> Result<(), String> {
    add_acl_category(ctx);
    add::<acquire::Acquire>(ctx)?;
    add::<release::Release>(ctx)?;
    add::<renew::Renew>(ctx)?;
    add::<break_lock::Break>(ctx)?;
    add::<info::Info>(ctx)?;
    add::<list::List>(ctx)
}

/// Runs a command of the form `NAME key owner [options]`.
fn run<R>(
    ctx: &Context,
    words: &[Word<'_>],
    body: impl FnOnce(LockKey<'_>, Args<'_>) -> Result<R, LockError>,
) -> Result<R, LockError> {
    let [key, rest @ ..] = words else {
        return Err(Usage::Syntax.into());
    };
    let mut key = LockKey::new(ctx, *key);
    if let Some(&owner) = rest.first() {
        key = key.with_owner(owner);
    }
    body(key, Args::new(&bytes_of(rest)))
}

/// What the words say.
fn bytes_of<'c>(words: &[Word<'c>]) -> SmallVec<[&'c [u8]; WORDS_INLINE]> {
    words.iter().map(|word| word.bytes()).collect()
}
