//! What this floor tells the one above, registered once while the module loads.
//!
//! The floor above implements [`Hooks`], so that this one need not know it.

use std::process::abort;
use std::sync::OnceLock;

use redis_module::Context;

use redis_lock_core::keys::KeyRef;
use redis_lock_core::queue::WaiterId;
use redis_lock_core::request::ClientId;
use redis_lock_core::table::{Answer, Leave};

/// Receives what happens.
///
/// # Which of them may write
/// - [`Hooks::on_wake`] runs in a timer of the server, and alone may write to the
///   keyspace.
/// - [`Hooks::turn_ends`] may read keys, and propagate what changes nothing.
/// - All others run while the server does something else. What is written within an event
///   on a key goes to the replicas before the command that caused it, so they would come
///   to differ; the end of a connection, a flush and a swap allow no writes. They note
///   what happened, and ask for a wake-up.
pub(crate) trait Hooks: Sync {
    /// Returns whether an event on a key can be of interest now. It is asked at
    /// every write to the server, so it must be cheap.
    fn awake(&self) -> bool;

    /// Returns whether the data is that of another server, or of this one before it
    /// was started. Asked as often.
    fn receives(&self) -> bool;

    /// This key has been received, or some of its fields.
    fn key_received(&self, ctx: &Context, key: KeyRef<'_>);

    /// Something happened to this key.
    fn key_touched(&self, ctx: &Context, key: KeyRef<'_>);

    /// The server has expired this key.
    fn key_expired(&self, ctx: &Context, key: KeyRef<'_>);

    /// A key is about to get another name, or to move to another database.
    /// [`Hooks::key_arrives`] follows.
    fn key_leaves(&self, ctx: &Context, key: KeyRef<'_>);

    /// The key that left is now this one.
    fn key_arrives(&self, ctx: &Context, key: KeyRef<'_>);

    /// A database was flushed, or all of them.
    fn flushed(&self, ctx: &Context, db: Option<i32>);

    /// Two databases changed places.
    fn databases_swapped(&self, ctx: &Context, one: i32, other: i32);

    /// The connection of this client has ended.
    fn connection_ended(&self, ctx: &Context, client: ClientId);

    /// A waiter that nobody has answered does not wait any more. Returns what it is to
    /// be told, if it is anything but that it was not granted the lock.
    fn waiter_left(&self, ctx: &Context, waiter: WaiterId, leave: Leave) -> Option<Answer>;

    /// Returns whether anything waits for replicas. It is asked in each turn of the
    /// event loop.
    fn awaits_replicas(&self) -> bool;

    /// A replica has come or gone.
    fn replicas_changed(&self, ctx: &Context);

    /// A turn of the event loop ends, and something waits for replicas. What is
    /// propagated now is sent with what was written in this turn.
    fn turn_ends(&self, ctx: &Context);

    /// A client that was answered with a grant has been told so, or never will be.
    fn grant_told(&self, ctx: &Context, client: ClientId, heard: bool);

    /// The server's cron runs, this many times a second.
    fn on_cron(&self, ctx: &Context, hz: i32);

    /// The time has come that the floor above asked for with `timer::wake_by`.
    fn on_wake(&self, ctx: &Context);
}

static HOOKS: OnceLock<&'static dyn Hooks> = OnceLock::new();

/// Registers the hooks. It comes before anything that could call one of them. A
/// module that is loaded again has the same ones.
pub(crate) fn register(hooks: &'static dyn Hooks) {
    HOOKS.get_or_init(|| hooks);
}

/// The registered hooks.
#[inline]
pub(super) fn hooks() -> &'static dyn Hooks {
    match HOOKS.get() {
        Some(hooks) => *hooks,
        None => not_registered(),
    }
}

/// Without hooks no callback is registered either.
#[cold]
fn not_registered() -> ! {
    abort()
}
