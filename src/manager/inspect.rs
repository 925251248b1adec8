//! What an operator sees of the locks. Nothing here changes anything, so it
//! works on replicas too, as far as the data shows.

use redis_module::Context;

use super::transition::end_in_view;
use super::{STATE, State};
use crate::error::LockError;
use crate::lock::metrics::Metrics;
use crate::lock::record::{Holder, Lock, Now};
use crate::lock::request::{Limit, Owner};
use crate::lock::waiters::{Counts, KeyBuf, KeyRef};
use crate::server::acl::User;
use crate::server::clients;
use crate::server::clock;
use crate::server::keyspace::{self, LockKey};

/// A lock, its holders and its queue.
pub(crate) struct LockView {
    /// How many may hold it together now; none if nobody holds it.
    pub(crate) limit: Option<Limit>,
    /// The newest token, if one is stored.
    pub(crate) fence: Option<i64>,
    /// As `PTTL`: milliseconds, -1 for no expiry, -2 for no key.
    pub(crate) ttl_ms: i64,
    /// Who holds it.
    pub(crate) holders: Vec<HolderView>,
    /// How many wait for it.
    pub(crate) waiting: i64,
    /// Who waits for it, in order.
    pub(crate) waiters: Vec<WaiterView>,
}

/// Somebody who holds a lock.
pub(crate) struct HolderView {
    /// Its name.
    pub(crate) owner: Owner,
    /// How many holds it has.
    pub(crate) holds: i64,
    /// Its token; none if Redisson's scripts took the lock.
    pub(crate) fence: Option<i64>,
    /// How long its lease lasts, -1 for ever.
    pub(crate) ttl_ms: i64,
    /// The connection that its holds are tied to.
    pub(crate) client: Option<i64>,
}

/// Somebody who waits for a lock.
pub(crate) struct WaiterView {
    /// Its name.
    pub(crate) owner: Owner,
    /// With how many others it would hold the lock.
    pub(crate) limit: Limit,
    /// Its connection.
    pub(crate) client: i64,
    /// Where that is.
    pub(crate) address: String,
    /// How long it has waited.
    pub(crate) waited_ms: i64,
    /// How long it will wait yet, -1 for ever.
    pub(crate) left_ms: i64,
}

/// A lock that somebody waits for.
pub(crate) struct ContendedView {
    /// Its key.
    pub(crate) key: KeyBuf,
    /// Who holds it.
    pub(crate) holders: Vec<Owner>,
    /// How many wait for it.
    pub(crate) waiting: i64,
    /// How long the first in line has waited.
    pub(crate) waited_ms: i64,
}

/// Shows a lock.
pub(crate) fn lock(key: LockKey<'_>) -> Result<LockView, LockError> {
    let now = clock::now();
    let mut lock = key.open_to_read().read(None)?;
    let ttl_ms = if lock == Lock::default() {
        -2
    } else {
        remaining_ms(lock.expires_at_ms(), now)
    };
    STATE.with_borrow(|state| end_in_view(state, key.as_ref(), &mut lock, now));
    let limits = lock.holders().iter().map(|holder| holder.limit);
    STATE.with_borrow(|state| {
        let waiters: Vec<WaiterView> = state
            .queues
            .waiters(key.as_ref())
            .map(|waiter| WaiterView {
                owner: waiter.request.owner.clone(),
                limit: waiter.request.limit,
                client: signed(waiter.ticket.client.0),
                address: clients::address(waiter.ticket.client).unwrap_or_default(),
                waited_ms: waited_ms(waiter.since_us, now),
                left_ms: remaining_ms(waiter.ticket.until_ms.get(), now),
            })
            .collect();
        Ok(LockView {
            limit: limits.min(),
            fence: lock.last_fence().map(|fence| fence.get()),
            ttl_ms,
            holders: lock
                .holders()
                .iter()
                .map(|holder| holder_view(state, key, holder, now))
                .collect(),
            waiting: signed(waiters.len()),
            waiters,
        })
    })
}

