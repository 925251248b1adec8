//! Replies of any shape.

use std::ffi::{c_char, c_long};

use redis_module::{Context, RedisValue, raw};

/// What a command answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// A number.
    Integer(i64),
    /// Nothing to tell.
    Null,
    /// Bytes.
    Text(Vec<u8>),
    /// Several, in order.
    List(Vec<Reply>),
    /// Named ones, in order: a map for clients that speak RESP3, for others a
    /// list of names and values in turn.
    Map(Vec<(&'static str, Reply)>),
    /// The client waits, and is answered when its wait ends.
    Later,
}

impl Reply {
    /// A number, or null for none.
    pub(crate) fn integer_or_null(number: Option<i64>) -> Self {
        number.map_or(Self::Null, Self::Integer)
    }

    /// Bytes.
    pub(crate) fn text(bytes: impl AsRef<[u8]>) -> Self {
        Self::Text(bytes.as_ref().to_vec())
    }

    /// Sends it to the client of this context.
    pub(super) fn send(self, ctx: &Context) {
        match self {
            Self::Integer(number) => {
                ctx.reply(Ok(RedisValue::Integer(number)));
            }
            Self::Null => {
                ctx.reply(Ok(RedisValue::Null));
            }
            Self::Text(text) => send_text(ctx, &text),
            Self::List(replies) => {
                // SAFETY: so many replies follow.
                unsafe {
                    if let Some(begin) = raw::RedisModule_ReplyWithArray {
                        begin(ctx.ctx, length(replies.len()));
                    }
                }
                for reply in replies {
                    reply.send(ctx);
                }
            }
            Self::Map(fields) => {
                // SAFETY: so many names and replies follow.
                unsafe {
                    if let Some(begin) = raw::RedisModule_ReplyWithMap {
                        begin(ctx.ctx, length(fields.len()));
                    }
                }
                for (name, reply) in fields {
                    send_text(ctx, name.as_bytes());
                    reply.send(ctx);
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
    // SAFETY: the server copies the text.
    unsafe {
        if let Some(reply) = raw::RedisModule_ReplyWithStringBuffer {
            reply(ctx.ctx, text.as_ptr().cast::<c_char>(), text.len());
        }
    }
}
