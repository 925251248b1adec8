//! Clients and their connections.

use std::ffi::CStr;
use std::mem::zeroed;
use std::os::fd::BorrowedFd;
use std::ptr;

use redis_module::{CallOptionsBuilder, CallReply, CallResult, Context, RedisString, raw};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::server::api::api;
use redis_lock_core::request::ClientId;

/// The client that runs this command.
pub(crate) fn running(ctx: &Context) -> ClientId {
    // SAFETY: the context is alive.
    ClientId(unsafe { (api().get_client_id)(ctx.ctx) })
}

/// The same, if it is connected. The one that runs a script is not.
pub(crate) fn running_connected(ctx: &Context) -> Option<ClientId> {
    let client = running(ctx);
    match name_of_user(ctx, client) {
        UserName::None => None,
        UserName::NotNamed | UserName::Named(_) => Some(client),
    }
}

/// What the server says of the user of a client.
pub(super) enum UserName {
    /// There is no such client.
    None,
    /// The client has no user.
    NotNamed,
    /// The name of the client's user.
    Named(RedisString),
}

/// Asks for the user of a client. `GetClientInfoById` of Valkey 9.1 finds whoever runs a
/// command, and this does not.
pub(super) fn name_of_user(ctx: &Context, client: ClientId) -> UserName {
    // SAFETY: the context is alive. A client without a user has no name, and another
    // error. A name is ours to free.
    let name = unsafe { (api().get_client_user_name_by_id)(ctx.ctx, client.0) };
    if !name.is_null() {
        return UserName::Named(RedisString::from_redis_module_string(ctx.ctx, name));
    }
    let error = std::io::Error::last_os_error().raw_os_error();
    match error == Some(rustix::io::Errno::NOTSUP.raw_os_error()) {
        true => UserName::NotNamed,
        false => UserName::None,
    }
}

/// Returns whether a client that was connected still is.
pub(crate) fn is_connected(client: ClientId) -> bool {
    // SAFETY: a null asks only whether there is such a client.
    unsafe { (api().get_client_info_by_id)(ptr::null_mut(), client.0) == 0 }
}

/// The address of a connected client, written as in `CLIENT LIST`.
pub(crate) fn address(ctx: &Context, client: ClientId) -> Option<String> {
    // Valkey 9.1 reads the connection of whoever runs a command, and a script has none.
    if let UserName::None = name_of_user(ctx, client) {
        return None;
    }
    // SAFETY: a plain C struct, for which all zeros are a value; the server
    // fills the layout of the version that it is told, and ends the address
    // with a zero.
    unsafe {
        let mut info: raw::RedisModuleClientInfo = zeroed();
        info.version = u64::from(raw::REDISMODULE_CLIENTINFO_VERSION);
        if (api().get_client_info_by_id)((&raw mut info).cast(), client.0) != 0 {
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
    unsafe { (api().deauthenticate_and_close_client)(ctx.ctx, client.0) };
}

/// Returns whether a connected client is about to be disconnected: the server has
/// decided so, or the other end has closed the connection and the server has
/// not read that far.
pub(crate) fn is_closing(ctx: &Context, client: ClientId) -> bool {
    let is_closing = with_line(ctx, client, |line| {
        // `A` is "to be closed as soon as possible", `c` "after the reply".
        let fd = field(line, b"fd=").and_then(|fd| std::str::from_utf8(fd).ok()?.parse().ok());
        has_flag(line, b"Ac") || fd.is_some_and(other_end_closed)
    });
    is_closing.unwrap_or(false)
}

/// What becomes of the replies to a client.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplyFate {
    /// They have all been written.
    Written,
    /// The same, or the server refused to add some, because it closes the client at once.
    WrittenOrRefused,
    /// They will be written, if the connection lasts.
    ToBeWritten,
    /// They will not be written, because the server closes the client at once.
    Dropped,
}

/// What becomes of the replies to a client, as it is now.
pub(super) fn fate_of_replies(ctx: &Context, client: ClientId) -> ReplyFate {
    let fate = with_line(ctx, client, |line| {
        let is_zero = |name: &[u8]| field(line, name) == Some(b"0");
        let are_written = is_zero(b"obl=") && is_zero(b"oll=");
        match (are_written, has_flag(line, b"A")) {
            (true, false) => ReplyFate::Written,
            (true, true) => ReplyFate::WrittenOrRefused,
            (false, false) => ReplyFate::ToBeWritten,
            (false, true) => ReplyFate::Dropped,
        }
    });
    fate.unwrap_or(ReplyFate::Dropped)
}

/// Asks for the client's line of `CLIENT LIST`, if it has one.
fn with_line<T>(ctx: &Context, client: ClientId, ask: impl FnOnce(&[u8]) -> T) -> Option<T> {
    let id = client.0.to_string();
    let options = CallOptionsBuilder::new().build();
    let reply: CallResult<'_> = ctx.call_ext("CLIENT", &options, &["LIST", "ID", &id]);
    match &reply {
        Ok(CallReply::String(line)) => Some(ask(line.as_bytes())),
        _ => None,
    }
}

fn field<'l>(line: &'l [u8], name: &[u8]) -> Option<&'l [u8]> {
    let mut words = line.split(|&byte| byte == b' ');
    words.find_map(|word| word.strip_prefix(name))
}

fn has_flag(line: &[u8], any_of: &[u8]) -> bool {
    let flags = field(line, b"flags=");
    flags.is_some_and(|flags| flags.iter().any(|flag| any_of.contains(flag)))
}

#[cfg(target_os = "linux")]
const ASKED_FOR_CLOSE: PollFlags = PollFlags::RDHUP;
#[cfg(target_os = "linux")]
const TOLD_AT_CLOSE: PollFlags = PollFlags::RDHUP;
// macOS tells whoever asks for input of the other end's close, by `HUP`.
#[cfg(not(target_os = "linux"))]
const ASKED_FOR_CLOSE: PollFlags = PollFlags::IN;
#[cfg(not(target_os = "linux"))]
const TOLD_AT_CLOSE: PollFlags = PollFlags::HUP;

fn other_end_closed(fd: i32) -> bool {
    if fd < 0 {
        return false;
    }
    // SAFETY: `fd` is the open socket of a connected client, which nobody closes
    // before this returns.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let closed = TOLD_AT_CLOSE | PollFlags::HUP | PollFlags::ERR;
    let mut polled = [PollFd::from_borrowed_fd(socket, ASKED_FOR_CLOSE)];
    poll(&mut polled, Some(&at_once)).is_ok()
        && polled
            .iter()
            .any(|socket| socket.revents().intersects(closed))
}