/// Shows at most `count` of the database's locks that somebody waits for and
/// that the user may read, longest wait first.
pub(crate) fn contended(ctx: &Context, count: usize) -> Vec<ContendedView> {
    let now = clock::now();
    let db = keyspace::selected_db(ctx);
    let user = User::running(ctx);
    let mut keys: Vec<(i64, KeyBuf)> = STATE.with_borrow(|state| {
        let keys = state.queues.contended_keys(db);
        keys.map(|(key, since_us)| (since_us, key)).collect()
    });
    keys.retain(|(_, key)| user.may_read(key.as_ref().name));
    keys.sort();
    keys.truncate(count);
    let any_slot = keyspace::any_slot_is_readable(ctx);
    keys.into_iter()
        .map(|(since_us, key)| {
            let holders = match any_slot {
                true => keyspace::with_named(ctx, key.as_ref().name, |key| read(key, now)),
                false => noted(key.as_ref(), now),
            };
            ContendedView {
                holders,
                waiting: signed(STATE.with_borrow(|state| state.queues.length(key.as_ref()))),
                waited_ms: waited_ms(since_us, now),
                key,
            }
        })
        .collect()
}

/// How much the manager remembers.
pub(crate) struct Totals {
    /// Waiters and contended keys.
    pub(crate) counts: Counts,
    /// Holds that are tied to a connection.
    pub(crate) sessions: usize,
    /// The longest wait of all that wait now.
    pub(crate) longest_wait_ms: i64,
}

/// Shows how much there is, and what has happened so far.
pub(crate) fn totals<R>(show: impl FnOnce(&Totals, &Metrics) -> R) -> R {
    let now = clock::now();
    STATE.with_borrow(|state| {
        let longest = state.queues.longest_since_us();
        let totals = Totals {
            counts: state.queues.counts(),
            sessions: state.sessions.len(),
            longest_wait_ms: longest.map_or(0, |since_us| waited_ms(since_us, now)),
        };
        show(&totals, &state.metrics)
    })
}

/// Who holds a lock. Nobody does if the key is none.
fn read(key: LockKey<'_>, now: Now) -> Vec<Owner> {
    let mut lock = key.open_to_read().read(None).unwrap_or_default();
    STATE.with_borrow(|state| end_in_view(state, key.as_ref(), &mut lock, now));
    let holders = lock.holders().iter();
    holders.map(|holder| holder.owner.clone()).collect()
}

/// Who held a lock when it was looked at last, and still does if nothing but time
/// has passed.
fn noted(key: KeyRef<'_>, now: Now) -> Vec<Owner> {
    STATE.with_borrow(|state| {
        let noted = state.queues.holders(key).iter();
        let has_ended = |owner: &Owner| state.ended.of(key).iter().any(|one| one.owner == *owner);
        noted
            .filter(|noted| noted.lease_end_ms.is_none_or(|end_ms| end_ms > now.ms()))
            .filter(|noted| !has_ended(&noted.owner))
            .map(|noted| noted.owner.clone())
            .collect()
    })
}

fn holder_view(state: &State, key: LockKey<'_>, holder: &Holder, now: Now) -> HolderView {
    let tie = state.sessions.tie_of(key.as_ref(), &holder.owner);
    let tie = tie.filter(|tie| Some(tie.fence) == holder.fence);
    HolderView {
        owner: holder.owner.clone(),
        holds: holder.holds,
        fence: holder.fence.map(|fence| fence.get()),
        ttl_ms: remaining_ms(holder.lease_end_ms, now),
        client: tie.map(|tie| signed(tie.client.0)),
    }
}

fn waited_ms(since_us: i64, now: Now) -> i64 {
    (now.us - since_us).max(0) / 1000
}

fn remaining_ms(end_ms: Option<i64>, now: Now) -> i64 {
    end_ms.map_or(-1, |end_ms| (end_ms - now.ms()).max(0))
}

fn signed(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}
