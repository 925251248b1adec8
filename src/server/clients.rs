//! Clients and their connections.

use std::ffi::CStr;
use std::mem::zeroed;

use redis_module::{Context, RedisString, raw};

use crate::server::api::api;
use redis_lock_core::request::ClientId;

/// The client that runs this command.
pub(crate) fn running(ctx: &Context) -> ClientId {
    // SAFETY: the context is alive.
    ClientId(unsafe { api!(get_client_id)(ctx.ctx) })
}

/// The same, if it is connected. The one that runs a script is not.
pub(crate) fn running_connected(ctx: &Context) -> Option<ClientId> {
    let client = running(ctx);
    name_of_user(ctx, client).map(|_| client)
}

/// The name of the user of a client, if there is such a client, and if it has a user.
/// `GetClientInfoById` of Valkey 9.1 finds whoever runs a command, and this does not.
pub(super) fn name_of_user(ctx: &Context, client: ClientId) -> Option<Option<RedisString>> {
    // SAFETY: the context is alive. A client without a user has no name, and another
    // error. A name is ours to free.
    let name = unsafe { api!(get_client_user_name_by_id)(ctx.ctx, client.0) };
    if !name.is_null() {
        return Some(Some(RedisString::from_redis_module_string(ctx.ctx, name)));
    }
    let error = std::io::Error::last_os_error().raw_os_error();
    (error == Some(libc::ENOTSUP)).then_some(None)
}

/// The address of a connected client, written as in `CLIENT LIST`.
pub(crate) fn address(ctx: &Context, client: ClientId) -> Option<String> {
    // Valkey 9.1 reads the connection of a command's client, and that of a script has none.
    name_of_user(ctx, client)?;
    // SAFETY: a plain C struct, for which all zeros are a value; the server
    // fills the layout of the version that it is told, and ends the address
    // with a zero.
    unsafe {
        let mut info: raw::RedisModuleClientInfo = zeroed();
        info.version = u64::from(raw::REDISMODULE_CLIENTINFO_VERSION);
        if api!(get_client_info_by_id)((&raw mut info).cast(), client.0) != 0 {
            return None;
        }
        let host = CStr::from_ptr(info.addr.as_ptr()).to_string_lossy();
        Some(if host.contains(':') {
            format!("[{host}]:{}", info.port)
        } else {
            format!("{host}:{}", info.port)
        })
    }
}

/// Has the server close a client's connection at the end of this turn of the event loop,
/// and run no more of its commands. The hooks hear of its end as of any other's. `CLIENT
/// KILL` would look at every connection of the server.
pub(crate) fn close(ctx: &Context, client: ClientId) {
    // SAFETY: the context is alive, and the server looks the client up by its number.
    unsafe { api!(deauthenticate_and_close_client)(ctx.ctx, client.0) };
}
