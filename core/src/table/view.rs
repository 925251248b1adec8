//! What an operator sees of the locks, once [`LockTable::end_holds_of_gone`] has seen them. Nothing
//! here changes anything, so it works on a replica too, as far as the data shows.

#[cfg(test)]
use std::ops::Bound;

use super::LockTable;
use crate::effect::Effects;
#[cfg(test)]
use crate::explore::form::Form;
use crate::keys::{KeyBuf, KeyRef};
use crate::lock::{Lock, Now, left_ms};
use crate::queue::{Counts, Waiter, WaiterId};
use crate::request::{ClientId, Limit, Owner};
use crate::token::FencingToken;

/// How many holders and how many waiters of a lock are shown.
pub const SHOWN_OF_A_LOCK: usize = 1024;

/// A lock, its holders and its queue.
#[derive(Debug)]
pub struct LockView {
    /// How many may hold it together now; none if nobody holds it.
    pub limit: Option<Limit>,
    /// The newest token, if one is stored.
    pub token: Option<FencingToken>,
    /// As `PTTL`: milliseconds, -1 for no expiry, -2 for no key.
    pub ttl_ms: i64,
    /// How many hold it.
    pub holding: usize,
    /// Who they are, in the order of their tokens, as far as they are shown.
    pub holders: Vec<HolderView>,
    /// How many wait for it.
    pub waiting: usize,
    /// Who they are, in order, as far as they are shown.
    pub waiters: Vec<Waiter>,
}

/// Somebody who holds a lock.
#[derive(Debug)]
pub struct HolderView {
    /// Its name.
    pub owner: Owner,
    /// How many holds it has.
    pub holds: i64,
    /// Its token; none if Redisson's scripts took the lock.
    pub token: Option<FencingToken>,
    /// How long its lease lasts, -1 for ever.
    pub ttl_ms: i64,
    /// The connection that its holds are bound to.
    pub client: Option<ClientId>,
}

/// A lock that somebody waits for.
#[derive(Debug)]
pub struct ContendedView {
    /// Its key.
    pub key: KeyBuf,
    /// How many wait for it.
    pub waiting: usize,
    /// How long the first in line has waited.
    pub waited_ms: i64,
}

/// How much the table remembers.
#[derive(Debug)]
pub struct Totals {
    /// Waiters and contended keys.
    pub counts: Counts,
    /// Holds that are bound to a connection.
    pub sessions: usize,
    /// Replies that wait for replicas.
    pub withheld: usize,
    /// The longest wait of all that wait now.
    pub longest_wait_ms: i64,
}

impl LockTable {
    /// Shows a lock.
    pub fn view(&self, key: KeyRef<'_>, mut lock: Lock, now: Now) -> LockView {
        let ttl_ms = match lock == Lock::default() {
            true => -2,
            false => left_ms(lock.expires_at_ms, now.ms()),
        };
        self.end_in_view(key, &mut lock, now);
        let shared_key = KeyBuf::from(key);
        let holders = lock.holders().iter().map(|holder| {
            let binding = self.sessions.binding_of(shared_key.clone(), &holder.owner);
            let binding = binding.filter(|binding| Some(binding.token) == holder.token);
            HolderView {
                owner: holder.owner.clone(),
                holds: holder.holds,
                token: holder.token,
                ttl_ms: left_ms(holder.lease_end_ms, now.ms()),
                client: binding.and_then(|binding| binding.clients.last().copied()),
            }
        });
        let mut holders: Vec<HolderView> = holders.collect();
        holders.sort_by_key(|holder| holder.token);
        let holding = holders.len();
        holders.truncate(SHOWN_OF_A_LOCK);
        let waiters = || {
            let all = self.queues.waiters(key);
            all.filter(|waiter| !self.is_over(waiter, now.steady_ms))
        };
        // Mostly none is over, and they need not be gone through.
        let until_now = ..=(now.steady_ms, WaiterId(u64::MAX));
        let is_any_over = !self.gone.is_empty() || self.time_outs.range(until_now).next().is_some();
        LockView {
            limit: lock.strictest_limit(),
            token: lock.last_token,
            ttl_ms,
            holding,
            holders,
            waiting: match is_any_over {
                true => waiters().count(),
                false => self.queues.length(key),
            },
            waiters: waiters().take(SHOWN_OF_A_LOCK).cloned().collect(),
        }
    }

    /// The locks of a database that somebody waits for, longest wait first.
    pub fn contended(&self, db: i32, now: Now) -> impl Iterator<Item = ContendedView> {
        let keys = self.queues.contended_keys(db);
        keys.into_iter().map(move |first| ContendedView {
            key: first.key.clone(),
            waiting: self.queues.length(first.key.as_ref()),
            waited_ms: first.waited_ms(now),
        })
    }

