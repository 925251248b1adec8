//! What a client asks for, in types that can only hold what is allowed.

use std::fmt;
use std::hash::Hasher;
use std::num::NonZeroU64;
use std::rc::Rc;

use rustc_hash::FxHasher;

use crate::token::{FencingToken, TOKEN_MAX};
use crate::usage::Usage;

/// The longest owner name, in bytes.
pub const OWNER_MAX_BYTES: usize = 1024;

/// The longest lease, in milliseconds: ten years.
pub const LEASE_MS_MAX: i64 = 315_360_000_000;

/// Fields of a stored lock that begin with this byte are the module's own.
pub const RESERVED_PREFIX: u8 = b'@';

/// Who holds a lock, or wants to: 1 to 1024 bytes of any value that do not
/// begin with `@`. Cheap to clone, because a queue and its index share it.
///
/// Names of one program mostly begin alike. So they are compared by their hashes first,
/// and kept in that order.
#[derive(Clone, Default, Eq, PartialOrd, Ord)]
pub struct Owner {
    hash: u64,
    name: Rc<[u8]>,
}

impl PartialEq for Owner {
    fn eq(&self, other: &Self) -> bool {
        // Within a step most names are one and the same.
        let is_same = || Rc::ptr_eq(&self.name, &other.name) || self.name == other.name;
        self.hash == other.hash && is_same()
    }
}

impl Owner {
    /// Takes a name from a client or from a stored field.
    pub fn new(name: &[u8]) -> Result<Self, Usage> {
        match name.first() {
            None => Err(Usage::OwnerEmpty),
            Some(&RESERVED_PREFIX) => Err(Usage::OwnerReserved),
            Some(_) if name.len() > OWNER_MAX_BYTES => Err(Usage::OwnerTooLong),
            Some(_) => {
                let mut hasher = FxHasher::default();
                hasher.write(name);
                Ok(Self {
                    hash: hasher.finish(),
                    name: name.into(),
                })
            }
        }
    }

    /// The name as it was given.
    pub fn as_bytes(&self) -> &[u8] {
        &self.name
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({})", self.name.escape_ascii())
    }
}

/// A client's connection, by the number that the server gives it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientId(pub u64);

/// How long a grant lasts unless it is renewed: 1 ms to ten years.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lease {
    ms: i64,
}

impl Lease {
    /// Ten years.
    pub const LONGEST: Self = Self { ms: LEASE_MS_MAX };

    /// A lease of `ms` milliseconds.
    pub fn from_ms(ms: i64) -> Result<Self, Usage> {
        if (1..=LEASE_MS_MAX).contains(&ms) {
            Ok(Self { ms })
        } else {
            Err(Usage::LeaseOutOfRange)
        }
    }

    /// The milliseconds.
    pub const fn ms(self) -> i64 {
        self.ms
    }

    /// When a lease that begins at `now_ms` is over.
    pub const fn end_ms(self, now_ms: i64) -> i64 {
        now_ms.saturating_add(self.ms)
    }
}

/// How long a client would wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeout {
    ms: i64,
}

impl Timeout {
    /// The longest wait. Added to any wall-clock time it stays in 64 bits.
    pub const MS_MAX: i64 = i64::MAX / 2;

    /// A wait of `ms` milliseconds, 0 for a wait without end, as for `XREAD BLOCK`.
    pub fn from_ms(ms: i64) -> Result<Self, Usage> {
        match ms {
            ..=-1 => Err(Usage::TimeoutNegative),
            0..=Self::MS_MAX => Ok(Self { ms }),
            _ => Err(Usage::TimeoutOutOfRange),
        }
    }

    /// When a wait that begins at `now_ms` is over, if ever.
    pub fn end_ms(self, now_ms: i64) -> Option<i64> {
        (self.ms > 0).then(|| now_ms.saturating_add(self.ms))
    }

    /// The milliseconds, 0 for a wait without end.
    pub const fn ms_or_zero(self) -> i64 {
        self.ms
    }
}

