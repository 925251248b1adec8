//! `LOCK.LIST [COUNT n]`
//!
//! Replies the locks of this database that somebody waits for, longest wait
//! first.

use redis_module::Context;

use crate::commands::{args::Args, bytes_of, docs};
use crate::error::{LockError, Usage};
use crate::manager::inspect;
use crate::server::command::Command;
use crate::server::registration::CommandDoc;
use crate::server::reply::Reply;
use crate::server::word::Word;

/// `LOCK.LIST`
pub(super) struct List;

impl Command for List {
    const DOC: CommandDoc = docs::LIST;

    fn run(ctx: &Context, words: &[Word<'_>]) -> Result<Reply, LockError> {
        let count = parse(Args::new(&bytes_of(words)))?;
        let locks = inspect::contended(ctx, count.unwrap_or(usize::MAX));
        let replies = locks.into_iter().map(|lock| {
            let owners = lock
                .holders
                .iter()
                .map(|owner| Reply::text(owner.as_bytes()));
            Reply::Map(vec![
                ("key", Reply::text(lock.key.as_ref().name)),
                ("holders", Reply::List(owners.collect())),
                ("waiting", Reply::Integer(lock.waiting)),
                ("waited", Reply::Integer(lock.waited_ms)),
            ])
        });
        Ok(Reply::List(replies.collect()))
    }
}

fn parse(args: Args<'_>) -> Result<Option<usize>, Usage> {
    let mut count = None;
    args.options(|name, args| match name {
        b"COUNT" => args.count(&mut count),
        _ => Err(Usage::Syntax),
    })?;
    Ok(count)
}
