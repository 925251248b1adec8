//! The locks of a campaign, and what each is for.

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::{IteratorRandom, SliceRandom};

/// The prefix of locks that are only held exclusively.
pub const EXCLUSIVE: &str = "lock:";
/// Of locks that are held in every mode.
pub const MIXED: &str = "mixed:";
/// Of locks that are taken two at a time, in any order.
pub const PAIRED: &str = "pair:";

pub struct Locks {
    pub names: Vec<String>,
}

/// The prefix of locks in the other database: its number.
const SECOND: &str = "1/";

/// The name of a lock of this key in a database.
pub fn in_database(database: i64, key: &str) -> String {
    match database {
        0 => key.to_owned(),
        _ => format!("{SECOND}{key}"),
    }
}

/// The database and the key of a lock.
pub fn database_and_key(lock: &str) -> (i64, &str) {
    lock.strip_prefix(SECOND).map_or((0, lock), |key| (1, key))
}

impl Locks {
    /// So many exclusive locks, and some of the other kinds.
    pub fn new(exclusive: usize) -> Self {
        let kinds = [(EXCLUSIVE, exclusive.max(1)), (MIXED, 2), (PAIRED, 2)];
        let name = |(kind, count)| (1..=count).map(move |number| format!("{kind}{number}"));
        let names = kinds.into_iter().flat_map(name).collect();
        Self { names }
    }

    pub fn any_at_all(&self, rng: &mut StdRng) -> String {
        self.names[rng.random_range(0..self.names.len())].clone()
    }

    /// Two of this kind, in any order.
    pub fn any_two(&self, kind: &str, rng: &mut StdRng) -> (String, String) {
        let names = self.names.iter().filter(|name| name.starts_with(kind));
        let mut drawn = names.sample(rng, 2);
        drawn.shuffle(rng);
        let mut drawn = drawn.into_iter().cloned();
        let first = drawn.next().unwrap_or_default();
        (first.clone(), drawn.next().unwrap_or(first))
    }
}
