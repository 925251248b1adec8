//! Runs another command for the client of a command, and passes its reply on.

use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr::{self, NonNull};

use redis_module::{Context, raw};
use smallvec::SmallVec;

use crate::server::acl::User;
use crate::server::api::api;
use crate::server::keyspace::LockKey;
use crate::server::open_lock::OpenLock;
use crate::server::registration;
use crate::server::server_str::{ARGS_INLINE, ServerStr};
use redis_lock_core::error::LockError;

/// How a command is called: `v` with a list of arguments, `!` replicated, `0` with a
/// reply of the client's protocol, `S` only if a script may call it, `C` by the rights
/// of the client's user, `M` within `maxmemory`, `E` with errors as replies.
const AS_THE_CLIENT: &CStr = c"v!0SCME";

/// What Redis 7.0 says to a user without the right, between its code and its reason.
const REFUSED_TO_USER: &str = "acl verification failed, ";

/// The reply of another command.
#[derive(Debug)]
pub(crate) struct CallReply(NonNull<raw::RedisModuleCallReply>);

/// Runs a command as if the client of this context had sent it in a script. Nothing
/// comes back only if the server is at fault.
pub(crate) fn run(ctx: &Context, command: &[ServerStr<'_>]) -> Option<CallReply> {
    let [name, args @ ..] = command else {
        return None;
    };
    // No command has such bytes in its name that this changes.
    let name = CString::new(name.bytes().escape_ascii().to_string()).ok()?;
    let mut args = inner(args);
    // SAFETY: the context is that of a running command. The format announces a list of
    // server strings and its length, which live through the call.
    NonNull::new(unsafe {
        (api().call)(
            ctx.ctx,
            name.as_ptr(),
            AS_THE_CLIENT.as_ptr(),
            args.as_mut_ptr(),
            args.len(),
        )
    })
    .map(CallReply)
}

/// Whether the server would tell the error of this command to nobody, or to somebody
/// else: Valkey 8.1 and later keeps back what `GETDEL` and `GETSET` reply to a module
/// where the key is no string, and tells it with the next command that any module calls.
pub(crate) fn is_error_misdirected(ctx: &Context, command: &[ServerStr<'_>]) -> bool {
    let [name, key, ..] = command else {
        return false;
    };
    let is_named = |one: &[u8]| name.bytes().eq_ignore_ascii_case(one);
    (is_named(b"GETDEL") || is_named(b"GETSET"))
        && registration::valkey_version(ctx) >= Some((8, 1))
        // Who may not read it is told that.
        && User::running(ctx).may_read(key.bytes())
        && OpenLock::open_to_read(LockKey::new(ctx, *key)).is_other_than_a_string()
}

impl CallReply {
    /// Sends the reply as it is. Returns whether that was possible.
    pub(super) fn send(&self, ctx: &Context) -> bool {
        // SAFETY: the context is alive, and so is the reply.
        unsafe { (api().reply_with_call_reply)(ctx.ctx, self.0.as_ptr()) == 0 }
    }

    /// The error as a command has it that the client sent itself, where the server has
    /// another one for a module: that of a user without the right.
    pub(super) fn refusal(&self) -> Option<LockError> {
        let (mut length, reply) = (0, self.0.as_ptr());
        // SAFETY: the reply is alive, and its text as long as it.
        let text = unsafe {
            if (api().call_reply_type)(reply) != raw::REDISMODULE_REPLY_ERROR as c_int {
                return None;
            }
            let start = (api().call_reply_string_ptr)(reply, &raw mut length);
            std::slice::from_raw_parts(start.cast::<u8>(), length)
        };
        let (_code, words) = std::str::from_utf8(text).ok()?.split_once(' ')?;
        let reason = words.strip_prefix(REFUSED_TO_USER)?.trim_end_matches('.');
        Some(LockError::NoPermission {
            reason: reason.to_owned(),
        })
    }
}

impl Drop for CallReply {
    fn drop(&mut self) {
        // SAFETY: `run` got the reply from the server, and nobody else has it.
        unsafe { (api().free_call_reply)(self.0.as_ptr()) };
    }
}

/// Whether the command of this name is one of this module.
pub(crate) fn is_of_this_module(name: &[u8]) -> bool {
    const PREFIX: &[u8] = b"lock.";
    let first = name.get(..PREFIX.len());
    first.is_some_and(|first| first.eq_ignore_ascii_case(PREFIX))
}

/// Tells the server which arguments are keys, and what is done to them: the first, which
/// is read, and those of the command that begins after `before_command` arguments. A node
/// of a cluster asks for them before it runs the command.
///
/// # Safety
/// The context must be that of such a question.
pub(super) unsafe fn name_keys(
    ctx: *mut raw::RedisModuleCtx,
    args: &[ServerStr<'_>],
    before_command: c_int,
) {
    let is_read = (raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS) as c_int;
    // SAFETY: as the caller says.
    unsafe { (api().key_at_pos_with_flags)(ctx, 1, is_read) };
    let command = usize::try_from(before_command).ok();
    let command = command.and_then(|at| args.get(at..)).unwrap_or_default();
    // To ask for the keys of a guarded command in a guarded command, and so on, would
    // take a stack without end.
    if command
        .first()
        .is_none_or(|name| is_of_this_module(name.bytes()))
    {
        return;
    }
    let mut command = inner(command);
    let (mut count, mut flags) = (0, ptr::null_mut());
    // SAFETY: the strings live through the call. The server returns `count` positions,
    // and flags, or a null, and both lists are ours to free.
    unsafe {
        let length = c_int::try_from(command.len()).unwrap_or(0);
        let keys = (api().get_command_keys_with_flags)(
            ctx,
            command.as_mut_ptr(),
            length,
            &raw mut count,
            &raw mut flags,
        );
        if keys.is_null() {
            return;
        }
        let count = usize::try_from(count).unwrap_or(0);
        let positions = std::slice::from_raw_parts(keys, count);
        let all_flags = std::slice::from_raw_parts(flags, count);
        for (position, flags) in positions.iter().zip(all_flags) {
            (api().key_at_pos_with_flags)(ctx, 1 + before_command + position, *flags);
        }
        (api().free)(keys.cast::<c_void>());
        (api().free)(flags.cast::<c_void>());
    }
}

fn inner(args: &[ServerStr<'_>]) -> SmallVec<[*mut raw::RedisModuleString; ARGS_INLINE]> {
    args.iter().map(|arg| arg.inner()).collect()
}

#[cfg(test)]
mod tests {
    use super::is_of_this_module;

    #[test]
    fn commands_of_this_module_are_known_in_any_case() {
        for name in ["lock.guard", "LOCK.LIST", "Lock.", "lock.x"] {
            assert!(is_of_this_module(name.as_bytes()), "{name}");
        }
        for name in ["", "lock", "locks", "set", "flock.x"] {
            assert!(!is_of_this_module(name.as_bytes()), "{name}");
        }
    }
}
