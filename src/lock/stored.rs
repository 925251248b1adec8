//! How a lock is stored.
//!
//! A lock with one exclusive holder is the hash of Redisson's `RLock` with one
//! field more, so that both can hold the same lock:
//!
//! ```text
//! {owner: count, "@fence": token}        the key's expiry is the lease's end
//! ```
//!
//! Where several may hold it together, each has a permit of its own beside its
//! count, and the key's expiry is the end of the lease that ends last:
//!
//! ```text
//! {owner: count, "@permit:owner": "limit token end", ..., "@fence": newest token}
//! ```
//!
//! The limit is 0 for a shared hold; the end is in milliseconds since 1970.

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::error::LockError;
use crate::lock::fence::Fence;
use crate::lock::record::{Holder, Lock};
use crate::lock::request::{Limit, Owner};

/// The field that holds the newest token.
pub(crate) const FENCE_FIELD: &[u8] = b"@fence";

/// A permit's field is this and the owner.
pub(crate) const PERMIT_PREFIX: &[u8] = b"@permit:";

/// A lock with more fields than this has a token; so a large hash without one
/// is no lock and need not be read.
pub(crate) const FIELDS_WITHOUT_FENCE_MAX: usize = 1;

/// What a holder has beside its count where others may hold the lock with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Permit {
    /// How many may hold the lock together.
    pub(crate) limit: Limit,
    /// The holder's token.
    pub(crate) fence: Fence,
    /// When its lease is over, in milliseconds since 1970.
    pub(crate) lease_end_ms: i64,
}

impl Permit {
    /// The value of its field.
    pub(crate) fn to_text(self) -> String {
        let (limit, fence) = (self.limit.count_or_zero(), self.fence.get());
        format!("{limit} {fence} {}", self.lease_end_ms)
    }

    fn from_text(text: &[u8]) -> Option<Self> {
        let mut words = text.split(|&byte| byte == b' ').map(parse_integer);
        let mut next = || words.next().flatten();
        let (limit, fence, lease_end_ms) = (next()?, next()?, next()?);
        let permit = Self {
            limit: Limit::from_count_or_zero(limit)?,
            fence: Fence::new(fence).ok()?,
            lease_end_ms,
        };
        // An exclusive holder has no permit.
        (permit.limit != Limit::EXCLUSIVE && words.next().is_none()).then_some(permit)
    }
}

/// Reads a stored lock, field by field.
#[derive(Default)]
pub(crate) struct Reader {
    counts: SmallVec<[(Owner, i64); 1]>,
    permits: HashMap<Owner, Permit>,
    last_fence: Option<Fence>,
    no_lock: bool,
    asker: Option<Owner>,
}

impl Reader {
    /// A reader that knows the name of an owner which it may find.
    pub(crate) fn asked_by(asker: &Owner) -> Self {
        Self {
            asker: Some(asker.clone()),
            ..Self::default()
        }
    }

    /// Reads one field. The order does not matter.
    pub(crate) fn field(&mut self, name: &[u8], value: &[u8]) {
        if self.try_field(name, value).is_none() {
            self.no_lock = true;
        }
    }

    fn try_field(&mut self, name: &[u8], value: &[u8]) -> Option<()> {
        if name == FENCE_FIELD {
            self.last_fence = Some(Fence::new(parse_integer(value)?).ok()?);
        } else if let Some(owner) = name.strip_prefix(PERMIT_PREFIX) {
            let permit = Permit::from_text(value)?;
            self.permits.insert(Owner::new(owner).ok()?, permit);
        } else {
            let holds = parse_integer(value).filter(|&holds| holds >= 1)?;
            let owner = match &self.asker {
                Some(asker) if asker.as_bytes() == name => asker.clone(),
                _ => Owner::new(name).ok()?,
            };
            self.counts.push((owner, holds));
        }
        Some(())
    }

    /// Whether a field was read that no lock has.
    pub(crate) const fn is_no_lock(&self) -> bool {
        self.no_lock
    }

    /// The lock, now that all fields are read. `expires_at_ms` is the expiry of
    /// its key.
    pub(crate) fn finish(self, expires_at_ms: Option<i64>) -> Result<Lock, LockError> {
        if self.no_lock {
            return Err(LockError::NotALock);
        }
        let leftovers = self.counts.is_empty() && !self.permits.is_empty();
        let alone = self.counts.len() == 1;
        let mut holders = SmallVec::with_capacity(self.counts.len());
        for (owner, holds) in self.counts {
            let holder = match self.permits.get(&owner) {
                Some(permit) => Holder {
                    owner,
                    holds,
                    fence: Some(permit.fence),
                    lease_end_ms: Some(permit.lease_end_ms),
                    limit: permit.limit,
                },
                // Without a token and without an expiry it is some
                // application's hash of one number. Redisson's locks always
                // expire.
                None if alone && (self.last_fence.is_some() || expires_at_ms.is_some()) => Holder {
                    owner,
                    holds,
                    fence: self.last_fence,
                    lease_end_ms: expires_at_ms,
                    limit: Limit::EXCLUSIVE,
                },
                None => return Err(LockError::NotALock),
            };
            holders.push(holder);
        }
        Ok(Lock {
            holders,
            last_fence: self.last_fence,
            expires_at_ms,
            leftovers,
        })
    }
}

/// An integer as Redis writes it: decimal, no plus sign, no leading zeros, no
/// spaces. Anything else is not what the module or `HINCRBY` stored.
pub(crate) fn parse_integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] => {}
        _ => return None,
    }
    // Summed up as a negative number, of which there is one more.
    let negated = digits.iter().try_fold(0_i64, |sum, byte| {
        let digit = byte.checked_sub(b'0').filter(|&digit| digit <= 9)?;
        sum.checked_mul(10)?.checked_sub(digit.into())
    })?;
    if negative {
        Some(negated)
    } else {
        negated.checked_neg()
    }
}

#[cfg(test)]
mod tests;
