//! What this floor tells the one above, registered once while the module loads.
//!
//! The floor above fills in [`Hooks`], so that this one need not know it.

use std::process::abort;
use std::sync::OnceLock;

use redis_module::Context;

use crate::server::server_str::ServerStr;
use redis_lock_core::queue::WaiterId;
use redis_lock_core::request::ClientId;
use redis_lock_core::table::{Answer, WaitEnd};

/// The functions that receive what happens.
///
/// # Which of them may write
/// - [`Hooks::on_wake`] runs in a timer of the server, and alone may write to the
///   keyspace.
/// - [`Hooks::turn_ends`] may read keys, and propagate what changes nothing.
/// - All others run while the server does something else. What is written within an event
///   on a key goes to the replicas before the command that caused it, so they would come
///   to differ; the end of a connection, a flush and a swap allow no writes. They note
///   what happened, and ask for a wake-up.
pub(crate) struct Hooks {
    /// This happened to the key of this name. It is called at every write to the server,
    /// so it must see soon whether the event matters.
    pub(crate) key_event: fn(&Context, &[u8], ServerStr<'_>),

    /// Any key may have changed: databases were flushed, or changed places.
    pub(crate) everything_touched: fn(&Context),

    /// The connection of this client has ended.
    pub(crate) connection_ended: fn(&Context, ClientId),

    /// A waiter without an answer does not wait any more. Returns what it is to be told,
    /// if it is anything but that it was not granted the lock.
    pub(crate) waiter_left: fn(&Context, WaiterId, WaitEnd) -> Option<Answer>,

    /// A replica has come or gone.
    pub(crate) replicas_changed: fn(&Context),

    /// A turn of the event loop ends. What is propagated now is sent with what was written
    /// in this turn.
    pub(crate) turn_ends: fn(&Context),

    /// A grant is in the output buffer of its client, and an error may yet take its place.
    pub(crate) grant_said: fn(WaiterId),

    /// A waiter was answered with a grant. Its client has heard of it, if this is true, or
    /// else never will.
    pub(crate) grant_told: fn(&Context, WaiterId, bool),

    /// The server's cron runs, this many times a second.
    pub(crate) on_cron: fn(&Context, i32),

    /// The time has come that the floor above asked for with `timer::wake_by`.
    pub(crate) on_wake: fn(&Context),
}

static HOOKS: OnceLock<&'static Hooks> = OnceLock::new();

/// Registers the hooks. It comes before anything that could call one of them. A
/// module that is loaded again has the same ones.
pub(crate) fn register(hooks: &'static Hooks) {
    HOOKS.get_or_init(|| hooks);
}

/// The registered hooks.
#[inline]
pub(super) fn hooks() -> &'static Hooks {
    // Without hooks no callback is registered either.
    HOOKS.get().unwrap_or_else(|| abort())
}
