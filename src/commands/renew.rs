//! `LOCK.RENEW key owner [LEASE ms] [FENCE token]`
//!
//! Replies 1, and the lease now ends at now + lease exactly, or 0 where the
//! owner does not hold the lock (with this token).

use redis_module::Context;

use crate::commands::{args::Args, docs};
use crate::config;
use crate::error::{LockError, Usage};
use crate::lock::request::RenewRequest;
use crate::manager;
use crate::server::command::Command;
use crate::server::registration::CommandDoc;
use crate::server::reply::Reply;
use crate::server::word::Word;

/// `LOCK.RENEW`
pub(super) struct Renew;

impl Command for Renew {
    const DOC: CommandDoc = docs::RENEW;

    fn run(ctx: &Context, words: &[Word<'_>]) -> Result<Reply, LockError> {
        super::run(ctx, words, |key, args| {
            let request = parse(args)?;
            let renewed = manager::renew(key, &request)?;
            Ok(Reply::Integer(renewed.into()))
        })
    }
}

fn parse(mut args: Args<'_>) -> Result<RenewRequest, Usage> {
    let owner = args.owner()?;
    let (mut lease, mut fence) = (None, None);
    args.options(|name, args| match name {
        b"LEASE" => args.lease(&mut lease),
        b"FENCE" => args.fence(&mut fence),
        _ => Err(Usage::Syntax),
    })?;
    Ok(RenewRequest {
        owner,
        lease: lease.unwrap_or_else(config::default_lease),
        fence,
    })
}
