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
//! Waiting --answer()--> Answered --time-out callback--> Buffered or Gone
//!    |                     |
//!    |                     +-- client lost --> not told (at the free callback)
//!    +-- time-out callback, disconnect callback --> Gone
//! ```
//!
//! A client whose reply is withheld until replicas have acknowledged it waits in the
//! same way, whether it waited for the lock before or not; the core knows which it is.
//!
//! The floor above knows a waiter by its [`WaiterId`] alone. [`TICKETS`] finds the
//! ticket for it, and holds exactly those that are not told yet: until then an answer can
//! take the place of another, when a later request of the same owner takes a grant over.
//!
//! On Redis 7.0, 7.2 and Valkey the time-out callback runs inside
//! `UnblockClient`; on Redis 7.4 and later, just before the server sleeps. What is in the
//! client's output buffer counts as told, whatever becomes of the client then: before Redis
//! 7.2 at once, and later when the free callback runs, exactly once, since until then an
//! error may come in the place of the reply (`CLIENT UNBLOCK ... ERROR`).
//!
//! There is one case without a remedy: on Redis 7.0 a client that `CLIENT UNBLOCK
//! ... ERROR` names in the very turn of its grant gets both replies, the token
//! and the error, because the first is in its buffer already.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::rc::Rc;

use redis_module::{Context, ContextFlags, raw};

use crate::server::acl::User;
use crate::server::api::api;
use crate::server::clients;
use crate::server::hooks::hooks;
use crate::server::keyspace::LockKey;
use crate::server::panics;
use crate::server::registration;
use crate::server::reply::{Reply, refusal};
use redis_lock_core::queue::WaiterId;
use redis_lock_core::request::ClientId;
use redis_lock_core::table::{Answer, WaitEnd};

enum State {
    Waiting,
    Answered(Answer),
    /// A grant is in the output buffer of its client.
    Buffered,
    Gone,
}

/// One blocked client.
struct Ticket {
    id: WaiterId,
    client: ClientId,
    /// Null once the server has freed it.
    handle: Cell<*mut raw::RedisModuleBlockedClient>,
    state: RefCell<State>,
}

thread_local! {
    /// The clients that wait for an answer, or to be told it.
    static TICKETS: RefCell<BTreeMap<WaiterId, Rc<Ticket>>> = const { RefCell::new(BTreeMap::new()) };

    /// The clients that were answered and are still to be woken.
    static ANSWERED: RefCell<Vec<Rc<Ticket>>> = const { RefCell::new(Vec::new()) };
}

/// Returns whether a reply to a blocked client is in its buffer as soon as it is written.
fn replies_are_sent_early() -> bool {
    registration::server_version() < (7, 2)
}

/// Returns whether the client that runs this command can be blocked. In a
/// transaction or a script it can't.
pub(crate) fn may_block(ctx: &Context) -> bool {
    !ctx.get_flags().contains(ContextFlags::DENY_BLOCKING)
}

/// Blocks the client that runs this command until [`answer`] is called for this
/// waiter, the timeout, unless it is 0, is over or the client goes away. In the latter
/// cases the hooks hear of it. If the server refuses to block the client, its wait is
/// over at once.
///
/// The caller has checked [`may_block`], and gives no two waiters the same id.
pub(crate) fn block(key: LockKey<'_>, waiter: WaiterId, timeout_ms: i64) {
    let ticket = Rc::new(Ticket {
        id: waiter,
        client: clients::running(key.ctx()),
        handle: Cell::new(ptr::null_mut()),
        state: RefCell::new(State::Waiting),
    });
    let private_data = Rc::into_raw(Rc::clone(&ticket)).cast_mut().cast::<c_void>();
    let mut names = [key.name().inner()];
    // SAFETY: the context is that of a running command. The server keeps
    // `private_data` and gives it to the callbacks, `on_free` last, which takes
    // the reference back, unless it refuses to block the client. It only reads the
    // names, and during the call.
    unsafe {
        let handle = api!(block_client_on_keys)(
            key.ctx().ctx,
            Some(on_signal),
            Some(on_timeout),
            Some(on_free),
            timeout_ms,
            names.as_mut_ptr(),
            1,
            private_data,
        );
        if handle.is_null() {
            // Valkey 8.1.1 and later block no client that has subscribed to a channel.
            drop(Rc::from_raw(private_data.cast_const().cast::<Ticket>()));
            let told = ticket.leave(key.ctx(), WaitEnd::TimeUp);
            ticket.reply(key.ctx(), &told);
            return;
        }
        api!(set_disconnect_callback)(handle, Some(on_disconnect));
        ticket.handle.set(handle);
    }
    TICKETS.with_borrow_mut(|tickets| tickets.insert(waiter, ticket));
}

