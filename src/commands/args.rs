//! Reads the arguments of a command, left to right. Every usage error of an option
//! is born here: an option that is unknown, repeated or unfinished is a syntax
//! error. Names of options are read in any case.

use redis_module::Context;
use smallvec::SmallVec;

use crate::config;
use crate::manager::PlaceTime;
use crate::server::keyspace::LockKey;
use crate::server::server_str::{ARGS_INLINE, ServerStr};
use redis_lock_core::error::LockError;
use redis_lock_core::request::{HoldNumber, Lease, Limit, Owner, Timeout};
use redis_lock_core::stored::parse_integer;
use redis_lock_core::token::FencingToken;
use redis_lock_core::usage::Usage;

/// The longest time for which a place is kept: a day.
const QUEUE_MS_MAX: i64 = 86_400_000;

/// The longest channel, in bytes: as long as an owner. `LOCK.INFO` shows it with each
/// place.
const CHANNEL_MAX_BYTES: usize = 1024;

/// The arguments that are still to be read.
///
/// The method of an option returns whether that option comes next, and then has
/// read it.
pub(super) struct Args<'a> {
    unread: &'a [&'a [u8]],
}

impl<'a> Args<'a> {
    /// Reads these arguments.
    pub(super) const fn new(args: &'a [&'a [u8]]) -> Self {
        Self { unread: args }
    }

    fn next(&mut self) -> Option<&'a [u8]> {
        let (first, rest) = self.unread.split_first()?;
        self.unread = rest;
        Some(first)
    }

    /// The owner. It comes first wherever a command takes one.
    pub(super) fn owner(&mut self) -> Result<Owner, Usage> {
        Owner::new(self.next().ok_or(Usage::Syntax)?)
    }

    /// A token without a name.
    pub(super) fn fence(&mut self) -> Result<FencingToken, Usage> {
        let token = self.next().ok_or(Usage::Syntax)?;
        FencingToken::new(parse_integer(token).ok_or(Usage::NotAnInteger)?)
    }

    /// Reads options until the arguments end. `read` reads the next option, and
    /// returns whether it knows it.
    pub(super) fn options(
        mut self,
        mut read: impl FnMut(&mut Self) -> Result<bool, Usage>,
    ) -> Result<(), Usage> {
        while !self.unread.is_empty() {
            if !read(&mut self)? {
                return Err(Usage::Syntax);
            }
        }
        Ok(())
    }

    /// `LEASE ms`
    pub(super) fn lease(&mut self, into: &mut Option<Lease>) -> Result<bool, Usage> {
        self.number("LEASE", into, Usage::NotAnInteger, |ms| {
            let lease = Lease::from_ms(ms)?;
            match lease > config::max_lease() {
                true => Err(Usage::LeaseTooLong),
                false => Ok(lease),
            }
        })
    }

    /// `BLOCK ms`
    pub(super) fn timeout(&mut self, into: &mut Option<Timeout>) -> Result<bool, Usage> {
        self.number("BLOCK", into, Usage::TimeoutOutOfRange, Timeout::from_ms)
    }

    /// `QUEUE ms channel`
    pub(super) fn queue(&mut self, into: &mut Option<PlaceTime<'a>>) -> Result<bool, Usage> {
        let mut time = None;
        let is_it = self.number("QUEUE", &mut time, Usage::NotAnInteger, |ms| {
            let is_in_range = (1..=QUEUE_MS_MAX).contains(&ms);
            is_in_range.then_some(ms).ok_or(Usage::QueueOutOfRange)
        })?;
        if let Some(ms) = time {
            let channel = self.next().ok_or(Usage::Syntax)?;
            if channel.len() > CHANNEL_MAX_BYTES {
                return Err(Usage::ChannelTooLong);
            }
            if into.replace(PlaceTime { ms, channel }).is_some() {
                return Err(Usage::Syntax);
            }
        }
        Ok(is_it)
    }

    /// `HOLD n`
    pub(super) fn hold(&mut self, into: &mut Option<HoldNumber>) -> Result<bool, Usage> {
        self.number("HOLD", into, Usage::NotAnInteger, HoldNumber::new)
    }

    /// `LIMIT n`
    pub(super) fn limit(&mut self, into: &mut Option<Limit>) -> Result<bool, Usage> {
        self.number("LIMIT", into, Usage::NotAnInteger, |count| {
            let limit = Limit::from_count(count)?;
            let is_possible =
                usize::try_from(count).is_ok_and(|n| n <= config::MAX_HOLDERS.count());
            is_possible.then_some(limit).ok_or(Usage::LimitTooGreat)
        })
    }

    /// `COUNT n`
    pub(super) fn count(&mut self, into: &mut Option<usize>) -> Result<bool, Usage> {
        let count = |n| usize::try_from(n).ok().filter(|&n| n >= 1);
        self.number("COUNT", into, Usage::NotAnInteger, |n| {
            count(n).ok_or(Usage::CountOutOfRange)
        })
    }

    /// `FENCE token`
    pub(super) fn token(&mut self, into: &mut Option<FencingToken>) -> Result<bool, Usage> {
        self.number("FENCE", into, Usage::NotAnInteger, FencingToken::new)
    }

    /// An option without a value.
    pub(super) fn flag(&mut self, name: &str, into: &mut bool) -> Result<bool, Usage> {
        if !self.next_is(name) {
            return Ok(false);
        }
        if std::mem::replace(into, true) {
            return Err(Usage::Syntax);
        }
        Ok(true)
    }

    fn number<T>(
        &mut self,
        name: &str,
        into: &mut Option<T>,
        not_an_integer: Usage,
        check: impl FnOnce(i64) -> Result<T, Usage>,
    ) -> Result<bool, Usage> {
        if !self.next_is(name) {
            return Ok(false);
        }
        let value = self.next().ok_or(Usage::Syntax)?;
        if into.is_some() {
            return Err(Usage::Syntax);
        }
        *into = Some(check(parse_integer(value).ok_or(not_an_integer)?)?);
        Ok(true)
    }

    /// Reads the next argument if it is this name.
    fn next_is(&mut self, name: &str) -> bool {
        let first = self.unread.first();
        let is_it = first.is_some_and(|first| first.eq_ignore_ascii_case(name.as_bytes()));
        if is_it {
            self.next();
        }
        is_it
    }
}

/// Lets `body` run a command of the form `NAME key owner [options]`.
pub(super) fn of_owner<R>(
    ctx: &Context,
    args: &[ServerStr<'_>],
    body: impl FnOnce(LockKey<'_>, Args<'_>) -> Result<R, LockError>,
) -> Result<R, LockError> {
    let [key, rest @ ..] = args else {
        return Err(Usage::Syntax.into());
    };
    let mut key = LockKey::new(ctx, *key);
    if let Some(&owner) = rest.first() {
        key = key.with_owner(owner);
    }
    of_words(rest, |args| body(key, args))
}

/// Lets `body` read these arguments.
#[inline]
pub(super) fn of_words<R>(words: &[ServerStr<'_>], body: impl FnOnce(Args<'_>) -> R) -> R {
    let mut bytes = SmallVec::<[_; ARGS_INLINE]>::new();
    for word in words {
        bytes.push(word.bytes());
    }
    body(Args::new(&bytes))
}
