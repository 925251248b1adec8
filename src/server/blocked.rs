//! Clients that wait, blocked in the server.
//!
//! # Which call, and why
//! A waiter is blocked with `BlockClientOnKeys` on the key of its lock, and
//! woken, it alone, with `UnblockClient`. The key is never signalled. Blocking
//! on the key lets the server redirect the client when the key's slot moves
//! and unblock it when the server becomes a replica; waking by handle costs
//! the same however long the queue is.
//!
//! # A ticket's life
//! The server always replies to such a client through the time-out callback,
//! whether it timed out, was unblocked by `CLIENT UNBLOCK`, or was woken by
//! us. So each waiter has a [`Ticket`] whose state says which it was:
//!
//! ```text
//! Waiting --answer()--> Answered --time-out callback--> Told
//!    |                     |                              |
//!    |                     +-- client lost --> not delivered (at the free callback)
//!    +-- time-out callback, disconnect callback --> Left
//! ```
//!
//! On Redis 7.0, 7.2 and Valkey the time-out callback runs inside
//! `UnblockClient`; on Redis 7.4 and later, just before the server sleeps. In
//! both cases the reply is written to the socket after that, so an answer can
//! still be lost if the client goes away, or is unblocked with an error, in the
//! same turn of the event loop. The free callback runs last, exactly once, and
//! finds that out.
//!
//! One case can't be helped: on Redis 7.0 a client that `CLIENT UNBLOCK ...
//! ERROR` names in the very turn of its grant gets both replies, the token and
//! the error, because the first is in its buffer already.

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};
use std::ptr;
use std::rc::Rc;

use redis_module::{Context, RedisValue, raw};

use crate::error::LockError;
use crate::lock::fence::Fence;
use crate::lock::request::{ClientId, Timeout};
use crate::lock::waiters::{KeyBuf, WaiterId};
use crate::server::clients;
use crate::server::guard;
use crate::server::keyspace::LockKey;

/// What a waiter is told in the end.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// It has the lock, with this token.
    Granted(Fence),
    /// It can't have it.
    Refused(LockError),
}

/// What the lock manager is told about waiters, where the server allows no writes.
#[derive(Clone, Copy)]
pub(crate) struct Hooks {
    /// The client does not wait any more, for a reason that is not ours.
    pub(crate) left: fn(&Context, &Ticket, Leave),
    /// Whether the client, which was granted the lock, was told so.
    pub(crate) delivered: fn(&Context, ClientId, bool),
}

/// Why a client does not wait any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    /// Its time was up, or `CLIENT UNBLOCK` had it be.
    TimeUp,
    /// It went away, or was sent away with an error.
    Gone,
}

enum State {
    Waiting,
    Answered(Answer),
    Told(Answer),
    Left,
}

/// One blocked client.
pub(crate) struct Ticket {
    /// The waiter's place in the queues.
    pub(crate) id: WaiterId,
    /// The lock it waits for.
    pub(crate) key: KeyBuf,
    /// The client.
    pub(crate) client: ClientId,
    /// When it gives up, in milliseconds since 1970, if ever.
    pub(crate) until_ms: Cell<Option<i64>>,
    handle: Cell<*mut raw::RedisModuleBlockedClient>,
    state: RefCell<State>,
    hooks: Hooks,
}

/// Whether a reply to a blocked client is in its buffer, and so may be sent, as
/// soon as it is written. That is so before Redis 7.2.
pub(crate) fn replies_are_sent_early() -> bool {
    // SAFETY: a question without arguments.
    let version = unsafe { raw::RedisModule_GetServerVersion.map_or(0, |version| version()) };
    version < 0x0007_0200
}

/// Whether the client that runs this command can be blocked. In a transaction
/// or a script it can't.
pub(crate) fn may_block(ctx: &Context) -> bool {
    // SAFETY: a question about the context of a running command.
    unsafe {
        let flags = raw::RedisModule_GetContextFlags.map_or(0, |flags| flags(ctx.ctx));
        flags & raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING as c_int == 0
    }
}

thread_local! {
    /// Those who were answered and are still to be woken.
    static ANSWERED: RefCell<Vec<Rc<Ticket>>> = const { RefCell::new(Vec::new()) };
}

/// Wakes the clients that were answered. The time-out callbacks may run before
/// this returns, so nothing of the module's state may be borrowed meanwhile.
///
/// Of the replies of one turn the server writes the newest first. So a command
/// calls this after its own reply, because whoever gets a lock shall not wait
/// until the one who gave it back has been told; and the first in line is woken
/// last.
pub(super) fn wake_answered() {
    for ticket in ANSWERED.take().into_iter().rev() {
        ticket.wake();
    }
}

impl Ticket {
    /// A ticket for the client that runs this command. It does not wait yet.
    pub(crate) fn new(ctx: &Context, id: WaiterId, key: KeyBuf, hooks: Hooks) -> Rc<Self> {
        Rc::new(Self {
            id,
            key,
            client: clients::running(ctx),
            until_ms: Cell::new(None),
            handle: Cell::new(ptr::null_mut()),
            state: RefCell::new(State::Waiting),
            hooks,
        })
    }

