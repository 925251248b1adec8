//! How many may hold a lock together.

/// The mode in which a lock is asked for or held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// By one owner alone.
    Exclusive,
    /// With any number of others that share it.
    Shared,
    /// By at most so many together.
    Limited(u64),
}

impl Mode {
    /// The greatest limit that the server takes.
    pub(crate) const LIMIT_MAX: u64 = (1 << 53) - 1;

    /// How many may hold the lock together at most.
    fn limit(self) -> u64 {
        match self {
            Self::Exclusive => 1,
            Self::Shared => u64::MAX,
            Self::Limited(limit) => limit,
        }
    }

    /// Whether who holds it in the other mode has less than this.
    pub(crate) fn is_stricter_than(self, held: Self) -> bool {
        self.limit() < held.limit()
    }
}

#[cfg(test)]
mod tests {
    use super::Mode::{Exclusive, Limited, Shared};

    #[test]
    fn the_fewer_may_hold_it_the_stricter_it_is() {
        let modes = [Exclusive, Limited(2), Limited(3), Shared];
        for (nth, stricter) in modes.iter().enumerate() {
            for looser in &modes[nth + 1..] {
                assert!(stricter.is_stricter_than(*looser));
                assert!(!looser.is_stricter_than(*stricter));
            }
        }
        assert!(!Limited(1).is_stricter_than(Exclusive));
        assert!(!Exclusive.is_stricter_than(Limited(1)));
    }
}
