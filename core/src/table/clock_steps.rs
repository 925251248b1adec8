//! Leases over steps of the wall clock.
//!
//! Of a lock that somebody waits for all is known, and so it is of one with holds that are
//! bound to a connection. The ends of these leases move with the clock. A lock of a crowd
//! is left as it is: it would take a write for each holder. And so is a lease that
//! somebody else has set since: it may have begun after the step.

use std::collections::BTreeSet;

use super::LockTable;
use super::transition::Transition;
use crate::bounds::crowd;
use crate::holder::Holder;
use crate::keys::{KeyBuf, KeyRef};
use crate::lock::Lock;

impl LockTable {
    /// Whether it matters that the wall clock is set. Then each step has to come after a
    /// look at the clocks, and so has one that lets somebody wait, or begins a session.
    pub fn follows_clock(&self) -> bool {
        self.anybody_waits() || !self.sessions.is_empty() || !self.stepped.is_empty()
    }

    /// Whether it matters when the lease of somebody who releases ends.
    pub fn follows_lease_ends(&self) -> bool {
        self.anybody_waits() || !self.stepped.is_empty()
    }

    /// The wall clock was set forward by this much, or backward if that is negative. The
    /// leases that are known end as much later or earlier by it. It takes a look at each
    /// lock that is remembered, and a few moves for each binding.
    pub fn clock_stepped(&mut self, by_ms: i64, now_ms: i64) {
        // How long replicas may take does not depend on the wall clock.
        self.acks.clock_stepped(by_ms, &mut self.time_outs);
        self.claims.clock_stepped(by_ms);
        let bound = self.sessions.clock_stepped(by_ms, now_ms);
        let is_bound = |key: &KeyBuf| {
            bound.contains(key) && self.remembered.is_touched(key.as_ref()) == Some(false)
        };
        let is_known = |key: &&KeyBuf| is_bound(key) || self.is_kept(key.as_ref());
        let mut keys: BTreeSet<KeyBuf> = self.remembered.keys().filter(is_known).cloned().collect();
        for crowd in self.remembered.crowds() {
            keys.remove(crowd);
        }
        keys.extend(self.stepped.bound_keys().cloned());
        for key in keys {
            self.stepped.note(key, by_ms);
        }
        // What was planned was so by the clock of before.
        if !self.queues.is_empty() {
            self.queues.recheck_all_by(now_ms);
        }
    }

    /// Whether what is remembered of this lock is kept, though it may have changed.
    pub(super) fn is_kept(&self, key: KeyRef<'_>) -> bool {
        self.queues.contended(key) || self.stepped.is_noted(key)
    }

    /// The server has expired this key. Otherwise as [`LockTable::key_touched`].
    pub fn key_expired(&mut self, key: KeyRef<'_>, now_ms: i64) {
        if !self.is_kept(key) {
            self.know_if_bound(key);
        }
        let bound = self.stepped.take_bound(key);
        let is_known = bound.is_some() || self.remembered.is_touched(key) == Some(false);
        self.key_touched(key, now_ms);
        if is_known {
            self.stepped.expired(key, bound);
        }
    }

    /// Notes a lock of which holds have just been bound, as it was read, unless it is
    /// remembered.
    pub(super) fn note_if_bound(&mut self, key: KeyRef<'_>, read: Option<Lock>) {
        let read = read.filter(|_| self.remembered.lock(key).is_none());
        if let Some(lock) = read {
            self.stepped.note_bound(key.into(), lock);
        }
    }

    /// Forgets a lock for which nobody waits any more, unless it has many holders.
    pub(super) fn forget_uncontended(&mut self, key: KeyRef<'_>) {
        self.know_if_bound(key);
        self.remembered.drop_if_few(key);
    }

    /// Keeps what is remembered of a lock known, if holds of it are bound.
    fn know_if_bound(&mut self, key: KeyRef<'_>) {
        if let Some(bound_key) = self.sessions.bound_key(key)
            && self.remembered.is_touched(key) == Some(false)
            && let Some(lock) = self.remembered.lock(key)
            && lock.holders().len() <= crowd()
        {
            self.stepped.note_bound(bound_key, lock.clone());
        }
    }
}

impl Transition<'_> {
    /// Moves the leases with the clock, if that was set since the lock was looked at last.
    /// `before` is the lock as it was then, unless it is so now.
    #[inline]
    pub(super) fn follow_clock(&mut self, before: Option<&Lock>) {
        if !self.table.stepped.is_empty() {
            self.take_stepped(before);
        }
    }

    #[inline(never)]
    fn take_stepped(&mut self, before: Option<&Lock>) {
        let left = self.table.stepped.take(self.key);
        self.is_bound |= left.bound.is_some();
        if let Some(by_ms) = left.by_ms {
            self.move_leases(before.or(left.bound.as_ref()), left.has_expired, by_ms);
        }
    }

    #[cold]
    fn move_leases(&mut self, before: Option<&Lock>, has_expired: bool, by_ms: i64) {
        let effects = &mut self.step.effects;
        if !self.is_read {
            self.lock.move_leases(|_| true, by_ms, effects);
            return;
        }
        let Some(before) = before else {
            return;
        };
        if has_expired && self.lock.is_free() {
            self.lock.put_back(before, by_ms, self.now, effects);
            return;
        }
        let is_as_before = |holder: &Holder| {
            let before = before.holder(&holder.owner);
            before.is_some_and(|before| {
                before.token == holder.token && before.lease_end_ms == holder.lease_end_ms
            })
        };
        self.lock.move_leases(is_as_before, by_ms, effects);
    }

    /// Notes the lock as it is now, if holds of it are bound and it is not remembered.
    #[inline(never)]
    pub(super) fn note_bound(&mut self) {
        let table = &mut *self.table;
        if !self.lock.is_free()
            && let Some(key) = table.sessions.bound_key(self.key)
        {
            let lock = std::mem::take(&mut self.lock);
            table.stepped.note_bound(key, lock);
        }
    }
}
