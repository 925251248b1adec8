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

use crate::effect::{Effect, Effects};
use crate::error::LockError;
use crate::holder::Holder;
#[cfg(feature = "planted-faults")]
use crate::planted::Fault;
use crate::request::{
    AcquireRequest, Lease, Limit, Owner, ReleaseExtent, ReleaseRequest, RenewRequest,
};
use crate::token::{FencingToken, TokenClock};

/// The moment of a transition, by two clocks.
///
/// Leases end by the wall clock, as every key does. Waits end by the steady clock, which
/// nobody sets.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// The wall clock: microseconds since 1970.
    pub us: i64,
    /// The steady clock: milliseconds since any moment.
    pub steady_ms: i64,
}

impl Now {
    /// Milliseconds since 1970, the unit in which Redis keeps expiry times.
    pub const fn ms(self) -> i64 {
        self.us / 1000
    }
}

/// How much time is left until then, -1 for ever.
pub(crate) fn left_ms(end_ms: Option<i64>, now_ms: i64) -> i64 {
    end_ms.map_or(-1, |end_ms| (end_ms - now_ms).max(0))
}

/// Who holds a lock. Mostly there is one.
pub(crate) type Holders = SmallVec<[Holder; 1]>;

/// The working copy of a stored lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lock {
    /// Who holds it. Nobody does if it is free.
    pub(crate) holders: Holders,
    /// The newest token that is stored, or was before the last holder left just now. A
    /// free lock has one if somebody removed the owner's field alone.
    pub last_token: Option<FencingToken>,
    /// The expiry of the key, in milliseconds since 1970.
    pub(crate) expires_at_ms: Option<i64>,
    /// How many permits are left in the key whose owners somebody removed.
    pub(crate) leftovers: usize,
}

/// What came of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// The owner's last hold ended: now, or when this command came first.
    LastHold,
    /// The owner still holds the lock.
    StillHeld,
    /// The owner does not hold the lock, or not with this token.
    NotHeld,
}

impl Lock {
    /// A lock that is held by one alone.
    pub(crate) fn held_by(holder: Holder) -> Self {
        Self {
            holders: Holders::from_buf([holder]),
            ..Self::default()
        }
    }

    /// Who holds the lock.
    pub fn holders(&self) -> &[Holder] {
        &self.holders
    }

    /// Whether nobody does.
    pub fn is_free(&self) -> bool {
        self.holders.is_empty()
    }

    /// The hold of this owner.
    pub fn holder(&self, owner: &Owner) -> Option<&Holder> {
        let mut from_last = self.holders.iter().rev();
        from_last.find(|holder| holder.owner == *owner)
    }

    fn lease_ends(&self) -> impl Iterator<Item = i64> {
        self.holders.iter().filter_map(|holder| holder.lease_end_ms)
    }

    /// When somebody's lease ends next.
    pub fn next_lease_end_ms(&self) -> Option<i64> {
        self.lease_ends().chain(self.expires_at_ms).min()
    }

    /// How many may hold it together now, if anybody holds it.
    pub(crate) fn strictest_limit(&self) -> Option<Limit> {
        self.holders.iter().map(|holder| holder.limit).min()
    }

    /// Whether its holders are each alone in their own view, if there are any.
    pub(crate) fn is_exclusive(&self) -> bool {
        let mut holders = self.holders.iter();
        holders.all(|holder| holder.limit == Limit::EXCLUSIVE)
    }

    /// Whether an owner that has no hold yet could have one.
    pub fn admits(&self, limit: Limit) -> bool {
        #[cfg(feature = "planted-faults")]
        if limit != Limit::EXCLUSIVE && Fault::LimitIgnored.planted() {
            return true;
        }
        let strictest = self.strictest_limit();
        let strictest = strictest.map_or(limit, |strictest| strictest.min(limit));
        strictest.has_room_beside(self.holders.len())
    }

    /// Ends the leases that are over, if several may hold the lock. Returns their owners.
    pub fn end_leases(&mut self, now: Now, effects: &mut Effects) -> SmallVec<[Owner; 1]> {
        let is_over = |holder: &Holder| holder.is_overdue(now.ms());
        let over = self.holders.iter().filter(|holder| is_over(holder));
        let over: SmallVec<[Owner; 1]> = over.map(|holder| holder.owner.clone()).collect();
        if over.is_empty() {
            return over;
        }
        self.holders.retain(|holder| !is_over(holder));
        if self.is_free() {
            self.delete(effects);
        } else {
            let removed = over.iter().cloned();
            effects.extend(removed.map(|owner| Effect::RemoveHolder { owner }));
        }
        over
    }

