//! The replication stream, and how far replicas have acknowledged it.
//!
//! The server tells it by `ROLE`, which lists the replicas that are online. `WAIT`,
//! called by a module, answers for another client than the one that wrote.

use std::cell::Cell;
use std::ffi::c_void;

use redis_module::{CallOptionsBuilder, CallReply, CallResult, Context, raw};

use crate::server::api::api;
use crate::server::hooks::hooks;
use crate::server::{blocked, panics};

thread_local! {
    static FOLLOWED: Cell<bool> = const { Cell::new(false) };

    /// How many replicas are online, where that is known.
    static ONLINE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The replication stream of a primary.
pub(crate) struct Stream {
    /// How far it reaches. What is written in this turn of the event loop is before it.
    pub(crate) offset: i64,
    /// How far each replica that is online has acknowledged it.
    pub(crate) acknowledged: Vec<i64>,
}

/// The stream, if this server is a primary.
pub(crate) fn look(ctx: &Context) -> Option<Stream> {
    let options = CallOptionsBuilder::new().build();
    let no_args: [&[u8]; 0] = [];
    let reply: CallResult<'_> = ctx.call_ext("ROLE", &options, no_args.as_slice());
    let Ok(CallReply::Array(role)) = &reply else {
        return None;
    };
    let (Some(Ok(CallReply::I64(offset))), Some(Ok(CallReply::Array(replicas)))) =
        (role.get(1), role.get(2))
    else {
        // A replica names its primary there.
        return None;
    };
    let acknowledged: Vec<i64> = replicas
        .iter()
        .map(|replica| match replica {
            Ok(CallReply::Array(replica)) => offset_of(replica.get(2)),
            _ => 0,
        })
        .collect();
    ONLINE.set(Some(acknowledged.len()));
    Some(Stream {
        offset: offset.to_i64(),
        acknowledged,
    })
}

/// Has the stream reach further, by a command that changes nothing.
pub(crate) fn go_on(ctx: &Context) {
    // SAFETY: the context is alive, and may write. In the format, A keeps the command
    // from the AOF.
    unsafe { (api().replicate)(ctx.ctx, c"PING".as_ptr(), c"A".as_ptr()) };
}

fn offset_of(field: Option<CallResult<'_>>) -> i64 {
    match field {
        Some(Ok(CallReply::String(text))) => {
            let text = std::str::from_utf8(text.as_bytes());
            text.ok().and_then(|text| text.parse().ok()).unwrap_or(0)
        }
        Some(Ok(CallReply::I64(offset))) => offset.to_i64(),
        _ => 0,
    }
}

/// How many replicas are online. It is kept up to date by events from the first call on.
pub(crate) fn replicas_online(ctx: &Context) -> usize {
    if !FOLLOWED.get() {
        FOLLOWED.set(follow(ctx));
    }
    match ONLINE.get() {
        Some(online) => online,
        None => look(ctx).map_or(0, |stream| stream.acknowledged.len()),
    }
}

/// Begins anew, as a module that has just been loaded.
pub(crate) fn reset() {
    FOLLOWED.set(false);
    ONLINE.set(None);
}

/// Subscribes to the end of each turn of the event loop, which costs each turn a call,
/// and to replicas that come and go. Returns whether the server took both.
fn follow(ctx: &Context) -> bool {
    let event = |id| raw::RedisModuleEvent { id, dataver: 1 };
    let replica_change = event(raw::REDISMODULE_EVENT_REPLICA_CHANGE);
    let event_loop = event(raw::REDISMODULE_EVENT_EVENTLOOP);
    // SAFETY: the context is alive, and the callbacks use no data.
    unsafe {
        let to_event = api().subscribe_to_server_event;
        to_event(ctx.ctx, replica_change, Some(on_replica)) == 0
            && to_event(ctx.ctx, event_loop, Some(on_turn)) == 0
    }
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
        hooks().replicas_changed(&Context::new(ctx));
    });
}

unsafe extern "C" fn on_turn(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    _data: *mut c_void,
) {
    let before_sleep = raw::REDISMODULE_SUBEVENT_EVENTLOOP_BEFORE_SLEEP;
    if subevent != before_sleep || !hooks().awaits_replicas() {
        return;
    }
    panics::catch("the end of a turn", || {
        hooks().turn_ends(&Context::new(ctx));
    });
    blocked::wake_answered();
}
