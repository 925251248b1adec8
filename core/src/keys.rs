//! The keys of locks.

use std::cmp::Ordering;
use std::rc::Rc;

use hashbrown::Equivalent;

/// A key, by the number of its database and its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyRef<'k> {
    /// The database.
    pub db: i32,
    /// The name.
    pub name: &'k [u8],
}

/// Of a longer name the beginning is shown.
const SHOWN_BYTES: usize = 256;

impl KeyRef<'_> {
    /// The name as text, for people. It takes no longer for a long one.
    pub fn shown(self) -> String {
        match self.name.get(..SHOWN_BYTES) {
            Some(begin) if self.name.len() > SHOWN_BYTES => format!("{}...", begin.escape_ascii()),
            _ => self.name.escape_ascii().to_string(),
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_name_the_beginning_is_shown() {
        let shown = |length: usize| {
            let name = vec![b'n'; length];
            KeyRef { db: 0, name: &name }.shown()
        };
        assert_eq!(shown(256), "n".repeat(256));
        assert_eq!(shown(257), "n".repeat(256) + "...");
    }
}
