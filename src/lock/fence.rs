//! Fencing tokens and the clock that issues them.
//!
//! A token tells a resource which of two holders is the later one, so that
//! the write of a holder whose lease is over can be refused (Kleppmann, "How
//! to do distributed locking", 2016). That only works if every new grant gets
//! a greater token than any before it, on this server and on the one that
//! takes over from it, whatever happens to the keys. So the clock takes the
//! greatest of three: one more than the last token it gave, one more than the
//! token stored with the lock, and the wall clock in microseconds. The first
//! keeps order within a run, the second across a clock that was set back, the
//! third across restarts and fail-overs.
//!
//! Anybody who may write a hash can store any token. So what is stored with one
//! lock moves the tokens of that lock alone, never those of the server.

use crate::error::Usage;
#[cfg(feature = "planted-faults")]
use crate::lock::planted::Fault;

/// The greatest token, 2^53 - 1: the last integer that every client can hold
/// exactly, since JavaScript and Lua keep numbers as doubles.
pub(crate) const FENCE_MAX: i64 = (1 << 53) - 1;

/// A fencing token, 1 to 2^53 - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Fence(i64);

impl Fence {
    /// A token from a client or from a stored field.
    pub(crate) fn new(token: i64) -> Result<Self, Usage> {
        if (1..=FENCE_MAX).contains(&token) {
            Ok(Self(token))
        } else {
            Err(Usage::FenceOutOfRange)
        }
    }

    /// The token as a number.
    pub(crate) const fn get(self) -> i64 {
        self.0
    }
}

/// Issues tokens that only ever rise.
#[derive(Debug, Default)]
pub(crate) struct FenceClock {
    last: i64,
}

impl FenceClock {
    /// The token of a new grant at `now_us` (microseconds of wall clock) on a
    /// lock whose stored token is `stored`.
    pub(crate) fn next(&mut self, now_us: i64, stored: Option<Fence>) -> Result<Fence, Usage> {
        let own = now_us.max(self.last + 1);
        let after_stored = stored.map_or(1, |fence| fence.get() + 1);
        let token = own.max(after_stored);
        #[cfg(feature = "planted-faults")]
        let (own, token) =
            Fault::TokenReused.instead((own, token), || (self.last.max(1), self.last.max(1)));
        let fence = Fence::new(token).map_err(|_| Usage::FencesExhausted)?;
        self.last = own;
        Ok(fence)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn tokens_rise_whatever_the_clock_does(
            times in prop::collection::vec(0..=4_000_000_000_000_000_i64, 1..200),
        ) {
            let mut clock = FenceClock::default();
            let mut last = None;
            for now_us in times {
                // What a lock of our own has stored is a token that we issued.
                let fence = clock.next(now_us, last).unwrap();
                prop_assert!(Some(fence) > last);
                prop_assert!(fence.get() >= now_us);
                last = Some(fence);
            }
        }

        #[test]
        fn a_stored_token_is_passed_and_moves_no_other_lock(
            now_us in 1..=4_000_000_000_000_000_i64,
            stored in 1..FENCE_MAX,
        ) {
            let mut clock = FenceClock::default();
            let fence = clock.next(now_us, Fence::new(stored).ok()).unwrap();
            prop_assert_eq!(fence.get(), now_us.max(stored + 1));
            prop_assert_eq!(clock.next(now_us, None), Fence::new(now_us + 1));
        }
    }

    #[test]
    fn a_lock_with_the_greatest_token_can_not_be_granted_and_spoils_no_other() {
        let mut clock = FenceClock::default();
        let greatest = Fence::new(FENCE_MAX).unwrap();
        assert_eq!(clock.next(5, Some(greatest)), Err(Usage::FencesExhausted));
        assert_eq!(clock.next(5, None), Fence::new(5));
    }
}
