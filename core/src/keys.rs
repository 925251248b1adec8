//! The keys of locks.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::hash::Hash;
use std::ops::Bound;
use std::rc::Rc;

use hashbrown::hash_map::EntryRef;
use hashbrown::{Equivalent, HashMap};

/// A key, by the number of its database and its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyRef<'k> {
    /// The database.
    pub db: i32,
    /// The name.
    pub name: &'k [u8],
}

/// A key that outlives the call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyBuf {
    pub(crate) db: i32,
    name: Rc<[u8]>,
}

impl Ord for KeyBuf {
    fn cmp(&self, other: &Self) -> Ordering {
        // Much that is kept in order is of the same lock, and shares its name.
        let by_name = || match Rc::ptr_eq(&self.name, &other.name) {
            true => Ordering::Equal,
            false => self.name.cmp(&other.name),
        };
        self.db.cmp(&other.db).then_with(by_name)
    }
}

impl PartialOrd for KeyBuf {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl KeyBuf {
    /// The same key, borrowed.
    pub fn as_ref(&self) -> KeyRef<'_> {
        KeyRef {
            db: self.db,
            name: &self.name,
        }
    }

    /// The key under which the same lock is found once two databases have
    /// changed places.
    pub(crate) fn swapped(&self, one: i32, other: i32) -> Self {
        Self {
            db: match self.db {
                db if db == one => other,
                db if db == other => one,
                db => db,
            },
            name: Rc::clone(&self.name),
        }
    }
}

/// Both have the same fields, and so the same hash.
impl Equivalent<KeyBuf> for KeyRef<'_> {
    fn equivalent(&self, key: &KeyBuf) -> bool {
        *self == key.as_ref()
    }
}

impl From<KeyRef<'_>> for KeyBuf {
    fn from(key: KeyRef<'_>) -> Self {
        Self {
            db: key.db,
            name: key.name.into(),
        }
    }
}

/// A set of keys, mostly of one.
#[derive(Clone, Debug)]
enum KeySet {
    One(KeyBuf),
    Many(BTreeSet<KeyBuf>),
}

impl KeySet {
    fn iter(&self) -> impl Iterator<Item = &KeyBuf> {
        let (one, many) = match self {
            Self::One(key) => (Some(key), None),
            Self::Many(keys) => (None, Some(keys)),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

/// What a key stands beside that was put into a set.
pub(crate) enum Beside {
    /// No other key.
    Nothing,
    /// This one, which was alone before.
    One(KeyBuf),
    /// Several others.
    Several,
}

/// Sets of keys, each under a name. An empty one takes no room. To find a set takes
/// constant time, to change it logarithmic time in the number of its keys.
#[derive(Clone, Debug)]
pub(crate) struct KeySets<N> {
    by_name: HashMap<N, KeySet>,
}

impl<N> Default for KeySets<N> {
    fn default() -> Self {
        Self {
            by_name: HashMap::new(),
        }
    }
}

impl<N: Clone + Eq + Hash> KeySets<N> {
    /// Whether there is any key under this name.
    pub(crate) fn contains(&self, name: &N) -> bool {
        !self.by_name.is_empty() && self.by_name.contains_key(name)
    }

    /// The keys under this name.
    pub(crate) fn of(&self, name: &N) -> impl Iterator<Item = &KeyBuf> {
        self.by_name.get(name).into_iter().flat_map(KeySet::iter)
    }

    /// The key under this name that comes after this one, or the first.
    pub(crate) fn next(&self, name: &N, after: Option<&KeyBuf>) -> Option<&KeyBuf> {
        match self.by_name.get(name)? {
            KeySet::One(only) => after.is_none_or(|after| only > after).then_some(only),
            KeySet::Many(many) => match after {
                None => many.first(),
                Some(after) => many
                    .range((Bound::Excluded(after), Bound::Unbounded))
                    .next(),
            },
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Puts a key here. Returns what it stands beside now.
    pub(crate) fn insert(&mut self, name: &N, key: KeyBuf) -> Beside {
        let keys = match self.by_name.entry_ref(name) {
            EntryRef::Occupied(known) => known.into_mut(),
            EntryRef::Vacant(place) => {
                place.insert_with_key(name.clone(), KeySet::One(key));
                return Beside::Nothing;
            }
        };
        match keys {
            KeySet::One(only) if *only == key => Beside::Nothing,
            KeySet::One(only) => {
                let only = only.clone();
                *keys = KeySet::Many([only.clone(), key].into());
                Beside::One(only)
            }
            KeySet::Many(many) => {
                many.insert(key);
                Beside::Several
            }
        }
    }

    /// Returns the key that is alone here now, if this one left it so.
    pub(crate) fn remove(&mut self, name: &N, key: &KeyBuf) -> Option<KeyBuf> {
        let EntryRef::Occupied(mut known) = self.by_name.entry_ref(name) else {
            return None;
        };
        let keys = known.get_mut();
        match keys {
            KeySet::One(only) if only == key => {
                known.remove();
                give_memory_back(&mut self.by_name);
                None
            }
            KeySet::One(_) => None,
            KeySet::Many(many) => {
                many.remove(key);
                if many.len() > 1 {
                    return None;
                }
                let last = many.pop_first()?;
                *keys = KeySet::One(last.clone());
                Some(last)
            }
        }
    }
}

/// A table of so few entries is never worth the time to make it anew.
const ALWAYS_ROOM_FOR: usize = 16;

/// When a crowd has gone, so shall the memory that it took.
pub fn give_memory_back<K: Eq + Hash, V>(map: &mut HashMap<K, V>) {
    let (len, capacity) = (map.len(), map.capacity());
    if len < capacity / 8 && capacity > ALWAYS_ROOM_FOR {
        map.shrink_to(ALWAYS_ROOM_FOR.max(2 * len));
    }
}
