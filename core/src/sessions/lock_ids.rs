//! What locks are called.

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
    keys: BTreeMap<LockId, KeyBuf>,
    by_key: Sharded<KeyBuf, LockId>,
    next_id: u64,
}

impl LockIds {
    /// The id of the lock at this key.
    pub(super) fn at(&self, key: KeyRef<'_>) -> Option<LockId> {
        if self.keys.is_empty() {
            return None;
        }
        self.by_key.get(&key).copied()
    }

    /// The key of a lock, unless it has been left behind.
    pub(super) fn key(&self, id: LockId) -> Option<KeyBuf> {
        self.keys.get(&id).cloned()
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
    }

    fn put(&mut self, id: LockId, key: KeyRef<'_>) {
        let key = KeyBuf::from(key);
        self.by_key.insert_new(key.clone(), id);
        self.keys.insert(id, key);
    }
}
