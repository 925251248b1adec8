//! Reads the stored hash of a lock, writes it and propagates what it wrote.

use std::ffi::{CStr, c_int, c_void};
use std::marker::PhantomData;
use std::ptr;

use redis_module::{RedisString, raw};
use smallvec::SmallVec;

use crate::server::api::api;
use crate::server::dump;
use crate::server::keyspace::LockKey;
use crate::server::server_str::{self, ServerStr, StaticStr};
use redis_lock_core::effect::Effect;
use redis_lock_core::error::LockError;
use redis_lock_core::lock::Lock;
#[cfg(feature = "planted-faults")]
use redis_lock_core::planted::Fault;
use redis_lock_core::request::Owner;
use redis_lock_core::stored::{HeldAlone, PERMIT_PREFIX, Reader, TOKEN_FIELD, parse_integer};
use redis_lock_core::token::FencingToken;

/// An open key.
pub(crate) struct OpenLock<'c> {
    key: LockKey<'c>,
    handle: *mut raw::RedisModuleKey,
    _main_thread_only: PhantomData<*const ()>,
}

/// How much of a lock has to be read. If the lock names this owner, the two share the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part<'o> {
    /// All of it, whoever holds it.
    Whole(Option<&'o Owner>),
    /// All of it. Most likely this owner, which the command names, holds it alone.
    Of(&'o Owner),
    /// The same, but without the end of its lease if that owner holds it alone.
    WithoutLeaseEnd(&'o Owner),
}

impl<'c> OpenLock<'c> {
    /// Opens the key to read and write it. If its expiry has passed, the server
    /// deletes it now, propagates that, and notifies every subscriber, this module
    /// included; so nothing of the module's state may be borrowed meanwhile.
    pub(crate) fn open(key: LockKey<'c>) -> Self {
        Self::open_as(key, raw::REDISMODULE_READ | raw::REDISMODULE_WRITE)
    }

    /// Opens the key where nothing will be written, which a replica can do too.
    pub(crate) fn open_to_read(key: LockKey<'c>) -> Self {
        Self::open_as(key, raw::REDISMODULE_READ)
    }

    /// As [`OpenLock::open_to_read`], where nobody asked for the key: where the server
    /// can tell, it does not count as a use.
    pub(crate) fn open_unasked(key: LockKey<'c>) -> Self {
        let unasked = raw::REDISMODULE_OPEN_KEY_NOTOUCH | raw::REDISMODULE_OPEN_KEY_NOSTATS;
        Self::open_as(key, raw::REDISMODULE_READ | unasked)
    }

    fn open_as(key: LockKey<'c>, mode: u32) -> Self {
        // SAFETY: the context and the name are alive for 'c, and `drop` closes
        // the handle before either ends.
        let handle = unsafe { api!(open_key)(key.ctx().ctx, key.name().inner(), mode as c_int) };
        Self {
            key,
            handle,
            _main_thread_only: PhantomData,
        }
    }

    /// The token, and what this other field holds.
    fn token_and(&self, other: Option<ServerStr<'_>>) -> [Option<RedisString>; 2] {
        let [mut token, mut value] = [ptr::null_mut::<raw::RedisModuleString>(); 2];
        // SAFETY: the handle is open on a hash, the names and both places live
        // through the call, and a null ends the list.
        unsafe {
            api!(hash_get)(
                self.handle,
                raw::REDISMODULE_HASH_NONE as c_int,
                FENCE.with(StaticStr::get).inner(),
                &raw mut token,
                other.map_or(ptr::null_mut(), ServerStr::inner),
                &raw mut value,
                ptr::null_mut::<c_void>(),
            );
        }
        [token, value].map(|value| {
            (!value.is_null())
                .then(|| RedisString::from_redis_module_string(ptr::null_mut(), value))
        })
    }

    /// The type of what is here.
    fn kind(&self) -> isize {
        // SAFETY: `handle` is open, or null for no such key, which the call accepts.
        unsafe { api!(key_type)(self.handle) as isize }
    }

    /// How many fields the hash has.
    fn fields(&self) -> usize {
        // SAFETY: `handle` is open on a key that exists.
        unsafe { api!(value_length)(self.handle) }
    }

    /// Reads the stored lock. Fails if the key holds something else than a lock. `likely`
    /// is who most likely holds it alone, where it is read as a whole.
    pub(crate) fn read(&self, part: Part<'_>, likely: Option<&Owner>) -> Result<Lock, LockError> {
        match self.kind() {
            raw::REDISMODULE_KEYTYPE_EMPTY => return Ok(Lock::default()),
            raw::REDISMODULE_KEYTYPE_HASH => {}
            _ => return Err(LockError::WrongType),
        }
        let fields = self.fields();
        let alone = match part {
            Part::Whole(_) => likely.and_then(|owner| {
                let name = server_str::make(owner.as_bytes());
                self.read_fields_of(owner, ServerStr::from(&name), fields)
            }),
            Part::Of(owner) | Part::WithoutLeaseEnd(owner) => {
                let name = self.key.owner();
                name.and_then(|name| self.read_fields_of(owner, name, fields))
            }
        };
        if let Some((owner, held)) = alone {
            let is_left_out = matches!(part, Part::WithoutLeaseEnd(_)) && held.has_token();
            let end_ms = (!is_left_out).then(|| self.expires_at_ms());
            return held.by(owner, end_ms.flatten());
        }
        // To read two fields is as fast as to look for one.
        if fields > FIELDS_OF_ONE_HOLDER && self.token_and(None)[0].is_none() {
            return Err(LockError::NotALock);
        }
        let asker = match part {
            Part::Whole(asker) => asker,
            Part::Of(owner) | Part::WithoutLeaseEnd(owner) => Some(owner),
        };
        self.read_all_fields(asker).finish(self.expires_at_ms())
    }

    /// Whether there is anything here but a string.
    pub(super) fn is_other_than_a_string(&self) -> bool {
        let kinds = [
            raw::REDISMODULE_KEYTYPE_EMPTY,
            raw::REDISMODULE_KEYTYPE_STRING,
        ];
        !kinds.contains(&self.kind())
    }

    /// The newest token of what may be a lock, if it is one that can be read.
    pub(crate) fn newest_token(&self) -> Option<FencingToken> {
        if self.kind() != raw::REDISMODULE_KEYTYPE_HASH {
            return None;
        }
        let [stored, _] = self.token_and(None);
        FencingToken::new(parse_integer(stored?.as_slice())?).ok()
    }

    /// When the key expires, in milliseconds since 1970. There must be one.
    fn expires_at_ms(&self) -> Option<i64> {
        // SAFETY: `handle` is open on a key that exists. Redis 8.2 crashes if
        // the expiry of any other is asked for.
        let at_ms = unsafe { api!(get_abs_expire)(self.handle) };
        (at_ms >= 0).then_some(at_ms)
    }

    /// Reads a lock that this owner, of this name, holds alone. To ask for the fields by
    /// name is much faster than to list them.
    fn read_fields_of<'o>(
        &self,
        owner: &'o Owner,
        name: ServerStr<'_>,
        fields: usize,
    ) -> Option<(&'o Owner, HeldAlone)> {
        if fields > FIELDS_OF_ONE_HOLDER {
            return None;
        }
        let [token, holds] = self.token_and(Some(name));
        if token.is_none() && fields == FIELDS_OF_ONE_HOLDER {
            return None;
        }
        let token = token.as_ref().map(RedisString::as_slice);
        Some((owner, HeldAlone::read(holds?.as_slice(), token)?))
    }

    fn read_all_fields(&self, asker: Option<&Owner>) -> Reader {
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

        let mut reader = Reader::asked_by(asker);
        let cursor = CURSOR.with(|cursor| *cursor);
        // SAFETY: the cursor lives as long as the server, and nobody else uses it
        // meanwhile; the handle is open on a hash, and `read` gets the type it expects.
        unsafe {
            let scan = api!(scan_key);
            api!(scan_cursor_restart)(cursor);
            let into: *mut c_void = ptr::from_mut(&mut reader).cast();
            while scan(self.handle, cursor, Some(read), into) != 0 && !reader.is_no_lock() {}
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
                    new_token,
                } => {
                    let mut args = Args::default();
                    args.push_owner(owner, self.key);
                    args.push_count(*holds);
                    if let Some(permit) = permit {
                        args.push(&permit_field(owner.as_bytes()));
                        args.push(permit.to_text().as_bytes());
                    }
                    if let Some(token) = new_token {
                        args.push_token_field();
                        args.push_number(token.get());
                    }
                    self.set_fields(&args);
                    self.propagate(c"HSET", &args);
                }
                Effect::RemoveHolder { owner } => self.remove_holder(owner),
                Effect::ExpireAt { at_ms } => self.expire_at(*at_ms),
                Effect::Delete => self.delete(),
                Effect::Replace {
                    owner,
                    token,
                    end_ms,
                } => self.replace(owner, *token, *end_ms),
            }
        }
        // The module asked the server not to signal by itself, so that a key
        // that was only opened does not fail anybody's WATCH.
        // SAFETY: the context and the name are alive.
        unsafe { api!(signal_modified_key)(self.key.ctx().ctx, self.key.name().inner()) };
    }

    /// Sets fields, given as names and values in turn.
    fn set_fields(&mut self, args: &Args<'_>) {
        for pairs in args.all.chunks(4) {
            let mut four = [ptr::null_mut(); 4];
            for (place, arg) in four.iter_mut().zip(pairs) {
                *place = arg.inner();
            }
            self.set(four);
        }
    }

    fn remove_holder(&mut self, owner: &Owner) {
        let mut args = Args::default();
        args.push_owner(owner, self.key);
        args.push(&permit_field(owner.as_bytes()));
        for field in &args.all {
            self.delete_field(*field);
        }
        self.propagate(c"HDEL", &args);
    }

    fn delete_field(&mut self, field: ServerStr<'_>) {
        // `REDISMODULE_HASH_DELETE`, in the place of a value
        let delete = ptr::without_provenance_mut(1);
        self.set([field.inner(), delete, ptr::null_mut(), ptr::null_mut()]);
    }

    /// Sets one or two fields, given as names and values in turn.
    fn set(&mut self, [field, value, field2, value2]: [*mut raw::RedisModuleString; 4]) {
        // SAFETY: the handle is open for writing on a hash or on no key, the
        // strings live through the call, and a null in the place of a name ends the list.
        unsafe {
            api!(hash_set)(
                self.handle,
                raw::REDISMODULE_HASH_NONE as c_int,
                field,
                value,
                field2,
                value2,
                ptr::null_mut::<c_void>(),
            );
        }
    }

    /// Hands a command of the key and these arguments to replicas and AOF.
    fn propagate(&self, command: &CStr, args: &Args<'_>) {
        let (ctx, command) = (self.key.ctx().ctx, command.as_ptr());
        let (key, all) = (self.key.name().inner(), &args.all);
        // SAFETY: in the format, s is a server string, and v a list of them with its
        // length; the strings live through the call.
        unsafe {
            api!(replicate)(ctx, command, c"sv".as_ptr(), key, all.as_ptr(), all.len());
        }
    }

    fn expire_at(&mut self, at_ms: i64) {
        // SAFETY: the handle is open for writing on a key.
        unsafe { api!(set_abs_expire)(self.handle, at_ms) };
        #[cfg(feature = "planted-faults")]
        if Fault::ExpiryNotPropagated.planted() {
            return;
        }
        let mut args = Args::default();
        args.push_number(at_ms);
        self.propagate(c"PEXPIREAT", &args);
    }

    /// Writes the whole lock, with a single command for replicas and AOF. Its token comes
    /// first, as it does in the hash of an owner who leaves, which is written over.
    fn replace(&mut self, owner: &Owner, token: FencingToken, end_ms: i64) {
        let mut digits = itoa::Buffer::new();
        let token = digits.format(token.get()).as_bytes();
        let value = server_str::make(token);
        let made;
        let owner_name = match named(owner, self.key) {
            Some(named) => named,
            None => {
                made = server_str::make(owner.as_bytes());
                ServerStr::from(&made)
            }
        };
        let [one, fence] = [&ONE, &FENCE].map(|string| string.with(StaticStr::get));
        let pairs = [fence, (&value).into(), owner_name, one].map(ServerStr::inner);
        let exists = self.kind() != raw::REDISMODULE_KEYTYPE_EMPTY;
        let is_another = |named: &ServerStr<'_>| exists && named.inner() != owner_name.inner();
        let leaves = self.key.owner().filter(is_another);
        if let Some(leaves) = leaves {
            // Most likely the owner who leaves held the lock alone. To write over that is
            // much faster.
            self.delete_field(leaves);
            self.set(pairs);
        }
        if leaves.is_none() || self.fields() != FIELDS_OF_ONE_HOLDER {
            if exists {
                // SAFETY: the handle is open for writing, and stays open on no key.
                unsafe { api!(unlink_key)(self.handle) };
            }
            self.set(pairs);
        }
        // SAFETY: the handle is open for writing on a key.
        unsafe { api!(set_abs_expire)(self.handle, end_ms) };
        #[cfg(feature = "planted-faults")]
        let end_ms = Fault::ExpiryNotPropagated.instead(end_ms, || 0);
        let mut end = itoa::Buffer::new();
        let end = end.format(end_ms);
        let fields = [[TOKEN_FIELD, token], [owner.as_bytes(), b"1"]];
        // SAFETY: in the format, s is a server string and b a buffer with its length; all
        // live through the call.
        dump::with_hash(&fields, |dump| unsafe {
            api!(replicate)(
                self.key.ctx().ctx,
                c"RESTORE".as_ptr(),
                c"sbbss".as_ptr(),
                self.key.name().inner(),
                end.as_ptr(),
                end.len(),
                dump.as_ptr(),
                dump.len(),
                REPLACE.with(StaticStr::get).inner(),
                ABSTTL.with(StaticStr::get).inner(),
            );
        });
    }

    fn delete(&mut self) {
        // SAFETY: the handle is open for writing. It stays open, on no key, and
        // may be written to again. In the format, s is a server string.
        unsafe {
            // The memory of many holders is given back by another thread.
            api!(unlink_key)(self.handle);
            api!(replicate)(
                self.key.ctx().ctx,
                c"DEL".as_ptr(),
                c"s".as_ptr(),
                self.key.name().inner(),
            );
        }
    }
}

