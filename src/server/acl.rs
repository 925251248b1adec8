//! Which keys a client may read, and to which channels it may publish.

use std::ffi::c_int;

use redis_module::{Context, RedisString, RedisValue, raw};

use crate::server::api::api;
use crate::server::clients;
use crate::server::registration;
use crate::server::server_str;
use redis_lock_core::request::ClientId;

/// The user of a command.
pub(crate) enum User {
    /// The server or a module, which may do everything.
    Unrestricted,
    /// One of the server's users.
    Named(RedisString),
    /// A user that has been removed or switched off since it connected.
    Gone,
}

impl User {
    /// The user that runs this command, in a script the one who called it.
    pub(crate) fn running(ctx: &Context) -> Self {
        match clients::name_of_user(ctx, clients::running(ctx)) {
            Some(name) => return name.map_or(Self::Gone, Self::Named),
            None if !has_user(ctx) => return Self::Unrestricted,
            None => {}
        }
        // SAFETY: the context is that of a running command, whose client has a user.
        let name = unsafe { api!(get_current_user_name)(ctx.ctx) };
        match name.is_null() {
            true => Self::Gone,
            // The name is ours to free.
            false => Self::Named(RedisString::from_redis_module_string(ctx.ctx, name)),
        }
    }

    /// The user of this client.
    pub(crate) fn of(ctx: &Context, client: ClientId) -> Self {
        let name = clients::name_of_user(ctx, client).flatten();
        name.map_or(Self::Gone, Self::Named)
    }

    /// Returns whether the user may read the key of this name.
    pub(crate) fn may_read(&self, key: &[u8]) -> bool {
        self.may(|user| {
            let key = server_str::make(key);
            let access = raw::REDISMODULE_CMD_KEY_ACCESS as c_int;
            // SAFETY: the user and the key live through the call.
            unsafe { api!(acl_check_key_permissions)(user, key.inner, access) }
        })
    }

    /// Returns whether the user may publish to this channel.
    pub(crate) fn may_publish(&self, channel: &[u8]) -> bool {
        self.may(|user| {
            let channel = server_str::make(channel);
            let access = raw::REDISMODULE_CMD_CHANNEL_PUBLISH as c_int;
            // SAFETY: the user and the channel live through the call.
            unsafe { api!(acl_check_channel_permissions)(user, channel.inner, access) }
        })
    }

    /// Returns whether the user may use this database. From Valkey 9.1 on one may be kept
    /// from some.
    pub(crate) fn may_use_database(&self, ctx: &Context, db: i32) -> bool {
        let Self::Named(name) = self else {
            return matches!(self, Self::Unrestricted);
        };
        let told = ctx.call("ACL", &[&b"GETUSER"[..], name.as_slice()]);
        let Ok(RedisValue::Array(fields)) = told else {
            return true;
        };
        let mut pairs = fields.chunks_exact(2);
        let databases = pairs.find_map(|pair| match pair {
            [
                RedisValue::SimpleString(name),
                RedisValue::SimpleString(databases),
            ] => (name == "databases").then_some(databases),
            _ => None,
        });
        databases.is_none_or(|databases| {
            let mut all = databases.split(' ');
            all.any(|one| one == "alldbs" || one == format!("db={db}"))
        })
    }

    fn may(&self, check: impl FnOnce(*mut raw::RedisModuleUser) -> c_int) -> bool {
        let Self::Named(name) = self else {
            return matches!(self, Self::Unrestricted);
        };
        // SAFETY: the name lives through the call. The user is ours to free.
        unsafe {
            let user = api!(get_module_user_from_user_name)(name.inner);
            if user.is_null() {
                return false;
            }
            let answer = check(user);
            api!(free_module_user)(user);
            answer == raw::REDISMODULE_OK as c_int
        }
    }
}

/// Returns whether the client of this context has a user. If it has none, as in calls that
/// another module makes by itself, `GetCurrentUserName` brings the server down.
fn has_user(ctx: &Context) -> bool {
    // SAFETY: the format says that no argument follows, and that the call runs
    // as the user of the context's client. The reply is freed at once.
    unsafe {
        let reply = api!(call)(ctx.ctx, c"PING".as_ptr(), c"C".as_ptr());
        if reply.is_null() {
            let error = std::io::Error::last_os_error().raw_os_error();
            return error != Some(libc::ENOTSUP);
        }
        api!(free_call_reply)(reply);
        true
    }
}

/// A user or client that refers to a command of this module, so that the server would crash
/// without it: from Redis 7.2 on it reads the rules of all users anew at an unload, and ends
/// at a command that it knows no more; a client's last command is read when clients are listed,
/// and from Redis 8.0 on at its next command; and a transaction runs what it has queued.
pub(crate) fn who_pins_commands(ctx: &Context, prefix: &str) -> Option<String> {
    let lists = match registration::server_version() {
        (7, 0 | 1) => &["CLIENT"][..],
        _ => &["CLIENT", "ACL"],
    };
    let names_one = |word: &str| {
        let command = ["+", "-", "cmd="]
            .iter()
            .find_map(|it| word.strip_prefix(it));
        command.is_some_and(|command| command.starts_with(prefix))
            || word.starts_with("flags=") && word.contains('x')
    };
    lists.iter().find_map(|list| {
        let entries = match ctx.call(list, &["LIST"]).ok()? {
            RedisValue::Array(entries) => entries,
            entries => vec![entries],
        };
        entries.into_iter().find_map(|entry| {
            let RedisValue::SimpleString(lines) = entry else {
                return None;
            };
            let is_pinned = |line: &&str| line.split([' ', '(', ')']).any(names_one);
            let who = lines.lines().find(is_pinned)?;
            Some(who.split(' ').take(2).collect::<Vec<_>>().join(" "))
        })
    })
}
