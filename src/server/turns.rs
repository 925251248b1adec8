//! Turns of the event loop, and who is told of a grant in one.
//!
//! What is in a client's buffer is written at the end of the turn, unless the server has
//! decided in this turn that it closes the client. Then it is not, and the client is closed
//! at the end of the turn. So it is known only when the next turn begins who has been told.
//!
//! Where a command takes the server long, it writes what is in buffers, and reads, while
//! that runs.
//!
//! A client that goes on to another command of the module in the same turn counts as told
//! before that: the core has each client answered before its next command.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::c_void;

use redis_module::{Context, raw};

use crate::config;
use crate::server::api::api;
use crate::server::clients::{self, ReplyFate};
use crate::server::hooks::hooks;
use crate::server::{clock, keyspace, panics};
use redis_lock_core::request::ClientId;

thread_local! {
    static FOLLOWED: Cell<bool> = const { Cell::new(false) };

    /// The clients that are told of a grant at the end of this turn.
    static TO_BE_TOLD: RefCell<BTreeMap<ClientId, Answered>> =
        const { RefCell::new(BTreeMap::new()) };
}

/// When a client was answered in this turn.
#[derive(Clone, Copy)]
struct Answered {
    at_us: i64,
    during_script: bool,
}

impl Answered {
    fn now(ctx: &Context) -> Self {
        Self {
            at_us: clock::since_boot_us(),
            during_script: keyspace::script_runs(ctx),
        }
    }

    /// Whether a command has taken so long since then that the answer may be written.
    fn may_be_written(self, ctx: &Context) -> bool {
        let passed_ms = (clock::since_boot_us() - self.at_us) / 1000 + 1;
        // With 0 or less no command is ever long to the server.
        let is_long = |threshold_ms| threshold_ms > 0 && passed_ms >= threshold_ms;
        let threshold = || config::of_server(ctx, "busy-reply-threshold")?.parse().ok();
        self.during_script || keyspace::script_runs(ctx) || threshold().is_none_or(is_long)
    }
}

/// Follows the turns from now on, which costs each of them two calls. Returns whether the
/// server lets the module do so.
pub(super) fn follow(ctx: &Context) -> bool {
    if !FOLLOWED.get() {
        let (id, dataver) = (raw::REDISMODULE_EVENT_EVENTLOOP, 1);
        let event_loop = raw::RedisModuleEvent { id, dataver };
        // SAFETY: the context is alive, and the callback uses no data.
        let answer =
            unsafe { (api().subscribe_to_server_event)(ctx.ctx, event_loop, Some(on_turn)) };
        FOLLOWED.set(answer == 0);
    }
    FOLLOWED.get()
}

/// Begins anew, as a module that has just been loaded.
pub(crate) fn reset() {
    FOLLOWED.set(false);
    TO_BE_TOLD.take();
}

/// This client's grant is in its buffer.
pub(super) fn to_be_told(ctx: &Context, client: ClientId) {
    if FOLLOWED.get() {
        let answered = Answered::now(ctx);
        TO_BE_TOLD.with_borrow_mut(|clients| clients.insert(client, answered));
    } else {
        (hooks().grant_told)(ctx, client, true);
    }
}

/// A client runs a command of the module.
#[inline]
pub(super) fn goes_on(ctx: &Context) {
    if TO_BE_TOLD.with_borrow(|clients| !clients.is_empty()) {
        let client = clients::running(ctx);
        if take(client).is_some() {
            (hooks().grant_told)(ctx, client, true);
        }
    }
}

/// This client is about to be closed.
pub(crate) fn connection_will_end(ctx: &Context, client: ClientId) {
    tell(ctx, client, |fate, answered| {
        fate == ReplyFate::ToBeWritten || is_written(ctx, fate, answered)
    });
}

/// The connection of this client ends.
pub(super) fn connection_ends(ctx: &Context, client: ClientId) {
    tell(ctx, client, |fate, answered| {
        is_written(ctx, fate, answered)
    });
}

fn is_written(ctx: &Context, fate: ReplyFate, answered: Answered) -> bool {
    match fate {
        ReplyFate::Written => true,
        ReplyFate::WrittenOrRefused => answered.may_be_written(ctx),
        ReplyFate::ToBeWritten | ReplyFate::Dropped => false,
    }
}

/// Tells whether a client has heard of its grant, if it was answered in this turn.
fn tell(ctx: &Context, client: ClientId, has_heard: impl FnOnce(ReplyFate, Answered) -> bool) {
    if let Some(answered) = take(client) {
        let fate = clients::fate_of_replies(ctx, client);
        (hooks().grant_told)(ctx, client, has_heard(fate, answered));
    }
}

fn take(client: ClientId) -> Option<Answered> {
    TO_BE_TOLD.with_borrow_mut(|clients| clients.remove(&client))
}

unsafe extern "C" fn on_turn(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    _data: *mut c_void,
) {
    if subevent == raw::REDISMODULE_SUBEVENT_EVENTLOOP_BEFORE_SLEEP {
        if (hooks().awaits_replicas)() {
            panics::catch("the end of a turn", || {
                (hooks().turn_ends)(&Context::new(ctx));
            });
        }
    } else if TO_BE_TOLD.with_borrow(|clients| !clients.is_empty()) {
        panics::catch("the beginning of a turn", || {
            let ctx = Context::new(ctx);
            while let Some((client, _)) = TO_BE_TOLD.with_borrow_mut(BTreeMap::pop_first) {
                (hooks().grant_told)(&ctx, client, true);
            }
        });
    }
}
