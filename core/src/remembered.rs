//! What the last look at a lock has shown.
//!
//! Locks that somebody waits for are remembered, because the search for deadlocks
//! follows their holders, and because a holder that is gone at the next look has to
//! be counted. Locks with many holders are remembered, because reading them from the
//! hash again for each command would cost as much as they have holders.
//!
//! Architecture invariant: what is remembered grants nothing by itself. A lock is used
//! from here only where the server has told of no change since, and where the hash has the same number
//! of fields, expiry and newest token, and the same fields of the owner in question. To
//! have a request wait behind others, the former is enough.
//!
//! To take a lock, to put it back and to note a holder takes constant time, or
//! logarithmic time in the number of keys that one owner holds. To put a lock here the
//! first time and to forget it takes a step for each of its holders, but of no more
//! than a few hundred. Of a lock of more, a *crowd*, nothing is noted beside the lock:
//! it comes, moves and goes as a whole, and who asks for an owner asks each crowd. The
//! memory of one that has gone is given back bit by bit.
//!
//! To touch all locks of a database takes constant time, however many there are. Those
//! that need not be kept are found and forgotten bit by bit, by [`Remembered::sweep`]. As
//! long as one is here, its holders are looked for in vain.

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashSet;

use crate::bounds::{crowd, few};
#[cfg(test)]
use crate::explore::form::Form;
use crate::holders::Holders;
use crate::keys::{KeyBuf, KeyRef};
use crate::lock::Lock;
use crate::request::Owner;
use crate::sharded::Sharded;

/// All locks that are remembered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Remembered {
    by_key: Sharded<KeyBuf, Box<Seen>>,
    /// The keys of these locks that each owner holds, but for crowds.
    held_by: HeldBy,
    /// There may be locks of many holders.
    any_large: bool,
    /// Locks of so many holders that these are not noted one by one.
    crowds: HashSet<KeyBuf>,
    /// Crowds that nobody needs any more, until their memory is given back.
    discarded: Vec<Holders>,
    touches: Touches,
    /// The parts of all locks up to this one may have some that need not be kept.
    unswept: usize,
    /// Locks that need not be kept, unless somebody has looked at them since.
    unkept: Vec<KeyBuf>,
}

#[derive(Clone, Debug)]
struct Seen {
    lock: Lock,
    /// The server has told of a change since.
    is_touched: bool,
    /// How often any key of a database may have changed before.
    touches: u64,
    is_crowd: bool,
}

/// How often any key of a database may have changed.
#[derive(Clone, Debug, Default)]
struct Touches {
    count: u64,
    /// What the count was at the last time for all databases.
    all: u64,
    /// The same for each of those that have been touched since.
    of_db: BTreeMap<i32, u64>,
}

impl Touches {
    /// Of these databases, or of all.
    fn note(&mut self, databases: Option<&[i32]>) {
        self.count += 1;
        match databases {
            Some(some) => self.of_db.extend(some.iter().map(|db| (*db, self.count))),
            None => {
                self.all = self.count;
                self.of_db.clear();
            }
        }
    }

    fn any_since(&self, key: KeyRef<'_>, seen: &Seen) -> bool {
        let of_db = || self.of_db.get(&key.db).copied().unwrap_or_default();
        seen.touches < self.count && seen.touches < self.all.max(of_db())
    }
}

impl Remembered {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// The lock as it was left by the last step.
    pub(crate) fn lock(&self, key: KeyRef<'_>) -> Option<&Lock> {
        self.by_key.get(&key).map(|seen| &seen.lock)
    }

    /// The same, if it has many holders and need not be read again.
    pub(crate) fn untouched(&self, key: KeyRef<'_>) -> Option<&Lock> {
        if !self.any_large {
            return None;
        }
        let lock = self.fresh(key)?;
        (lock.holders().len() > few()).then_some(lock)
    }

    /// The lock as it was left by the last step, if the server has told of no change since.
    pub(crate) fn fresh(&self, key: KeyRef<'_>) -> Option<&Lock> {
        let seen = self.by_key.get(&key)?;
        (!self.was_touched(key, seen)).then_some(&seen.lock)
    }

    fn was_touched(&self, key: KeyRef<'_>, seen: &Seen) -> bool {
        seen.is_touched || self.touches.any_since(key, seen)
    }

    /// Takes the lock for a step, after which it is put back or forgotten. Returns
    /// with it whether the server has told of a change since.
    pub(crate) fn take(&mut self, key: KeyRef<'_>) -> Option<(Lock, bool)> {
        if self.is_empty() {
            return None;
        }
        let seen = self.by_key.get_mut(&key)?;
        let was_touched = seen.is_touched || self.touches.any_since(key, seen);
        seen.is_touched = false;
        seen.touches = self.touches.count;
        Some((std::mem::take(&mut seen.lock), was_touched))
    }

