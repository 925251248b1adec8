//! The stored lock and its transitions.
//!
//! A lock is a hash `{owner: count, "@fence": token}` whose expiry is the end
//! of the lease: the hash of Redisson's `RLock` with one field more, so that
//! both can hold the same lock. [`Lock`] is the working copy of one. A
//! transition changes the copy and appends to a list what has to be written,
//! in the order in which it has to be written; the same list, as core
//! commands, is what replicas and the AOF get. So "applied here" and
//! "replicated" can't differ, and several transitions in a row (a release and
//! the grant that follows it) join into one atomic write.
//!
//! A transition that returns an error has changed neither the copy nor the list.
//!
//! The server alone decides when a lease is over: a key that is still there is
//! a held lock, whatever `now` says.

use crate::error::{LockError, Usage};
use crate::lock::fence::{Fence, FenceClock};
#[cfg(feature = "planted-faults")]
use crate::lock::planted::Fault;
use crate::lock::request::{AcquireRequest, Owner, ReleaseExtent, ReleaseRequest, RenewRequest};

/// The field that holds the newest token.
pub(crate) const FENCE_FIELD: &[u8] = b"@fence";

/// No lock has more fields than this; a larger hash need not be read.
pub(crate) const FIELDS_MAX: usize = 2;

/// The wall clock at the moment of a transition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    /// Microseconds since 1970.
    pub(crate) us: i64,
}

impl Now {
    /// Milliseconds since 1970, the unit in which Redis keeps expiry times.
    pub(crate) const fn ms(self) -> i64 {
        self.us / 1000
    }
}

/// One write, which has the same effect on the keyspace of the primary and, as
/// a core command, on that of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// `HSET key owner holds [@fence fence]`
    SetHolder {
        /// The owner.
        owner: Owner,
        /// Its new hold count.
        holds: i64,
        /// The token, where it is new.
        new_fence: Option<Fence>,
    },
    /// `PEXPIREAT key at_ms`
    ExpireAt {
        /// Milliseconds since 1970.
        at_ms: i64,
    },
    /// `DEL key`
    Delete,
}

/// Whoever holds the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    /// Its name.
    pub(crate) owner: Owner,
    /// How many holds it has, at least 1.
    pub(crate) holds: i64,
    /// Its token; none if Redisson's scripts took the lock.
    pub(crate) fence: Option<Fence>,
    /// When the lease is over, in milliseconds since 1970; none after `PERSIST`.
    pub(crate) lease_end_ms: Option<i64>,
}

/// The working copy of a stored lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lock {
    /// Nobody holds it.
    Free {
        /// The token of the last holder, where one is still stored: somebody
        /// removed the owner's field and left the rest, or it was released just now.
        last_fence: Option<Fence>,
    },
    /// Somebody does.
    Held(Holder),
}

/// What came of a request for the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    /// The owner holds it, with this token.
    Granted(Fence),
    /// Another owner holds it.
    Busy,
}

/// What came of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Released {
    /// The owner's last hold ended: now, or when this command came first.
    LastHold,
    /// The owner still holds the lock.
    StillHeld,
    /// The owner does not hold the lock, or not with this token.
    NotHeld,
}

