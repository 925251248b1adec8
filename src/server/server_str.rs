//! Strings of the server: the arguments of commands, and those that the module makes.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr;

use redis_module::{RedisString, raw};

use crate::server::api::api;

/// How many arguments of a command are read, or passed on, without allocating memory.
pub(crate) const ARGS_INLINE: usize = 16;

/// A string of the server that lives for `'c`: the pointer that the module API takes.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct ServerStr<'c> {
    inner: *mut raw::RedisModuleString,
    lifetime: PhantomData<&'c [u8]>,
}

impl<'c> ServerStr<'c> {
    /// A string of the server.
    ///
    /// # Safety
    /// The string must live, and stay as it is, for `'c`.
    pub(super) const unsafe fn new(inner: *mut raw::RedisModuleString) -> Self {
        Self {
            inner,
            lifetime: PhantomData,
        }
    }

    /// The bytes of the string.
    pub(crate) fn bytes(self) -> &'c [u8] {
        let mut length = 0;
        // SAFETY: whoever called `new` holds that the string lives and does not
        // change for 'c. The server never returns a null here.
        unsafe {
            let start = api!(string_ptr_len)(self.inner, &raw mut length);
            std::slice::from_raw_parts(start.cast::<u8>(), length)
        }
    }

    /// The string as the module API takes it.
    pub(super) const fn inner(self) -> *mut raw::RedisModuleString {
        self.inner
    }
}

impl<'c> From<&'c RedisString> for ServerStr<'c> {
    fn from(string: &'c RedisString) -> Self {
        // SAFETY: the string is borrowed for 'c.
        unsafe { Self::new(string.inner) }
    }
}

/// Makes a string of these bytes.
pub(super) fn make(bytes: &[u8]) -> RedisString {
    RedisString::create_from_slice(ptr::null_mut(), bytes)
}

/// A string that is made once and lasts as long as the server.
pub(super) struct StaticStr(ManuallyDrop<RedisString>);

impl StaticStr {
    /// Makes a string of these bytes.
    pub(super) fn new(bytes: &[u8]) -> Self {
        Self(ManuallyDrop::new(make(bytes)))
    }

    /// The string.
    pub(super) fn get(&self) -> ServerStr<'static> {
        // SAFETY: the string is never freed.
        unsafe { ServerStr::new(self.0.inner) }
    }
}
