//! What an operator sees of the locks. Nothing here changes anything, so it works on
//! replicas too, as far as the data shows.

use redis_module::Context;

use super::{TABLE, read_lock};
use crate::server::acl::User;
use crate::server::clock;
use crate::server::keyspace::{self, LockKey};
use crate::server::open_lock::{OpenLock, Part};
use redis_lock_core::error::LockError;
use redis_lock_core::metrics::Metrics;
use redis_lock_core::request::Owner;
use redis_lock_core::table::{ContendedView, LockView, Totals};

/// Shows a lock.
pub(crate) fn lock(key: LockKey<'_>) -> Result<LockView, LockError> {
    let open = OpenLock::open_to_read(key);
    let stored = read_lock(&open, key.as_ref(), Part::Whole(None))?;
    let now = clock::now();
    Ok(TABLE.with_borrow_mut(|table| {
        table.end_holds_of_gone(key.as_ref(), &stored);
        table.view(key.as_ref(), stored, now)
    }))
}

/// Shows at most `count` of the database's locks that somebody waits for and that the
/// user may read, longest wait first, each with who holds it. It ends after 10,000 holders.
pub(crate) fn contended(ctx: &Context, count: usize) -> Vec<(ContendedView, Vec<Owner>)> {
    let (now, db) = (clock::now(), keyspace::selected_db(ctx));
    let user = User::running(ctx);
    let may_read = |lock: &ContendedView| user.may_read(lock.key.as_ref().name);
    let locks: Vec<ContendedView> = TABLE.with_borrow(|table| {
        let locks = table.contended(db, now).filter(may_read);
        locks.take(count).collect()
    });
    let any_slot = keyspace::any_slot_is_readable(ctx);
    let mut holders_left = 10_000_usize;
    let with_holders = locks.into_iter().map_while(|lock| {
        if holders_left == 0 {
            return None;
        }
        let key = lock.key.as_ref();
        let stored = any_slot.then(|| {
            keyspace::with_named(ctx, key.name, |key| {
                OpenLock::open_to_read(key).read(Part::Whole(None), None)
            })
        });
        let holders = TABLE.with_borrow_mut(|table| {
            // What is no lock is held by nobody.
            let lock = stored.map_or_else(|| table.noted(key, now), Result::unwrap_or_default);
            table.end_holds_of_gone(key, &lock);
            table.holders(key, lock, now)
        });
        holders_left = holders_left.saturating_sub(holders.len());
        Some((lock, holders))
    });
    with_holders.collect()
}

/// Shows how much there is, and what has happened so far.
pub(crate) fn totals<R>(show: impl FnOnce(&Totals, &Metrics) -> R) -> R {
    let now = clock::now();
    TABLE.with_borrow(|table| show(&table.totals(now), table.metrics()))
}