    /// Grants the lock, or one hold more of it, if that is possible now. `before` is the
    /// hold count that the owner knows of, where a grant to it is not told yet. `in_turn`
    /// says whether nobody waits in front of a newcomer.
    pub fn acquire(
        &mut self,
        request: &AcquireRequest,
        before: Option<i64>,
        in_turn: bool,
        now: Now,
        tokens: &mut TokenClock,
        effects: &mut Effects,
    ) -> Result<Option<FencingToken>, LockError> {
        #[cfg(feature = "planted-faults")]
        self.ignore_expiry(&request.owner, effects);
        if self.holder(&request.owner).is_some() {
            return self.reenter(request, before, now, tokens, effects);
        }
        // This owner has no hold, and waiting would not give it one that fits,
        // so the mistake is told at once.
        request.holds_after(0)?;
        #[cfg(feature = "planted-faults")]
        let in_turn = in_turn || request.limit == Limit::SHARED && Fault::ReaderBarges.strikes();
        if !in_turn || !self.admits(request.limit) {
            return Ok(None);
        }
        let token = tokens.next(now.us, self.last_token)?;
        #[cfg(feature = "planted-faults")]
        let token = tokens.own_again(request.owner.as_bytes(), token);
        let end_ms = request.lease.end_ms(now.ms());
        let holder = Holder {
            owner: request.owner.clone(),
            holds: 1,
            token: Some(token),
            lease_end_ms: Some(end_ms),
            limit: request.limit,
        };
        if request.limit == Limit::EXCLUSIVE {
            // The replacement overwrites whatever this step wrote before.
            effects.clear();
            effects.push(Effect::Replace {
                owner: holder.owner.clone(),
                token,
                end_ms,
            });
            self.expires_at_ms = Some(end_ms);
            self.leftovers = 0;
        } else {
            if self.leftovers > 0 && self.is_free() {
                self.delete(effects);
            }
            effects.push(holder.written(Some(token)));
        }
        self.holders.push(holder);
        self.last_token = Some(token);
        self.expire_with_the_last_lease(effects);
        Ok(Some(token))
    }

    fn reenter(
        &mut self,
        request: &AcquireRequest,
        before: Option<i64>,
        now: Now,
        tokens: &mut TokenClock,
        effects: &mut Effects,
    ) -> Result<Option<FencingToken>, LockError> {
        let Some(mut holder) = self.holder(&request.owner).cloned() else {
            return Ok(None);
        };
        if request.limit < holder.limit {
            return Err(LockError::Upgrade);
        }
        let holds = request.holds_after(before.unwrap_or(holder.holds))?;
        let new_token = self.give_token(&mut holder, now, tokens)?;
        // Re-entry never shortens what an outer section relies on.
        let lease_end_ms = request.lease.end_ms(now.ms());
        let is_later = holder.lease_end_ms.is_some_and(|end| end < lease_end_ms);
        if is_later {
            holder.lease_end_ms = Some(lease_end_ms);
        }
        let in_its_fields = holds != holder.holds
            || new_token.is_some()
            || is_later && holder.limit != Limit::EXCLUSIVE;
        holder.holds = holds;
        if in_its_fields {
            effects.push(holder.written(new_token));
        }
        let token = holder.token;
        self.replace(holder);
        // Somebody else may have let the key end before the lease does.
        if is_later || self.key_ends_before(lease_end_ms) {
            self.expire_with_the_last_lease(effects);
        }
        Ok(token)
    }

    /// Gives a hold of Redisson's the token that it lacks. Returns it.
    fn give_token(
        &mut self,
        holder: &mut Holder,
        now: Now,
        tokens: &mut TokenClock,
    ) -> Result<Option<FencingToken>, LockError> {
        if holder.token.is_some() {
            return Ok(None);
        }
        self.last_token = Some(tokens.next(now.us, self.last_token)?);
        holder.token = self.last_token;
        Ok(self.last_token)
    }

    /// Gives holds back.
    pub fn release(
        &mut self,
        request: &ReleaseRequest,
        effects: &mut Effects,
    ) -> Result<Released, LockError> {
        #[cfg(feature = "planted-faults")]
        let request = &Fault::OwnerNotChecked.instead(request.clone(), || ReleaseRequest {
            owner: self.any_owner().unwrap_or(request.owner.clone()),
            ..request.clone()
        });
        let holder = self.holder(&request.owner);
        let held = holder.map_or(0, |holder| holder.holds);
        let is_other = holder.is_some_and(|holder| !holder.has_token(request.token));
        let holds = match request.extent {
            _ if is_other => return Ok(Released::NotHeld),
            ReleaseExtent::Hold(hold) => hold.fits(held)?.count_without(),
            _ if held == 0 => return Ok(Released::NotHeld),
            ReleaseExtent::One => held - 1,
            ReleaseExtent::All => 0,
        };
        self.leave(&request.owner, holds, effects);
        match holds {
            0 => Ok(Released::LastHold),
            _ => Ok(Released::StillHeld),
        }
    }

    /// Leaves an owner `holds` of its holds, because the others are over.
    pub fn leave(&mut self, owner: &Owner, holds: i64, effects: &mut Effects) {
        let Some(holder) = self.holder(owner) else {
            return;
        };
        if holds == 0 {
            self.remove(owner, effects);
            self.expire_with_the_last_lease(effects);
        } else if holds < holder.holds {
            let holder = Holder {
                holds,
                ..holder.clone()
            };
            effects.push(holder.written(None));
            self.replace(holder);
        }
    }