/// How many owners may hold a lock together, in the view of one of them. A
/// smaller limit is a stricter one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Limit(NonZeroU64);

impl Limit {
    /// Nobody else may hold the lock.
    pub const EXCLUSIVE: Self = Self(NonZeroU64::MIN);

    /// Any number may.
    pub const SHARED: Self = Self(NonZeroU64::MAX);

    /// Two may.
    #[cfg(test)]
    pub(crate) const TWO: Self = Self(NonZeroU64::MIN.saturating_add(1));

    /// At most `count` may, from 1 to 2^53 - 1.
    pub fn from_count(count: i64) -> Result<Self, Usage> {
        let count = (1..=TOKEN_MAX).contains(&count).then_some(count);
        let count = count.and_then(|count| NonZeroU64::new(count.cast_unsigned()));
        count.map(Self).ok_or(Usage::LimitOutOfRange)
    }

    /// Reads what [`Limit::count_or_zero`] wrote.
    pub fn from_count_or_zero(count: i64) -> Option<Self> {
        match count {
            0 => Some(Self::SHARED),
            count => Self::from_count(count).ok(),
        }
    }

    /// How many may hold the lock together, 0 for any number.
    pub const fn count_or_zero(self) -> i64 {
        let count = self.0.get();
        if count == u64::MAX {
            0
        } else {
            count.cast_signed()
        }
    }

    /// Whether one more may join this many holders.
    pub fn has_room_beside(self, holders: usize) -> bool {
        u64::try_from(holders).is_ok_and(|holders| holders < self.0.get())
    }
}

/// Which of the owner's nested holds a request speaks of: 1 is the outermost.
///
/// Naming it makes a request safe to send again, because the server can tell
/// "not done yet" from "done already". Without it a resent command counts
/// twice, which is how Redisson's #7367 leaks a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldNumber(i64);

impl HoldNumber {
    /// The outermost.
    pub const FIRST: Self = Self(1);

    /// The `n`-th hold, from 1.
    pub fn new(n: i64) -> Result<Self, Usage> {
        if n >= 1 {
            Ok(Self(n))
        } else {
            Err(Usage::HoldOutOfRange)
        }
    }

    /// The count while this hold is the innermost one.
    pub const fn count_with(self) -> i64 {
        self.0
    }

    /// The count before this hold is taken, and after it has ended.
    pub const fn count_without(self) -> i64 {
        self.0 - 1
    }
}

/// `LOCK.ACQUIRE` without its key and without how long the client would wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcquireRequest {
    /// Who wants the lock.
    pub owner: Owner,
    /// How long the grant shall last, counted from the grant.
    pub lease: Lease,
    /// The hold that is asked for, if the client names one.
    pub hold: Option<HoldNumber>,
    /// With how many others the owner would hold the lock.
    pub limit: Limit,
    /// The connection that the hold is bound to, if any (`SESSION`).
    pub session: Option<ClientId>,
}

/// `LOCK.RELEASE` without its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseRequest {
    /// Who gives the lock back.
    pub owner: Owner,
    /// The token the hold must have.
    pub token: Option<FencingToken>,
    /// How much of it is given back.
    pub extent: ReleaseExtent,
}

/// How much a release gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseExtent {
    /// One hold, whichever it is.
    One,
    /// Exactly this hold, so that the command is safe to send again.
    Hold(HoldNumber),
    /// Every hold of the owner.
    All,
}

