//! Redisson's waiters hear of a lock that came free and that no waiter here takes over.
//!
//! # What it costs by default
//! To ask whether anybody listens to the channel of a lock takes 13 of 100 instructions of its
//! acquire and release. So if nobody has listened lately, locks that come free are only noted.
//! When the server's cron runs, ten times a second, the module looks whether anybody listens
//! to any channel. Only then are the channels asked for one by one.

use std::cell::{Cell, RefCell};

use redis_module::Context;
use smallvec::SmallVec;

use crate::config::{self, RedissonNotify};
use crate::server::keyspace::LockKey;
use crate::server::publish;

/// While somebody has listened this lately, each release is published at once.
const LATELY_MS: i64 = 60_000;

/// When this many locks are noted, their channels are asked for listeners.
const NOTED: usize = 500;

type Name = SmallVec<[u8; 64]>;

thread_local! {
    /// When anybody listened last, by the steady clock.
    static HEARD_AT_MS: Cell<i64> = const { Cell::new(i64::MIN) };

    static FREED: RefCell<Vec<Name>> = const { RefCell::new(Vec::new()) };
}

/// Begins anew, as a module that has just been loaded.
pub(super) fn reset() {
    HEARD_AT_MS.set(i64::MIN);
    FREED.take();
}

/// A lock came free.
pub(super) fn tell(key: LockKey<'_>, now_ms: i64) {
    let (ctx, name) = (key.ctx(), key.as_ref().name);
    match config::redisson_notify() {
        RedissonNotify::No => {}
        RedissonNotify::By(command) => publish::release_to_all(ctx, name, command),
        RedissonNotify::Auto => {
            let is_quiet = now_ms.saturating_sub(HEARD_AT_MS.get()) > LATELY_MS;
            if !is_quiet {
                tell_now(ctx, name, now_ms);
            } else if note(name) >= NOTED {
                tell_noted(ctx, now_ms);
            }
        }
    }
}

fn tell_now(ctx: &Context, name: &[u8], now_ms: i64) {
    if publish::release_to_listeners(ctx, name) {
        HEARD_AT_MS.set(now_ms);
    }
}

/// Notes a lock, and returns how many are noted.
fn note(name: &[u8]) -> usize {
    FREED.with_borrow_mut(|freed| {
        if freed.last().is_none_or(|last| last[..] != *name) {
            freed.push(name.into());
        }
        freed.len()
    })
}

/// Tells the listeners of all locks that are noted, if anybody listens to anything.
pub(super) fn tell_noted(ctx: &Context, now_ms: i64) {
    let freed = FREED.take();
    if !freed.is_empty() && publish::anybody_listens(ctx) {
        freed.iter().for_each(|name| tell_now(ctx, name, now_ms));
    }
}
