//! The keys of locks.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt::{self, Debug, Formatter};
use std::rc::Rc;

use smallvec::SmallVec;

/// A key, by the number of its database and its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRef<'k> {
    /// The database.
    pub db: i32,
    /// The name.
    pub name: &'k [u8],
}

/// Of a longer name the beginning is shown.
const SHOWN_BYTES: usize = 256;

impl KeyRef<'_> {
    /// As a [`KeyBuf`] has it, to look one up without its memory.
    pub(crate) fn to_bytes(self) -> SmallVec<[u8; 128]> {
        let mut both = SmallVec::from_slice(&(self.db ^ i32::MIN).to_be_bytes());
        both.extend_from_slice(self.name);
        both
    }

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

impl Borrow<[u8]> for KeyBuf {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl From<KeyRef<'_>> for KeyBuf {
    fn from(key: KeyRef<'_>) -> Self {
        Self(key.to_bytes().as_slice().into())
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
