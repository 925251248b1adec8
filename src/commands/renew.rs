//! `LOCK.RENEW key owner [LEASE ms] [FENCE token]`
//!
//! Replies 1, and the lease now ends at now + lease exactly, or 0 where the
//! owner does not hold the lock (with this token).

use redis_module::Context;

use crate::commands::args::{self, Args};
use crate::config;
use crate::manager;
use crate::server::command::Command;
use crate::server::registration::{ArgDoc, CommandDoc, KeyChange};
use crate::server::reply::Reply;
use crate::server::server_str::ServerStr;
use redis_lock_core::error::LockError;
use redis_lock_core::request::RenewRequest;
use redis_lock_core::usage::Usage;

/// `LOCK.RENEW`
pub(super) struct Renew;

impl Command for Renew {
    const DOC: CommandDoc = CommandDoc {
        name: c"lock.renew",
        flags: c"write blocking fast",
        summary: c"Sets the end of a lock's lease, if the owner holds the lock.",
        complexity: c"O(H) where H is the number of the lock's holders.",
        since: c"0.1.0",
        min_args: 3,
        key_change: Some(KeyChange::Update),
        args: &[
            ArgDoc::Key,
            ArgDoc::String(c"owner"),
            ArgDoc::OptionalNumber(c"lease", c"LEASE"),
            ArgDoc::OptionalNumber(c"fence", c"FENCE"),
        ],
    };

    fn run(ctx: &Context, args: &[ServerStr<'_>]) -> Result<Reply, LockError> {
        args::of_owner(ctx, args, |key, args| {
            let request = parse(args)?;
            let renewed = manager::renew(key, &request)?;
            Ok(renewed.map_or(Reply::Later, |renewed| Reply::Integer(renewed.into())))
        })
    }
}

fn parse(mut args: Args<'_>) -> Result<RenewRequest, Usage> {
    let owner = args.owner()?;
    let (mut lease, mut token) = (None, None);
    args.options(|args| Ok(args.lease(&mut lease)? || args.token(&mut token)?))?;
    Ok(RenewRequest {
        owner,
        lease: lease.unwrap_or_else(config::default_lease),
        token,
    })
}