/// The arguments of a propagated command, after its key.
#[derive(Default)]
struct Args<'c> {
    all: SmallVec<[ServerStr<'c>; ARGS_INLINE]>,
    /// Owns those that were made for this command.
    made: SmallVec<[RedisString; ARGS_INLINE]>,
}

/// A grant writes names and values of an owner, a permit and a token.
const ARGS_INLINE: usize = 6;

impl<'c> Args<'c> {
    fn push_number(&mut self, number: i64) {
        self.push(itoa::Buffer::new().format(number).as_bytes());
    }

    fn push(&mut self, bytes: &[u8]) {
        let string = server_str::make(bytes);
        // SAFETY: `made` owns the string as long as `self` lives, and nobody gets
        // a copy of `all` that outlives `self`.
        self.all.push(unsafe { ServerStr::new(string.inner) });
        self.made.push(string);
    }

    fn push_owner(&mut self, owner: &Owner, key: LockKey<'c>) {
        match named(owner, key) {
            Some(named) => self.all.push(named),
            None => self.push(owner.as_bytes()),
        }
    }

    fn push_count(&mut self, holds: i64) {
        match holds {
            1 => self.all.push(ONE.with(StaticStr::get)),
            _ => self.push_number(holds),
        }
    }

    fn push_token_field(&mut self) {
        self.all.push(FENCE.with(StaticStr::get));
    }
}

