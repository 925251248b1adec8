//! The locks of a campaign, and what each is for.

use rand::RngExt;
use rand::rngs::StdRng;

/// What a lock is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// All hold it exclusively.
    Exclusive,
    /// It is held in every mode.
    Mixed,
    /// It is taken together with another of its kind, in any order.
    Paired,
}

/// The names of all locks. The name of each says its kind.
pub struct Locks(Vec<String>);

impl Kind {
    const ALL: [Self; 3] = [Self::Exclusive, Self::Mixed, Self::Paired];

    const fn prefix(self) -> &'static str {
        match self {
            Self::Exclusive => "lock:",
            Self::Mixed => "mixed:",
            Self::Paired => "pair:",
        }
    }
}

impl Locks {
    /// So many exclusive ones, and some of the other kinds.
    pub fn new(exclusive: usize) -> Self {
        let counts = [exclusive.max(1), 2, 3];
        let kinds = Kind::ALL.into_iter().zip(counts);
        let names = kinds.flat_map(|(kind, count)| {
            (1..=count).map(move |number| format!("{}{number}", kind.prefix()))
        });
        Self(names.collect())
    }

    /// The locks of these names.
    pub fn named(names: Vec<String>) -> Self {
        Self(names)
    }

    /// All names.
    pub fn names(&self) -> &[String] {
        &self.0
    }

    /// One of any kind.
    pub fn any_at_all(&self, rng: &mut StdRng) -> String {
        self.0[rng.random_range(0..self.0.len())].clone()
    }

    /// One of this kind.
    pub fn any(&self, kind: Kind, rng: &mut StdRng) -> String {
        let names = || self.0.iter().filter(|name| name.starts_with(kind.prefix()));
        let index = rng.random_range(0..names().count().max(1));
        names().nth(index).cloned().unwrap_or_default()
    }
}