/// `LOCK.RENEW` without its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenewRequest {
    /// Who keeps the lock.
    pub owner: Owner,
    /// The new lease, counted from now.
    pub lease: Lease,
    /// The token the hold must have.
    pub token: Option<FencingToken>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_bounded_and_may_not_take_the_modules_prefix() {
        assert_eq!(Owner::new(b""), Err(Usage::OwnerEmpty));
        assert_eq!(Owner::new(b"@fence"), Err(Usage::OwnerReserved));
        assert_eq!(Owner::new(&[b'x'; 1025]), Err(Usage::OwnerTooLong));
        assert!(Owner::new(&[b'x'; 1024]).is_ok());
        assert!(Owner::new(b"\0\xff").is_ok());
    }

    #[test]
    fn an_owner_is_shown_in_letters_that_can_be_read() {
        let owner = Owner::new(b"a\n\xff").unwrap();
        assert_eq!(format!("{owner:?}"), r"Owner(a\n\xff)");
    }

    #[test]
    fn leases_last_from_a_millisecond_to_ten_years() {
        for ms in [i64::MIN, -1, 0, LEASE_MS_MAX + 1, i64::MAX] {
            assert_eq!(Lease::from_ms(ms), Err(Usage::LeaseOutOfRange));
        }
        assert_eq!(Lease::from_ms(1).map(|lease| lease.end_ms(10)), Ok(11));
        assert!(Lease::from_ms(LEASE_MS_MAX).is_ok());
    }

    #[test]
    fn holds_are_numbered_from_one() {
        assert_eq!(HoldNumber::new(0), Err(Usage::HoldOutOfRange));
        assert_eq!(HoldNumber::new(1).map(HoldNumber::count_without), Ok(0));
    }
    #[test]
    fn timeouts_are_endless_or_end_within_the_reach_of_the_clock() {
        for ms in [i64::MIN, -1] {
            assert_eq!(Timeout::from_ms(ms), Err(Usage::TimeoutNegative));
        }
        for ms in [Timeout::MS_MAX + 1, i64::MAX] {
            assert_eq!(Timeout::from_ms(ms), Err(Usage::TimeoutOutOfRange));
        }
        for ms in [0, 1, Timeout::MS_MAX] {
            assert_eq!(Timeout::from_ms(ms).map(Timeout::ms_or_zero), Ok(ms));
        }
    }

    #[test]
    fn the_longest_wait_is_half_of_the_reach_of_the_clock() {
        let halves = [Timeout::MS_MAX, Timeout::MS_MAX + 1];
        assert_eq!(halves[0].checked_add(halves[1]), Some(i64::MAX));
    }

    #[test]
    fn limits_count_from_one_and_a_smaller_one_is_stricter() {
        for count in [i64::MIN, -1, 0, TOKEN_MAX + 1, i64::MAX] {
            assert_eq!(Limit::from_count(count), Err(Usage::LimitOutOfRange));
        }
        assert_eq!(Limit::from_count(1), Ok(Limit::EXCLUSIVE));
        let counts = [1, 2, 3, TOKEN_MAX];
        let limits = counts.map(|count| Limit::from_count(count).unwrap());
        assert!(limits.is_sorted());
        assert!(limits.iter().all(|&limit| limit < Limit::SHARED));
    }

    #[test]
    fn a_limit_is_stored_as_its_count_or_as_zero() {
        for count in [1, 2, TOKEN_MAX] {
            let limit = Limit::from_count(count).unwrap();
            assert_eq!(limit.count_or_zero(), count);
            assert_eq!(Limit::from_count_or_zero(count), Some(limit));
        }
        assert_eq!(Limit::SHARED.count_or_zero(), 0);
        assert_eq!(Limit::from_count_or_zero(0), Some(Limit::SHARED));
        for count in [i64::MIN, -1, TOKEN_MAX + 1, i64::MAX] {
            assert_eq!(Limit::from_count_or_zero(count), None);
        }
    }

    #[test]
    fn a_limit_has_room_for_as_many_as_it_counts() {
        let three = Limit::from_count(3).unwrap();
        let room = [0, 1, 2, 3, 4, usize::MAX].map(|holders| three.has_room_beside(holders));
        assert_eq!(room, [true, true, true, false, false, false]);
        assert!(Limit::EXCLUSIVE.has_room_beside(0) && !Limit::EXCLUSIVE.has_room_beside(1));
        assert!(Limit::SHARED.has_room_beside(1_000_000));
    }
}
