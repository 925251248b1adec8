//! Who is connected.

use std::ffi::CStr;
use std::mem::zeroed;
use std::ptr;

use redis_module::{Context, raw};

use crate::lock::request::ClientId;

/// The client that runs this command.
pub(crate) fn running(ctx: &Context) -> ClientId {
    // SAFETY: a question about the context of a running command.
    ClientId(unsafe { raw::RedisModule_GetClientId.map_or(0, |id| id(ctx.ctx)) })
}

/// Whether the client is connected. One that runs scripts is not.
pub(crate) fn is_connected(client: ClientId) -> bool {
    // SAFETY: a null asks only whether there is such a client.
    unsafe {
        raw::RedisModule_GetClientInfoById.is_some_and(|info| info(ptr::null_mut(), client.0) == 0)
    }
}

/// Where a connected client is, as `CLIENT LIST` has it.
pub(crate) fn address(client: ClientId) -> Option<String> {
    // SAFETY: a plain C struct, for which all zeros are a value; the server
    // fills the layout of the version that it is told, and ends the address
    // with a zero.
    unsafe {
        let mut info: raw::RedisModuleClientInfo = zeroed();
        info.version = u64::from(raw::REDISMODULE_CLIENTINFO_VERSION);
        if raw::RedisModule_GetClientInfoById?((&raw mut info).cast(), client.0) != 0 {
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
