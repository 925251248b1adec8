//! One who holds a lock.

use crate::error::LockError;
#[cfg(feature = "planted-faults")]
use crate::planted::Fault;
use crate::request::{AcquireRequest, HoldNumber, Limit, Owner};
use crate::token::FencingToken;
use crate::usage::Usage;

/// Somebody who holds the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its name.
    pub owner: Owner,
    /// How many holds it has, at least 1.
    pub holds: i64,
    /// Its token; none if Redisson's scripts took the lock.
    pub token: Option<FencingToken>,
    /// When its lease is over, in milliseconds since 1970; none after `PERSIST`.
    pub lease_end_ms: Option<i64>,
    /// How many may hold the lock together with it.
    pub limit: Limit,
}

impl Holder {
    /// Its permit, if others may hold the lock with it.
    pub fn permit(&self) -> Option<Permit> {
        if self.limit == Limit::EXCLUSIVE {
            return None;
        }
        Some(Permit {
            limit: self.limit,
            token: self.token?,
            lease_end_ms: self.lease_end_ms?,
        })
    }

    /// Whether it shares the lock, and its lease was over before this time.
    pub(crate) fn is_overdue(&self, now_ms: i64) -> bool {
        #[cfg(feature = "planted-faults")]
        let now_ms = now_ms + i64::from(Fault::LeaseEndsEarly.planted());
        self.limit != Limit::EXCLUSIVE && self.lease_end_ms.is_some_and(|end_ms| end_ms < now_ms)
    }

    /// Whether its lease is over at this time.
    pub(crate) fn ends_by(&self, now_ms: i64) -> bool {
        self.lease_end_ms.is_some_and(|end_ms| end_ms <= now_ms)
    }

    pub(crate) fn has_token(&self, named: Option<FencingToken>) -> bool {
        named.is_none() || named == self.token
    }
}

impl AcquireRequest {
    /// How many holds its owner has if it is granted, when it has `held` now.
    pub(crate) fn holds_after(&self, held: i64) -> Result<i64, LockError> {
        let Some(hold) = self.hold else {
            return held.checked_add(1).ok_or(Usage::TooManyHolds.into());
        };
        Ok(hold.fits(held)?.count_with())
    }
}

impl HoldNumber {
    /// This hold, if it is the innermost one of so many, or the next.
    pub(crate) fn fits(self, held: i64) -> Result<Self, LockError> {
        let wanted = self.count_with();
        match held == wanted || held == self.count_without() {
            true => Ok(self),
            false => Err(LockError::HoldCount { wanted, held }),
        }
    }
}

/// What a holder has beside its count where others may hold the lock with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permit {
    /// How many may hold the lock together.
    pub limit: Limit,
    /// The holder's token.
    pub token: FencingToken,
    /// When its lease is over, in milliseconds since 1970.
    pub lease_end_ms: i64,
}