    /// Who holds a lock that was read.
    pub fn holders(&self, key: KeyRef<'_>, mut lock: Lock, now: Now) -> Vec<Owner> {
        self.end_in_view(key, &mut lock, now);
        let holders = lock.holders().iter();
        holders.map(|holder| holder.owner.clone()).collect()
    }

    /// A lock as it was when it was looked at last, without the leases that are over.
    pub fn noted(&self, key: KeyRef<'_>, now: Now) -> Lock {
        let mut lock = self.queues.seen(key).cloned().unwrap_or_default();
        lock.holders.retain(|holder| !holder.ends_by(now.ms()));
        lock
    }

    /// How much there is.
    pub fn totals(&self, now: Now) -> Totals {
        let longest = self.queues.longest();
        Totals {
            counts: self.queues.counts(),
            sessions: self.sessions.len(),
            withheld: self.outbox.replies(),
            longest_wait_ms: longest.map_or(0, |longest| longest.waited_ms(now)),
        }
    }

    /// Leaves out of a copy what is over and is still stored.
    pub(super) fn end_in_view(&self, key: KeyRef<'_>, lock: &mut Lock, now: Now) {
        let unwritten = &mut Effects::new();
        lock.end_leases(now, unwritten);
        for ended in self.ended.of(key) {
            ended.end(lock, unwritten);
        }
    }
}

#[cfg(test)]
impl LockTable {
    /// Adds to a form of the state all that can influence a later step.
    pub(crate) fn take_down(&self, form: &mut Form<'_>) {
        self.queues.take_down(form);
        self.tokens.take_down(form);
        self.sessions.take_down(form);
        self.outbox.take_down(form);
        self.ended.take_down(form);
        self.acks.take_down(form, |hold, serial| {
            let bound = self.sessions.binding(hold);
            bound.is_some_and(|bound| serial >= bound.counts_from)
        });
        form.count(self.ended_at_once);
        form.count(self.gone.len());
        let behind = (Bound::Excluded(self.last_gone), Bound::Unbounded);
        let in_turn = self.gone.range(behind);
        for client in in_turn.chain(self.gone.range(..=self.last_gone)) {
            form.client(Some(*client));
        }
        form.count(self.unchecked.len());
        for id in &self.unchecked {
            form.waiter(Some(*id));
        }
        form.count(self.time_outs.len());
        for &(at_ms, id) in &self.time_outs {
            form.time(Some(at_ms));
            form.waiter(Some(id));
        }
        form.count(self.unclaimed.len());
        for (&token, &over_ms) in &self.unclaimed {
            form.token(Some(token));
            form.time(Some(over_ms));
        }
        form.count(self.untold.len());
        for (_, id) in self.untold.keys() {
            form.waiter(Some(*id));
        }
        form.count(self.to_close.len());
        for client in &self.to_close {
            form.client(Some(*client));
        }
    }

    /// Whose connections are to be closed.
    pub(crate) fn to_close(&self) -> &std::collections::BTreeSet<ClientId> {
        &self.to_close
    }

    /// Returns whether all that is kept twice agrees.
    pub(crate) fn agree(&self) -> bool {
        let out = |id| self.outbox.get(id);
        let is_withheld = |id| out(id).is_some_and(|out| out.withheld.is_some());
        self.queues.agree()
            && self.sessions.agree()
            && self.acks.agree(is_withheld)
            && self.outbox.agree()
    }

    /// The lock as it was left by the last step, if it is remembered.
    pub(crate) fn remembered(&self, key: KeyRef<'_>) -> Option<&Lock> {
        self.queues.seen(key)
    }

    /// When a lock is looked at next because somebody waits for it.
    pub(crate) fn recheck_at_ms(&self, key: KeyRef<'_>) -> Option<i64> {
        self.queues.recheck_at_ms(key)
    }

    /// Lets the same kind of work come first as at the beginning.
    pub(crate) fn begin_turns_anew(&mut self) {
        self.turn = 0;
    }

    /// As [`LockTable::grant_told`], for what this client is to be told, if anything.
    pub(crate) fn client_told(&mut self, client: ClientId, heard: bool) {
        if let Some(id) = self.outbox.any_of(client) {
            self.grant_told(id, heard, 0);
        }
    }

    /// Whether something has ended of this lock that is still stored.
    pub(crate) fn has_ended(&self, key: KeyRef<'_>) -> bool {
        !self.ended.of(key).is_empty() || !self.gone.is_empty()
    }

    /// What is remembered without need: grants on their way, what has ended, and
    /// bindings, in this order.
    pub(crate) fn counts(&self) -> [bool; 3] {
        let (outbox, ended) = (&self.outbox, &self.ended);
        [
            outbox.replies() == 0,
            ended.is_empty() && self.gone.is_empty(),
            self.sessions.is_empty(),
        ]
    }
}
