//! `LOCK.RELEASE key owner [FENCE token] [HOLD n | ALL]`
//!
//! Replies 1 when the owner's last hold ended, 0 while it still holds the
//! lock, null where it does not hold it (with this token).

use redis_module::Context;

use crate::commands::args::{self, Args};
use crate::manager;
use crate::server::command::Command;
use crate::server::registration::{ArgDoc, CommandDoc, KeyChange};
use crate::server::reply::Reply;
use crate::server::server_str::ServerStr;
use redis_lock_core::error::LockError;
use redis_lock_core::lock::Released;
use redis_lock_core::request::{ReleaseExtent, ReleaseRequest};
use redis_lock_core::usage::Usage;

/// `LOCK.RELEASE`
pub(super) struct Release;

impl Command for Release {
    const DOC: CommandDoc = CommandDoc {
        name: c"lock.release",
        flags: c"write fast",
        summary: c"Gives one hold of a lock back, and with the last one hands the lock off.",
        complexity: c"O(log N + H) where N is the number of clients waiting for the lock and H that of its holders, for each of up to 32 clients that are let in at once. Others follow in parts.",
        since: c"0.1.0",
        min_args: 3,
        key_change: Some(KeyChange::Delete),
        args: &[
            ArgDoc::Key,
            ArgDoc::String(c"owner"),
            ArgDoc::OptionalNumber(c"fence", c"FENCE"),
            ArgDoc::OptionalOneOf(c"extent", &[ArgDoc::OptionalNumber(c"hold", c"HOLD"), ArgDoc::Flag(c"all", c"ALL")]),
        ],
    };

    fn run(ctx: &Context, args: &[ServerStr<'_>]) -> Result<Reply, LockError> {
        args::of_owner(ctx, args, |key, args| {
            let request = parse(args)?;
            Ok(match manager::release(key, &request)? {
                Some(Released::LastHold) => Reply::Integer(1),
                Some(Released::StillHeld) => Reply::Integer(0),
                Some(Released::NotHeld) => Reply::Null,
                None => Reply::Later,
            })
        })
    }
}

fn parse(mut args: Args<'_>) -> Result<ReleaseRequest, Usage> {
    let owner = args.owner()?;
    let (mut token, mut hold, mut all) = (None, None, false);
    args.options(|args| {
        Ok(args.token(&mut token)? || args.hold(&mut hold)? || args.flag("ALL", &mut all)?)
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
        token,
        extent,
    })
}

#[cfg(test)]
mod tests;
