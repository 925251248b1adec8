//! Keys, databases, and whether this server may write.

use std::ffi::c_int;

use redis_module::{CallOptionsBuilder, CallResult, Context, ContextFlags, raw};

use crate::lock::waiters::KeyRef;
use crate::server::open_lock::OpenLock;
use crate::server::word::{self, Word};

/// Whether the module may write to a key by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteAnswer {
    /// It may.
    Allowed,
    /// No key may be written now: too few replicas are connected
    /// (`min-replicas-to-write`), the disk had an error (`MISCONF`), or the cluster
    /// is down.
    Refused,
    /// In a cluster, the key's slot belongs to another node, or is on its way
    /// there and the key is not here.
    NotServedHere,
}

/// What the server says of a key whose slot it does not serve.
const NON_LOCAL: &str = "non local key";

/// A lock's key, named within the database that the context has selected.
#[derive(Clone, Copy)]
pub(crate) struct LockKey<'c> {
    ctx: &'c Context,
    name: Word<'c>,
    key: KeyRef<'c>,
    owner: Option<Word<'c>>,
}

impl<'c> LockKey<'c> {
    /// The key of this name in the database that the context has selected.
    pub(crate) fn new(ctx: &'c Context, name: Word<'c>) -> Self {
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

    /// The same key in a command of this owner, whose word then serves to read
    /// and write its field.
    pub(crate) fn with_owner(self, owner: Word<'c>) -> Self {
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
    pub(crate) fn name(&self) -> Word<'c> {
        self.name
    }

    /// The owner that the command names.
    pub(crate) fn owner(&self) -> Option<Word<'c>> {
        self.owner
    }

    /// The key as the core names it.
    pub(crate) const fn as_ref(&self) -> KeyRef<'c> {
        self.key
    }

    /// What the server would say of a command that writes to this key. What the
    /// module writes by itself it does not check.
    pub(crate) fn asks_for_a_write(&self) -> WriteAnswer {
        // A write that changes nothing: `GT` sets an expiry only where it is later
        // than the present one, and 1970 never is.
        const PAST: &[u8] = b"1";
        let options = CallOptionsBuilder::new()
            .script_mode()
            .errors_as_replies()
            .build();
        let args = [self.name.bytes(), PAST, b"GT".as_slice()];
        let reply: CallResult<'_> = self.ctx.call_ext("PEXPIREAT", &options, &args);
        match reply {
            Ok(_) => WriteAnswer::Allowed,
            Err(error) if String::from_utf8_lossy(error.as_bytes()).contains(NON_LOCAL) => {
                WriteAnswer::NotServedHere
            }
            Err(_) => WriteAnswer::Refused,
        }
    }

    /// The key of another name, maybe in another database, while `body` uses it.
    pub(crate) fn with_other<R>(
        &self,
        other: KeyRef<'_>,
        body: impl FnOnce(LockKey<'_>) -> R,
    ) -> R {
        let selected = selected_db(self.ctx);
        select_db(self.ctx, other.db);
        let result = with_named(self.ctx, other.name, body);
        select_db(self.ctx, selected);
        result
    }

    /// Opens the key. If its expiry has passed, the server deletes it now,
    /// propagates that, and tells every subscriber, this module included; so
    /// nothing of the module's state may be borrowed meanwhile.
    pub(crate) fn open(&self) -> OpenLock<'c> {
        OpenLock::new(*self, raw::REDISMODULE_READ | raw::REDISMODULE_WRITE)
    }

    /// Opens the key where nothing will be written, which a replica can do too.
    pub(crate) fn open_to_read(&self) -> OpenLock<'c> {
        OpenLock::new(*self, raw::REDISMODULE_READ)
    }
}

/// The key of this name in the database that the context has selected, while
/// `body` uses it.
pub(crate) fn with_named<R>(ctx: &Context, name: &[u8], body: impl FnOnce(LockKey<'_>) -> R) -> R {
    let name = word::make(name);
    body(LockKey::new(ctx, Word::from(&name)))
}

/// The database that the context has selected.
pub(crate) fn selected_db(ctx: &Context) -> i32 {
    // SAFETY: every context that the server hands out can be asked this.
    unsafe { raw::RedisModule_GetSelectedDb.map_or(0, |selected| selected(ctx.ctx)) }
}

/// Selects a database in a context of our own, such as that of a timer.
pub(crate) fn select_db(ctx: &Context, db: i32) {
    if let Some(select) = raw_select_db() {
        // SAFETY: as in `selected_db`. The number came from the server, so the
        // database exists.
        unsafe { select(ctx.ctx, db) };
    }
}

fn raw_select_db() -> Option<unsafe extern "C" fn(*mut raw::RedisModuleCtx, c_int) -> c_int> {
    // SAFETY: the API table is filled once, while the module loads.
    unsafe { raw::RedisModule_SelectDb }
}

/// Whether this server is part of a cluster.
pub(crate) fn in_cluster(ctx: &Context) -> bool {
    ctx.get_flags().contains(ContextFlags::CLUSTER)
}

/// Whether a command without keys can read a key of any slot. While a command of a
/// cluster's node runs, Redis 7.2 and later look every key up in that command's
/// slot: alone such a command has none, in a transaction or a script it has that of
/// the others.
pub(crate) fn any_slot_is_readable(ctx: &Context) -> bool {
    let flags = ctx.get_flags();
    !flags.contains(ContextFlags::CLUSTER)
        || !flags.intersects(ContextFlags::MULTI | ContextFlags::LUA)
}

/// Whether a script or a function runs.
pub(crate) fn script_runs(ctx: &Context) -> bool {
    ctx.get_flags().contains(ContextFlags::LUA)
}

/// Whether a write outside of a client's command must wait: this server is a
/// replica, or it has promised its replicas silence (`CLIENT PAUSE`,
/// `FAILOVER`), during which such a write would bring it down.
pub(crate) fn must_not_write(ctx: &Context) -> bool {
    // SAFETY: a question without arguments.
    is_replica(ctx)
        || unsafe { raw::RedisModule_AvoidReplicaTraffic.is_some_and(|avoid| avoid() != 0) }
}

/// Whether this server is a replica.
pub(crate) fn is_replica(ctx: &Context) -> bool {
    // SAFETY: asks for server-wide state and takes no pointer but the context.
    unsafe {
        let flags = raw::RedisModule_GetContextFlags.map_or(0, |flags| flags(ctx.ctx));
        flags & raw::REDISMODULE_CTX_FLAGS_MASTER as c_int == 0
    }
}