/// Answers a waiter that nobody has told anything yet. [`wake_answered`] wakes it at the end
/// of the command or timer that runs.
pub(crate) fn answer(waiter: WaiterId, answer: Answer) {
    let ticket = TICKETS.with_borrow(|tickets| tickets.get(&waiter).cloned());
    if let Some(ticket) = ticket
        && let State::Waiting = ticket.state.replace(State::Answered(answer))
    {
        ANSWERED.with_borrow_mut(|answered| answered.push(ticket));
    }
}

/// Wakes the clients that were answered. The timeout callbacks may run before
/// this returns, so nothing of the module's state may be borrowed meanwhile.
///
/// The server writes the replies of one turn newest first. So a command calls this after
/// its own reply: the new holder shall not wait until the old one has been told. And the
/// first in line is woken last.
pub(crate) fn wake_answered() {
    while let Some(ticket) = ANSWERED.with_borrow_mut(Vec::pop) {
        ticket.wake();
    }
}

impl Ticket {
    fn wake(&self) {
        let handle = self.handle.get();
        if !handle.is_null() {
            // SAFETY: the handle is valid, since `on_free` has not run yet.
            unsafe { api!(unblock_client)(handle, ptr::null_mut()) };
        }
    }

    /// Takes what the client is to be told. Nobody can answer it any more.
    fn take_state(&self) -> State {
        // A later request may have its position, and so its name.
        let is_it = |one: &Rc<Self>| ptr::eq(&**one, self);
        TICKETS.with_borrow_mut(|tickets| {
            if tickets.get(&self.id).is_some_and(is_it) {
                tickets.remove(&self.id);
            }
        });
        self.state.replace(State::Gone)
    }

    fn leave(&self, ctx: &Context, leave: WaitEnd) -> Answer {
        self.take_state();
        let told = (hooks().waiter_left)(ctx, self.id, leave);
        told.unwrap_or(Answer::NotGranted)
    }

    fn reply(&self, ctx: &Context, answer: &Answer) {
        match answer {
            Answer::Granted(token) => Reply::Integer(token.get()).send(ctx),
            Answer::NotGranted => Reply::Null.send(ctx),
            Answer::Renewed(renewed) => Reply::Integer((*renewed).into()).send(ctx),
            Answer::Refused(error) => {
                ctx.reply(Err(refusal(ctx, error, || User::of(ctx, self.client))));
            }
        }
    }
}

/// Returns whether the answer tells of a hold or a longer lease.
fn is_grant(answer: &Answer) -> bool {
    matches!(answer, Answer::Granted(_) | Answer::Renewed(true))
}

/// The ticket of the blocked client that a callback is about.
///
/// # Safety
/// `ctx` must be the context of a callback of a client that [`block`] blocked,
/// and the ticket must not be used after that callback.
unsafe fn ticket_of<'t>(ctx: *mut raw::RedisModuleCtx) -> Option<&'t Ticket> {
    // SAFETY: the private data is the reference that `block` gave away and that
    // `on_free` has not taken back yet.
    unsafe {
        api!(get_blocked_client_private_data)(ctx)
            .cast::<Ticket>()
            .as_ref()
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
    panics::catch("the reply to a waiter", || {
        // SAFETY: the server calls this for a client that `block` blocked.
        let Some(ticket) = (unsafe { ticket_of(ctx) }) else {
            return;
        };
        let ctx = Context::new(ctx);
        match ticket.take_state() {
            State::Waiting => {
                let told = ticket.leave(&ctx, WaitEnd::TimeUp);
                ticket.reply(&ctx, &told);
            }
            State::Answered(answer) => {
                ticket.reply(&ctx, &answer);
                if !is_grant(&answer) {
                    return;
                }
                if replies_are_sent_early() {
                    (hooks().grant_told)(&ctx, ticket.id, true);
                } else {
                    (hooks().grant_said)(ticket.id);
                    ticket.state.replace(State::Buffered);
                }
            }
            buffered_or_gone => drop(ticket.state.replace(buffered_or_gone)),
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
    panics::catch("the end of a waiter", || {
        // SAFETY: the server calls this for a client that `block` blocked.
        let Some(ticket) = (unsafe { ticket_of(ctx) }) else {
            return;
        };
        let waiting = matches!(*ticket.state.borrow(), State::Waiting);
        if waiting {
            ticket.leave(&Context::new(ctx), WaitEnd::Gone);
        }
    });
}

unsafe extern "C" fn on_free(ctx: *mut raw::RedisModuleCtx, private_data: *mut c_void) {
    panics::catch("the release of a waiter", || {
        // SAFETY: `block` gave this reference away; the server calls this once
        // for it.
        let ticket = unsafe { Rc::from_raw(private_data.cast_const().cast::<Ticket>()) };
        ticket.handle.set(ptr::null_mut());
        // SAFETY: the context is alive.
        let client_gone = unsafe { api!(blocked_client_disconnected)(ctx) != 0 };
        let heard = match ticket.take_state() {
            State::Answered(answer) if is_grant(&answer) => false,
            State::Buffered => !client_gone,
            _ => return,
        };
        (hooks().grant_told)(&Context::new(ctx), ticket.id, heard);
    });
}
