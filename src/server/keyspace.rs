//! Reads the stored hash of a lock, writes it and propagates what was written.

use std::ffi::{c_char, c_int, c_longlong, c_void};
use std::marker::PhantomData;
use std::ptr;

use redis_module::{Context, ContextFlags, RedisString, RedisValue, raw};

use crate::error::LockError;
use crate::lock::record::{Effect, FENCE_FIELD, FIELDS_MAX, Lock};
use crate::lock::waiters::KeyRef;

/// A lock's key, named within the database that the context has selected.
#[derive(Clone, Copy)]
pub(crate) struct LockKey<'c> {
    ctx: &'c Context,
    name: &'c RedisString,
}

impl<'c> LockKey<'c> {
    /// The key of this name in the database that the context has selected.
    pub(crate) fn new(ctx: &'c Context, name: &'c RedisString) -> Self {
        Self { ctx, name }
    }

    /// The context in which the key is used.
    pub(crate) fn ctx(&self) -> &'c Context {
        self.ctx
    }

    /// The name as a server string.
    pub(crate) fn name(&self) -> &'c RedisString {
        self.name
    }

    /// The key as the core names it.
    pub(crate) fn as_ref(&self) -> KeyRef<'c> {
        KeyRef {
            db: selected_db(self.ctx),
            name: self.name.as_slice(),
        }
    }

    /// Whether this server is the one to ask for the key. In a cluster it is
    /// not if the slot belongs to another node, nor if the slot is on its way
    /// there and the key is not here. Commands have been checked for that
    /// before they run; what the module does by itself has not.
    pub(crate) fn is_served_here(&self) -> bool {
        !self.ctx.get_flags().contains(ContextFlags::CLUSTER)
            || matches!(
                self.ctx.call("EXISTS", &[self.name]),
                Ok(RedisValue::Integer(_))
            )
    }

    /// Opens the key. If its expiry has passed, the server deletes it now,
    /// propagates that, and tells every subscriber, this module included; so
    /// nothing of the module's state may be borrowed meanwhile.
    pub(crate) fn open(&self) -> OpenLock<'c> {
        let mode = raw::REDISMODULE_READ | raw::REDISMODULE_WRITE;
        // SAFETY: the context and the name are alive for 'c, and the handle is
        // closed by `OpenLock::drop` before either ends.
        let handle = unsafe {
            raw::RedisModule_OpenKey.map_or(ptr::null_mut(), |open| {
                open(self.ctx.ctx, self.name.inner, mode as c_int)
            })
        };
        OpenLock {
            key: *self,
            handle: handle.cast(),
            _main_thread_only: PhantomData,
        }
    }
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
    // SAFETY: both ask for server-wide state and take no pointers but the context.
    unsafe {
        let flags = raw::RedisModule_GetContextFlags.map_or(0, |flags| flags(ctx.ctx));
        let primary = flags & raw::REDISMODULE_CTX_FLAGS_MASTER as c_int != 0;
        let silence = raw::RedisModule_AvoidReplicaTraffic.is_some_and(|avoid| avoid() != 0);
        !primary || silence
    }
}

/// An open key.
pub(crate) struct OpenLock<'c> {
    key: LockKey<'c>,
    handle: *mut raw::RedisModuleKey,
    _main_thread_only: PhantomData<*const ()>,
}

