//! Keys, databases, and whether this server may write.

use std::sync::OnceLock;

use crc::{CRC_16_XMODEM, Crc};
use redis_module::{CallOptionsBuilder, CallResult, Context, ContextFlags};

use crate::server::api::api;
use crate::server::server_str::{self, ServerStr};
use redis_lock_core::keys::KeyRef;
use redis_lock_core::table::NotNow;

/// Part of the server's error for a key whose slot it does not serve.
const NON_LOCAL: &str = "non local key";

/// A lock's key, named within the database that the context has selected.
#[derive(Clone, Copy)]
pub(crate) struct LockKey<'c> {
    ctx: &'c Context,
    name: ServerStr<'c>,
    key: KeyRef<'c>,
    owner: Option<ServerStr<'c>>,
}

impl<'c> LockKey<'c> {
    /// The key of this name in the database that the context has selected.
    pub(crate) fn new(ctx: &'c Context, name: ServerStr<'c>) -> Self {
        Self {
            ctx,
            name,
            key: KeyRef {
                db: selected_db(ctx),
                name: name.bytes(),
            },
            owner: None,
        }
    }

    /// The same key in a command that names this owner. Its string then serves to
    /// read and write the owner's field.
    pub(crate) fn with_owner(self, owner: ServerStr<'c>) -> Self {
        Self {
            owner: Some(owner),
            ..self
        }
    }

    /// The context in which the key is used.
    pub(crate) fn ctx(&self) -> &'c Context {
        self.ctx
    }

    /// The name as a server string.
    pub(crate) fn name(&self) -> ServerStr<'c> {
        self.name
    }

    /// The owner that the command names.
    pub(crate) fn owner(&self) -> Option<ServerStr<'c>> {
        self.owner
    }

    /// The key as the core names it.
    pub(crate) const fn as_ref(&self) -> KeyRef<'c> {
        self.key
    }

    /// Why no command may write to this key now, if none may. That holds for every key if too
    /// few replicas are connected (`min-replicas-to-write`), the disk had an error (`MISCONF`),
    /// or the cluster is down. The server does not check what the module writes by itself.
    pub(crate) fn why_not_writable(&self) -> Option<NotNow> {
        // A write that changes nothing: `GT` sets an expiry only where it is later
        // than the present one, and 1970 never is.
        const PAST: &[u8] = b"1";
        let options = CallOptionsBuilder::new()
            .script_mode()
            .errors_as_replies()
            .build();
        let args = [self.name.bytes(), PAST, b"GT".as_slice()];
        let reply: CallResult<'_> = self.ctx.call_ext("PEXPIREAT", &options, &args);
        let error = reply.err()?;
        match String::from_utf8_lossy(error.as_bytes()).contains(NON_LOCAL) {
            true => Some(NotNow::NotServedHere),
            false => Some(NotNow::Refused),
        }
    }
}

/// Lets `body` use the key of this name in the database that the context has
/// selected.
pub(crate) fn with_named<R>(ctx: &Context, name: &[u8], body: impl FnOnce(LockKey<'_>) -> R) -> R {
    let name = server_str::make(name);
    body(LockKey::new(ctx, ServerStr::from(&name)))
}

/// The database that the context has selected.
pub(crate) fn selected_db(ctx: &Context) -> i32 {
    // SAFETY: the context is alive.
    unsafe { api!(get_selected_db)(ctx.ctx) }
}

/// Selects a database in a context of our own, such as that of a timer.
pub(crate) fn select_db(ctx: &Context, db: i32) {
    // SAFETY: the context is alive. The number came from the server, so the
    // database exists.
    unsafe { api!(select_db)(ctx.ctx, db) };
}

/// Returns whether this server is part of a cluster, which never changes.
pub(crate) fn in_cluster(ctx: &Context) -> bool {
    static IN_CLUSTER: OnceLock<bool> = OnceLock::new();
    *IN_CLUSTER.get_or_init(|| ctx.get_flags().contains(ContextFlags::CLUSTER))
}

/// Returns whether the slot of this key, in a cluster, is that of this channel.
pub(crate) fn is_in_slot_of(key: LockKey<'_>, channel: &[u8]) -> bool {
    slot_of(key.name().bytes()) == slot_of(channel)
}

/// The slot of a name: of what is between its first braces, if it has some.
fn slot_of(name: &[u8]) -> u16 {
    const CHECKSUM: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);
    const SLOTS: u16 = 16384;
    let tag = || {
        let rest = name.splitn(2, |byte| *byte == b'{').nth(1)?;
        let end = rest.iter().position(|byte| *byte == b'}')?;
        rest.get(..end).filter(|tag| !tag.is_empty())
    };
    CHECKSUM.checksum(tag().unwrap_or(name)) % SLOTS
}

/// Returns whether a command without keys can read a key of any slot. While a
/// command runs on a node of a cluster, Redis 7.2 and later look every key up in
/// that command's slot: a command without keys has none by itself, but has that of
/// the others in a transaction or a script.
pub(crate) fn any_slot_is_readable(ctx: &Context) -> bool {
    !in_cluster(ctx)
        || !ctx
            .get_flags()
            .intersects(ContextFlags::MULTI | ContextFlags::LUA)
}

/// Returns whether a write outside of a client's command must wait: this server is
/// a replica, or it has promised its replicas silence (`CLIENT PAUSE`,
/// `FAILOVER`), during which such a write would bring it down.
pub(crate) fn must_not_write(ctx: &Context) -> bool {
    is_replica(ctx) || is_silence_promised()
}

/// Returns whether an expired key may look absent while it is still there, so that nothing
/// may be written in its place. That happens only within a transaction that itself paused
/// writes or made the server a replica.
pub(crate) fn hides_expired(ctx: &Context, is_replica: bool) -> bool {
    is_silence_promised() || is_replica && ctx.get_flags().contains(ContextFlags::READONLY)
}

fn is_silence_promised() -> bool {
    // SAFETY: the function takes no arguments.
    unsafe { api!(avoid_replica_traffic)() != 0 }
}

/// Returns whether this server is a replica.
pub(crate) fn is_replica(ctx: &Context) -> bool {
    !ctx.get_flags().contains(ContextFlags::MASTER)
}

#[cfg(test)]
mod tests {
    use super::slot_of;

    #[test]
    fn the_slot_of_a_name_is_that_of_its_tag() {
        for (name, slot) in [
            (&b"123456789"[..], 12739),
            (b"foo", 12182),
            (b"x{foo}y", 12182),
            (b"x{foo}{bar}", 12182),
            (b"{}foo", 9500),
            (b"foo{bar", 15278),
            (b"}x{a}", 15495),
            (b"{{b}}", 6215),
            (b"", 0),
        ] {
            assert_eq!(slot_of(name), slot, "{}", name.escape_ascii());
        }
    }
}