    /// Lets the lease end at now + lease exactly. Returns the token of the hold, if the
    /// owner holds the lock with the token it named.
    pub fn renew(
        &mut self,
        request: &RenewRequest,
        now: Now,
        tokens: &mut TokenClock,
        effects: &mut Effects,
    ) -> Result<Option<FencingToken>, LockError> {
        #[cfg(feature = "planted-faults")]
        self.renew_late(request, now, effects);
        let held = self.holder(&request.owner);
        let Some(mut holder) = held.filter(|held| held.has_token(request.token)).cloned() else {
            return Ok(None);
        };
        let new_token = self.give_token(&mut holder, now, tokens)?;
        let token = holder.token;
        self.move_lease_end(holder, new_token, request.lease.end_ms(now.ms()), effects);
        Ok(token)
    }

    fn move_lease_end(
        &mut self,
        mut holder: Holder,
        new_token: Option<FencingToken>,
        end_ms: i64,
        effects: &mut Effects,
    ) {
        let is_moved = holder.lease_end_ms.replace(end_ms) != Some(end_ms);
        if new_token.is_some() || is_moved && holder.limit != Limit::EXCLUSIVE {
            effects.push(holder.written(new_token));
        }
        self.replace(holder);
        self.expire_with_the_last_lease(effects);
    }

    /// Lets the lease last for `lease` from now on at least. Returns whether the
    /// owner has this very hold.
    pub fn keep(
        &mut self,
        owner: &Owner,
        token: FencingToken,
        lease: Lease,
        now: Now,
        effects: &mut Effects,
    ) -> bool {
        let holder = self.holder(owner);
        let Some(holder) = holder.filter(|holder| holder.token == Some(token)) else {
            return false;
        };
        let end_ms = lease.end_ms(now.ms());
        if holder.lease_end_ms.is_some_and(|end| end < end_ms) {
            self.move_lease_end(holder.clone(), None, end_ms, effects);
        } else if self.key_ends_before(end_ms) {
            self.expire_with_the_last_lease(effects);
        }
        true
    }

    /// Takes the lock from whoever holds it, if this is the newest token. Returns who
    /// held it, if anybody did.
    pub(crate) fn break_holds(
        &mut self,
        token: Option<FencingToken>,
        effects: &mut Effects,
    ) -> Option<Holders> {
        let other_token = token.is_some() && token != self.last_token;
        if self.is_free() || other_token {
            return None;
        }
        let holders = std::mem::take(&mut self.holders);
        self.delete(effects);
        Some(holders)
    }

    fn remove(&mut self, owner: &Owner, effects: &mut Effects) {
        // If many end at once, the last one is ended first, and is found first here.
        let is_it = |holder: &Holder| holder.owner == *owner;
        if let Some(at) = self.holders.iter().rposition(is_it) {
            self.holders.remove(at);
        }
        if self.is_free() {
            self.delete(effects);
        } else {
            effects.push(Effect::RemoveHolder {
                owner: owner.clone(),
            });
        }
    }

    fn delete(&mut self, effects: &mut Effects) {
        // What ended before in the same step goes with the key.
        while let Some(Effect::RemoveHolder { .. } | Effect::ExpireAt { .. }) = effects.last() {
            effects.pop();
        }
        effects.push(Effect::Delete);
        self.holders.clear();
        self.expires_at_ms = None;
        self.leftovers = 0;
    }

    fn replace(&mut self, holder: Holder) {
        let mut holders = self.holders.iter_mut();
        if let Some(old) = holders.find(|old| old.owner == holder.owner) {
            *old = holder;
        }
    }

    fn key_ends_before(&self, at_ms: i64) -> bool {
        self.expires_at_ms.is_some_and(|end_ms| end_ms < at_ms)
    }

    fn expire_with_the_last_lease(&mut self, effects: &mut Effects) {
        if let Some(at_ms) = self.lease_ends().max()
            && self.expires_at_ms != Some(at_ms)
        {
            effects.push(Effect::ExpireAt { at_ms });
            self.expires_at_ms = Some(at_ms);
        }
    }
}

#[cfg(feature = "planted-faults")]
impl Lock {
    fn any_owner(&self) -> Option<Owner> {
        Some(self.holders.first()?.owner.clone())
    }

    /// Frees a lock that another owner holds, as though its lease were over.
    fn ignore_expiry(&mut self, newcomer: &Owner, effects: &mut Effects) {
        if !self.is_free() && self.holder(newcomer).is_none() && Fault::ExpiryIgnored.planted() {
            effects.push(Effect::Delete);
            *self = Self {
                last_token: self.last_token,
                ..Self::default()
            };
        }
    }

    /// Takes the lock for an owner that does not hold it any more.
    fn renew_late(&mut self, request: &RenewRequest, now: Now, effects: &mut Effects) {
        if self.is_free() && request.token.is_none() && Fault::LateRenewal.strikes() {
            let request = AcquireRequest {
                owner: request.owner.clone(),
                lease: request.lease,
                limit: Limit::EXCLUSIVE,
                hold: None,
                session: None,
            };
            // Without a token that the stored one allows there is no fault.
            let _ = self.acquire(
                &request,
                None,
                true,
                now,
                &mut TokenClock::default(),
                effects,
            );
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