impl Lock {
    /// Reads a stored hash. `expires_at_ms` is the expiry of its key.
    pub(crate) fn from_fields<'f>(
        fields: impl IntoIterator<Item = (&'f [u8], &'f [u8])>,
        expires_at_ms: Option<i64>,
    ) -> Result<Self, LockError> {
        let mut holder: Option<(Owner, i64)> = None;
        let mut fence = None;
        for (name, value) in fields {
            let number = parse_integer(value).ok_or(LockError::NotALock)?;
            if name == FENCE_FIELD {
                fence = Some(Fence::new(number).map_err(|_| LockError::NotALock)?);
            } else if holder.is_none() && number >= 1 {
                let owner = Owner::new(name).map_err(|_| LockError::NotALock)?;
                holder = Some((owner, number));
            } else {
                return Err(LockError::NotALock);
            }
        }
        match holder {
            None => Ok(Self::Free { last_fence: fence }),
            // Without a token and without an expiry it is some application's
            // hash of one number. Redisson's locks always expire.
            Some(_) if fence.is_none() && expires_at_ms.is_none() => Err(LockError::NotALock),
            Some((owner, holds)) => Ok(Self::Held(Holder {
                owner,
                holds,
                fence,
                lease_end_ms: expires_at_ms,
            })),
        }
    }

    /// Who holds the lock.
    pub(crate) const fn holder(&self) -> Option<&Holder> {
        match self {
            Self::Free { .. } => None,
            Self::Held(holder) => Some(holder),
        }
    }

    /// Grants the lock, or one hold more of it, if nobody else has it.
    pub(crate) fn acquire(
        &mut self,
        request: &AcquireRequest,
        now: Now,
        fences: &mut FenceClock,
        effects: &mut Vec<Effect>,
    ) -> Result<Acquired, LockError> {
        #[cfg(feature = "planted-faults")]
        crate::lock::planted::ignore_expiry(self, &request.owner, effects);
        match self {
            Self::Free { last_fence } => {
                holds_after_acquire(request, 0)?;
                let fence = fences.next(now.us, *last_fence)?;
                let lease_end_ms = request.lease.end_ms(now.ms());
                effects.push(Effect::SetHolder {
                    owner: request.owner.clone(),
                    holds: 1,
                    new_fence: Some(fence),
                });
                effects.push(Effect::ExpireAt {
                    at_ms: lease_end_ms,
                });
                *self = Self::Held(Holder {
                    owner: request.owner.clone(),
                    holds: 1,
                    fence: Some(fence),
                    lease_end_ms: Some(lease_end_ms),
                });
                Ok(Acquired::Granted(fence))
            }
            Self::Held(holder) if holder.owner == request.owner => {
                let holds = holds_after_acquire(request, holder.holds)?;
                let (fence, new_fence) = match holder.fence {
                    Some(fence) => (fence, None),
                    None => {
                        let fence = fences.next(now.us, None)?;
                        (fence, Some(fence))
                    }
                };
                if holds != holder.holds || new_fence.is_some() {
                    effects.push(Effect::SetHolder {
                        owner: request.owner.clone(),
                        holds,
                        new_fence,
                    });
                }
                // Re-entry never shortens what an outer section relies on.
                let lease_end_ms = request.lease.end_ms(now.ms());
                if holder.lease_end_ms.is_some_and(|end| end < lease_end_ms) {
                    effects.push(Effect::ExpireAt {
                        at_ms: lease_end_ms,
                    });
                    holder.lease_end_ms = Some(lease_end_ms);
                }
                holder.holds = holds;
                holder.fence = Some(fence);
                Ok(Acquired::Granted(fence))
            }
            Self::Held(_) => {
                // This owner has no hold, and waiting would not give it one
                // that fits, so the mistake is told at once.
                holds_after_acquire(request, 0)?;
                Ok(Acquired::Busy)
            }
        }
    }

    /// Gives holds back.
    pub(crate) fn release(
        &mut self,
        request: &ReleaseRequest,
        effects: &mut Vec<Effect>,
    ) -> Result<Released, LockError> {
        let held_by_owner = match self {
            #[cfg(feature = "planted-faults")]
            Self::Held(holder) if Fault::OwnerNotChecked.planted() => Some(holder),
            Self::Held(holder) if holder.owner == request.owner => Some(holder),
            _ => None,
        };
        let Some(holder) = held_by_owner else {
            return match request.extent {
                ReleaseExtent::Hold(hold) if hold.count_without() == 0 => Ok(Released::LastHold),
                ReleaseExtent::Hold(hold) => Err(LockError::HoldCount {
                    wanted: hold.count_with(),
                    held: 0,
                }),
                ReleaseExtent::One | ReleaseExtent::All => Ok(Released::NotHeld),
            };
        };
        if request.fence.is_some() && request.fence != holder.fence {
            return Ok(Released::NotHeld);
        }
        let holds = match request.extent {
            ReleaseExtent::One => holder.holds - 1,
            ReleaseExtent::All => 0,
            ReleaseExtent::Hold(hold)
                if holder.holds == hold.count_with() || holder.holds == hold.count_without() =>
            {
                hold.count_without()
            }
            ReleaseExtent::Hold(hold) => {
                return Err(LockError::HoldCount {
                    wanted: hold.count_with(),
                    held: holder.holds,
                });
            }
        };
        if holds == 0 {
            effects.push(Effect::Delete);
            *self = Self::Free {
                last_fence: holder.fence,
            };
            return Ok(Released::LastHold);
        }
        if holds != holder.holds {
            effects.push(Effect::SetHolder {
                owner: holder.owner.clone(),
                holds,
                new_fence: None,
            });
            holder.holds = holds;
        }
        Ok(Released::StillHeld)
    }

    /// Lets the lease end at now + lease exactly. Says whether the owner holds
    /// the lock, with the token it named.
    pub(crate) fn renew(
        &mut self,
        request: &RenewRequest,
        now: Now,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let Self::Held(holder) = self else {
            return false;
        };
        let other_fence = request.fence.is_some() && request.fence != holder.fence;
        if holder.owner != request.owner || other_fence {
            return false;
        }
        let at_ms = request.lease.end_ms(now.ms());
        effects.push(Effect::ExpireAt { at_ms });
        holder.lease_end_ms = Some(at_ms);
        true
    }
}

/// The hold count after a request by an owner that has `held` holds now.
fn holds_after_acquire(request: &AcquireRequest, held: i64) -> Result<i64, LockError> {
    match request.hold {
        None => held
            .checked_add(1)
            .ok_or_else(|| Usage::TooManyHolds.into()),
        Some(hold) if held == hold.count_without() || held == hold.count_with() => {
            Ok(hold.count_with())
        }
        Some(hold) => Err(LockError::HoldCount {
            wanted: hold.count_with(),
            held,
        }),
    }
}

/// An integer as Redis writes it: decimal, no plus sign, no leading zeros, no
/// spaces. Anything else is not what the module or `HINCRBY` stored.
pub(crate) fn parse_integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let canonical = match digits {
        [b'0'] => text.len() == 1,
        [b'1'..=b'9', ..] => true,
        _ => false,
    };
    if !canonical {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests;
