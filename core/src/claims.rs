//! Grants to places that nobody has claimed yet.
//!
//! Who has a place hears of its grant by a message, and a message may be lost. So the
//! first lease of such a grant is short, and a renewal, or any other reply with its
//! token, claims it. Until then nothing keeps it up.
//!
//! A grant is known by its token, which no other has, wherever its lock is moved.
//! Everything takes logarithmic time.

use std::collections::{BTreeMap, BTreeSet};

#[cfg(test)]
use crate::explore::form::Form;
use crate::token::FencingToken;

/// The unclaimed grants of a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Claims {
    /// When each first lease ends, in milliseconds since 1970.
    until_ms: BTreeMap<FencingToken, i64>,
    ends: BTreeSet<(i64, FencingToken)>,
}

impl Claims {
    /// Whether no grant is unclaimed.
    pub(crate) fn is_empty(&self) -> bool {
        self.until_ms.is_empty()
    }

    /// Notes a grant whose first lease ends at this time.
    pub(crate) fn open(&mut self, token: FencingToken, until_ms: i64) {
        if let Some(before_ms) = self.until_ms.insert(token, until_ms) {
            self.ends.remove(&(before_ms, token));
        }
        self.ends.insert((until_ms, token));
    }

    /// Whether nobody has claimed this grant.
    pub(crate) fn is_open(&self, token: FencingToken) -> bool {
        self.until_ms.contains_key(&token)
    }

    /// The grant is claimed, or over. Returns whether it was unclaimed.
    pub(crate) fn close(&mut self, token: FencingToken) -> bool {
        let until_ms = self.until_ms.remove(&token);
        if let Some(until_ms) = until_ms {
            self.ends.remove(&(until_ms, token));
        }
        until_ms.is_some()
    }

    /// When a first lease ends next.
    pub(crate) fn next_end_ms(&self) -> Option<i64> {
        self.ends.first().map(|&(at_ms, _)| at_ms)
    }

    /// Takes a grant whose first lease is over. Returns whether there was one.
    pub(crate) fn take_end(&mut self, now_ms: i64) -> bool {
        let Some(&(until_ms, token)) = self.ends.first() else {
            return false;
        };
        until_ms <= now_ms && self.close(token)
    }

    /// Writes down what decides what will happen.
    #[cfg(test)]
    pub(crate) fn take_down(&self, form: &mut Form<'_>) {
        form.count(self.until_ms.len());
        for (&token, &until_ms) in &self.until_ms {
            form.token(Some(token));
            form.time(Some(until_ms));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_is_unclaimed_until_it_is_claimed_or_its_first_lease_is_over() {
        let tokens = [1, 2, 3].map(|token| FencingToken::new(token).unwrap());
        let mut claims = Claims::default();
        for (token, until_ms) in tokens.into_iter().zip([20, 10, 30]) {
            claims.open(token, until_ms);
        }
        assert!(claims.close(tokens[0]) && !claims.close(tokens[0]));
        assert_eq!(claims.next_end_ms(), Some(10));
        assert!(!claims.take_end(9) && claims.take_end(10) && !claims.take_end(10));
        claims.open(tokens[2], 40);
        assert!(!claims.take_end(30) && claims.take_end(40) && claims.is_empty());
    }
}
