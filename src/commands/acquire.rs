//! `LOCK.ACQUIRE key owner [LEASE ms] [BLOCK ms] [HOLD n]`
//!
//! Replies the fencing token once the owner holds the lock, null where it
//! could not be had at once or within `BLOCK`.

use redis_module::{Context, RedisResult, RedisString, RedisValue};

use crate::commands::args::Args;
use crate::config;
use crate::error::Usage;
use crate::lock::request::{AcquireRequest, Timeout};
use crate::manager::{self, Outcome};

pub(crate) fn run(ctx: &Context, words: Vec<RedisString>) -> RedisResult {
    super::run(ctx, &words, |key, args| {
        let (request, timeout) = parse(args)?;
        Ok(match manager::acquire(key, request, timeout)? {
            Outcome::Granted(fence) => RedisValue::Integer(fence.get()),
            Outcome::NotAvailable => RedisValue::Null,
            Outcome::Waits => RedisValue::NoReply,
        })
    })
}

fn parse(mut args: Args<'_>) -> Result<(AcquireRequest, Option<Timeout>), Usage> {
    let owner = args.owner()?;
    let (mut lease, mut timeout, mut hold) = (None, None, None);
    args.options(|name, args| match name {
        b"LEASE" => args.lease(&mut lease),
        b"BLOCK" => args.timeout(&mut timeout),
        b"HOLD" => args.hold(&mut hold),
        _ => Err(Usage::Syntax),
    })?;
    let request = AcquireRequest {
        owner,
        lease: lease.unwrap_or_else(config::default_lease),
        hold,
    };
    Ok((request, timeout))
}

#[cfg(test)]
mod tests;
