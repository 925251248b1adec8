//! Runs another command for the client of a command, and passes its reply on.

use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr::{self, NonNull};

use redis_module::{Context, raw};
use smallvec::SmallVec;

use crate::server::acl::User;
use crate::server::api::api;
use crate::server::keyspace::{self, LockKey};
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

/// What the server says to a module about a key that this node does not serve. Within a
/// script it says that the script attempted it.
const KEY_ELSEWHERE: &str = "Attempted to access a non local key";

/// The reply of another command.
#[derive(Debug)]
pub(crate) struct CallReply(NonNull<raw::RedisModuleCallReply>);

/// Runs a command as if the client of this context had sent it in a script. Returns
/// none only if the server is at fault.
pub(crate) fn run(ctx: &Context, command: &[ServerStr<'_>]) -> Option<CallReply> {
    let [name, args @ ..] = command else {
        return None;
    };
    // This changes no command's name: none has such bytes.
    let name = CString::new(name.bytes().escape_ascii().to_string()).ok()?;
    let mut args = inner(args);
    // SAFETY: the context is that of a running command. The format announces a list of
    // server strings and its length, which live through the call.
    NonNull::new(unsafe {
        api!(call)(
            ctx.ctx,
            name.as_ptr(),
            AS_THE_CLIENT.as_ptr(),
            args.as_mut_ptr(),
            args.len(),
        )
    })
    .map(CallReply)
}

/// Valkey 8.1 and later hold back the error that `GETDEL` or `GETSET` gives a module for a
/// key that is no string, and give it to the next command that any module calls. Returns
/// whether this command would meet that.
pub(crate) fn is_error_misdirected(ctx: &Context, command: &[ServerStr<'_>]) -> bool {
    let [name, key, ..] = command else {
        return false;
    };
    let is_named = |one: &[u8]| name.bytes().eq_ignore_ascii_case(one);
    (is_named(b"GETDEL") || is_named(b"GETSET"))
        && registration::valkey_version(ctx) >= Some((8, 1))
        // A user that may not read the key is told that instead.
        && User::running(ctx).may_read(key.bytes())
        && OpenLock::open_to_read(LockKey::new(ctx, *key)).is_other_than_a_string()
}

impl CallReply {
    /// Sends the reply as it is. Returns whether that was possible.
    pub(super) fn send(&self, ctx: &Context) -> bool {
        // SAFETY: the context is alive, and so is the reply.
        unsafe { api!(reply_with_call_reply)(ctx.ctx, self.0.as_ptr()) == 0 }
    }

    /// The text of the error, if it is one.
    fn error(&self) -> Option<&str> {
        let (mut length, reply) = (0, self.0.as_ptr());
        // SAFETY: the reply is alive, and its text as long as it.
        let text = unsafe {
            if api!(call_reply_type)(reply) != raw::REDISMODULE_REPLY_ERROR as c_int {
                return None;
            }
            let start = api!(call_reply_string_ptr)(reply, &raw mut length);
            std::slice::from_raw_parts(start.cast::<u8>(), length)
        };
        std::str::from_utf8(text).ok()
    }

    /// Whether the server has refused the command, because this node does not serve a key.
    pub(crate) fn is_of_a_key_elsewhere(&self) -> bool {
        self.error()
            .is_some_and(|error| error.contains(KEY_ELSEWHERE))
    }

    /// The error in the words for a command that the client sent itself, if the server has
    /// others for a module: those for a user without the right.
    pub(super) fn refusal(&self) -> Option<LockError> {
        let (_code, words) = self.error()?.split_once(' ')?;
        let reason = words.strip_prefix(REFUSED_TO_USER)?.trim_end_matches('.');
        Some(LockError::NoPermission {
            reason: reason.to_owned(),
        })
    }
}

impl Drop for CallReply {
    fn drop(&mut self) {
        // SAFETY: `run` got the reply from the server, and nobody else has it.
        unsafe { api!(free_call_reply)(self.0.as_ptr()) };
    }
}

/// Whether the command of this name is one of this module.
pub(crate) fn is_of_this_module(name: &[u8]) -> bool {
    const PREFIX: &[u8] = b"lock.";
    let first = name.get(..PREFIX.len());
    first.is_some_and(|first| first.eq_ignore_ascii_case(PREFIX))
}

/// Fails where a key of this command is not in the slot of the lock, in a cluster. Returns
/// whether it has any there.
pub(crate) fn check_slots(lock: LockKey<'_>, command: &[ServerStr<'_>]) -> Result<bool, LockError> {
    if !keyspace::in_cluster(lock.ctx()) {
        return Ok(false);
    }
    let positions = positions_of_keys(lock.ctx(), command);
    let mut keys = positions.iter().filter_map(|at| command.get(*at));
    match keys.all(|key| keyspace::is_in_slot_of(lock, key.bytes())) {
        true => Ok(!positions.is_empty()),
        false => Err(LockError::GuardedKeyCrossesSlots),
    }
}

/// Which words of a command are keys.
fn positions_of_keys(ctx: &Context, command: &[ServerStr<'_>]) -> Vec<usize> {
    let mut command = inner(command);
    let length = c_int::try_from(command.len()).unwrap_or(0);
    let mut count = 0;
    // SAFETY: the context is that of a running command, and the strings live through the
    // call. The server returns `count` positions, or a null, and the list is ours to free.
    unsafe {
        let keys = api!(get_command_keys_with_flags)(
            ctx.ctx,
            command.as_mut_ptr(),
            length,
            &raw mut count,
            ptr::null_mut(),
        );
        if keys.is_null() {
            return Vec::new();
        }
        let positions = std::slice::from_raw_parts(keys, usize::try_from(count).unwrap_or(0));
        let positions = positions.iter();
        let positions = positions
            .filter_map(|at| usize::try_from(*at).ok())
            .collect();
        api!(free)(keys.cast::<c_void>());
        positions
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
