//! Reads the stored hash of a lock, writes it and propagates what was written.

use std::ffi::{CStr, c_int, c_longlong, c_void};
use std::marker::PhantomData;
use std::ptr;

use redis_module::{RedisString, raw};
use smallvec::SmallVec;

use crate::error::LockError;
use crate::lock::record::{Effect, Lock};
use crate::lock::request::Owner;
use crate::lock::stored::{FENCE_FIELD, FIELDS_WITHOUT_FENCE_MAX, PERMIT_PREFIX, Reader};
use crate::server::keyspace::LockKey;
use crate::server::word::{self, Lasting, Word};

/// An open key.
pub(crate) struct OpenLock<'c> {
    key: LockKey<'c>,
    handle: *mut raw::RedisModuleKey,
    _main_thread_only: PhantomData<*const ()>,
}

impl<'c> OpenLock<'c> {
    /// Opens the key.
    pub(super) fn new(key: LockKey<'c>, mode: u32) -> Self {
        // SAFETY: the context and the name are alive for 'c, and the handle is
        // closed by `drop` before either ends.
        let handle = unsafe {
            raw::RedisModule_OpenKey.map_or(ptr::null_mut(), |open| {
                open(key.ctx().ctx, key.name().inner(), mode as c_int)
            })
        };
        Self {
            key,
            handle: handle.cast(),
            _main_thread_only: PhantomData,
        }
    }

    /// Reads what is stored. If that has to do with the owner in question, it
    /// shares its name.
    pub(crate) fn read(&self, asker: Option<&Owner>) -> Result<Lock, LockError> {
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
        let reader = match self.read_fields_of(asker, fields) {
            Some(reader) => reader,
            None if fields > FIELDS_WITHOUT_FENCE_MAX && !self.has_fence() => {
                return Err(LockError::NotALock);
            }
            None => self.read_all_fields(),
        };
        reader.finish((expires_at_ms >= 0).then_some(expires_at_ms))
    }

    /// The fields of a lock that the owner in question holds alone, which is
    /// what most commands find. Asking for them by name is much faster than
    /// listing them.
    fn read_fields_of(&self, asker: Option<&Owner>, fields: usize) -> Option<Reader> {
        let (asker, word) = (asker?, self.key.owner()?);
        if fields > FIELDS_OF_ONE_HOLDER {
            return None;
        }
        let [mut holds, mut fence] = [ptr::null_mut::<raw::RedisModuleString>(); 2];
        // SAFETY: the handle is open on a hash, the words and both places live
        // through the call, and a null ends the list.
        unsafe {
            raw::RedisModule_HashGet?(
                self.handle,
                raw::REDISMODULE_HASH_NONE as c_int,
                word.inner(),
                &raw mut holds,
                FENCE.with(Lasting::word).inner(),
                &raw mut fence,
                ptr::null_mut::<c_void>(),
            );
        }
        let [holds, fence] = [holds, fence].map(|value| {
            (!value.is_null())
                .then(|| RedisString::from_redis_module_string(ptr::null_mut(), value))
        });
        let mut reader = Reader::asked_by(asker);
        reader.field(asker.as_bytes(), holds.as_ref()?.as_slice());
        match &fence {
            Some(fence) => reader.field(FENCE_FIELD, fence.as_slice()),
            None if fields == FIELDS_OF_ONE_HOLDER => return None,
            None => {}
        }
        Some(reader)
    }

    fn has_fence(&self) -> bool {
        let mut exists: c_int = 0;
        // SAFETY: the handle is open on a hash, the word and the flag live
        // through the call, and a null ends the list.
        unsafe {
            if let Some(hash_get) = raw::RedisModule_HashGet {
                hash_get(
                    self.handle,
                    raw::REDISMODULE_HASH_EXISTS as c_int,
                    FENCE.with(Lasting::word).inner(),
                    &raw mut exists,
                    ptr::null_mut::<c_void>(),
                );
            }
        }
        exists != 0
    }

