//! What the server must have counted, as `INFO lock` shows it.
//!
//! A lease that ends while others wait is counted by the next look at the lock:
//! as expired if it was over by what the look before had seen, else as deleted.
//! The server looks at a lock with each of the lock's own commands, and by
//! itself soon after any other. How soon matters only to a lease of a few
//! milliseconds that another command set, or that another command cut off;
//! such cases are kept as doubts until the server's count is seen.

use std::collections::BTreeMap;

use redis_lock_testing::SOON;

use super::{Expect, Place, World, ms};
use crate::commands::Lease;
use crate::stored::is_short;

/// Counters of what happened since the server started.
#[derive(Debug, Default)]
pub(super) struct Account {
    pub grants_immediate: u64,
    pub grants_after_wait: u64,
    pub hand_offs: u64,
    pub reentries: u64,
    pub grants_undelivered: u64,
    pub wait_timeouts: u64,
    pub waits_abandoned: u64,
    pub waits_refused: u64,
    pub releases: u64,
    pub releases_expired: u64,
    pub releases_session: u64,
    pub releases_broken: u64,
    pub releases_deleted: u64,
    /// Holders that gave their lock back and had a token.
    pub timed_holds: u64,
    pub deadlocks_refused: u64,
    pub tokens_refused: u64,
    pub queues_full: u64,
    expired_or_deleted: u64,
    expired_or_unnoticed: u64,
}

/// How the end of a short lease may have been counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    /// The look may have come too late to see that the lease was a short one.
    ExpiredOrDeleted,
    /// The look may have come too late to see the holder at all.
    ExpiredOrUnnoticed,
}

/// A holder that the last look at a contended lock found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Noted {
    owner: &'static str,
    lease: Option<Lease>,
    doubt: Option<Doubt>,
}

/// Why an owner's last hold ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    Released,
    SessionEnded,
    Undelivered,
}

impl World {
    /// A look at the lock: who held it at the last one, and does not any more,
    /// is counted, and so are the permits whose time is over. They go.
    pub(super) fn look(&mut self, at: Place) -> Result<(), Expect> {
        self.left = self.left_by_ended.remove(&at);
        let lock = self.lock(at)?;
        let noted = self.noted.remove(&at).unwrap_or_default();
        if self.is_contended(at) {
            let holds = |noted: &Noted| lock.holder(noted.owner).is_some();
            let (kept, gone): (Vec<Noted>, Vec<Noted>) = noted.into_iter().partition(holds);
            self.noted.insert(at, kept);
            for noted in gone {
                self.count_gone(noted);
            }
        }
        for holder in lock.holders.iter().filter(|holder| holder.over) {
            self.remove_holder(at, holder.owner);
            self.account.releases_expired += 1;
        }
        Ok(())
    }

    fn count_gone(&mut self, noted: Noted) {
        let account = &mut self.account;
        let doubt = if self.short_leases_are_over {
            noted.doubt
        } else {
            Some(Doubt::ExpiredOrDeleted)
        };
        match doubt {
            _ if !is_short(noted.lease) => account.releases_deleted += 1,
            None => account.releases_expired += 1,
            Some(Doubt::ExpiredOrDeleted) => account.expired_or_deleted += 1,
            Some(Doubt::ExpiredOrUnnoticed) => account.expired_or_unnoticed += 1,
        }
    }

    /// Notes who holds a contended lock, as one of its own commands leaves it.
    pub(super) fn note_holders(&mut self, at: Place) {
        self.note(at, |_| None);
    }

    /// Notes who holds a contended lock as the server finds it by itself, after
    /// another command.
    pub(super) fn note_holders_late(&mut self, at: Place) {
        self.note(at, |before| match before {
            Some(before) if is_short(before.lease) => None,
            Some(_) => Some(Doubt::ExpiredOrDeleted),
            None => Some(Doubt::ExpiredOrUnnoticed),
        });
    }