thread_local! {
    static FENCE: StaticStr = StaticStr::new(TOKEN_FIELD);
    static ONE: StaticStr = StaticStr::new(b"1");
    static REPLACE: StaticStr = StaticStr::new(b"REPLACE");
    static ABSTTL: StaticStr = StaticStr::new(b"ABSTTL");
    // SAFETY: the function takes no arguments.
    static CURSOR: *mut raw::RedisModuleScanCursor = unsafe { api!(scan_cursor_create)() };
}

/// A lock that one owner holds alone has at most a count and a token.
const FIELDS_OF_ONE_HOLDER: usize = 2;

/// Most effects of a command concern the owner that it names. Its string serves then.
fn named<'c>(owner: &Owner, key: LockKey<'c>) -> Option<ServerStr<'c>> {
    key.owner()
        .filter(|named| named.bytes() == owner.as_bytes())
}

fn permit_field(owner: &[u8]) -> SmallVec<[u8; 128]> {
    let mut name = SmallVec::from_slice(PERMIT_PREFIX);
    name.extend_from_slice(owner);
    name
}

impl Drop for OpenLock<'_> {
    fn drop(&mut self) {
        if self.handle.is_null() {
            return;
        }
        // SAFETY: `open_as` opened the handle, and only this closes it.
        unsafe { api!(close_key)(self.handle) };
    }
}
