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

use smallvec::SmallVec;

use crate::error::LockError;
use crate::holder::{Holder, Permit};
use crate::lock::Lock;
use crate::request::{Limit, Owner};
use crate::token::FencingToken;

/// The field that holds the newest token.
pub const TOKEN_FIELD: &[u8] = b"@fence";

/// A permit's field is this and the owner.
pub const PERMIT_PREFIX: &[u8] = b"@permit:";

/// A lock with more fields than this has a token; so a large hash without one
/// is no lock and need not be read.
pub const FIELDS_WITHOUT_TOKEN_MAX: usize = 1;

/// The most digits of a signed number of 64 bits. Any number of so many fits into 64
/// unsigned bits.
const DIGITS_MAX: usize = 19;

/// How long three numbers and two spaces are at most.
const PERMIT_TEXT_MAX: usize = 62;

impl Permit {
    /// The value of its field.
    pub fn to_text(self) -> String {
        let mut text = String::with_capacity(PERMIT_TEXT_MAX);
        for number in [
            self.limit.count_or_zero(),
            self.token.get(),
            self.lease_end_ms,
        ] {
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(itoa::Buffer::new().format(number));
        }
        text
    }

    fn from_text(text: &[u8]) -> Option<Self> {
        let mut words = text.split(|&byte| byte == b' ').map(parse_integer);
        let mut next = || words.next().flatten();
        let (limit, token, lease_end_ms) = (next()?, next()?, next()?);
        let permit = Self {
            limit: Limit::from_count_or_zero(limit)?,
            token: FencingToken::new(token).ok()?,
            lease_end_ms,
        };
        // An exclusive holder has no permit.
        (permit.limit != Limit::EXCLUSIVE && words.next().is_none()).then_some(permit)
    }
}

/// What is stored of a lock that is held by one owner alone. Most commands meet such a
/// lock, or none.
#[derive(Clone, Copy, Debug)]
pub struct HeldAlone {
    holds: i64,
    token: Option<FencingToken>,
}

impl HeldAlone {
    /// Reads the value of the owner's field and, if there is one, of the token's. Returns
    /// nothing for values that no lock has.
    pub fn read(holds: &[u8], token: Option<&[u8]>) -> Option<Self> {
        Some(Self {
            holds: parse_holds(holds)?,
            token: match token {
                Some(token) => Some(parse_token(token)?),
                None => None,
            },
        })
    }

    /// Whether the lock has a token.
    pub const fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// The lock, with the expiry of its key. Fails where that is some application's hash
    /// of one number: Redisson's locks have no token, but always expire.
    pub fn by(self, owner: &Owner, expires_at_ms: Option<i64>) -> Result<Lock, LockError> {
        if self.token.is_none() && expires_at_ms.is_none() {
            return Err(LockError::NotALock);
        }
        Ok(Lock {
            last_token: self.token,
            expires_at_ms,
            ..Lock::held_by(Holder {
                owner: owner.clone(),
                holds: self.holds,
                token: self.token,
                lease_end_ms: expires_at_ms,
                limit: Limit::EXCLUSIVE,
            })
        })
    }
}

fn parse_holds(text: &[u8]) -> Option<i64> {
    parse_integer(text).filter(|&holds| holds >= 1)
}

fn parse_token(text: &[u8]) -> Option<FencingToken> {
    FencingToken::new(parse_integer(text)?).ok()
}

/// Reads a stored lock, field by field.
#[derive(Default)]
pub struct Reader {
    counts: SmallVec<[(Owner, i64); 1]>,
    permits: SmallVec<[(Owner, Permit); 1]>,
    last_token: Option<FencingToken>,
    no_lock: bool,
    asker: Option<Owner>,
}

impl Reader {
    /// A reader that knows the name of an owner which it may find.
    pub fn asked_by(asker: Option<&Owner>) -> Self {
        Self {
            asker: asker.cloned(),
            ..Self::default()
        }
    }

    /// Reads one field. The order does not matter.
    pub fn field(&mut self, name: &[u8], value: &[u8]) {
        if self.try_field(name, value).is_none() {
            self.no_lock = true;
        }
    }

    fn try_field(&mut self, name: &[u8], value: &[u8]) -> Option<()> {
        if name == TOKEN_FIELD {
            self.last_token = Some(parse_token(value)?);
        } else if let Some(owner) = name.strip_prefix(PERMIT_PREFIX) {
            let permit = Permit::from_text(value)?;
            // It was written with the count of its owner.
            let owner = match self.counts.last() {
                Some((last, _)) if last.as_bytes() == owner => last.clone(),
                _ => Owner::new(owner).ok()?,
            };
            self.permits.push((owner, permit));
        } else {
            let holds = parse_holds(value)?;
            let owner = match &self.asker {
                Some(asker) if asker.as_bytes() == name => asker.clone(),
                _ => Owner::new(name).ok()?,
            };
            self.counts.push((owner, holds));
        }
        Some(())
    }

    /// Whether a field was read that no lock has.
    pub const fn is_no_lock(&self) -> bool {
        self.no_lock
    }

    /// The lock, now that all fields are read. `expires_at_ms` is the expiry of
    /// its key.
    pub fn finish(mut self, expires_at_ms: Option<i64>) -> Result<Lock, LockError> {
        if self.no_lock {
            return Err(LockError::NotALock);
        }
        let fields = self.counts.len() + self.permits.len();
        if fields > FIELDS_WITHOUT_TOKEN_MAX && self.last_token.is_none() {
            return Err(LockError::NotALock);
        }
        self.permits
            .sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let permit_of = |owner: &Owner| {
            let found = self.permits.binary_search_by(|(one, _)| one.cmp(owner));
            found.ok().and_then(|at| self.permits.get(at))
        };
        if let [(owner, holds)] = &self.counts[..]
            && permit_of(owner).is_none()
        {
            let (holds, token) = (*holds, self.last_token);
            let lock = HeldAlone { holds, token }.by(owner, expires_at_ms)?;
            let leftovers = self.permits.len();
            return Ok(Lock { leftovers, ..lock });
        }
        let mut holders = SmallVec::with_capacity(self.counts.len());
        for (owner, holds) in self.counts {
            let (_, permit) = permit_of(&owner).ok_or(LockError::NotALock)?;
            holders.push(Holder {
                owner,
                holds,
                token: Some(permit.token),
                lease_end_ms: Some(permit.lease_end_ms),
                limit: permit.limit,
            });
        }
        Ok(Lock {
            leftovers: self.permits.len() - holders.len(),
            holders,
            last_token: self.last_token,
            expires_at_ms,
        })
    }
}

/// An integer as Redis writes it: decimal, no plus sign, no leading zeros, no
/// spaces. Anything else is not what the module or `HINCRBY` stored.
pub fn parse_integer(text: &[u8]) -> Option<i64> {
    let negative = text.strip_prefix(b"-");
    let digits = negative.unwrap_or(text);
    let is_number = matches!(digits, [b'1'..=b'9', ..]) || text == b"0";
    if !is_number || digits.len() > DIGITS_MAX {
        return None;
    }
    let sum = digits.iter().try_fold(0_u64, |sum, byte| {
        let digit = byte.wrapping_sub(b'0');
        (digit <= 9).then(|| sum * 10 + u64::from(digit))
    })?;
    match negative {
        Some(_) => 0_i64.checked_sub_unsigned(sum),
        None => i64::try_from(sum).ok(),
    }
}

#[cfg(test)]
mod tests;
