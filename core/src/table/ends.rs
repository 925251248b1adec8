//! The ends of holds: leases that are over, sessions, grants that nobody heard of.

use super::LockEvent;
use super::transition::Transition;
use crate::bounds::ends_a_step;
use crate::ended::{Ended, EndedBy};
use crate::lock::Holder;
#[cfg(feature = "planted-faults")]
use crate::planted::Fault;
use crate::request::Owner;
use crate::sessions::HoldId;

impl Transition<'_> {
    pub(super) fn expire_leases(&mut self, asker: Option<&Owner>) {
        if self.lock.is_exclusive() {
            // Its key ends with its lease.
            return;
        }
        let mut ended = asker.map_or(0, |asker| usize::from(self.expire_lease_of(asker)));
        while ended < ends_a_step()
            && let Some(owner) = self.lock.end_lease(self.now, &mut self.step.effects)
        {
            self.count_expired(owner);
            ended += 1;
        }
    }

    /// Ends this owner's lease, if that is over. Returns whether it was.
    pub(super) fn expire_lease_of(&mut self, owner: &Owner) -> bool {
        let effects = &mut self.step.effects;
        let is_over = self.lock.end_lease_of(owner, self.now, effects);
        if is_over {
            self.count_expired(owner.clone());
        }
        is_over
    }

    pub(super) fn count_expired(&mut self, owner: Owner) {
        self.changed.push(owner);
        self.table.metrics.releases_expired += 1;
        self.step.events.push(LockEvent::Expired);
    }

    pub(super) fn end_what_is_over(&mut self, asker: Option<&Owner>) {
        let table = &mut *self.table;
        if table.sessions.any_ended() {
            if let Some(asker) = asker {
                table.end_binding(&HoldId::new(self.key, asker));
            }
            let holders = self.lock.holders().iter().map(|holder| &holder.owner);
            let ended = table.sessions.ended_on(self.key, holders, ends_a_step());
            for hold in ended {
                table.end_binding(&hold);
            }
        }
        self.end_noted();
    }

    /// Ends what is noted as over.
    pub(super) fn end_noted(&mut self) {
        if self.table.ended.is_empty() {
            return;
        }
        for ended in self.table.ended.take(self.key) {
            self.end(&ended);
        }
    }

    /// Ends more of what is over than one step has to. Returns whether there was any.
    pub(super) fn end_more(&mut self) -> bool {
        let holders = self.lock.holders().len();
        self.expire_leases(None);
        self.end_what_is_over(None);
        self.lock.holders().len() < holders
    }

    /// Whether all leases of a lock that several may hold are over.
    pub(super) fn is_all_overdue(&self) -> bool {
        let last_ms = self.lock.last_lease_end_ms();
        !self.lock.is_exclusive() && last_ms.is_some_and(|end_ms| end_ms < self.now.ms())
    }

    /// Whether nobody waits in front of a newcomer.
    pub(super) fn is_next_in_line(&self) -> bool {
        !self.table.queues.contended(self.key)
    }

    /// Ends this owner's holds, if they are over and were not among those that this
    /// step ended: nobody is told of a hold that is over.
    pub(super) fn end_of(&mut self, owner: &Owner) {
        self.expire_lease_of(owner);
        if !self.table.sessions.any_ended() {
            return;
        }
        self.table.end_binding(&self.hold_of(owner));
        self.end_noted();
    }

    pub(super) fn end(&mut self, ended: &Ended) {
        let hold = self.hold_of(&ended.owner);
        let held = self.lock.holder(&ended.owner).cloned();
        let held = held.filter(|held| {
            let is_it = held.token == Some(ended.token);
            #[cfg(feature = "planted-faults")]
            let is_it =
                is_it || ended.by == EndedBy::Undelivered && Fault::TokenNotCompared.planted();
            is_it
        });
        let holds = held.as_ref().map_or(0, |held| held.holds);
        let left = self.table.deliveries.end(&hold, ended, holds);
        #[cfg(feature = "planted-faults")]
        let left = match &held {
            Some(held) if held.token != Some(ended.token) => held.holds - 1,
            _ => left,
        };
        let Some(held) = held else {
            return;
        };
        self.lock.leave(&ended.owner, left, &mut self.step.effects);
        if left == 0 {
            self.count_release(&held, Some(ended.by));
        }
    }

    /// Counts that an owner's last hold is over, and why: for no reason but that it
    /// gave it back, or because of this.
    pub(super) fn count_release(&mut self, held: &Holder, ended_by: Option<EndedBy>) {
        self.step.freed = true;
        self.step.events.push(LockEvent::Released);
        self.changed.push(held.owner.clone());
        #[cfg(feature = "planted-faults")]
        let is_bound_on = Fault::BindingKept.planted();
        #[cfg(not(feature = "planted-faults"))]
        let is_bound_on = false;
        if !is_bound_on {
            self.table.sessions.unbind(self.key, &held.owner);
        }
        let metrics = &mut self.table.metrics;
        match ended_by {
            None => metrics.releases += 1,
            Some(EndedBy::Session) => metrics.releases_session += 1,
            Some(EndedBy::Undelivered) => metrics.grants_undelivered += 1,
        }
        // A token is the wall clock of its grant, as long as that runs forward.
        if let Some(token) = held.token {
            metrics.holds.add(self.now.us - token.get());
            self.table.claims.close(token);
        }
        self.forget_deliveries(&held.owner);
    }

    pub(super) fn forget_deliveries(&mut self, owner: &Owner) {
        let (key, deliveries) = (self.key, &mut self.table.deliveries);
        deliveries.ended(|| HoldId::new(key, owner));
    }
}
