//! A lock and its transitions.
//!
//! [`Lock`] is the working copy of a stored lock. A transition changes the copy
//! and appends to a list what has to be written, in the order in which it has
//! to be written; the same list, as core commands, is what replicas and the AOF
//! get. So "applied here" and "replicated" can't differ, and several
//! transitions in a row (a release and the grant that follows it) join into one
//! atomic write.
//!
//! A transition that returns an error has changed neither the copy nor the list.
//!
//! # One rule of admission
//! Every holder has a limit: how many may hold the lock together in its view. An
//! exclusive holder's is 1, a shared one's is none. A newcomer is let in if one
//! holder more is within its own limit and within that of every holder.
//!
//! # Who ends a lease
//! The expiry of the key ends an exclusive lease, and the server alone decides
//! when that is: a key that is still there is a held lock, whatever `now` says.
//! Where several hold a lock, the key lives as long as the last of them, so each
//! lease but that one is ended here, by [`Lock::end_leases`].

use smallvec::SmallVec;

use crate::error::{LockError, Usage};
use crate::lock::fence::{Fence, FenceClock};
#[cfg(feature = "planted-faults")]
use crate::lock::planted::Fault;
use crate::lock::request::{
    AcquireRequest, Lease, Limit, Owner, ReleaseExtent, ReleaseRequest, RenewRequest,
};
use crate::lock::stored::Permit;

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
    /// `HSET key owner holds [@permit:owner permit] [@fence fence]`
    SetHolder {
        /// The owner.
        owner: Owner,
        /// Its new hold count.
        holds: i64,
        /// Its permit, where others may hold the lock with it.
        permit: Option<Permit>,
        /// The token, where it is new.
        new_fence: Option<Fence>,
    },
    /// `HDEL key owner @permit:owner`
    RemoveHolder {
        /// The owner.
        owner: Owner,
    },
    /// `PEXPIREAT key at_ms`
    ExpireAt {
        /// Milliseconds since 1970.
        at_ms: i64,
    },
    /// `DEL key`
    Delete,
}

/// What has to be written, in order.
pub(crate) type Effects = SmallVec<[Effect; 3]>;

/// Somebody who holds the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    /// Its name.
    pub(crate) owner: Owner,
    /// How many holds it has, at least 1.
    pub(crate) holds: i64,
    /// Its token; none if Redisson's scripts took the lock.
    pub(crate) fence: Option<Fence>,
    /// When its lease is over, in milliseconds since 1970; none after `PERSIST`.
    pub(crate) lease_end_ms: Option<i64>,
    /// How many may hold the lock together with it.
    pub(crate) limit: Limit,
}

impl Holder {
    fn permit(&self) -> Option<Permit> {
        if self.limit == Limit::EXCLUSIVE {
            return None;
        }
        Some(Permit {
            limit: self.limit,
            fence: self.fence?,
            lease_end_ms: self.lease_end_ms?,
        })
    }

    fn written(&self, new_fence: Option<Fence>) -> Effect {
        Effect::SetHolder {
            owner: self.owner.clone(),
            holds: self.holds,
            permit: self.permit(),
            new_fence,
        }
    }

    fn has_fence(&self, named: Option<Fence>) -> bool {
        named.is_none() || named == self.fence
    }
}

/// The working copy of a stored lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lock {
    /// Who holds it. Nobody does if it is free.
    pub(super) holders: SmallVec<[Holder; 1]>,
    /// The newest token that is stored, or was before the last holder left just
    /// now. A free lock has one where somebody removed the owner's field alone.
    pub(super) last_fence: Option<Fence>,
    /// The expiry of the key.
    pub(super) expires_at_ms: Option<i64>,
    /// The key holds permits of owners that somebody removed.
    pub(super) leftovers: bool,
}

