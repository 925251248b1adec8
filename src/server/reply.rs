//! Replies of commands, of any shape.

use std::ffi::{c_char, c_long};

use redis_module::{Context, RedisError, raw};

use crate::server::acl::User;
use crate::server::call::CallReply;
use redis_lock_core::error::LockError;
use redis_lock_core::usage::Usage;

/// The error as this user may read it.
pub(super) fn refusal(ctx: &Context, error: &LockError, user: impl FnOnce() -> User) -> RedisError {
    RedisError::String(refusal_text(ctx, error, user))
}

/// The words of an error as this user may read it.
pub(super) fn refusal_text(
    ctx: &Context,
    error: &LockError,
    user: impl FnOnce() -> User,
) -> String {
    match error {
        LockError::Deadlock { cycle } => {
            let user = user();
            // The user is in the database of the lock that it asked for.
            let asked_in = cycle.first().map(|edge| edge.key.as_ref().db);
            let is_open = |db| Some(db) == asked_in || user.may_use_database(ctx, db);
            error.text_for(|key| user.may_read(key.name) && is_open(key.db))
        }
        error => error.to_string(),
    }
}

/// The reply of a command.
#[derive(Debug)]
pub(crate) enum Reply {
    /// A number.
    Integer(i64),
    /// Null.
    Null,
    /// A string of bytes.
    Text(Vec<u8>),
    /// A list of replies, in order.
    List(Vec<Reply>),
    /// Named replies, in order: a map for clients that speak RESP3, for others a
    /// list of names and values in turn.
    Map(Vec<(&'static str, Reply)>),
    /// The reply of another command, as it is.
    Passed(CallReply),
    /// The client waits, and is answered when its wait ends.
    Later,
}

impl Reply {
    /// A number that is never negative.
    pub(crate) fn integer(number: impl TryInto<i64>) -> Self {
        Self::Integer(number.try_into().unwrap_or(i64::MAX))
    }

    /// A number, or null if there is none.
    pub(crate) fn integer_or_null(number: Option<i64>) -> Self {
        number.map_or(Self::Null, Self::Integer)
    }

    /// A string of these bytes.
    pub(crate) fn text(bytes: impl AsRef<[u8]>) -> Self {
        Self::Text(bytes.as_ref().to_vec())
    }

    /// Sends the reply to the client of this context.
    pub(super) fn send(self, ctx: &Context) {
        match self {
            Self::Integer(number) => drop(raw::reply_with_long_long(ctx.ctx, number)),
            Self::Null => drop(raw::reply_with_null(ctx.ctx)),
            Self::Text(text) => send_text(ctx, &text),
            Self::List(replies) => {
                raw::reply_with_array(ctx.ctx, length(replies.len()));
                for reply in replies {
                    reply.send(ctx);
                }
            }
            Self::Map(fields) => {
                raw::reply_with_map(ctx.ctx, length(fields.len()));
                for (name, reply) in fields {
                    send_text(ctx, name.as_bytes());
                    reply.send(ctx);
                }
            }
            Self::Passed(reply) => {
                let failed = || (!reply.send(ctx)).then(|| Usage::Internal.into());
                if let Some(refusal) = reply.refusal().or_else(failed) {
                    ctx.reply(Err(RedisError::String(refusal.to_string())));
                }
            }
            Self::Later => {}
        }
    }
}

fn length(count: usize) -> c_long {
    c_long::try_from(count).unwrap_or(c_long::MAX)
}

fn send_text(ctx: &Context, text: &[u8]) {
    raw::reply_with_string_buffer(ctx.ctx, text.as_ptr().cast::<c_char>(), text.len());
}