    /// Blocks the client until it is answered, its time is up or it goes away.
    /// The caller has checked [`may_block`].
    pub(crate) fn block(self: &Rc<Self>, key: LockKey<'_>, timeout: Timeout, now_ms: i64) {
        let timeout_ms = timeout.ms_or_zero();
        self.until_ms
            .set((timeout_ms > 0).then(|| now_ms.saturating_add(timeout_ms)));
        let mut names = [key.name().inner()];
        let private_data = Rc::into_raw(Rc::clone(self)).cast_mut().cast::<c_void>();
        // SAFETY: the server keeps `private_data` and gives it to the
        // callbacks, `on_free` last, which takes the reference back. The names
        // are only read during the call.
        unsafe {
            let (Some(block), Some(set_disconnect)) = (
                raw::RedisModule_BlockClientOnKeys,
                raw::RedisModule_SetDisconnectCallback,
            ) else {
                return;
            };
            let handle = block(
                key.ctx().ctx,
                Some(on_signal),
                Some(on_timeout),
                Some(on_free),
                timeout_ms,
                names.as_mut_ptr(),
                1,
                private_data,
            );
            if !handle.is_null() {
                set_disconnect(handle, Some(on_disconnect));
            }
            self.handle.set(handle);
        }
    }

    /// Answers the client, which must still wait. It is woken at the end of the
    /// command or timer that runs, by [`wake_answered`].
    pub(crate) fn answer(self: Rc<Self>, answer: Answer) {
        self.state.replace(State::Answered(answer));
        ANSWERED.with_borrow_mut(|answered| answered.push(self));
    }

    fn wake(&self) {
        let handle = self.handle.get();
        if handle.is_null() {
            return;
        }
        // SAFETY: the handle is valid, since `on_free` has not run yet.
        unsafe {
            if let Some(unblock) = raw::RedisModule_UnblockClient {
                unblock(handle, ptr::null_mut());
            }
        }
    }

    fn leave(&self, ctx: &Context, leave: Leave) {
        self.state.replace(State::Left);
        (self.hooks.left)(ctx, self, leave);
    }

    /// Whether the reply of a client that was told, and that the server calls
    /// disconnected, has not reached its buffer. Since Redis 7.2 replies wait
    /// elsewhere until after the free callback. Redis 7.0 writes them to the
    /// buffer at once, and calls a client disconnected also if it timed out in
    /// the turn in which it was told, and lives.
    fn reply_was_lost(&self) -> bool {
        !replies_are_sent_early() || !clients::is_connected(self.client)
    }
}

fn reply(ctx: &Context, answer: &Answer) {
    ctx.reply(match answer {
        Answer::Granted(fence) => Ok(RedisValue::Integer(fence.get())),
        Answer::Refused(error) => Err(error.into()),
    });
}

/// The ticket of the blocked client that a callback is about.
///
/// # Safety
/// `ctx` must be the context of a callback of a client that [`Ticket::block`] blocked.
unsafe fn ticket_of<'t>(ctx: *mut raw::RedisModuleCtx) -> Option<&'t Ticket> {
    // SAFETY: the private data is the reference that `Ticket::block` gave away
    // and that `on_free` has not taken back yet.
    unsafe {
        raw::RedisModule_GetBlockedClientPrivateData
            .map(|data| data(ctx).cast::<Ticket>())
            .and_then(|ticket| ticket.as_ref())
    }
}

/// Called when somebody signals the key as ready: another module, or a command
/// that fills a list of that name. It is not for us.
unsafe extern "C" fn on_signal(
    _ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    raw::REDISMODULE_ERR as c_int
}

unsafe extern "C" fn on_timeout(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    guard::catch("the reply to a waiter", || {
        // SAFETY: the server calls this for such a client.
        let Some(ticket) = (unsafe { ticket_of(ctx) }) else {
            return;
        };
        let ctx = Context::new(ctx);
        let state = ticket.state.replace(State::Left);
        match state {
            State::Waiting => {
                ticket.leave(&ctx, Leave::TimeUp);
                ctx.reply(Ok(RedisValue::Null));
            }
            State::Answered(answer) => {
                reply(&ctx, &answer);
                ticket.state.replace(State::Told(answer));
            }
            told_or_left => {
                ticket.state.replace(told_or_left);
            }
        }
    });
    raw::REDISMODULE_OK as c_int
}

/// Called when the client went away, and also for clients that live on:
/// `CLIENT UNBLOCK ... ERROR`, a slot that moved, a demotion to replica.
unsafe extern "C" fn on_disconnect(
    ctx: *mut raw::RedisModuleCtx,
    _handle: *mut raw::RedisModuleBlockedClient,
) {
    guard::catch("the end of a waiter", || {
        // SAFETY: the server calls this for such a client.
        let Some(ticket) = (unsafe { ticket_of(ctx) }) else {
            return;
        };
        let waiting = matches!(*ticket.state.borrow(), State::Waiting);
        if waiting {
            ticket.leave(&Context::new(ctx), Leave::Gone);
        }
    });
}

unsafe extern "C" fn on_free(ctx: *mut raw::RedisModuleCtx, private_data: *mut c_void) {
    guard::catch("the release of a waiter", || {
        // SAFETY: `Ticket::block` gave this reference away; the server calls
        // this once for it.
        let ticket = unsafe { Rc::from_raw(private_data.cast_const().cast::<Ticket>()) };
        ticket.handle.set(ptr::null_mut());
        // SAFETY: a question about the context.
        let client_gone = unsafe {
            raw::RedisModule_BlockedClientDisconnected.is_some_and(|gone| gone(ctx) != 0)
        };
        let delivered = match *ticket.state.borrow() {
            State::Answered(Answer::Granted(_)) => false,
            State::Told(Answer::Granted(_)) => !(client_gone && ticket.reply_was_lost()),
            _ => return,
        };
        (ticket.hooks.delivered)(&Context::new(ctx), ticket.client, delivered);
    });
}
