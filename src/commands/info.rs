//! `LOCK.INFO key`
//!
//! Replies a map: who holds the lock, who waits for it, and for how long.

use redis_module::Context;

use crate::commands::docs;
use crate::error::{LockError, Usage};
use crate::lock::request::Limit;
use crate::manager::inspect::{self, HolderView, LockView, WaiterView};
use crate::server::command::Command;
use crate::server::keyspace::LockKey;
use crate::server::registration::CommandDoc;
use crate::server::reply::Reply;
use crate::server::word::Word;

/// `LOCK.INFO`
pub(super) struct Info;

impl Command for Info {
    const DOC: CommandDoc = docs::INFO;

    fn run(ctx: &Context, words: &[Word<'_>]) -> Result<Reply, LockError> {
        let [key] = words else {
            return Err(Usage::Syntax.into());
        };
        inspect::lock(LockKey::new(ctx, *key)).map(reply)
    }
}

fn reply(lock: LockView) -> Reply {
    let mode = lock.limit.map(mode_name);
    Reply::Map(vec![
        ("state", Reply::text(mode.map_or("free", |_| "held"))),
        ("mode", mode.map_or(Reply::Null, Reply::text)),
        (
            "limit",
            Reply::integer_or_null(lock.limit.map(Limit::count_or_zero)),
        ),
        ("fence", Reply::integer_or_null(lock.fence)),
        ("ttl", Reply::Integer(lock.ttl_ms)),
        (
            "holders",
            Reply::List(lock.holders.into_iter().map(holder).collect()),
        ),
        ("waiting", Reply::Integer(lock.waiting)),
        (
            "waiters",
            Reply::List(lock.waiters.into_iter().map(waiter).collect()),
        ),
    ])
}

fn holder(holder: HolderView) -> Reply {
    Reply::Map(vec![
        ("owner", Reply::text(holder.owner.as_bytes())),
        ("holds", Reply::Integer(holder.holds)),
        ("fence", Reply::integer_or_null(holder.fence)),
        ("ttl", Reply::Integer(holder.ttl_ms)),
        ("client", Reply::integer_or_null(holder.client)),
    ])
}

fn waiter(waiter: WaiterView) -> Reply {
    Reply::Map(vec![
        ("owner", Reply::text(waiter.owner.as_bytes())),
        ("mode", Reply::text(mode_name(waiter.limit))),
        ("client", Reply::Integer(waiter.client)),
        ("addr", Reply::text(waiter.address)),
        ("waited", Reply::Integer(waiter.waited_ms)),
        ("timeout", Reply::Integer(waiter.left_ms)),
    ])
}

fn mode_name(limit: Limit) -> &'static str {
    match limit {
        Limit::EXCLUSIVE => "exclusive",
        Limit::SHARED => "shared",
        _ => "limited",
    }
}