impl OpenLock<'_> {
    /// Reads what is stored.
    pub(crate) fn read(&self) -> Result<Lock, LockError> {
        // SAFETY: `handle` is open, or null for no such key, which the call accepts.
        let kind = unsafe { raw::RedisModule_KeyType.map_or(0, |kind| kind(self.handle)) };
        if kind == raw::REDISMODULE_KEYTYPE_EMPTY as c_int {
            return Ok(Lock::Free { last_fence: None });
        }
        if kind != raw::REDISMODULE_KEYTYPE_HASH as c_int {
            return Err(LockError::WrongType);
        }
        // SAFETY: `handle` is open on a key that exists. Redis 8.2 crashes if
        // the expiry of any other is asked for.
        let (fields, expires_at_ms) = unsafe {
            (
                raw::RedisModule_ValueLength.map_or(0, |length| length(self.handle)),
                raw::RedisModule_GetAbsExpire
                    .map_or(i64::from(raw::REDISMODULE_NO_EXPIRE), |expire| {
                        expire(self.handle)
                    }),
            )
        };
        if fields > FIELDS_MAX {
            return Err(LockError::NotALock);
        }
        let expires_at_ms = (expires_at_ms >= 0).then_some(expires_at_ms);
        let fields = self.read_fields();
        let fields = fields
            .iter()
            .map(|(name, value)| (name.as_slice(), value.as_slice()));
        Lock::from_fields(fields, expires_at_ms)
    }

    fn read_fields(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        unsafe extern "C" fn collect(
            _key: *mut raw::RedisModuleKey,
            field: *mut raw::RedisModuleString,
            value: *mut raw::RedisModuleString,
            fields: *mut c_void,
        ) {
            // SAFETY: `fields` is the vector that the caller below passed, and
            // the server calls this only within that call, with live strings.
            let fields = unsafe { &mut *fields.cast::<Vec<(Vec<u8>, Vec<u8>)>>() };
            fields.push((
                RedisString::string_as_slice(field).to_vec(),
                RedisString::string_as_slice(value).to_vec(),
            ));
        }

        let mut fields: Vec<(Vec<u8>, Vec<u8>)> = Vec::with_capacity(FIELDS_MAX);
        // SAFETY: the cursor lives from its creation to its destruction here,
        // the handle is open on a hash, and `collect` gets the type it expects.
        unsafe {
            let (Some(create), Some(scan), Some(destroy)) = (
                raw::RedisModule_ScanCursorCreate,
                raw::RedisModule_ScanKey,
                raw::RedisModule_ScanCursorDestroy,
            ) else {
                return fields;
            };
            let cursor = create();
            let into: *mut c_void = ptr::from_mut(&mut fields).cast();
            while scan(self.handle, cursor, Some(collect), into) != 0 {}
            destroy(cursor);
        }
        fields
    }

    /// Applies the effects here and hands the same to replicas and AOF as core
    /// commands. The server makes one transaction of all that one command or
    /// one timer propagates.
    pub(crate) fn apply(&mut self, effects: &[Effect]) {
        if effects.is_empty() {
            return;
        }
        for effect in effects {
            match effect {
                Effect::SetHolder {
                    owner,
                    holds,
                    new_fence,
                } => {
                    self.set_field(owner.as_bytes(), *holds);
                    if let Some(fence) = new_fence {
                        self.set_field(FENCE_FIELD, fence.get());
                    }
                    self.propagate_set_holder(
                        owner.as_bytes(),
                        *holds,
                        new_fence.map(|fence| fence.get()),
                    );
                }
                Effect::ExpireAt { at_ms } => self.expire_at(*at_ms),
                Effect::Delete => self.delete(),
            }
        }
        // The module asked the server not to signal by itself, so that a key
        // that was only looked at does not fail anybody's WATCH.
        // SAFETY: the context and the name are alive.
        unsafe {
            if let Some(signal) = raw::RedisModule_SignalModifiedKey {
                signal(self.key.ctx.ctx, self.key.name.inner);
            }
        }
    }

    fn set_field(&mut self, field: &[u8], value: i64) {
        let field = RedisString::create_from_slice(ptr::null_mut(), field);
        let value = RedisString::create_from_slice(ptr::null_mut(), value.to_string().as_bytes());
        // SAFETY: the handle is open for writing on a hash or on no key, the
        // strings live through the call, and a null ends the list.
        unsafe {
            if let Some(hash_set) = raw::RedisModule_HashSet {
                hash_set(
                    self.handle,
                    raw::REDISMODULE_HASH_NONE as c_int,
                    field.inner,
                    value.inner,
                    ptr::null_mut::<c_void>(),
                );
            }
        }
    }

    fn propagate_set_holder(&self, owner: &[u8], holds: i64, fence: Option<i64>) {
        let owner_ptr = owner.as_ptr().cast::<c_char>();
        // SAFETY: each letter of the format is matched by its arguments: s a
        // server string, b a buffer and its length, l a long long, c a C string.
        unsafe {
            let Some(replicate) = raw::RedisModule_Replicate else {
                return;
            };
            let (ctx, name) = (self.key.ctx.ctx, self.key.name.inner);
            match fence {
                Some(fence) => replicate(
                    ctx,
                    c"HSET".as_ptr(),
                    c"sblbl".as_ptr(),
                    name,
                    owner_ptr,
                    owner.len(),
                    holds as c_longlong,
                    FENCE_FIELD.as_ptr().cast::<c_char>(),
                    FENCE_FIELD.len(),
                    fence as c_longlong,
                ),
                None => replicate(
                    ctx,
                    c"HSET".as_ptr(),
                    c"sbl".as_ptr(),
                    name,
                    owner_ptr,
                    owner.len(),
                    holds as c_longlong,
                ),
            };
        }
    }

    fn expire_at(&mut self, at_ms: i64) {
        // SAFETY: as in `set_field` and `propagate_set_holder`.
        unsafe {
            if let (Some(set_expire), Some(replicate)) =
                (raw::RedisModule_SetAbsExpire, raw::RedisModule_Replicate)
            {
                set_expire(self.handle, at_ms);
                replicate(
                    self.key.ctx.ctx,
                    c"PEXPIREAT".as_ptr(),
                    c"sl".as_ptr(),
                    self.key.name.inner,
                    at_ms as c_longlong,
                );
            }
        }
    }

    fn delete(&mut self) {
        // SAFETY: as in `set_field` and `propagate_set_holder`. The handle
        // stays open, on no key, and may be written to again.
        unsafe {
            if let (Some(delete), Some(replicate)) =
                (raw::RedisModule_DeleteKey, raw::RedisModule_Replicate)
            {
                delete(self.handle);
                replicate(
                    self.key.ctx.ctx,
                    c"DEL".as_ptr(),
                    c"s".as_ptr(),
                    self.key.name.inner,
                );
            }
        }
    }
}

impl Drop for OpenLock<'_> {
    fn drop(&mut self) {
        if self.handle.is_null() {
            return;
        }
        // SAFETY: opened by `LockKey::open`, closed only here.
        unsafe {
            if let Some(close) = raw::RedisModule_CloseKey {
                close(self.handle);
            }
        }
    }
}
