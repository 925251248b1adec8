//! `LOCK.GUARD key token command [arg ...]`
//!
//! Runs the command only if `token` is that of a present hold of the lock, as one step
//! with that check, and replies what the command replies.

use redis_module::Context;

use crate::commands::args::of_words;
use crate::manager;
use crate::server::call;
use crate::server::command::Command;
use crate::server::keyspace::LockKey;
use crate::server::registration::{ArgDoc, CommandDoc, KeyChange};
use crate::server::reply::Reply;
use crate::server::server_str::ServerStr;
use redis_lock_core::error::LockError;
use redis_lock_core::usage::Usage;

/// `LOCK.GUARD`
pub(super) struct Guard;

impl Command for Guard {
    const DOC: CommandDoc = CommandDoc {
        name: c"lock.guard",
        flags: c"write",
        summary: c"Runs a command only if a lock is held with this token.",
        complexity: c"That of the command, and O(H) where H is the number of the lock's holders.",
        since: c"0.2.0",
        min_args: 4,
        // What the command does to its own keys is checked as that of any command.
        key_change: Some(KeyChange::None),
        args: &[
            ArgDoc::Key,
            ArgDoc::Number(c"token"),
            ArgDoc::String(c"command"),
            ArgDoc::OptionalStrings(c"arg"),
        ],
    };

    fn run(ctx: &Context, args: &[ServerStr<'_>]) -> Result<Reply, LockError> {
        let [key, token, command @ ..] = args else {
            return Err(Usage::Syntax.into());
        };
        let token = of_words(&[*token], |mut args| args.fence())?;
        let name = command.first().ok_or(Usage::Syntax)?;
        if call::is_of_this_module(name.bytes()) {
            return Err(Usage::LockCommandGuarded.into());
        }
        let is_named = |wait: &[u8]| name.bytes().eq_ignore_ascii_case(wait);
        if is_named(b"WAIT") || is_named(b"WAITAOF") {
            return Err(Usage::WaitGuarded.into());
        }
        let key = LockKey::new(ctx, *key);
        // The server knows of the lock's key alone: it asks a module for the keys of a
        // command on other threads, too, where no module may be called.
        let has_keys = call::check_slots(key, command)?;
        manager::guard(key, token)?;
        if call::is_error_misdirected(ctx, command) {
            return Err(LockError::WrongType);
        }
        let reply = call::run(ctx, command).ok_or(Usage::Internal)?;
        if has_keys && reply.is_of_a_key_elsewhere() {
            return Err(LockError::SlotMoves);
        }
        Ok(Reply::Passed(reply))
    }
}
