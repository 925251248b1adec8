//! `LOCK.INFO key`
//!
//! Replies a map: who holds the lock, who waits for it, and for how long.

use redis_module::Context;

use crate::manager::{gate, inspect};
use crate::server::clients;
use crate::server::clock;
use crate::server::command::Command;
use crate::server::keyspace::LockKey;
use crate::server::registration::{ArgDoc, CommandDoc, KeyChange};
use crate::server::reply::Reply;
use crate::server::server_str::ServerStr;
use redis_lock_core::error::LockError;
use redis_lock_core::lock::Now;
use redis_lock_core::queue::Waiter;
use redis_lock_core::request::{ClientId, Limit};
use redis_lock_core::table::{HolderView, LockView};
use redis_lock_core::token::FencingToken;
use redis_lock_core::usage::Usage;

/// `LOCK.INFO`
pub(super) struct Info;

impl Command for Info {
    const DOC: CommandDoc = CommandDoc {
        name: c"lock.info",
        flags: c"readonly",
        summary: c"Shows who holds a lock and who waits for it.",
        complexity: c"O(N + H) where N is the number of clients waiting for the lock and H that of its holders. At most 1,024 of each are shown.",
        since: c"0.1.0",
        min_args: 2,
        key_change: Some(KeyChange::None),
        args: &[ArgDoc::Key],
    };

    fn run(ctx: &Context, args: &[ServerStr<'_>]) -> Result<Reply, LockError> {
        let [key] = args else {
            return Err(Usage::Syntax.into());
        };
        let lock = inspect::lock(LockKey::new(ctx, *key))?;
        Ok(reply(ctx, lock))
    }
}

fn reply(ctx: &Context, lock: LockView) -> Reply {
    let mode = lock.limit.map(mode_name);
    let (now, waiters) = (clock::now(), lock.waiters.into_iter());
    Reply::Map(vec![
        ("state", Reply::text(mode.map_or("free", |_| "held"))),
        ("mode", mode.map_or(Reply::Null, Reply::text)),
        (
            "limit",
            Reply::integer_or_null(lock.limit.map(Limit::count_or_zero)),
        ),
        ("fence", token(lock.token)),
        ("ttl", Reply::Integer(lock.ttl_ms)),
        (
            "holders",
            Reply::List(lock.holders.into_iter().map(holder).collect()),
        ),
        ("holding", Reply::integer(lock.holding)),
        ("waiting", Reply::integer(lock.waiting)),
        (
            "waiters",
            Reply::List(waiters.map(|one| waiter(ctx, one, now)).collect()),
        ),
        ("grace", Reply::Integer(gate::grace_left_ms())),
    ])
}

fn holder(holder: HolderView) -> Reply {
    Reply::Map(vec![
        ("owner", Reply::text(holder.owner.as_bytes())),
        ("holds", Reply::Integer(holder.holds)),
        ("fence", token(holder.token)),
        ("ttl", Reply::Integer(holder.ttl_ms)),
        (
            "client",
            holder
                .client
                .map_or(Reply::Null, |client| Reply::integer(client.0)),
        ),
    ])
}

fn waiter(ctx: &Context, waiter: Waiter, now: Now) -> Reply {
    let address = |client| Reply::text(clients::address(ctx, client).unwrap_or_default());
    let number = |client: ClientId| Reply::integer(client.0);
    let (request, client) = (&waiter.request, waiter.client());
    let channel = waiter.wait.channel.as_deref();
    Reply::Map(vec![
        ("owner", Reply::text(request.owner.as_bytes())),
        ("mode", Reply::text(mode_name(request.limit))),
        ("limit", Reply::Integer(request.limit.count_or_zero())),
        ("client", client.map_or(Reply::Null, number)),
        ("addr", client.map_or(Reply::Null, address)),
        ("channel", channel.map_or(Reply::Null, Reply::text)),
        ("waited", Reply::Integer(waiter.waited_ms(now))),
        ("timeout", Reply::Integer(waiter.left_ms(now))),
    ])
}

fn token(token: Option<FencingToken>) -> Reply {
    Reply::integer_or_null(token.map(FencingToken::get))
}

fn mode_name(limit: Limit) -> &'static str {
    match limit {
        Limit::EXCLUSIVE => "exclusive",
        Limit::SHARED => "shared",
        _ => "limited",
    }
}
