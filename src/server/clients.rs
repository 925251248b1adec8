//! Who is connected.

use std::ffi::CStr;
use std::mem::zeroed;
use std::os::fd::BorrowedFd;
use std::ptr;

use redis_module::{CallOptionsBuilder, CallReply, CallResult, Context, raw};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

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

/// Closes a client's connection. Its end is told as any other's.
pub(crate) fn close(ctx: &Context, client: ClientId) {
    let id = client.0.to_string();
    let options = CallOptionsBuilder::new().build();
    let _: CallResult<'_> = ctx.call_ext("CLIENT", &options, &["KILL", "ID", &id]);
}

/// Whether a connected client is about to be disconnected: the server has
/// decided it, or the other end has closed the connection and the server has
/// not read that far.
pub(crate) fn is_closing(ctx: &Context, client: ClientId) -> bool {
    let id = client.0.to_string();
    let options = CallOptionsBuilder::new().build();
    let reply: CallResult<'_> = ctx.call_ext("CLIENT", &options, &["LIST", "ID", &id]);
    let Ok(CallReply::String(line)) = &reply else {
        return false;
    };
    let line = line.as_bytes();
    let field = |name: &[u8]| {
        let mut words = line.split(|&byte| byte == b' ');
        words.find_map(|word| word.strip_prefix(name))
    };
    // `A` is "to be closed as soon as possible", `c` "after the reply".
    let decided =
        field(b"flags=").is_some_and(|flags| flags.iter().any(|flag| b"Ac".contains(flag)));
    let fd = field(b"fd=").and_then(|fd| std::str::from_utf8(fd).ok()?.parse().ok());
    decided || fd.is_some_and(other_end_closed)
}

fn other_end_closed(fd: i32) -> bool {
    if fd < 0 {
        return false;
    }
    // SAFETY: it is the open socket of a connected client, and stays open here.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let closed = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
    poll(&mut polled, Some(&at_once)).is_ok()
        && polled
            .iter()
            .any(|socket| socket.revents().intersects(closed))
}
