//! The floor of the module API: what a module of locks can't but have the server do.
//!
//! It has `FLOOR.ACQUIRE` and `FLOOR.RELEASE`, which take the words of `LOCK.ACQUIRE` and
//! `LOCK.RELEASE`, and calls for each what the API needs: the key is opened, the two
//! fields that tell who holds it are read, set or deleted, the expiry is set, replicas and
//! AOF get one command, a client is blocked and unblocked, and a number is replied. It
//! decides nothing, and is good for nothing but counting instructions: what is more in
//! the module is its own, what is here no module can save.

// The functions of the server take pointers. Only scripts of the benchmark call it.
#![allow(
    missing_docs,
    clippy::undocumented_unsafe_blocks,
    clippy::unwrap_used,
    clippy::cast_possible_truncation
)]

use std::cell::Cell;
use std::ffi::{c_int, c_longlong, c_void};
use std::ptr::{self, null_mut};

use crc::{CRC_64_REDIS, Crc, Table};
use redis_module::raw::{
    self, RedisModule_BlockClientOnKeys as block_client_on_keys, RedisModule_CloseKey as close_key,
    RedisModule_CreateCommand as create_command, RedisModule_CreateString as create_string,
    RedisModule_FreeString as free_string, RedisModule_HashGet as hash_get,
    RedisModule_HashSet as hash_set, RedisModule_KeyType as key_type,
    RedisModule_Milliseconds as milliseconds, RedisModule_OpenKey as open_key,
    RedisModule_Replicate as replicate, RedisModule_ReplyWithLongLong as reply_with_number,
    RedisModule_RetainString as retain_string, RedisModule_SetAbsExpire as set_abs_expire,
    RedisModule_SignalModifiedKey as signal_modified_key,
    RedisModule_StringPtrLen as string_ptr_len, RedisModule_StringToLongLong as string_to_number,
    RedisModule_UnblockClient as unblock_client, RedisModule_UnlinkKey as unlink_key,
    RedisModuleBlockedClient, RedisModuleCtx, RedisModuleKey, RedisModuleString,
};
use redis_module::{Context, RedisString, Status, redis_module};

static CHECKSUM: Crc<u64, Table<16>> = Crc::<u64, Table<16>>::new(&CRC_64_REDIS);

/// Strings that are made once.
#[derive(Clone, Copy)]
struct Words {
    fence: *mut RedisModuleString,
    one: *mut RedisModuleString,
    replace: *mut RedisModuleString,
    absttl: *mut RedisModuleString,
}

thread_local! {
    static WORDS: Cell<Option<Words>> = const { Cell::new(None) };

    static TOKEN: Cell<i64> = const { Cell::new(1_700_000_000_000_000) };

    /// Who waits, and for which owner.
    static WAITER: Cell<Option<(*mut RedisModuleBlockedClient, *mut RedisModuleString)>> =
        const { Cell::new(None) };
}

unsafe fn make(text: &[u8]) -> *mut RedisModuleString {
    unsafe { create_string.unwrap()(null_mut(), text.as_ptr().cast(), text.len()) }
}

/// `REDISMODULE_HASH_DELETE`, in the place of a value
const DELETE: *mut RedisModuleString = ptr::without_provenance_mut(1);

unsafe fn bytes<'s>(string: *mut RedisModuleString) -> &'s [u8] {
    let mut length = 0;
    unsafe {
        let start = string_ptr_len.unwrap()(string, &raw mut length);
        std::slice::from_raw_parts(start.cast(), length)
    }
}

/// Reads what an owner holds, and the token.
unsafe fn read(key: *mut RedisModuleKey, owner: *mut RedisModuleString) {
    let (mut holds, mut token) = (null_mut::<RedisModuleString>(), null_mut());
    unsafe {
        let fence = WORDS.get().unwrap().fence;
        let (no_flags, end) = (0, ptr::null::<c_void>());
        hash_get.unwrap()(
            key,
            no_flags,
            owner,
            &raw mut holds,
            fence,
            &raw mut token,
            end,
        );
        for value in [holds, token] {
            if !value.is_null() {
                free_string.unwrap()(null_mut(), value);
            }
        }
    }
}

/// Writes that this owner holds the lock, over one who leaves if that is not null, and
/// replicates it.
unsafe fn write(
    ctx: *mut RedisModuleCtx,
    name: *mut RedisModuleString,
    key: *mut RedisModuleKey,
    owner: *mut RedisModuleString,
    leaves: *mut RedisModuleString,
    lease_ms: i64,
) -> i64 {
    let token = TOKEN.get() + 1;
    TOKEN.set(token);
    let mut digits = [itoa::Buffer::new(), itoa::Buffer::new()];
    let [token_digits, end_digits] = &mut digits;
    let token_text = token_digits.format(token).as_bytes();
    unsafe {
        let words = WORDS.get().unwrap();
        let end_ms = milliseconds.unwrap()() + lease_ms;
        let token_value = make(token_text);
        let end_of_list = ptr::null::<c_void>();
        hash_set.unwrap()(
            key,
            0,
            words.fence,
            token_value,
            owner,
            words.one,
            leaves,
            DELETE,
            end_of_list,
        );
        set_abs_expire.unwrap()(key, end_ms);
        free_string.unwrap()(null_mut(), token_value);
        let (mut dump, mut length) = ([0_u8; 256], 0);
        let mut push = |part: &[u8]| {
            dump[length..length + part.len()].copy_from_slice(part);
            length += part.len();
        };
        push(&[4, 2]);
        for part in [b"@fence", token_text, bytes(owner), b"1"] {
            push(&[part.len() as u8]);
            push(part);
        }
        push(&[9, 0]);
        let checksum = CHECKSUM.checksum(&dump[..length]);
        dump[length..length + 8].copy_from_slice(&checksum.to_le_bytes());
        let end = end_digits.format(end_ms);
        replicate.unwrap()(
            ctx,
            c"RESTORE".as_ptr(),
            c"sbbss".as_ptr(),
            name,
            end.as_ptr(),
            end.len(),
            dump.as_ptr(),
            length + 8,
            words.replace,
            words.absttl,
        );
        signal_modified_key.unwrap()(ctx, name);
    }
    token
}

