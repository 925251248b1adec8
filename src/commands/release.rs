//! `LOCK.RELEASE key owner [FENCE token] [HOLD n | ALL]`
//!
//! Replies 1 when the owner's last hold ended, 0 while it still holds the
//! lock, null where it does not hold it (with this token).

use redis_module::Context;

use crate::commands::{args::Args, docs};
use crate::error::{LockError, Usage};
use crate::lock::record::Released;
use crate::lock::request::{ReleaseExtent, ReleaseRequest};
use crate::manager;
use crate::server::command::Command;
use crate::server::registration::CommandDoc;
use crate::server::reply::Reply;
use crate::server::word::Word;

/// `LOCK.RELEASE`
pub(super) struct Release;

impl Command for Release {
    const DOC: CommandDoc = docs::RELEASE;

    fn run(ctx: &Context, words: &[Word<'_>]) -> Result<Reply, LockError> {
        super::run(ctx, words, |key, args| {
            let request = parse(args)?;
            Ok(match manager::release(key, &request)? {
                Released::LastHold => Reply::Integer(1),
                Released::StillHeld => Reply::Integer(0),
                Released::NotHeld => Reply::Null,
            })
        })
    }
}

fn parse(mut args: Args<'_>) -> Result<ReleaseRequest, Usage> {
    let owner = args.owner()?;
    let (mut fence, mut hold, mut all) = (None, None, false);
    args.options(|name, args| match name {
        b"FENCE" => args.fence(&mut fence),
        b"HOLD" => args.hold(&mut hold),
        b"ALL" => args.flag(&mut all),
        _ => Err(Usage::Syntax),
    })?;
    let extent = match (hold, all) {
        (None, false) => ReleaseExtent::One,
        (None, true) => ReleaseExtent::All,
        (Some(hold), false) => ReleaseExtent::Hold(hold),
        // One of them must be a mistake, and there is no telling which.
        (Some(_), true) => return Err(Usage::Syntax),
    };
    Ok(ReleaseRequest {
        owner,
        fence,
        extent,
    })
}

#[cfg(test)]
mod tests;