    /// Puts a lock here, or back. These owners may hold it now and did not before, or
    /// the other way round. `named` is the key where it is in memory already.
    pub(crate) fn put(
        &mut self,
        key: KeyRef<'_>,
        named: Option<KeyBuf>,
        lock: Lock,
        changed: &[Owner],
    ) {
        let holders = lock.holders().len();
        self.any_large |= holders > few();
        if let Some((key, seen)) = self.by_key.get_key_value_mut(&key) {
            if seen.is_crowd && holders <= crowd() / 2 {
                seen.is_crowd = false;
                self.crowds.remove(key);
                self.held_by.note_all(key, owners_of(&lock), true);
            } else if !seen.is_crowd && holders > crowd() {
                seen.is_crowd = true;
                self.crowds.insert(key.clone());
                self.held_by.note_all(key, owners_of(&lock), false);
                self.held_by.note_all(key, changed.iter(), false);
            } else if !seen.is_crowd {
                for owner in changed {
                    let holds = lock.holder(owner).is_some();
                    self.held_by.note(key, owner, holds);
                }
            }
            seen.lock = lock;
            return;
        }
        let key = named.unwrap_or_else(|| key.into());
        let is_crowd = holders > crowd();
        if is_crowd {
            self.crowds.insert(key.clone());
        } else {
            self.held_by.note_all(&key, owners_of(&lock), true);
        }
        let seen = Seen {
            lock,
            is_touched: false,
            touches: self.touches.count,
            is_crowd,
        };
        self.by_key.insert_new(key, Box::new(seen));
    }

    /// Forgets a lock that was taken, with those who held it at any time since it
    /// was first put here.
    pub(crate) fn forget<'o>(&mut self, key: KeyRef<'_>, owners: impl Iterator<Item = &'o Owner>) {
        let Some((key, seen)) = self.by_key.remove_entry(&key) else {
            return;
        };
        self.any_large &= !self.by_key.is_empty();
        if seen.is_crowd {
            self.crowds.remove(&key);
        } else {
            self.held_by.note_all(&key, owners, false);
        }
    }

    /// Forgets a lock that is here.
    pub(crate) fn drop_lock(&mut self, key: KeyRef<'_>) {
        if let Some((lock, _)) = self.take(key) {
            self.forget(key, owners_of(&lock));
            self.discard(lock.holders);
        }
    }

    /// Nobody needs these holders any more. To give back the memory of a crowd at once
    /// would take a step for each of them.
    pub(crate) fn discard(&mut self, holders: Holders) {
        self.discarded.push(holders);
        self.give_back(crowd());
    }

    /// Whether anything was discarded whose memory has not been given back.
    pub(crate) fn any_discarded(&self) -> bool {
        !self.discarded.is_empty()
    }

    /// Gives back the memory of at most `at_most` holders that were discarded.
    pub(crate) fn give_back(&mut self, at_most: usize) {
        if let Some(holders) = self.discarded.last_mut() {
            holders.give_back(at_most);
        }
        self.discarded.pop_if(|holders| holders.is_empty());
    }

    /// Forgets a lock for which nobody waits any more, unless it has many holders.
    pub(crate) fn drop_if_few(&mut self, key: KeyRef<'_>) {
        let is_few = |lock: &Lock| lock.holders().len() <= few();
        if self.lock(key).is_some_and(is_few) {
            self.drop_lock(key);
        }
    }

    /// Notes that the key may have changed.
    pub(crate) fn touch(&mut self, key: KeyRef<'_>) {
        if let Some(seen) = self.by_key.get_mut(&key) {
            seen.is_touched = true;
        }
    }

    /// Notes that any key of these databases, or of all, may have changed.
    pub(crate) fn touch_all(&mut self, databases: Option<&[i32]>) {
        if self.is_empty() {
            return;
        }
        self.touches.note(databases);
        if self.any_large {
            // A lock of few holders is here only because it is kept.
            self.unswept = usize::MAX;
        }
    }

    /// Whether there may be locks that were touched with others and need not be kept.
    pub(crate) fn is_to_be_swept(&self) -> bool {
        self.unswept > 0 || !self.unkept.is_empty()
    }

    /// Forgets some of them, of about `at_most` holders. It looks at a small part of all
    /// locks at most.
    pub(crate) fn sweep(&mut self, at_most: usize, is_kept: impl Fn(KeyRef<'_>) -> bool) {
        if self.unkept.is_empty() && self.unswept > 0 {
            self.unswept = self.unswept.min(self.by_key.parts()) - 1;
            let part = self.by_key.part(self.unswept);
            let unkept = part.filter(|(key, seen)| {
                self.was_touched(key.as_ref(), seen) && !is_kept(key.as_ref())
            });
            self.unkept = unkept.map(|(key, _)| key.clone()).collect();
        }
        let mut forgotten = 0;
        while forgotten < at_most
            && let Some(key) = self.unkept.pop()
        {
            let key = key.as_ref();
            if self.is_touched(key) == Some(true) && !is_kept(key) {
                forgotten += self.lock(key).map_or(0, |lock| lock.holders().len());
                self.drop_lock(key);
            }
        }
    }

    /// The keys of all of them.
    #[cfg(test)]
    pub(crate) fn keys(&self) -> impl Iterator<Item = &KeyBuf> {
        self.by_key.keys()
    }

    /// Whether the server has told of a change of this lock, if it is remembered.
    pub(crate) fn is_touched(&self, key: KeyRef<'_>) -> Option<bool> {
        let seen = self.by_key.get(&key)?;
        Some(self.was_touched(key, seen))
    }

    /// Whether this lock is one, as it was before the step that has taken it.
    pub(crate) fn is_crowd(&self, key: KeyRef<'_>) -> bool {
        self.crowds.contains(&key)
    }

    /// Whether this owner holds any of these locks. One that a step has taken is not
    /// among them if it is a crowd.
    pub(crate) fn is_holder(&self, owner: &Owner) -> bool {
        let mut crowds = self.crowds.iter().filter_map(|key| self.by_key.get(key));
        self.held_by.contains(owner) || crowds.any(|seen| seen.lock.holder(owner).is_some())
    }
}