    fn read_all_fields(&self) -> Reader {
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
                    words.push_owner(owner, self.key);
                    words.push_count(*holds);
                    if let Some(permit) = permit {
                        words.push(&permit_field(owner.as_bytes()));
                        words.push(permit.to_text().as_bytes());
                    }
                    if let Some(fence) = new_fence {
                        words.push_fence_field();
                        words.push_number(fence.get());
                    }
                    self.set_fields(&words);
                }
                Effect::RemoveHolder { owner } => self.remove_holder(owner),
                Effect::ExpireAt { at_ms } => self.expire_at(*at_ms),
                Effect::Delete => self.delete(),
            }
        }
        // The module asked the server not to signal by itself, so that a key
        // that was only looked at does not fail anybody's WATCH.
        // SAFETY: the context and the name are alive.
        unsafe {
            if let Some(signal) = raw::RedisModule_SignalModifiedKey {
                signal(self.key.ctx().ctx, self.key.name().inner());
            }
        }
    }

    /// Sets fields, given as names and values in turn.
    fn set_fields(&mut self, words: &Words<'_>) {
        for pair in words.words.chunks_exact(2) {
            if let [field, value] = pair {
                self.set_field(field.inner(), value.inner());
            }
        }
        self.propagate(c"HSET", words);
    }

    fn remove_holder(&mut self, owner: &Owner) {
        let mut words = Words::new();
        words.push_owner(owner, self.key);
        words.push(&permit_field(owner.as_bytes()));
        for field in &words.words {
            // The module API's way of saying that the field shall go.
            const DELETE: usize = 1;
            self.set_field(field.inner(), ptr::without_provenance_mut(DELETE));
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
    fn propagate(&self, command: &CStr, words: &Words<'_>) {
        let mut all = SmallVec::<[_; WORDS_INLINE + 1]>::new();
        all.push(self.key.name().inner());
        all.extend(words.words.iter().map(|word| word.inner()));
        // SAFETY: the format announces a list of server strings and its
        // length; the strings live through the call.
        unsafe {
            if let Some(replicate) = raw::RedisModule_Replicate {
                replicate(
                    self.key.ctx().ctx,
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
                #[cfg(feature = "planted-faults")]
                if crate::lock::planted::Fault::ExpiryNotPropagated.planted() {
                    return;
                }
                replicate(
                    self.key.ctx().ctx,
                    c"PEXPIREAT".as_ptr(),
                    c"sl".as_ptr(),
                    self.key.name().inner(),
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
                    self.key.ctx().ctx,
                    c"DEL".as_ptr(),
                    c"s".as_ptr(),
                    self.key.name().inner(),
                );
            }
        }
    }
}

/// The words of a command after its key.
struct Words<'c> {
    words: SmallVec<[Word<'c>; WORDS_INLINE]>,
    /// Those of the words that were made for it.
    made: SmallVec<[RedisString; WORDS_INLINE]>,
}

/// A grant writes an owner, a permit and a token.
const WORDS_INLINE: usize = 6;

impl<'c> Words<'c> {
    const fn new() -> Self {
        Self {
            words: SmallVec::new_const(),
            made: SmallVec::new_const(),
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.push_made(word::make(bytes));
    }

    fn push_number(&mut self, number: i64) {
        self.push_made(word::make_number(number));
    }

    fn push_made(&mut self, string: RedisString) {
        // SAFETY: the string lives as long as `self`, and so does the word.
        self.words.push(unsafe { Word::new(string.inner) });
        self.made.push(string);
    }

    /// Most effects of a command are on the owner that it names.
    fn push_owner(&mut self, owner: &Owner, key: LockKey<'c>) {
        match key.owner() {
            Some(word) if word.bytes() == owner.as_bytes() => self.words.push(word),
            _ => self.push(owner.as_bytes()),
        }
    }

    fn push_count(&mut self, holds: i64) {
        match holds {
            1 => self.words.push(ONE.with(Lasting::word)),
            _ => self.push_number(holds),
        }
    }

    fn push_fence_field(&mut self) {
        self.words.push(FENCE.with(Lasting::word));
    }
}

thread_local! {
    static FENCE: Lasting = Lasting::new(FENCE_FIELD);
    static ONE: Lasting = Lasting::new(b"1");
}

/// A lock that one owner holds alone has at most a count and a token.
const FIELDS_OF_ONE_HOLDER: usize = 2;

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
