//! What steps of the wall clock have left to be done, lock by lock.
//!
//! A lock stays here until a step of the table sees it. Then the ends of its leases are
//! moved with the clock; and where the server has expired its key, because by its clock
//! the leases were over, those that are not over are put back.
//!
//! For that all of the lock has to be known. Those that somebody waits for are
//! remembered; those with holds that are bound to a connection are noted here.
//!
//! To note, to find and to take a lock takes logarithmic time, or constant time where
//! the clock has not been set. To touch all locks of a database takes a step for each that
//! has expired while the clock was set; what is known of the others is given back bit by bit.

use std::collections::{BTreeMap, BTreeSet};

#[cfg(test)]
use crate::explore::form::Form;
use crate::keys::{KeyBuf, KeyRef};
use crate::lock::Lock;
use crate::sharded::Sharded;

/// What is left to be done.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stepped {
    /// By how much the clock was set since these locks were looked at.
    by_key: BTreeMap<KeyBuf, i64>,
    /// What the server has expired, and nobody has touched since.
    expired: BTreeSet<KeyBuf>,
    /// Locks with bound holds that nobody waits for, as the last step has left them.
    /// Nobody has touched them since, but for what has expired. By the number of their
    /// database, of which all are left behind at once.
    bound: BTreeMap<i32, Bound>,
    /// What was left behind, until its memory is given back.
    discarded: Vec<Bound>,
}

type Bound = Sharded<KeyBuf, Lock>;

/// What was here of a lock.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// By how much the clock was set since it was looked at, if it was.
    pub(crate) by_ms: Option<i64>,
    /// The server has expired its key, and nobody has touched that since.
    pub(crate) has_expired: bool,
    /// The lock as the last step has left it, if holds are bound.
    pub(crate) bound: Option<Lock>,
}

impl Stepped {
    /// Whether nothing is.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
            && self.expired.is_empty()
            && self.bound.values().all(Bound::is_empty)
    }

    /// The clock was set by this much since this lock was looked at.
    pub(crate) fn note(&mut self, key: KeyBuf, by_ms: i64) {
        let all_ms = self.by_key.entry(key).or_default();
        *all_ms = all_ms.saturating_add(by_ms);
    }

    /// Whether the clock was set since this lock was looked at.
    pub(crate) fn is_noted(&self, key: KeyRef<'_>) -> bool {
        !self.by_key.is_empty() && self.by_key.contains_key(&key.into())
    }

    /// A lock that was not looked at since the clock was set.
    pub(crate) fn next_key(&self) -> Option<&KeyBuf> {
        self.by_key.keys().next()
    }

    /// A step leaves the lock so, and holds of it are bound.
    pub(crate) fn note_bound(&mut self, key: KeyBuf, lock: Lock) {
        self.bound.entry(key.db()).or_default().put(key, lock);
    }

    /// The locks with bound holds that are known.
    pub(crate) fn bound_keys(&self) -> impl Iterator<Item = &KeyBuf> {
        self.bound.values().flat_map(Bound::keys)
    }

    /// Takes what is known of a lock with bound holds.
    pub(crate) fn take_bound(&mut self, key: KeyRef<'_>) -> Option<Lock> {
        self.bound.get_mut(&key.db)?.remove(&key)
    }

    /// The server has expired this key. What was there is known.
    pub(crate) fn expired(&mut self, key: KeyRef<'_>, bound: Option<Lock>) {
        self.expired.insert(key.into());
        if let Some(lock) = bound {
            self.note_bound(key.into(), lock);
        }
    }

    /// What was there may not be what is known of it.
    pub(crate) fn touched(&mut self, key: KeyRef<'_>) {
        if !self.expired.is_empty() {
            self.expired.remove(&key.into());
        }
        self.take_bound(key);
    }

    /// The same of all keys of these databases, or of all.
    pub(crate) fn all_touched(&mut self, databases: Option<&[i32]>) {
        let is_meant = |db: i32| databases.is_none_or(|some| some.contains(&db));
        self.expired.retain(|key| !is_meant(key.db()));
        for (db, bound) in &mut self.bound {
            if is_meant(*db) && !bound.is_empty() {
                self.discarded.push(std::mem::take(bound));
            }
        }
    }

    /// Whether anything was left behind whose memory has not been given back.
    pub(crate) fn any_discarded(&self) -> bool {
        !self.discarded.is_empty()
    }

    /// Gives back the memory of some of it.
    pub(crate) fn give_back(&mut self) {
        self.discarded.pop_if(|bound| !bound.give_back());
    }

    /// Takes what is here of a lock.
    pub(crate) fn take(&mut self, key: KeyRef<'_>) -> Left {
        let bound = self.take_bound(key);
        if self.by_key.is_empty() && self.expired.is_empty() {
            return Left {
                bound,
                ..Left::default()
            };
        }
        let key = key.into();
        Left {
            by_ms: self.by_key.remove(&key),
            has_expired: self.expired.remove(&key),
            bound,
        }
    }
}

#[cfg(test)]
impl Stepped {
    /// Writes down what decides what will happen.
    pub(crate) fn take_down(&self, form: &mut Form<'_>) {
        for key in form.keys() {
            form.number(self.by_key.get(key).copied().unwrap_or_default());
            form.flag(self.expired.contains(key));
            let bound = self.bound.get(&key.db()).and_then(|bound| bound.get(key));
            form.flag(bound.is_some());
            if let Some(lock) = bound {
                form.lock(lock);
            }
        }
        form.flag(self.any_discarded());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: KeyRef<'_> = KeyRef { db: 0, name: b"k" };
    const OTHER: KeyRef<'_> = KeyRef { db: 1, name: b"k" };

    /// By how much the clock was set, whether it has expired, and whether it is known.
    fn take(stepped: &mut Stepped, key: KeyRef<'_>) -> (Option<i64>, bool, bool) {
        let left = stepped.take(key);
        (left.by_ms, left.has_expired, left.bound.is_some())
    }

    #[test]
    fn steps_add_up_until_they_are_taken() {
        let mut stepped = Stepped::default();
        stepped.note(KEY.into(), 5000);
        stepped.note(KEY.into(), -2000);
        assert!(stepped.is_noted(KEY) && !stepped.is_noted(OTHER));
        assert_eq!(stepped.next_key(), Some(&KEY.into()));
        assert_eq!(take(&mut stepped, OTHER), (None, false, false));
        assert_eq!(take(&mut stepped, KEY), (Some(3000), false, false));
        assert!(stepped.is_empty());
    }

    #[test]
    fn what_has_expired_counts_until_somebody_touches_it() {
        let mut stepped = Stepped::default();
        stepped.expired(KEY, None);
        stepped.expired(OTHER, Some(Lock::default()));
        stepped.touched(OTHER);
        assert_eq!(take(&mut stepped, OTHER), (None, false, false));
        assert_eq!(take(&mut stepped, KEY), (None, true, false));
        stepped.expired(KEY, Some(Lock::default()));
        stepped.expired(OTHER, Some(Lock::default()));
        stepped.all_touched(Some(&[0]));
        assert_eq!(take(&mut stepped, KEY), (None, false, false));
        assert_eq!(take(&mut stepped, OTHER), (None, true, true));
        assert!(stepped.is_empty());
    }
}
