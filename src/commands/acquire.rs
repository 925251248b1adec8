//! `LOCK.ACQUIRE key owner [LEASE ms] [BLOCK ms] [HOLD n] [SHARED | LIMIT n] [SESSION]`
//!
//! Replies the fencing token once the owner holds the lock, null where it
//! could not be had at once or within `BLOCK`.

use redis_module::Context;

use crate::commands::{args::Args, docs};
use crate::config;
use crate::error::{LockError, Usage};
use crate::lock::request::{AcquireRequest, ClientId, Limit, Timeout};
use crate::manager::{self, Outcome};
use crate::server::clients;
use crate::server::command::Command;
use crate::server::registration::CommandDoc;
use crate::server::reply::Reply;
use crate::server::word::Word;

/// `LOCK.ACQUIRE`
pub(super) struct Acquire;

impl Command for Acquire {
    const DOC: CommandDoc = docs::ACQUIRE;

    fn run(ctx: &Context, words: &[Word<'_>]) -> Result<Reply, LockError> {
        super::run(ctx, words, |key, args| {
            let (request, timeout) = parse(args, || connection(ctx))?;
            Ok(match manager::acquire(key, request, timeout)? {
                Outcome::Granted(fence) => Reply::Integer(fence.get()),
                Outcome::NotAvailable => Reply::Null,
                Outcome::Waits => Reply::Later,
            })
        })
    }
}

fn connection(ctx: &Context) -> Result<ClientId, Usage> {
    let client = clients::running(ctx);
    if clients::is_connected(client) {
        Ok(client)
    } else {
        Err(Usage::NoSession)
    }
}

fn parse(
    mut args: Args<'_>,
    connection: impl FnOnce() -> Result<ClientId, Usage>,
) -> Result<(AcquireRequest, Option<Timeout>), Usage> {
    let owner = args.owner()?;
    let (mut lease, mut timeout, mut hold) = (None, None, None);
    let (mut shared, mut limit, mut session) = (false, None, false);
    args.options(|name, args| match name {
        b"LEASE" => args.lease(&mut lease),
        b"BLOCK" => args.timeout(&mut timeout),
        b"HOLD" => args.hold(&mut hold),
        b"SHARED" => args.flag(&mut shared),
        b"LIMIT" => args.limit(&mut limit),
        b"SESSION" => args.flag(&mut session),
        _ => Err(Usage::Syntax),
    })?;
    let limit = match (shared, limit) {
        (false, None) => Limit::EXCLUSIVE,
        (true, None) => Limit::SHARED,
        (false, Some(limit)) => limit,
        (true, Some(_)) => return Err(Usage::Syntax),
    };
    let request = AcquireRequest {
        owner,
        lease: lease.unwrap_or_else(config::default_lease),
        hold,
        limit,
        session: session.then(connection).transpose()?,
    };
    Ok((request, timeout))
}

#[cfg(test)]
mod tests;
