//! Keyspace notifications, in order and not too many at a time.
//!
//! Where many holders end at once, a notification tells of each, and each may be
//! published on two channels. Those that don't fit into one turn wait here, and so do all
//! that come after them: nobody hears of a grant before the ends that made room for it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use redis_module::Context;

use crate::server::keyspace::{self, LockKey};
use crate::server::notifications;
use redis_lock_core::keys::KeyBuf;
use redis_lock_core::table::LockEvent;

/// How many are sent in one turn.
const A_TURN: usize = 128;

/// Equal notifications in a row that wait.
struct Waiting {
    key: KeyBuf,
    event: LockEvent,
    count: usize,
}

thread_local! {
    static WAITING: RefCell<VecDeque<Waiting>> = const { RefCell::new(VecDeque::new()) };
}

/// Whether any wait. Each step asks, and to look it up by thread takes longer.
static ANY_WAITS: AtomicBool = AtomicBool::new(false);

/// Whether any wait.
pub(super) fn any_waits() -> bool {
    ANY_WAITS.load(Ordering::Relaxed)
}

/// Forgets those that wait.
pub(super) fn reset() {
    WAITING.take();
    note_whether_any_waits();
}

/// Notifies of these events, now or after all others.
#[inline]
pub(super) fn tell(key: LockKey<'_>, events: &[LockEvent]) {
    if any_waits() || events.len() > A_TURN {
        return tell_later(key, events);
    }
    for &event in events {
        notifications::notify(key, event);
    }
}

#[cold]
fn tell_later(key: LockKey<'_>, events: &[LockEvent]) {
    let runs = events.chunk_by(|one, next| one == next);
    let waiting = runs.filter_map(|run| {
        Some(Waiting {
            key: key.as_ref().into(),
            event: *run.first()?,
            count: run.len(),
        })
    });
    WAITING.with_borrow_mut(|all| all.extend(waiting));
    note_whether_any_waits();
}

/// Sends some of those that wait.
pub(super) fn tell_waiting(ctx: &Context) {
    if !any_waits() {
        return;
    }
    for _ in 0..A_TURN {
        // The server calls back.
        let Some((key, event)) = WAITING.with_borrow_mut(take) else {
            break;
        };
        let key = key.as_ref();
        keyspace::select_db(ctx, key.db);
        keyspace::with_named(ctx, key.name, |key| notifications::notify(key, event));
    }
    note_whether_any_waits();
}

fn take(all: &mut VecDeque<Waiting>) -> Option<(KeyBuf, LockEvent)> {
    let first = all.front_mut()?;
    let next = (first.key.clone(), first.event);
    first.count -= 1;
    if first.count == 0 {
        all.pop_front();
    }
    Some(next)
}

fn note_whether_any_waits() {
    let any = WAITING.with_borrow(|all| !all.is_empty());
    ANY_WAITS.store(any, Ordering::Relaxed);
}