/// `FLOOR.ACQUIRE key owner LEASE ms [BLOCK 0 | QUEUE ms channel]`
unsafe extern "C" fn acquire(
    ctx: *mut RedisModuleCtx,
    argv: *mut *mut RedisModuleString,
    argc: c_int,
) -> c_int {
    unsafe {
        let [name, owner] = [*argv.add(1), *argv.add(2)];
        let mut lease_ms: c_longlong = 0;
        string_to_number.unwrap()(*argv.add(4), &raw mut lease_ms);
        let mode = (raw::REDISMODULE_READ | raw::REDISMODULE_WRITE) as c_int;
        let key = open_key.unwrap()(ctx, name, mode).cast::<RedisModuleKey>();
        if key_type.unwrap()(key) == raw::REDISMODULE_KEYTYPE_EMPTY as c_int {
            let token = write(ctx, name, key, owner, null_mut(), lease_ms);
            close_key.unwrap()(key);
            return reply_with_number.unwrap()(ctx, token);
        }
        read(key, owner);
        close_key.unwrap()(key);
        if argc != 7 {
            return reply_with_number.unwrap()(ctx, 0);
        }
        retain_string.unwrap()(null_mut(), owner);
        let blocked = block_client_on_keys.unwrap()(
            ctx,
            Some(signalled),
            Some(answered),
            Some(freed),
            0,
            argv.add(1),
            1,
            null_mut(),
        );
        WAITER.set(Some((blocked, owner)));
    }
    0
}

/// `FLOOR.RELEASE key owner`
unsafe extern "C" fn release(
    ctx: *mut RedisModuleCtx,
    argv: *mut *mut RedisModuleString,
    _argc: c_int,
) -> c_int {
    unsafe {
        let [name, owner] = [*argv.add(1), *argv.add(2)];
        let mode = (raw::REDISMODULE_READ | raw::REDISMODULE_WRITE) as c_int;
        let key = open_key.unwrap()(ctx, name, mode).cast::<RedisModuleKey>();
        read(key, owner);
        let waiter = WAITER.take();
        if let Some((_, next)) = waiter {
            write(ctx, name, key, next, owner, 600_000);
            free_string.unwrap()(null_mut(), next);
        } else {
            unlink_key.unwrap()(key);
            replicate.unwrap()(ctx, c"DEL".as_ptr(), c"s".as_ptr(), name);
            signal_modified_key.unwrap()(ctx, name);
        }
        close_key.unwrap()(key);
        reply_with_number.unwrap()(ctx, 1);
        if let Some((blocked, _)) = waiter {
            unblock_client.unwrap()(blocked, null_mut());
        }
    }
    0
}

unsafe extern "C" fn signalled(
    _ctx: *mut RedisModuleCtx,
    _argv: *mut *mut RedisModuleString,
    _argc: c_int,
) -> c_int {
    raw::REDISMODULE_ERR as c_int
}

unsafe extern "C" fn answered(
    ctx: *mut RedisModuleCtx,
    _argv: *mut *mut RedisModuleString,
    _argc: c_int,
) -> c_int {
    unsafe { reply_with_number.unwrap()(ctx, TOKEN.get()) }
}

unsafe extern "C" fn freed(_ctx: *mut RedisModuleCtx, _data: *mut c_void) {}

fn init(ctx: &Context, _args: &[RedisString]) -> Status {
    // SAFETY: the context is that of the load, and the names last.
    let statuses = unsafe {
        WORDS.set(Some(Words {
            fence: make(b"@fence"),
            one: make(b"1"),
            replace: make(b"REPLACE"),
            absttl: make(b"ABSTTL"),
        }));
        [
            (
                c"floor.acquire",
                acquire as unsafe extern "C" fn(_, _, _) -> _,
            ),
            (c"floor.release", release),
        ]
        .map(|(name, run)| {
            let flags = c"write deny-oom blocking fast".as_ptr();
            create_command.unwrap()(ctx.ctx, name.as_ptr(), Some(run), flags, 1, 1, 1)
        })
    };
    match statuses == [0, 0] {
        true => Status::Ok,
        false => Status::Err,
    }
}

redis_module! {
    name: "lockfloor",
    version: 1,
    allocator: (redis_module::alloc::RedisAlloc, redis_module::alloc::RedisAlloc),
    data_types: [],
    init: init,
    commands: [],
}
