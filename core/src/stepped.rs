//! What steps of the wall clock have left to be done, lock by lock.
//!
//! A lock stays here until a step of the table sees it. Then the ends of its leases are
//! moved with the clock; and where the server has expired its key, because by its clock
//! the leases were over, those that are not over are put back.
//!
//! To note, to find and to take a lock takes logarithmic time.

use std::collections::{BTreeMap, BTreeSet};

#[cfg(test)]
use crate::explore::form::Form;
use crate::keys::{KeyBuf, KeyRef};

/// What is left to be done.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stepped {
    /// By how much the clock was set since these locks were looked at.
    by_key: BTreeMap<KeyBuf, i64>,
    /// What the server has expired, and nobody has touched since.
    expired: BTreeSet<KeyBuf>,
}

impl Stepped {
    /// Whether nothing is.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_key.is_empty() && self.expired.is_empty()
    }

    /// The clock was set by so much since this lock was looked at.
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

    /// The server has expired this key. What was there is known.
    pub(crate) fn expired(&mut self, key: KeyRef<'_>) {
        self.expired.insert(key.into());
    }

    /// What was there may not be what is known of it.
    pub(crate) fn touched(&mut self, key: KeyRef<'_>) {
        if !self.expired.is_empty() {
            self.expired.remove(&key.into());
        }
    }

    /// The same of all of these keys.
    pub(crate) fn all_touched(&mut self, is_meant: impl Fn(KeyRef<'_>) -> bool) {
        self.expired.retain(|key| !is_meant(key.as_ref()));
    }

    /// Takes by how much the clock was set since this lock was looked at, if it was, and
    /// whether the server has expired its key.
    pub(crate) fn take(&mut self, key: KeyRef<'_>) -> (Option<i64>, bool) {
        if self.is_empty() {
            return (None, false);
        }
        let key = key.into();
        (self.by_key.remove(&key), self.expired.remove(&key))
    }
}

#[cfg(test)]
impl Stepped {
    /// Writes down what decides what will happen.
    pub(crate) fn take_down(&self, form: &mut Form<'_>) {
        for key in form.keys() {
            form.number(self.by_key.get(key).copied().unwrap_or_default());
            form.flag(self.expired.contains(key));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: KeyRef<'_> = KeyRef { db: 0, name: b"k" };
    const OTHER: KeyRef<'_> = KeyRef { db: 1, name: b"k" };

    #[test]
    fn steps_add_up_until_they_are_taken() {
        let mut stepped = Stepped::default();
        stepped.note(KEY.into(), 5000);
        stepped.note(KEY.into(), -2000);
        assert!(stepped.is_noted(KEY) && !stepped.is_noted(OTHER));
        assert_eq!(stepped.next_key(), Some(&KEY.into()));
        assert_eq!(stepped.take(OTHER), (None, false));
        assert_eq!(stepped.take(KEY), (Some(3000), false));
        assert!(stepped.is_empty());
    }

    #[test]
    fn what_has_expired_counts_until_somebody_touches_it() {
        let mut stepped = Stepped::default();
        stepped.expired(KEY);
        stepped.expired(OTHER);
        stepped.touched(OTHER);
        assert_eq!(stepped.take(OTHER), (None, false));
        assert_eq!(stepped.take(KEY), (None, true));
        stepped.expired(KEY);
        stepped.expired(OTHER);
        stepped.all_touched(|key| key.db == 0);
        assert_eq!(stepped.take(KEY), (None, false));
        assert_eq!(stepped.take(OTHER), (None, true));
        assert!(stepped.is_empty());
    }
}
