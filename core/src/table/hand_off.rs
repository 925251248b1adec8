//! Grants: to who asks, and to who waits.

use smallvec::SmallVec;

use super::transition::Transition;
use super::{Answer, LockEvent};
use crate::bounds::{few, grants_a_step};
use crate::deliveries::{Delivery, Told};
use crate::error::LockError;
#[cfg(feature = "planted-faults")]
use crate::planted::Fault;
use crate::queue::Waiter;
use crate::request::{AcquireRequest, Owner};
use crate::sessions::HoldId;
use crate::token::FencingToken;

impl Transition<'_> {
    /// Grants the lock to a newcomer, or one hold more of it to a holder, if that
    /// is possible now.
    pub(super) fn try_grant(
        &mut self,
        request: &AcquireRequest,
        waits: bool,
    ) -> Result<Option<FencingToken>, LockError> {
        let may_grant = self.table.settings.may_grant;
        #[cfg(feature = "planted-faults")]
        let may_grant = may_grant
            || Fault::ReentryInGrace.planted() && self.lock.holder(&request.owner).is_some();
        if !may_grant {
            return Ok(None);
        }
        let in_turn = self.is_next_in_line();
        if !self.can_be_told() {
            // A holder never waits, so nothing else could be told to it later.
            let is_holder = self.lock.holder(&request.owner).is_some();
            return match is_holder || !waits && in_turn && self.lock.admits(request.limit) {
                true => Err(LockError::NoReplicas),
                false => Ok(None),
            };
        }
        let withheld_from = self.withholds();
        let Some((token, held_before)) = self.grant(request, in_turn, withheld_from.is_some())?
        else {
            return Ok(None);
        };
        if held_before == 0 {
            self.table.metrics.grants_immediate += 1;
        } else {
            self.table.metrics.reentries += 1;
        }
        if let Some(client) = withheld_from {
            let id = self.table.queues.new_id();
            self.withhold_grant(id, client, request, token, held_before);
            self.step.withheld = Some(id);
            return Ok(Some(token));
        }
        let (key, deliveries) = (self.key, &mut self.table.deliveries);
        let told = Told::by_grant(request.hold);
        deliveries.told(|| HoldId::new(key, &request.owner), told);
        Ok(Some(token))
    }

    /// Returns with the token how many holds the owner had before. What is withheld is
    /// bound to a connection when it is told.
    pub(super) fn grant(
        &mut self,
        request: &AcquireRequest,
        in_turn: bool,
        is_withheld: bool,
    ) -> Result<Option<(FencingToken, i64)>, LockError> {
        let held_before = self.holds_of(&request.owner);
        let (tokens, effects) = (&mut self.table.tokens, &mut self.step.effects);
        let granted = self
            .lock
            .acquire(request, in_turn, self.now, tokens, effects)?;
        let Some(token) = granted else {
            return Ok(None);
        };
        if held_before == 0 {
            self.step.events.push(LockEvent::Acquired);
            self.changed.push(request.owner.clone());
        }
        let (owner, lease, now_ms) = (&request.owner, request.lease, self.now.ms());
        let bound = self.binding_to_count(owner);
        let sessions = &mut self.table.sessions;
        if let Some(client) = request.session {
            let old = sessions.binding_of(self.key, owner);
            // A lease of it ended before anybody noticed.
            let unnoticed = old.filter(|old| {
                old.client != client && old.token != token && old.kept_until_ms <= now_ms
            });
            if !is_withheld {
                sessions.bind(self.key, owner, client, token, lease, now_ms);
                self.is_bound = true;
            } else if old.is_some_and(|old| old.token != token) {
                sessions.unbind(self.key, owner);
            }
            self.table
                .to_close
                .extend(unnoticed.map(|binding| binding.client));
        }
        if request.session.is_none() || is_withheld {
            let sessions = &mut self.table.sessions;
            sessions.last_until(self.key, owner, token, lease.end_ms(now_ms));
        }
        self.count_when_acknowledged(owner, bound);
        Ok(Some((token, held_before)))
    }

    /// Notes that a grant to this owner is on its way.
    pub(super) fn send(
        &mut self,
        owner: &Owner,
        token: FencingToken,
        delivery: Delivery,
        held_before: i64,
    ) {
        let (hold, holds) = (self.hold_of(owner), self.holds_of(owner));
        let deliveries = &mut self.table.deliveries;
        deliveries.send(hold, token, delivery, held_before, holds);
    }

    /// Serves everyone in the queue who may have the lock as it is now: whoever
    /// asked as one of its holders, and as many from the front as it admits.
    pub(super) fn hand_off(&mut self) {
        if !self.table.queues.contended(self.key) {
            return;
        }
        if !self.table.settings.grants() {
            return;
        }
        #[cfg(feature = "planted-faults")]
        if Fault::HandOffSkipped.planted() {
            return;
        }
        let reentering = self.table.queues.reentering(self.key).cloned();
        for owner in reentering.into_iter().chain(self.unserved_holders()) {
            if self.has_granted_enough() {
                // The next step looks for the others again.
                self.is_to_be_read = true;
                break;
            }
            self.serve_requests_of(&owner);
        }
        while !self.has_granted_enough()
            && let Some(waiter) = self.take_first_admitted()
        {
            let owner = waiter.request.owner.clone();
            self.end_of(&owner);
            self.serve(waiter);
            self.serve_requests_of(&owner);
            #[cfg(feature = "planted-faults")]
            if Fault::OneReaderOnly.planted() {
                break;
            }
        }
    }

    pub(super) fn take_first_admitted(&mut self) -> Option<Waiter> {
        let (lock, queues) = (&self.lock, &mut self.table.queues);
        queues.take_first_if(self.key, |first| {
            let limit = first.request.limit;
            #[cfg(feature = "planted-faults")]
            let limit =
                Fault::NewcomersLimitIgnored.instead(limit, || crate::request::Limit::SHARED);
            lock.admits(limit)
        })
    }

    pub(super) fn has_granted_enough(&self) -> bool {
        self.step.answers.len() + self.withheld >= grants_a_step()
    }

    /// Holders that may have requests in the queue. A step of this table leaves none,
    /// but the lock may have been taken by other means.
    pub(super) fn unserved_holders(&self) -> SmallVec<[Owner; 1]> {
        let holders = self.lock.holders();
        if !self.is_read {
            return SmallVec::new();
        }
        if holders.len() <= few() || holders.len() <= self.table.queues.length(self.key) {
            return holders.iter().map(|holder| holder.owner.clone()).collect();
        }
        let waiting = self.table.queues.owners(self.key);
        let is_holder = |owner: &&Owner| self.lock.holder(owner).is_some();
        waiting.filter(is_holder).cloned().collect()
    }

    /// Serves the waiting requests of an owner that may hold the lock.
    pub(super) fn serve_requests_of(&mut self, owner: &Owner) {
        self.end_of(owner);
        // The queue is asked first: it knows its owners, the lock looks for them.
        while self.table.queues.first_id_of(self.key, owner).is_some()
            && self.lock.holder(owner).is_some()
        {
            if self.has_granted_enough() {
                let owner = Some(owner.clone());
                self.table.queues.set_reentering(self.key, owner);
                return;
            }
            if let Some(waiter) = self.table.queues.take_first_of(self.key, owner) {
                self.serve(waiter);
            }
        }
        if self.table.queues.reentering(self.key) == Some(owner) {
            self.table.queues.set_reentering(self.key, None);
        }
    }

    pub(super) fn serve(&mut self, waiter: Waiter) {
        #[cfg(feature = "planted-faults")]
        let waiter = waiter.with_lease_from_enqueue(self.now);
        self.table.acks.is_answered(&waiter);
        let request = &waiter.request;
        let is_withheld = self.withholds_hand_offs();
        let bound = self.table.sessions.binding_of(self.key, &request.owner);
        let answer = match self.grant(request, true, is_withheld) {
            Ok(Some((token, held_before))) => {
                let metrics = &mut self.table.metrics;
                metrics.grants_after_wait += 1;
                metrics.hand_offs += u64::from(held_before == 0);
                metrics.waits.add(self.now.us - waiter.since_us);
                if held_before == 0 {
                    // A search that has begun may have passed here before.
                    self.table.check_waits_beside(self.key, &request.owner);
                }
                if is_withheld {
                    let (id, client) = (waiter.id, waiter.client);
                    self.withhold_grant(id, client, request, token, held_before);
                    self.withheld += 1;
                    return;
                }
                let bound = bound.filter(|binding| binding.token == token);
                let delivery = Delivery {
                    client: waiter.client,
                    hold: request.hold,
                    session: request.session.map(|_| request.lease),
                    bound_before: bound.map(|binding| binding.client),
                };
                self.send(&request.owner, token, delivery, held_before);
                Answer::Granted(token)
            }
            // Nothing keeps it from a grant but a planted fault.
            Ok(None) => Answer::NotGranted,
            Err(error) => {
                self.table.metrics.waits_refused += 1;
                self.table.check_next_of(self.key, &request.owner);
                Answer::Refused(error)
            }
        };
        self.step.answers.push((waiter.id, answer));
    }
}
