//! `LOCK.BREAK key [FENCE token]`
//!
//! Replies 1 when the lock was taken from its holders, 0 when it was free or
//! its newest token is another one.

use redis_module::Context;

use crate::commands::args::{Args, of_words};
use crate::manager;
use crate::server::command::Command;
use crate::server::keyspace::LockKey;
use crate::server::registration::{ArgDoc, CommandDoc, KeyChange};
use crate::server::reply::Reply;
use crate::server::server_str::ServerStr;
use redis_lock_core::error::LockError;
use redis_lock_core::token::FencingToken;
use redis_lock_core::usage::Usage;

/// `LOCK.BREAK`
pub(super) struct Break;

impl Command for Break {
    const DOC: CommandDoc = CommandDoc {
        name: c"lock.break",
        flags: c"write",
        summary: c"Takes a lock from whoever holds it and hands it off.",
        complexity: c"O(H) where H is the number of the lock's holders, and O(log N) for each of up to 32 clients that are let in at once, where N is the number of clients waiting for the lock.",
        since: c"0.1.0",
        min_args: 2,
        key_change: Some(KeyChange::Delete),
        args: &[ArgDoc::Key, ArgDoc::OptionalNumber(c"fence", c"FENCE")],
    };

    fn run(ctx: &Context, args: &[ServerStr<'_>]) -> Result<Reply, LockError> {
        let [key, rest @ ..] = args else {
            return Err(Usage::Syntax.into());
        };
        let token = of_words(rest, parse)?;
        let broken = manager::break_lock(LockKey::new(ctx, *key), token)?;
        Ok(broken.map_or(Reply::Later, |broken| Reply::Integer(broken.into())))
    }
}

fn parse(args: Args<'_>) -> Result<Option<FencingToken>, Usage> {
    let mut token = None;
    args.options(|args| args.token(&mut token))?;
    Ok(token)
}
