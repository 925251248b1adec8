//! A hash table that grows and shrinks in small steps.
//!
//! A plain one is made anew when it is full: of 100,000 entries that takes tens of
//! milliseconds, in which a server answers nobody. Here many entries are spread over many
//! tables by a part of their hash, so that each stays small. Everything about one entry
//! takes constant time; at worst it has a table of up to two thousand entries made anew, or
//! of a few thousand where there are a million.

use std::hash::{BuildHasher, Hash};

use hashbrown::{DefaultHashBuilder, Equivalent, HashTable};

/// Into how many tables many entries are spread. A power of two.
const SHARDS: usize = 256;

/// As many entries as these are spread. It takes a step for each of them.
const SPREAD_FROM: usize = 2048;

/// A table of this few entries is never worth the time to make it anew.
const ALWAYS_ROOM_FOR: usize = 16;

/// Entries that are found by their hashes, which whoever asks knows. When a crowd has
/// gone, so has the memory that it took.
#[derive(Clone, Debug)]
pub(crate) struct Shards<T> {
    /// All entries, while they are few.
    few: HashTable<T>,
    /// All entries, while they are many; else empty.
    many: Vec<HashTable<T>>,
    len: usize,
}

impl<T> Default for Shards<T> {
    fn default() -> Self {
        Self {
            few: HashTable::new(),
            many: Vec::new(),
            len: 0,
        }
    }
}

impl<T> Shards<T> {
    #[cfg(test)]
    fn iter(&self) -> impl Iterator<Item = &T> {
        [&self.few].into_iter().chain(&self.many).flatten()
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let shards = [&mut self.few].into_iter().chain(&mut self.many);
        shards.flatten()
    }

    fn shard(&self, hash: u64) -> &HashTable<T> {
        self.many.get(shard_of(hash)).unwrap_or(&self.few)
    }

    fn shard_mut(&mut self, hash: u64) -> &mut HashTable<T> {
        self.many.get_mut(shard_of(hash)).unwrap_or(&mut self.few)
    }

    /// The entry of this hash that is meant.
    pub(crate) fn find(&self, hash: u64, is_meant: impl FnMut(&T) -> bool) -> Option<&T> {
        self.shard(hash).find(hash, is_meant)
    }

    fn find_mut(&mut self, hash: u64, is_meant: impl FnMut(&T) -> bool) -> Option<&mut T> {
        self.shard_mut(hash).find_mut(hash, is_meant)
    }

    /// Puts in an entry that is not here. `hash_of` returns the hash of each entry.
    pub(crate) fn insert(&mut self, entry: T, hash_of: impl Fn(&T) -> u64) -> &mut T {
        self.len += 1;
        if self.len >= SPREAD_FROM && self.many.is_empty() {
            let few = std::mem::take(&mut self.few);
            self.many.resize_with(SHARDS, HashTable::new);
            self.put_all([few], &hash_of);
        }
        let hash = hash_of(&entry);
        let placed = self.shard_mut(hash).insert_unique(hash, entry, hash_of);
        placed.into_mut()
    }

    /// Takes the entry out that is meant.
    pub(crate) fn remove(
        &mut self,
        hash: u64,
        is_meant: impl FnMut(&T) -> bool,
        hash_of: impl Fn(&T) -> u64,
    ) -> Option<T> {
        let shard = self.shard_mut(hash);
        let (entry, _) = shard.find_entry(hash, is_meant).ok()?.remove();
        give_back(shard, &hash_of);
        self.len -= 1;
        self.gather_if_few(hash_of);
        Some(entry)
    }

    fn gather_if_few(&mut self, hash_of: impl Fn(&T) -> u64) {
        if self.len < SPREAD_FROM / 8 && !self.many.is_empty() {
            let many = std::mem::take(&mut self.many);
            self.put_all(many, hash_of);
        }
    }

    fn put_all(
        &mut self,
        shards: impl IntoIterator<Item = HashTable<T>>,
        hash_of: impl Fn(&T) -> u64,
    ) {
        for entry in shards.into_iter().flatten() {
            let hash = hash_of(&entry);
            self.shard_mut(hash).insert_unique(hash, entry, &hash_of);
        }
    }
}

