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
//! A replica, and a server that loads its data, counts what it receives as given: the
//! clock of the server that gave it may have been ahead of its own.
//!
//! Anybody who may write a hash can store any token. So what is stored with one
//! lock moves the tokens of that lock alone, never those of the server; and what is
//! received far ahead of the clock is left aside.

use std::num::NonZeroU64;

#[cfg(test)]
use crate::explore::form::Form;
#[cfg(feature = "planted-faults")]
use crate::planted::Fault;
use crate::usage::Usage;
#[cfg(feature = "planted-faults")]
use std::collections::HashMap;

/// The greatest token, 2^53 - 1: the last integer that every client can hold
/// exactly, since JavaScript and Lua keep numbers as doubles.
pub const TOKEN_MAX: i64 = (1 << 53) - 1;

/// A token that is received further ahead of the clock than this, in microseconds, was
/// not given by a server whose clock agrees with ours.
const RECEIVED_AHEAD_MAX_US: i64 = 60_000_000;

/// A fencing token, 1 to 2^53 - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FencingToken(NonZeroU64);

impl FencingToken {
    /// A token from a client or from a stored field.
    pub fn new(token: i64) -> Result<Self, Usage> {
        let token = (1..=TOKEN_MAX).contains(&token).then_some(token);
        let token = token.and_then(|token| NonZeroU64::new(token.cast_unsigned()));
        token.map(Self).ok_or(Usage::TokenOutOfRange)
    }

    /// The token as a number.
    pub const fn get(self) -> i64 {
        self.0.get().cast_signed()
    }
}

/// Issues tokens that only ever rise.
#[derive(Clone, Debug, Default)]
pub struct TokenClock {
    last: i64,
    /// What each owner got first, by its name.
    #[cfg(feature = "planted-faults")]
    former: HashMap<Vec<u8>, FencingToken>,
}

impl TokenClock {
    /// The token of a new grant at `now_us` (microseconds of wall clock) on a
    /// lock whose stored token is `stored`.
    pub fn next(
        &mut self,
        now_us: i64,
        stored: Option<FencingToken>,
    ) -> Result<FencingToken, Usage> {
        let own = now_us.max(self.last + 1);
        let after_stored = stored.map_or(1, |token| token.get() + 1);
        let token = own.max(after_stored);
        #[cfg(feature = "planted-faults")]
        let (own, token) =
            Fault::TokenReused.instead((own, token), || (self.last.max(1), self.last.max(1)));
        let token = FencingToken::new(token).map_err(|_| Usage::TokensExhausted)?;
        self.last = own;
        Ok(token)
    }

    /// Another server gave this token, or this one before it was started: all that are
    /// given from now on are greater.
    pub fn received(&mut self, token: FencingToken, now_us: i64) {
        if token.get() <= now_us.saturating_add(RECEIVED_AHEAD_MAX_US) {
            self.last = self.last.max(token.get());
        }
    }
}

#[cfg(feature = "planted-faults")]
impl TokenClock {
    /// The token of a new holding of this owner.
    pub(crate) fn own_again(&mut self, owner: &[u8], token: FencingToken) -> FencingToken {
        if !Fault::OwnTokenAgain.planted() {
            return token;
        }
        match self.former.get(owner) {
            Some(&former) if Fault::OwnTokenAgain.strikes() => former,
            _ => {
                self.former.insert(owner.to_vec(), token);
                token
            }
        }
    }
}

#[cfg(test)]
impl TokenClock {
    /// Adds to a form of the state all that can influence a later step.
    pub(crate) fn take_down(&self, form: &mut Form<'_>) {
        form.token(FencingToken::new(self.last).ok());
        #[cfg(feature = "planted-faults")]
        for owner in form.owners() {
            form.token(self.former.get(owner.as_bytes()).copied());
        }
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
            let mut clock = TokenClock::default();
            let mut last = None;
            for now_us in times {
                // What a lock of our own has stored is a token that we issued.
                let token = clock.next(now_us, last).unwrap();
                prop_assert!(Some(token) > last);
                prop_assert!(token.get() >= now_us);
                last = Some(token);
            }
        }

        #[test]
        fn a_stored_token_is_passed_and_moves_no_other_lock(
            now_us in 1..=4_000_000_000_000_000_i64,
            stored in 1..TOKEN_MAX,
        ) {
            let mut clock = TokenClock::default();
            let token = clock.next(now_us, FencingToken::new(stored).ok()).unwrap();
            prop_assert_eq!(token.get(), now_us.max(stored + 1));
            prop_assert_eq!(clock.next(now_us, None), FencingToken::new(now_us + 1));
        }
    }

    #[test]
    fn a_lock_with_the_greatest_token_can_not_be_granted_and_spoils_no_other() {
        let mut clock = TokenClock::default();
        let greatest = FencingToken::new(TOKEN_MAX).unwrap();
        assert_eq!(clock.next(5, Some(greatest)), Err(Usage::TokensExhausted));
        assert_eq!(clock.next(5, None), FencingToken::new(5));
    }

    #[test]
    fn tokens_rise_above_all_that_was_received_within_a_minute_of_the_clock() {
        const NOW_US: i64 = 1_000_000_000_000_000;
        const MINUTE_US: i64 = 60_000_000;
        for (received, next) in [
            (1, NOW_US),
            (NOW_US, NOW_US + 1),
            (NOW_US + MINUTE_US, NOW_US + MINUTE_US + 1),
            (NOW_US + MINUTE_US + 1, NOW_US),
            (TOKEN_MAX, NOW_US),
        ] {
            let mut clock = TokenClock::default();
            clock.received(FencingToken::new(received).unwrap(), NOW_US);
            assert_eq!(clock.next(NOW_US, None), FencingToken::new(next));
            clock.received(FencingToken::new(1).unwrap(), NOW_US);
            assert_eq!(clock.next(NOW_US, None), FencingToken::new(next + 1));
        }
    }
}
