//! Leases over steps of the wall clock.
//!
//! Where somebody waits, all of the lock is known; of a session's holds, enough is. The
//! ends of these leases move with the clock. A lock of a crowd is left as it is: it would
//! take a write for each holder. And a lease that somebody else has set may have begun
//! after the step.

use super::LockTable;
use super::transition::Transition;
use crate::keys::KeyRef;
use crate::lock::{Holder, Lock};

impl LockTable {
    /// Whether it matters that the wall clock is set. Then each step has to come after a
    /// look at the clocks, and so has one that lets somebody wait, or begins a session.
    pub fn follows_clock(&self) -> bool {
        self.anybody_waits() || !self.sessions.is_empty() || self.stepped.next_key().is_some()
    }

    /// Whether it matters when the lease of somebody who releases ends.
    pub fn follows_lease_ends(&self) -> bool {
        self.anybody_waits() || self.stepped.next_key().is_some()
    }

    /// The wall clock was set forward by so much, or backward if that is negative. The
    /// leases that are known end so much later or earlier by it. It takes a look at each
    /// lock that is remembered, and at each binding.
    pub fn clock_stepped(&mut self, by_ms: i64, now_ms: i64) {
        let mut keys = self.sessions.clock_stepped(by_ms, now_ms);
        let remembered = self.remembered.keys();
        let known = remembered.filter(|key| self.is_kept(key.as_ref()));
        keys.extend(known.cloned());
        for crowd in self.remembered.crowds() {
            keys.remove(crowd);
        }
        for key in keys {
            self.stepped.note(key, by_ms);
        }
        // What was planned was so by the clock of before.
        if self.queues.any_planned(|_| true) {
            self.queues.recheck_all_by(now_ms);
        }
    }

    /// Whether what is remembered of this lock is kept, though it may have changed.
    pub(super) fn is_kept(&self, key: KeyRef<'_>) -> bool {
        self.queues.contended(key) || self.stepped.is_noted(key)
    }

    /// The server has expired this key. Otherwise as [`LockTable::key_touched`].
    pub fn key_expired(&mut self, key: KeyRef<'_>, now_ms: i64) {
        let is_known = match self.remembered.is_touched(key) {
            Some(is_touched) => !is_touched,
            None => !self.sessions.bound_on(key).is_empty(),
        };
        self.key_touched(key, now_ms);
        if is_known {
            self.stepped.expired(key);
        }
    }
}

impl Transition<'_> {
    /// Moves the leases with the clock, if that was set since the lock was looked at last.
    /// `before` is the lock as it was then, unless it is so now.
    #[inline]
    pub(super) fn follow_clock(&mut self, before: Option<&Lock>) {
        if !self.table.stepped.is_empty() {
            self.move_leases(before);
        }
    }

    #[cold]
    fn move_leases(&mut self, before: Option<&Lock>) {
        let (Some(by_ms), has_expired) = self.table.stepped.take(self.key) else {
            return;
        };
        let effects = &mut self.step.effects;
        if !self.is_read {
            self.lock.move_leases(|_| true, by_ms, effects);
        } else if has_expired && self.lock.is_free() {
            let now = self.now;
            if let Some(before) = before {
                let holders = before.holders().iter();
                let holders = holders.map(|holder| holder.moved(by_ms));
                self.lock
                    .put_back(holders, before.last_token(), now, effects);
            } else {
                let holders = self.table.sessions.holders(self.key);
                let last_token = holders.iter().filter_map(|holder| holder.token).max();
                self.lock
                    .put_back(holders.into_iter(), last_token, now, effects);
            }
        } else if let Some(before) = before {
            let is_as_before = |holder: &Holder| {
                let before = before.holder(&holder.owner);
                before.is_some_and(|before| {
                    before.token == holder.token && before.lease_end_ms == holder.lease_end_ms
                })
            };
            self.lock.move_leases(is_as_before, by_ms, effects);
        }
    }
}
