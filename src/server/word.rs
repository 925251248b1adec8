//! Server strings: the words of commands, and those that the module makes.

use std::ffi::c_char;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr;

use redis_module::{RedisString, raw};

/// A server string that lives for `'c`: a word of a command that runs, or one
/// that the module has made.
#[derive(Clone, Copy)]
pub(crate) struct Word<'c> {
    inner: *mut raw::RedisModuleString,
    lifetime: PhantomData<&'c [u8]>,
}

impl<'c> Word<'c> {
    /// A string of the server.
    ///
    /// # Safety
    /// It must be alive for `'c`.
    pub(super) const unsafe fn new(inner: *mut raw::RedisModuleString) -> Self {
        Self {
            inner,
            lifetime: PhantomData,
        }
    }

    /// What it says.
    pub(crate) fn bytes(self) -> &'c [u8] {
        let mut length = 0;
        // SAFETY: the string is alive for 'c, and nobody changes a string that
        // is part of a command or was given to the server.
        unsafe {
            let start: *const c_char = match raw::RedisModule_StringPtrLen {
                Some(string_ptr_len) => string_ptr_len(self.inner, &raw mut length),
                None => return &[],
            };
            std::slice::from_raw_parts(start.cast::<u8>(), length)
        }
    }

    /// As the module API takes it.
    pub(super) const fn inner(self) -> *mut raw::RedisModuleString {
        self.inner
    }
}

impl<'c> From<&'c RedisString> for Word<'c> {
    fn from(string: &'c RedisString) -> Self {
        // SAFETY: it is borrowed for 'c.
        unsafe { Self::new(string.inner) }
    }
}

/// A string of these bytes.
pub(super) fn make(bytes: &[u8]) -> RedisString {
    RedisString::create_from_slice(ptr::null_mut(), bytes)
}

/// A string of this number.
pub(super) fn make_number(number: i64) -> RedisString {
    // SAFETY: a null asks for a string that belongs to nobody yet.
    let inner = unsafe {
        raw::RedisModule_CreateStringFromLongLong
            .map_or(ptr::null_mut(), |create| create(ptr::null_mut(), number))
    };
    RedisString::from_redis_module_string(ptr::null_mut(), inner)
}

/// A string that is made once and lasts as long as the server.
pub(super) struct Lasting(ManuallyDrop<RedisString>);

impl Lasting {
    /// Makes it.
    pub(super) fn new(bytes: &[u8]) -> Self {
        Self(ManuallyDrop::new(make(bytes)))
    }

    /// The string.
    pub(super) fn word(&self) -> Word<'static> {
        // SAFETY: it is never freed.
        unsafe { Word::new(self.0.inner) }
    }
}
