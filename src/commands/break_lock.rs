//! `LOCK.BREAK key [FENCE token]`
//!
//! Replies 1 when the lock was taken from its holders, 0 when it was free or
//! its newest token is another one.

use redis_module::Context;

use crate::commands::{args::Args, bytes_of, docs};
use crate::error::{LockError, Usage};
use crate::lock::fence::Fence;
use crate::manager;
use crate::server::command::Command;
use crate::server::keyspace::LockKey;
use crate::server::registration::CommandDoc;
use crate::server::reply::Reply;
use crate::server::word::Word;

/// `LOCK.BREAK`
pub(super) struct Break;

impl Command for Break {
    const DOC: CommandDoc = docs::BREAK;

    fn run(ctx: &Context, words: &[Word<'_>]) -> Result<Reply, LockError> {
        let [key, rest @ ..] = words else {
            return Err(Usage::Syntax.into());
        };
        let fence = parse(Args::new(&bytes_of(rest)))?;
        let broken = manager::break_lock(LockKey::new(ctx, *key), fence)?;
        Ok(Reply::Integer(broken.into()))
    }
}

fn parse(args: Args<'_>) -> Result<Option<Fence>, Usage> {
    let mut fence = None;
    args.options(|name, args| match name {
        b"FENCE" => args.fence(&mut fence),
        _ => Err(Usage::Syntax),
    })?;
    Ok(fence)
}
