//! Reads the stored hash of a lock, writes it and propagates what was written.

use std::ffi::{CStr, c_int, c_longlong, c_void};
use std::marker::PhantomData;
use std::ptr;

use redis_module::{Context, ContextFlags, RedisString, RedisValue, raw};
use smallvec::SmallVec;

use crate::error::LockError;
use crate::lock::record::{Effect, Lock};
use crate::lock::stored::{FENCE_FIELD, FIELDS_WITHOUT_FENCE_MAX, PERMIT_PREFIX, Reader};
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

    /// The key of another name, maybe in another database, while `body` uses it.
    pub(crate) fn with_other<R>(
        &self,
        other: KeyRef<'_>,
        body: impl FnOnce(LockKey<'_>) -> R,
    ) -> R {
        let selected = selected_db(self.ctx);
        select_db(self.ctx, other.db);
        let name = RedisString::create_from_slice(ptr::null_mut(), other.name);
        let result = body(LockKey::new(self.ctx, &name));
        select_db(self.ctx, selected);
        result
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
            return Ok(Lock::default());
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
        if fields > FIELDS_WITHOUT_FENCE_MAX && !self.has_field(FENCE_FIELD) {
            return Err(LockError::NotALock);
        }
        self.read_fields()
            .finish((expires_at_ms >= 0).then_some(expires_at_ms))
    }

    fn has_field(&self, field: &[u8]) -> bool {
        let field = RedisString::create_from_slice(ptr::null_mut(), field);
        let mut exists: c_int = 0;
        // SAFETY: the handle is open on a hash, the string and the flag live
        // through the call, and a null ends the list.
        unsafe {
            if let Some(hash_get) = raw::RedisModule_HashGet {
                hash_get(
                    self.handle,
                    raw::REDISMODULE_HASH_EXISTS as c_int,
                    field.inner,
                    &raw mut exists,
                    ptr::null_mut::<c_void>(),
                );
            }
        }
        exists != 0
    }

    fn read_fields(&self) -> Reader {
        unsafe extern "C" fn read(
            _key: *mut raw::RedisModuleKey,
            field: *mut raw::RedisModuleString,
            value: *mut raw::RedisModuleString,
            reader: *mut c_void,
        ) {
            // SAFETY: `reader` is what the caller below passed, and the server
            // calls this only within that call, with live strings.
            let reader = unsafe { &mut *reader.cast::<Reader>() };
            reader.field(
                RedisString::string_as_slice(field),
                RedisString::string_as_slice(value),
            );
        }

        let mut reader = Reader::default();
        // SAFETY: the cursor lives from its creation to its destruction here,
        // the handle is open on a hash, and `read` gets the type it expects.
        unsafe {
            let (Some(create), Some(scan), Some(destroy)) = (
                raw::RedisModule_ScanCursorCreate,
                raw::RedisModule_ScanKey,
                raw::RedisModule_ScanCursorDestroy,
            ) else {
                return reader;
            };
            let cursor = create();
            let into: *mut c_void = ptr::from_mut(&mut reader).cast();
            while scan(self.handle, cursor, Some(read), into) != 0 && !reader.is_no_lock() {}
            destroy(cursor);
        }
        reader
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
                    permit,
                    new_fence,
                } => {
                    let mut words = Words::new();
                    words.push(owner.as_bytes());
                    words.push_number(*holds);
                    if let Some(permit) = permit {
                        words.push(&permit_field(owner.as_bytes()));
                        words.push(permit.to_text().as_bytes());
                    }
                    if let Some(fence) = new_fence {
                        words.push(FENCE_FIELD);
                        words.push_number(fence.get());
                    }
                    self.set_fields(&words);
                }
                Effect::RemoveHolder { owner } => self.remove_holder(owner.as_bytes()),
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

    /// Sets fields, given as names and values in turn.
    fn set_fields(&mut self, words: &Words) {
        for pair in words.strings.chunks_exact(2) {
            if let [field, value] = pair {
                self.set_field(field.inner, value.inner);
            }
        }
        self.propagate(c"HSET", words);
    }

    fn remove_holder(&mut self, owner: &[u8]) {
        let mut words = Words::new();
        words.push(owner);
        words.push(&permit_field(owner));
        for field in &words.strings {
            // The module API's way of saying that the field shall go.
            const DELETE: usize = 1;
            self.set_field(field.inner, ptr::without_provenance_mut(DELETE));
        }
        self.propagate(c"HDEL", &words);
    }

    fn set_field(
        &mut self,
        field: *mut raw::RedisModuleString,
        value: *mut raw::RedisModuleString,
    ) {
        // SAFETY: the handle is open for writing on a hash or on no key, the
        // strings live through the call, and a null ends the list.
        unsafe {
            if let Some(hash_set) = raw::RedisModule_HashSet {
                hash_set(
                    self.handle,
                    raw::REDISMODULE_HASH_NONE as c_int,
                    field,
                    value,
                    ptr::null_mut::<c_void>(),
                );
            }
        }
    }

    /// Hands a command of the key and these words to replicas and AOF.
    fn propagate(&self, command: &CStr, words: &Words) {
        let mut all = SmallVec::<[_; WORDS_INLINE + 1]>::new();
        all.push(self.key.name.inner);
        all.extend(words.strings.iter().map(|word| word.inner));
        // SAFETY: the format announces a list of server strings and its
        // length; the strings live through the call.
        unsafe {
            if let Some(replicate) = raw::RedisModule_Replicate {
                replicate(
                    self.key.ctx.ctx,
                    command.as_ptr(),
                    c"v".as_ptr(),
                    all.as_mut_ptr(),
                    all.len(),
                );
            }
        }
    }

    fn expire_at(&mut self, at_ms: i64) {
        // SAFETY: the handle is open on a key; in the format, l is a long long.
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
        // SAFETY: in the format, s is a server string. The handle stays open, on no key, and may be written to again.
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

/// The words of a command after its key.
struct Words {
    strings: SmallVec<[RedisString; WORDS_INLINE]>,
}

/// A grant writes an owner, a permit and a token.
const WORDS_INLINE: usize = 6;

impl Words {
    const fn new() -> Self {
        Self {
            strings: SmallVec::new_const(),
        }
    }

    fn push(&mut self, word: &[u8]) {
        let word = RedisString::create_from_slice(ptr::null_mut(), word);
        self.strings.push(word);
    }

    fn push_number(&mut self, number: i64) {
        self.push(number.to_string().as_bytes());
    }
}

fn permit_field(owner: &[u8]) -> Vec<u8> {
    [PERMIT_PREFIX, owner].concat()
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