#[cfg(test)]
impl Remembered {
    /// Writes down what decides what will happen.
    pub(crate) fn take_down(&self, form: &mut Form<'_>) {
        for key in form.keys() {
            let seen = self.by_key.get(key);
            form.flag(seen.is_some());
            if let Some(seen) = seen {
                form.flag(self.was_touched(key.as_ref(), seen));
                form.flag(seen.is_crowd);
                form.lock(&seen.lock);
            }
            for owner in form.owners() {
                form.flag(self.held_by.of(owner).contains(key));
            }
        }
        form.flag(self.any_discarded());
        form.flag(self.is_to_be_swept());
    }

    /// Whether all that is kept twice is the same, for these owners.
    pub(crate) fn agree(&self, owners: &[Owner]) -> bool {
        let crowds = self.by_key.iter().filter(|(_, seen)| seen.is_crowd);
        let crowds: HashSet<KeyBuf> = crowds.map(|(key, _)| key.clone()).collect();
        crowds == self.crowds
            && owners.iter().all(|owner| {
                let by_key = self.by_key.iter().filter(|(_, seen)| !seen.is_crowd);
                let held = by_key.filter(|(_, seen)| seen.lock.holder(owner).is_some());
                let held: BTreeSet<_> = held.map(|(key, _)| key).collect();
                held == self.held_by.of(owner)
            })
    }
}

fn owners_of(lock: &Lock) -> impl Iterator<Item = &Owner> {
    lock.holders().iter().map(|holder| &holder.owner)
}

/// The locks that each owner holds. To find an owner takes constant time, to change what
/// it holds logarithmic time in the number of its locks.
#[derive(Clone, Debug, Default)]
struct HeldBy(Sharded<Owner, Keys>);

/// Mostly one.
#[derive(Clone, Debug)]
#[expect(
    clippy::box_collection,
    reason = "else each would take the memory of many"
)]
enum Keys {
    One(KeyBuf),
    Many(Box<BTreeSet<KeyBuf>>),
}

impl HeldBy {
    fn contains(&self, owner: &Owner) -> bool {
        self.0.contains_key(owner)
    }

    #[cfg(test)]
    fn of(&self, owner: &Owner) -> BTreeSet<&KeyBuf> {
        match self.0.get(owner) {
            None => BTreeSet::new(),
            Some(Keys::One(key)) => [key].into(),
            Some(Keys::Many(keys)) => keys.iter().collect(),
        }
    }

    fn note_all<'o>(&mut self, key: &KeyBuf, owners: impl Iterator<Item = &'o Owner>, holds: bool) {
        for owner in owners {
            self.note(key, owner, holds);
        }
    }

    fn note(&mut self, key: &KeyBuf, owner: &Owner, holds: bool) {
        match holds {
            true => self.insert(key, owner),
            false => self.remove(key, owner),
        }
    }

    fn insert(&mut self, key: &KeyBuf, owner: &Owner) {
        let Some(keys) = self.0.get_mut(owner) else {
            self.0.insert_new(owner.clone(), Keys::One(key.clone()));
            return;
        };
        match keys {
            Keys::One(only) if only == key => {}
            Keys::One(only) => {
                let both = [only.clone(), key.clone()];
                *keys = Keys::Many(Box::new(both.into()));
            }
            Keys::Many(many) => drop(many.insert(key.clone())),
        }
    }

    fn remove(&mut self, key: &KeyBuf, owner: &Owner) {
        let Some(keys) = self.0.get_mut(owner) else {
            return;
        };
        match keys {
            Keys::One(only) if only == key => drop(self.0.remove(owner)),
            Keys::One(_) => {}
            Keys::Many(many) => {
                many.remove(key);
                if let (1, Some(last)) = (many.len(), many.first()) {
                    *keys = Keys::One(last.clone());
                }
            }
        }
    }
}