/// What came of a request for the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    /// The owner holds it, with this token.
    Granted(Fence),
    /// Others hold it, or come first.
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
    /// Who holds the lock.
    pub(crate) fn holders(&self) -> &[Holder] {
        &self.holders
    }

    /// Whether nobody does.
    pub(crate) fn is_free(&self) -> bool {
        self.holders.is_empty()
    }

    /// The newest token that is known of it.
    pub(crate) const fn last_fence(&self) -> Option<Fence> {
        self.last_fence
    }

    /// The expiry of its key, in milliseconds since 1970.
    pub(crate) const fn expires_at_ms(&self) -> Option<i64> {
        self.expires_at_ms
    }

    /// The hold of this owner.
    pub(crate) fn holder(&self, owner: &Owner) -> Option<&Holder> {
        self.holders.iter().find(|holder| holder.owner == *owner)
    }

    fn holder_mut(&mut self, owner: &Owner) -> Option<&mut Holder> {
        self.holders
            .iter_mut()
            .find(|holder| holder.owner == *owner)
    }

    /// When somebody's lease ends next.
    pub(crate) fn next_lease_end_ms(&self) -> Option<i64> {
        let ends = self.holders.iter().filter_map(|holder| holder.lease_end_ms);
        ends.chain(self.expires_at_ms).min()
    }

    /// Whether an owner that has no hold yet could have one.
    pub(crate) fn admits(&self, limit: Limit) -> bool {
        #[cfg(feature = "planted-faults")]
        if limit != Limit::EXCLUSIVE && Fault::LimitIgnored.planted() {
            return true;
        }
        let limits = self.holders.iter().map(|holder| holder.limit);
        let strictest = limits.fold(limit, Limit::min);
        strictest.has_room_beside(self.holders.len())
    }

    /// Ends the leases of a lock that several may hold, where they are over.
    /// Says how many.
    pub(crate) fn end_leases(&mut self, now: Now, effects: &mut Effects) -> usize {
        let is_over = |holder: &Holder| {
            holder.limit != Limit::EXCLUSIVE
                && holder.lease_end_ms.is_some_and(|end| end < now.ms())
        };
        if !self.holders.iter().any(is_over) {
            return 0;
        }
        let (before, holders) = (effects.len(), self.holders.len());
        self.holders.retain(|holder| {
            let over = is_over(holder);
            if over {
                effects.push(Effect::RemoveHolder {
                    owner: holder.owner.clone(),
                });
            }
            !over
        });
        let ended = holders - self.holders.len();
        if self.is_free() {
            effects.truncate(before);
            self.delete(effects);
        }
        ended
    }

    /// Grants the lock, or one hold more of it, if that is possible now.
    /// `in_turn` says whether nobody waits in front of a newcomer.
    pub(crate) fn acquire(
        &mut self,
        request: &AcquireRequest,
        in_turn: bool,
        now: Now,
        fences: &mut FenceClock,
        effects: &mut Effects,
    ) -> Result<Acquired, LockError> {
        #[cfg(feature = "planted-faults")]
        crate::lock::planted::ignore_expiry(self, &request.owner, effects);
        if self.holder(&request.owner).is_some() {
            return self.reenter(request, now, fences, effects);
        }
        // This owner has no hold, and waiting would not give it one that fits,
        // so the mistake is told at once.
        holds_after_acquire(request, 0)?;
        #[cfg(feature = "planted-faults")]
        let in_turn = in_turn || request.limit == Limit::SHARED && Fault::ReaderBarges.strikes();
        if !in_turn || !self.admits(request.limit) {
            return Ok(Acquired::Busy);
        }
        let fence = fences.next(now.us, self.last_fence)?;
        #[cfg(feature = "planted-faults")]
        let fence = crate::lock::planted::own_token_again(&request.owner, fence);
        if self.leftovers {
            self.delete(effects);
        }
        let holder = Holder {
            owner: request.owner.clone(),
            holds: 1,
            fence: Some(fence),
            lease_end_ms: Some(request.lease.end_ms(now.ms())),
            limit: request.limit,
        };
        effects.push(holder.written(Some(fence)));
        self.holders.push(holder);
        self.last_fence = Some(fence);
        self.expire_with_the_last_lease(effects);
        Ok(Acquired::Granted(fence))
    }

    fn reenter(
        &mut self,
        request: &AcquireRequest,
        now: Now,
        fences: &mut FenceClock,
        effects: &mut Effects,
    ) -> Result<Acquired, LockError> {
        let last_fence = self.last_fence;
        let Some(holder) = self.holder_mut(&request.owner) else {
            return Ok(Acquired::Busy);
        };
        if request.limit < holder.limit {
            return Err(LockError::Upgrade);
        }
        let holds = holds_after_acquire(request, holder.holds)?;
        let (fence, new_fence) = match holder.fence {
            Some(fence) => (fence, None),
            None => {
                let fence = fences.next(now.us, last_fence)?;
                (fence, Some(fence))
            }
        };
        // Re-entry never shortens what an outer section relies on.
        let lease_end_ms = request.lease.end_ms(now.ms());
        let is_later = holder.lease_end_ms.is_some_and(|end| end < lease_end_ms);
        if is_later {
            holder.lease_end_ms = Some(lease_end_ms);
        }
        let in_its_fields = holds != holder.holds
            || new_fence.is_some()
            || is_later && holder.limit != Limit::EXCLUSIVE;
        holder.holds = holds;
        holder.fence = Some(fence);
        if in_its_fields {
            effects.push(holder.written(new_fence));
        }
        self.last_fence = new_fence.or(last_fence);
        // Somebody else may have let the key end before the lease does.
        if is_later || self.key_ends_before(lease_end_ms) {
            self.expire_with_the_last_lease(effects);
        }
        Ok(Acquired::Granted(fence))
    }

    /// Gives holds back.
    pub(crate) fn release(
        &mut self,
        request: &ReleaseRequest,
        effects: &mut Effects,
    ) -> Result<Released, LockError> {
        #[cfg(feature = "planted-faults")]
        let request = &Fault::OwnerNotChecked.instead(request.clone(), || ReleaseRequest {
            owner: self.any_owner().unwrap_or(request.owner.clone()),
            ..request.clone()
        });
        let Some(holder) = self.holder_mut(&request.owner) else {
            return match request.extent {
                ReleaseExtent::Hold(hold) if hold.count_without() == 0 => Ok(Released::LastHold),
                ReleaseExtent::Hold(hold) => Err(LockError::HoldCount {
                    wanted: hold.count_with(),
                    held: 0,
                }),
                ReleaseExtent::One | ReleaseExtent::All => Ok(Released::NotHeld),
            };
        };
        if !holder.has_fence(request.fence) {
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
            self.remove(&request.owner, effects);
            return Ok(Released::LastHold);
        }
        if holds != holder.holds {
            holder.holds = holds;
            effects.push(holder.written(None));
        }
        Ok(Released::StillHeld)
    }

    /// Leaves an owner so many of its holds, because the others are over.
    pub(crate) fn leave(&mut self, owner: &Owner, holds: i64, effects: &mut Effects) {
        let Some(holder) = self.holder_mut(owner) else {
            return;
        };
        if holds == 0 {
            self.remove(owner, effects);
        } else if holds < holder.holds {
            holder.holds = holds;
            effects.push(holder.written(None));
        }
    }

    /// Lets the lease end at now + lease exactly. Says whether the owner holds
    /// the lock, with the token it named.
    pub(crate) fn renew(
        &mut self,
        request: &RenewRequest,
        now: Now,
        effects: &mut Effects,
    ) -> bool {
        #[cfg(feature = "planted-faults")]
        crate::lock::planted::renew_late(self, request, now, effects);
        let Some(holder) = self
            .holder_mut(&request.owner)
            .filter(|holder| holder.has_fence(request.fence))
        else {
            return false;
        };
        let lease_end_ms = Some(request.lease.end_ms(now.ms()));
        if holder.lease_end_ms != lease_end_ms {
            holder.lease_end_ms = lease_end_ms;
            if holder.limit != Limit::EXCLUSIVE {
                effects.push(holder.written(None));
            }
        }
        self.expire_with_the_last_lease(effects);
        true
    }

    /// Lets the lease last for `lease` from now on at least. Says whether the
    /// owner has this very hold.
    pub(crate) fn keep(
        &mut self,
        owner: &Owner,
        fence: Fence,
        lease: Lease,
        now: Now,
        effects: &mut Effects,
    ) -> bool {
        let Some(holder) = self.holder(owner) else {
            return false;
        };
        if holder.fence != Some(fence) {
            return false;
        }
        let lasts = |end| end >= lease.end_ms(now.ms());
        if !holder.lease_end_ms.is_none_or(lasts) {
            let request = RenewRequest {
                owner: owner.clone(),
                lease,
                fence: Some(fence),
            };
            self.renew(&request, now, effects);
        } else if self.key_ends_before(lease.end_ms(now.ms())) {
            self.expire_with_the_last_lease(effects);
        }
        true
    }

    /// Takes the lock from whoever holds it, if this is the newest token. Says
    /// whether anybody held it.
    pub(crate) fn break_holds(&mut self, fence: Option<Fence>, effects: &mut Effects) -> bool {
        let other_fence = fence.is_some() && fence != self.last_fence;
        if self.is_free() || other_fence {
            return false;
        }
        self.delete(effects);
        true
    }

    fn remove(&mut self, owner: &Owner, effects: &mut Effects) {
        self.holders.retain(|holder| holder.owner != *owner);
        if self.is_free() {
            self.delete(effects);
        } else {
            effects.push(Effect::RemoveHolder {
                owner: owner.clone(),
            });
            self.expire_with_the_last_lease(effects);
        }
    }

    fn delete(&mut self, effects: &mut Effects) {
        effects.push(Effect::Delete);
        self.holders.clear();
        self.expires_at_ms = None;
        self.leftovers = false;
    }

    fn key_ends_before(&self, at_ms: i64) -> bool {
        self.expires_at_ms.is_some_and(|end_ms| end_ms < at_ms)
    }

    fn expire_with_the_last_lease(&mut self, effects: &mut Effects) {
        let ends = self.holders.iter().filter_map(|holder| holder.lease_end_ms);
        if let Some(at_ms) = ends.max()
            && self.expires_at_ms != Some(at_ms)
        {
            effects.push(Effect::ExpireAt { at_ms });
            self.expires_at_ms = Some(at_ms);
        }
    }

    #[cfg(feature = "planted-faults")]
    fn any_owner(&self) -> Option<Owner> {
        Some(self.holders.first()?.owner.clone())
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

#[cfg(test)]
pub(super) mod tests;
