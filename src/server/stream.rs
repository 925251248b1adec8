//! The replication stream, and the replicas that receive it.

use std::cell::Cell;
use std::ffi::c_void;

use redis_module::{Context, raw};

use crate::server::api::api;
use crate::server::hooks::hooks;
use crate::server::replicas::{self, Stream};
use crate::server::{panics, turns};

thread_local! {
    static FOLLOWED: Cell<bool> = const { Cell::new(false) };

    /// How many replicas are online, where that is known.
    static ONLINE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The stream, if this server is a primary.
pub(crate) fn look(ctx: &Context) -> Option<Stream> {
    let stream = replicas::look(ctx)?;
    ONLINE.set(Some(stream.online.len()));
    Some(stream)
}

/// Has the stream reach further, by a command that changes nothing.
pub(crate) fn go_on(ctx: &Context) {
    // SAFETY: the context is alive, and may write. In the format, A keeps the command
    // from the AOF.
    unsafe { api!(replicate)(ctx.ctx, c"PING".as_ptr(), c"A".as_ptr()) };
}

/// How many replicas are online. It is kept up to date by events from the first call on.
pub(crate) fn replicas_online(ctx: &Context) -> usize {
    if !FOLLOWED.get() {
        FOLLOWED.set(follow(ctx));
    }
    match ONLINE.get() {
        Some(online) => online,
        None => look(ctx).map_or(0, |stream| stream.online.len()),
    }
}

/// Begins anew, as a module that has just been loaded.
pub(crate) fn reset() {
    FOLLOWED.set(false);
    ONLINE.set(None);
}

/// Follows the turns of the event loop, and replicas that come and go. Returns whether the
/// server takes both.
fn follow(ctx: &Context) -> bool {
    let (id, dataver) = (raw::REDISMODULE_EVENT_REPLICA_CHANGE, 1);
    let replica_change = raw::RedisModuleEvent { id, dataver };
    // SAFETY: the context is alive, and the callback uses no data.
    let answer =
        unsafe { api!(subscribe_to_server_event)(ctx.ctx, replica_change, Some(on_replica)) };
    answer == 0 && turns::follow(ctx)
}

unsafe extern "C" fn on_replica(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    _data: *mut c_void,
) {
    // One that leaves may still be in the list.
    ONLINE.set(None);
    panics::catch("a replica that comes or goes", || {
        (hooks().replicas_changed)(&Context::new(ctx));
    });
}