    fn note(&mut self, at: Place, doubt: impl Fn(Option<&Noted>) -> Option<Doubt>) {
        let Ok(lock) = self.lock(at) else {
            return;
        };
        if !self.is_contended(at) {
            return;
        }
        let before = self.noted.remove(&at).unwrap_or_default();
        let notes = lock.holders.iter().map(|holder| {
            let known = before.iter().find(|noted| noted.owner == holder.owner);
            match known {
                Some(known) if known.lease == holder.lease => *known,
                _ => Noted {
                    owner: holder.owner,
                    lease: holder.lease,
                    doubt: doubt(known),
                },
            }
        });
        self.noted.insert(at, notes.collect());
    }

    /// Compares what `INFO lock` shows.
    pub fn check_account(&mut self, shown: &BTreeMap<String, u64>) -> Result<(), String> {
        let get = |name: &str| shown.get(name).copied().ok_or(format!("no {name}"));
        for (name, expected) in self.counters() {
            let shown = get(name)?;
            if shown != expected {
                return Err(format!("{name} is {shown}, not {expected}"));
            }
        }
        let longest = get("lock_longest_wait_ms")?;
        let waits = self.queues.values().flatten();
        let expected = waits.map(|waiter| ms(waiter.since.elapsed())).max();
        let expected = u64::try_from(expected.unwrap_or(0)).unwrap();
        if u128::from(longest.abs_diff(expected)) > SOON.as_millis() {
            return Err(format!("the longest wait is {longest} ms, not {expected}"));
        }
        let (expired, deleted) = (get("lock_releases_expired")?, get("lock_releases_deleted")?);
        self.resolve_doubts(expired, deleted).ok_or_else(|| {
            format!(
                "{expired} releases_expired and {deleted} releases_deleted do not fit {:?}",
                self.account
            )
        })
    }

    fn counters(&self) -> [(&'static str, u64); 20] {
        let account = &self.account;
        let contended = count(self.queues.values().filter(|queue| !queue.is_empty()));
        [
            ("lock_waiters", count(self.queues.values().flatten())),
            ("lock_contended_keys", contended),
            ("lock_planned_looks", contended),
            ("lock_sessions", count(&self.ties)),
            ("lock_grants_immediate", account.grants_immediate),
            ("lock_grants_after_wait", account.grants_after_wait),
            ("lock_hand_offs", account.hand_offs),
            ("lock_reentries", account.reentries),
            ("lock_grants_undelivered", account.grants_undelivered),
            ("lock_wait_timeouts", account.wait_timeouts),
            ("lock_waits_abandoned", account.waits_abandoned),
            ("lock_waits_refused", account.waits_refused),
            ("lock_releases", account.releases),
            ("lock_releases_session", account.releases_session),
            ("lock_releases_broken", account.releases_broken),
            ("lock_deadlocks_refused", account.deadlocks_refused),
            ("lock_tokens_refused", account.tokens_refused),
            ("lock_queues_full", account.queues_full),
            ("lock_wait_count", account.grants_after_wait),
            ("lock_hold_count", account.timed_holds),
        ]
    }

    /// Takes over how the server counted what could not be foretold, if it may
    /// have counted so.
    fn resolve_doubts(&mut self, expired: u64, deleted: u64) -> Option<()> {
        let account = &mut self.account;
        let deleted_in_doubt = deleted.checked_sub(account.releases_deleted)?;
        let expired_at_least = account.expired_or_deleted.checked_sub(deleted_in_doubt)?;
        let expired_in_doubt = expired.checked_sub(account.releases_expired)?;
        let noticed = expired_in_doubt.checked_sub(expired_at_least)?;
        account.expired_or_unnoticed.checked_sub(noticed)?;
        account.releases_expired = expired;
        account.releases_deleted = deleted;
        account.expired_or_deleted = 0;
        account.expired_or_unnoticed = 0;
        Some(())
    }
}

fn count<T>(items: impl IntoIterator<Item = T>) -> u64 {
    u64::try_from(items.into_iter().count()).unwrap()
}