/// When many entries have gone, so shall the memory that they took.
fn give_back<T>(table: &mut HashTable<T>, hash_of: impl Fn(&T) -> u64) {
    let (len, room) = (table.len(), room_in(table));
    if len < room / 8 && room > ALWAYS_ROOM_FOR {
        table.shrink_to(ALWAYS_ROOM_FOR.max(2 * len), hash_of);
    }
}

/// For how many entries a table has memory. An entry that goes may leave its place unusable
/// until the table is made anew, so its capacity may be far less.
fn room_in<T>(table: &HashTable<T>) -> usize {
    table.num_buckets() / 8 * 7
}

/// A table itself uses the lowest bits and the highest ones.
const fn shard_of(hash: u64) -> usize {
    (hash >> 32) as usize % SHARDS
}

/// A map of any size.
#[derive(Clone, Debug)]
pub(crate) struct Sharded<K, V> {
    entries: Shards<(K, V)>,
    hasher: DefaultHashBuilder,
}

impl<K, V> Default for Sharded<K, V> {
    fn default() -> Self {
        Self {
            entries: Shards::default(),
            hasher: DefaultHashBuilder::default(),
        }
    }
}

impl<K, V> Sharded<K, V> {
    /// How many entries there are.
    pub(crate) const fn len(&self) -> usize {
        self.entries.len
    }

    /// Whether there is none.
    pub(crate) const fn is_empty(&self) -> bool {
        self.entries.len == 0
    }

    /// All entries, in no order.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, value)| (key, value))
    }

    /// The same, with the values to be changed.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        let entries = self.entries.iter_mut();
        entries.map(|(key, value)| (&*key, value))
    }

    /// The keys of all entries.
    #[cfg(test)]
    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }
}

impl<K: Eq + Hash, V> Sharded<K, V> {
    /// The value under this key.
    pub(crate) fn get<Q: Hash + Equivalent<K>>(&self, key: &Q) -> Option<&V> {
        self.get_key_value(key).map(|(_, value)| value)
    }

    /// The key as it is here, and its value.
    pub(crate) fn get_key_value<Q: Hash + Equivalent<K>>(&self, key: &Q) -> Option<(&K, &V)> {
        if self.is_empty() {
            return None;
        }
        let hash = self.hasher.hash_one(key);
        let found = self.entries.find(hash, |(one, _)| key.equivalent(one));
        found.map(|(key, value)| (key, value))
    }

    /// The value under this key, to be changed.
    pub(crate) fn get_mut<Q: Hash + Equivalent<K>>(&mut self, key: &Q) -> Option<&mut V> {
        self.get_key_value_mut(key).map(|(_, value)| value)
    }

    /// As [`Sharded::get_key_value`], with the value to be changed.
    pub(crate) fn get_key_value_mut<Q: Hash + Equivalent<K>>(
        &mut self,
        key: &Q,
    ) -> Option<(&K, &mut V)> {
        if self.is_empty() {
            return None;
        }
        let hash = self.hasher.hash_one(key);
        let found = self.entries.find_mut(hash, |(one, _)| key.equivalent(one));
        found.map(|(key, value)| (&*key, value))
    }

    /// Whether there is such a key.
    pub(crate) fn contains_key<Q: Hash + Equivalent<K>>(&self, key: &Q) -> bool {
        self.get_key_value(key).is_some()
    }

    /// Puts a value under a key that is not here. Returns it as it is here.
    pub(crate) fn insert_new(&mut self, key: K, value: V) -> &mut V {
        let hasher = &self.hasher;
        let hash_of = |(key, _): &(K, V)| hasher.hash_one(key);
        &mut self.entries.insert((key, value), hash_of).1
    }

    /// Takes an entry out. Returns its value.
    pub(crate) fn remove<Q: Hash + Equivalent<K>>(&mut self, key: &Q) -> Option<V> {
        self.remove_entry(key).map(|(_, value)| value)
    }

    /// Takes an entry out.
    pub(crate) fn remove_entry<Q: Hash + Equivalent<K>>(&mut self, key: &Q) -> Option<(K, V)> {
        if self.is_empty() {
            return None;
        }
        let hasher = &self.hasher;
        let hash_of = |(key, _): &(K, V)| hasher.hash_one(key);
        let is_meant = |(one, _): &(K, V)| key.equivalent(one);
        self.entries.remove(hasher.hash_one(key), is_meant, hash_of)
    }
}

#[cfg(test)]
mod tests;
