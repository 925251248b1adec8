//! What a client may read.

use std::ffi::c_int;
use std::ptr::{self, NonNull};

use redis_module::{Context, RedisString, raw};

use crate::lock::request::ClientId;
use crate::server::clients;
use crate::server::word;

/// The user of a command.
pub(crate) enum User {
    /// The server or a module itself, which may do everything.
    Unrestricted,
    /// One of the server's users.
    Named(Rights),
    /// A user that has been removed or switched off since it connected.
    Gone,
}

/// What the server knows of a user's rights.
pub(crate) struct Rights(NonNull<raw::RedisModuleUser>);

impl User {
    /// The user that runs this command, in a script the one who called it.
    pub(crate) fn running(ctx: &Context) -> Self {
        let client = clients::running(ctx);
        if clients::is_connected(client) {
            return Self::of(ctx, client);
        }
        if !has_user(ctx) {
            return Self::Unrestricted;
        }
        // SAFETY: the context is that of a running command, whose client has a user.
        Self::named(ctx, unsafe {
            raw::RedisModule_GetCurrentUserName.map_or(ptr::null_mut(), |name| name(ctx.ctx))
        })
    }

    /// The user of this client.
    pub(crate) fn of(ctx: &Context, client: ClientId) -> Self {
        // SAFETY: a client that the server does not know has a null for a name.
        Self::named(ctx, unsafe {
            raw::RedisModule_GetClientUserNameById
                .map_or(ptr::null_mut(), |name| name(ctx.ctx, client.0))
        })
    }

    fn named(ctx: &Context, name: *mut raw::RedisModuleString) -> Self {
        if name.is_null() {
            return Self::Gone;
        }
        // The name is ours to free.
        let name = RedisString::from_redis_module_string(ctx.ctx, name);
        // SAFETY: the name lives through the call.
        let user = unsafe {
            raw::RedisModule_GetModuleUserFromUserName
                .map_or(ptr::null_mut(), |user| user(name.inner))
        };
        NonNull::new(user).map_or(Self::Gone, |user| Self::Named(Rights(user)))
    }

    /// Whether it may read the key of this name.
    pub(crate) fn may_read(&self, key: &[u8]) -> bool {
        let rights = match self {
            Self::Unrestricted => return true,
            Self::Named(rights) => rights,
            Self::Gone => return false,
        };
        let key = word::make(key);
        // SAFETY: both live through the call.
        unsafe {
            raw::RedisModule_ACLCheckKeyPermissions.is_some_and(|check| {
                let access = raw::REDISMODULE_CMD_KEY_ACCESS as c_int;
                check(rights.0.as_ptr(), key.inner, access) == raw::REDISMODULE_OK as c_int
            })
        }
    }
}

/// Whether the client of this context has a user. `GetCurrentUserName` brings
/// the server down if it has none, as another module's own calls do.
fn has_user(ctx: &Context) -> bool {
    // SAFETY: the format says that no argument follows, and that the call runs
    // as the user of the context's client. The reply is freed at once.
    unsafe {
        let Some(call) = raw::RedisModule_Call else {
            return false;
        };
        let reply = call(ctx.ctx, c"PING".as_ptr(), c"C".as_ptr());
        if reply.is_null() {
            let error = std::io::Error::last_os_error().raw_os_error();
            return error != Some(rustix::io::Errno::NOTSUP.raw_os_error());
        }
        if let Some(free) = raw::RedisModule_FreeCallReply {
            free(reply);
        }
        true
    }
}

impl Drop for Rights {
    fn drop(&mut self) {
        // SAFETY: `User::named` got it from the server, and nobody else has it.
        unsafe {
            if let Some(free) = raw::RedisModule_FreeModuleUser {
                free(self.0.as_ptr());
            }
        }
    }
}
