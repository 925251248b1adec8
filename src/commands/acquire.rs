//! `LOCK.ACQUIRE key owner [LEASE ms] [BLOCK ms | QUEUE ms channel] [HOLD n]
//! [SHARED | LIMIT n] [SESSION]`
//!
//! Replies the fencing token once the owner holds the lock, null where it
//! was not free at once or within `BLOCK`, 0 where it has a place in the queue.

use redis_module::Context;

use crate::commands::args::{self, Args};
use crate::config;
use crate::manager::{self, Patience};
use crate::server::clients;
use crate::server::command::Command;
use crate::server::registration::{ArgDoc, CommandDoc, KeyChange};
use crate::server::reply::Reply;
use crate::server::server_str::ServerStr;
use redis_lock_core::error::LockError;
use redis_lock_core::request::{AcquireRequest, ClientId, HoldNumber, Limit};
use redis_lock_core::table::Acquired;
use redis_lock_core::usage::Usage;

/// `LOCK.ACQUIRE`
pub(super) struct Acquire;

impl Command for Acquire {
    const DOC: CommandDoc = CommandDoc {
        name: c"lock.acquire",
        flags: c"write deny-oom blocking fast",
        summary: c"Takes a lock for an owner, waiting for it if asked to. Replies its fencing token.",
        complexity: c"O(log N + H) where N is the number of clients waiting for the lock and H that of its holders. A wait that others may wait for is looked at for deadlocks: O(W) where W is the number of waits that it leads to, at most 1,000, and of the holders that they wait for, at most 10,000.",
        since: c"0.1.0",
        min_args: 3,
        key_change: Some(KeyChange::Update),
        args: &[
            ArgDoc::Key,
            ArgDoc::String(c"owner"),
            ArgDoc::OptionalNumber(c"lease", c"LEASE"),
            ArgDoc::OptionalOneOf(
                c"wait",
                &[
                    ArgDoc::OptionalNumber(c"block", c"BLOCK"),
                    ArgDoc::Several(
                        c"queue",
                        c"QUEUE",
                        &[ArgDoc::Number(c"milliseconds"), ArgDoc::String(c"channel")],
                    ),
                ],
            ),
            ArgDoc::OptionalNumber(c"hold", c"HOLD"),
            ArgDoc::OptionalOneOf(
                c"mode",
                &[
                    ArgDoc::Flag(c"shared", c"SHARED"),
                    ArgDoc::OptionalNumber(c"limit", c"LIMIT"),
                ],
            ),
            ArgDoc::OptionalFlag(c"session", c"SESSION"),
        ],
    };

    fn run(ctx: &Context, args: &[ServerStr<'_>]) -> Result<Reply, LockError> {
        args::of_owner(ctx, args, |key, args| {
            let (request, patience) = parse(args, || connection(ctx))?;
            let is_place = matches!(patience, Patience::Queue(_));
            Ok(match manager::acquire(key, request, patience)? {
                Some(Acquired::Granted(token)) => Reply::Integer(token.get()),
                Some(Acquired::Busy) => Reply::Null,
                Some(Acquired::Queued(_)) if is_place => Reply::Integer(0),
                Some(Acquired::Queued(_)) | None => Reply::Later,
            })
        })
    }
}

/// The connection that the session is bound to.
fn connection(ctx: &Context) -> Result<ClientId, Usage> {
    clients::running_connected(ctx).ok_or(Usage::NoSession)
}

fn parse(
    mut args: Args<'_>,
    connection: impl FnOnce() -> Result<ClientId, Usage>,
) -> Result<(AcquireRequest, Patience<'_>), Usage> {
    let owner = args.owner()?;
    let (mut lease, mut timeout, mut queue, mut hold) = (None, None, None, None);
    let (mut shared, mut limit, mut session) = (false, None, false);
    args.options(|args| {
        Ok(args.lease(&mut lease)?
            || args.timeout(&mut timeout)?
            || args.queue(&mut queue)?
            || args.hold(&mut hold)?
            || args.flag("SHARED", &mut shared)?
            || args.limit(&mut limit)?
            || args.flag("SESSION", &mut session)?)
    })?;
    let limit = match (shared, limit) {
        (false, None) => Limit::EXCLUSIVE,
        (true, None) => Limit::SHARED,
        (false, Some(limit)) => limit,
        (true, Some(_)) => return Err(Usage::Syntax),
    };
    let patience = match (timeout, queue) {
        (None, None) => Patience::None,
        (Some(timeout), None) => Patience::Block(timeout),
        (None, Some(queue)) => Patience::Queue(queue),
        (Some(_), Some(_)) => return Err(Usage::Syntax),
    };
    // A place is for its owner's first hold.
    let first = queue.map(|_| HoldNumber::FIRST);
    let request = AcquireRequest {
        owner,
        lease: lease.unwrap_or_else(config::default_lease),
        hold: hold.or(first),
        limit,
        session: session.then(connection).transpose()?,
    };
    Ok((request, patience))
}

#[cfg(test)]
mod tests;
