//! `LOCK.LIST [COUNT n]`
//!
//! Replies the locks of this database that somebody waits for, longest wait
//! first.

use redis_module::Context;

use crate::commands::args::{Args, of_words};
use crate::manager::inspect;
use crate::server::command::Command;
use crate::server::registration::{ArgDoc, CommandDoc};
use crate::server::reply::Reply;
use crate::server::server_str::ServerStr;
use redis_lock_core::error::LockError;
use redis_lock_core::usage::Usage;

/// How many locks are listed at most: more would take the server too long.
const COUNT_MAX: usize = 1000;

/// `LOCK.LIST`
pub(super) struct List;

impl Command for List {
    const DOC: CommandDoc = CommandDoc {
        name: c"lock.list",
        flags: c"readonly",
        summary: c"Lists the locks that clients wait for, longest wait first.",
        complexity: c"O(L log L + H) where L is the number of contended locks of the database, at most 10,000, and H that of the holders of those that are listed, at most 1,000.",
        since: c"0.1.0",
        min_args: 1,
        key_change: None,
        args: &[ArgDoc::OptionalNumber(c"count", c"COUNT")],
    };

    fn run(ctx: &Context, args: &[ServerStr<'_>]) -> Result<Reply, LockError> {
        let count = of_words(args, parse)?.unwrap_or(COUNT_MAX);
        let locks = inspect::contended(ctx, count.min(COUNT_MAX));
        let replies = locks.into_iter().map(|(lock, holders)| {
            let owners = holders.iter().map(|owner| Reply::text(owner.as_bytes()));
            Reply::Map(vec![
                ("key", Reply::text(lock.key.as_ref().name)),
                ("holders", Reply::List(owners.collect())),
                ("waiting", Reply::integer(lock.waiting)),
                ("waited", Reply::Integer(lock.waited_ms)),
            ])
        });
        Ok(Reply::List(replies.collect()))
    }
}

fn parse(args: Args<'_>) -> Result<Option<usize>, Usage> {
    let mut count = None;
    args.options(|args| args.count(&mut count))?;
    Ok(count)
}
