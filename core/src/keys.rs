//! The keys of locks.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt::{self, Debug, Formatter};
use std::rc::Rc;

use smallvec::SmallVec;

/// A key, by the number of its database and its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyRef<'k> {
    /// The database.
    pub db: i32,
    /// The name.
    pub name: &'k [u8],
}

/// How many bytes of a longer name are shown.
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

/// A key that outlives the call. Cheap to clone.
///
/// Its database stands before its name, in bytes that have the same order, so that it takes
/// no memory wherever the key is.
///
/// The default is no key, and comes before every other in order.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct KeyBuf(Rc<[u8]>);

impl KeyBuf {
    /// The same key, borrowed.
    pub fn as_ref(&self) -> KeyRef<'_> {
        let (db, name) = self.0.split_first_chunk().unwrap_or((&[0; 4], &[]));
        KeyRef {
            db: i32::from_be_bytes(*db) ^ i32::MIN,
            name,
        }
    }
}

impl Debug for KeyBuf {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        self.as_ref().fmt(formatter)
    }
}

impl Ord for KeyBuf {
    fn cmp(&self, other: &Self) -> Ordering {
        // Much that is kept in order is of the same lock, and shares its name.
        match Rc::ptr_eq(&self.0, &other.0) {
            true => Ordering::Equal,
            false => self.0.cmp(&other.0),
        }
    }
}

impl PartialOrd for KeyBuf {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl From<KeyRef<'_>> for KeyBuf {
    fn from(key: KeyRef<'_>) -> Self {
        let mut both = SmallVec::<[u8; 128]>::from_slice(&(key.db ^ i32::MIN).to_be_bytes());
        both.extend_from_slice(key.name);
        Self(both.as_slice().into())
    }
}

/// A key in either form: a [`KeyBuf`] is looked up by a [`KeyRef`].
pub(crate) trait AnyKey {
    fn as_key(&self) -> KeyRef<'_>;
}

impl AnyKey for KeyBuf {
    fn as_key(&self) -> KeyRef<'_> {
        self.as_ref()
    }
}

impl AnyKey for KeyRef<'_> {
    fn as_key(&self) -> KeyRef<'_> {
        *self
    }
}

impl<'k> Borrow<dyn AnyKey + 'k> for KeyBuf {
    fn borrow(&self) -> &(dyn AnyKey + 'k) {
        self
    }
}

impl PartialEq for dyn AnyKey + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.as_key() == other.as_key()
    }
}

impl Eq for dyn AnyKey + '_ {}

impl PartialOrd for dyn AnyKey + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for dyn AnyKey + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_key().cmp(&other.as_key())
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
