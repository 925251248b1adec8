//! Keys, databases, and whether this server may write.

use std::ffi::c_int;

use redis_module::{CallOptionsBuilder, CallReply, CallResult, Context, ContextFlags, raw};

use crate::lock::waiters::KeyRef;
use crate::server::open_lock::OpenLock;
use crate::server::word::{self, Word};

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

    /// Whether this server is the one to ask for the key. In a cluster it is
    /// not if the slot belongs to another node, nor if the slot is on its way
    /// there and the key is not here. Commands have been checked for that
    /// before they run; what the module does by itself has not.
    pub(crate) fn is_served_here(&self) -> bool {
        !self.ctx.get_flags().contains(ContextFlags::CLUSTER) || self.may_ask_if_exists()
    }

    fn may_ask_if_exists(&self) -> bool {
        let options = CallOptionsBuilder::new().build();
        let reply: CallResult<'_> = self.ctx.call_ext("EXISTS", &options, &[self.name.bytes()]);
        // A refusal is not always an error: it may be no reply at all.
        matches!(reply, Ok(CallReply::I64(_)))
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
