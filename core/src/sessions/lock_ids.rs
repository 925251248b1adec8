//! What locks are called wherever they move.

use std::collections::BTreeMap;
#[cfg(test)]
use std::collections::BTreeSet;

use crate::keys::{KeyBuf, KeyRef};
use crate::sharded::Sharded;

/// A lock that something is bound to. It is called so as long as that is so, under
/// whatever key. No two locks ever are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct LockId(u64);

impl LockId {
    /// The one that was given after this.
    pub(super) const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// The ids of locks, and the keys at which these are. To find the id of a key takes constant
/// time, and so does it to change the place of all in a database; all else about one of
/// them takes logarithmic time.
#[derive(Clone, Debug, Default)]
pub(super) struct LockIds {
    /// The keys, with their databases as these were at first.
    keys: BTreeMap<LockId, KeyBuf>,
    by_key: Sharded<KeyBuf, LockId>,
    databases: Databases,
    next_id: u64,
}

impl LockIds {
    /// The id of the lock at this key.
    pub(super) fn at(&self, key: KeyRef<'_>) -> Option<LockId> {
        if self.keys.is_empty() {
            return None;
        }
        self.by_key.get(&self.databases.at_first(key)).copied()
    }

    /// The key of a lock, unless it has been left behind.
    pub(super) fn key(&self, id: LockId) -> Option<KeyBuf> {
        let key = self.keys.get(&id)?;
        Some(key.in_db(self.databases.now(key.db())))
    }

    /// The id of the lock at this key, a new one if it has none.
    pub(super) fn at_or_new(&mut self, key: KeyRef<'_>) -> LockId {
        if let Some(id) = self.at(key) {
            return id;
        }
        let id = LockId(self.next_id);
        self.next_id += 1;
        self.put(id, key);
        id
    }

    /// The ids of all locks.
    #[cfg(test)]
    pub(super) fn all(&self) -> BTreeSet<LockId> {
        self.keys.keys().copied().collect()
    }

    /// Forgets what the lock at this key is called.
    pub(super) fn take(&mut self, key: KeyRef<'_>) -> Option<LockId> {
        let id = self.at(key)?;
        self.remove(id);
        Some(id)
    }

    /// Forgets what a lock is called.
    pub(super) fn remove(&mut self, id: LockId) {
        let Some(key) = self.keys.remove(&id) else {
            return;
        };
        self.by_key.remove(&key);
        if self.keys.is_empty() {
            self.databases = Databases::default();
        }
    }

    /// The lock is at another key now, and there is no other.
    pub(super) fn move_to(&mut self, from: KeyRef<'_>, to: KeyRef<'_>) {
        if let Some(id) = self.take(from) {
            self.put(id, to);
        }
    }

    /// Two databases have changed places.
    pub(super) fn swap_databases(&mut self, one: i32, other: i32) {
        if !self.keys.is_empty() {
            self.databases.swap(one, other);
        }
    }

    fn put(&mut self, id: LockId, key: KeyRef<'_>) {
        let key = KeyBuf::from(self.databases.at_first(key));
        self.by_key.insert_new(key.clone(), id);
        self.keys.insert(id, key);
    }
}

/// Where databases are that have changed places.
#[derive(Clone, Debug, Default)]
struct Databases {
    /// The number that each has now, by the one that it had at first.
    now: BTreeMap<i32, i32>,
    at_first: BTreeMap<i32, i32>,
}

impl Databases {
    fn now(&self, at_first: i32) -> i32 {
        self.now.get(&at_first).copied().unwrap_or(at_first)
    }

    fn at_first<'k>(&self, key: KeyRef<'k>) -> KeyRef<'k> {
        let db = self.at_first.get(&key.db).copied().unwrap_or(key.db);
        KeyRef { db, ..key }
    }

    fn swap(&mut self, one: i32, other: i32) {
        let at_first = |db| self.at_first.get(&db).copied().unwrap_or(db);
        let moves = [(at_first(one), other), (at_first(other), one)];
        for (at_first, now) in moves {
            self.now.insert(at_first, now);
            self.at_first.insert(now, at_first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn key(db: i32) -> KeyRef<'static> {
        KeyRef { db, name: b"k" }
    }

    #[test]
    fn a_lock_keeps_its_id_wherever_it_moves() {
        let mut ids = LockIds::default();
        let [one, other] = [0, 1].map(|db| ids.at_or_new(key(db)));
        assert_ne!(one, other);
        let swaps = [(0, 1), (1, 2), (2, 2), (0, 2), (1, 0)];
        let places = [[1, 0], [2, 0], [2, 0], [0, 2], [1, 2]];
        for ((a, b), [at, other_at]) in swaps.into_iter().zip(places) {
            ids.swap_databases(a, b);
            for (id, db) in [(one, at), (other, other_at)] {
                assert_eq!(ids.key(id), Some(key(db).into()));
                assert_eq!(ids.at(key(db)), Some(id));
                assert_eq!(ids.at_or_new(key(db)), id);
            }
            assert_eq!((0..4).filter_map(|db| ids.at(key(db))).count(), 2);
        }
        ids.move_to(key(1), key(3));
        assert_eq!((ids.at(key(1)), ids.at(key(3))), (None, Some(one)));
        assert_eq!(ids.take(key(3)), Some(one));
        assert!(ids.key(one).is_none() && ids.key(other).is_some());
        // What comes next is another lock.
        assert!(![one, other].contains(&ids.at_or_new(key(3))));
    }
}
