//! The ends of holds: leases that are over, sessions, grants that nobody heard of.

use super::LockEvent;
use super::transition::Transition;
use crate::bounds::PASSED_A_STEP;
use crate::ended::{Ended, EndedBy};
use crate::error::LockError;
use crate::holder::Holder;
#[cfg(feature = "planted-faults")]
use crate::planted::Fault;
use crate::request::Owner;
use crate::token::FencingToken;

impl Transition<'_> {
    /// Ends all that is over of this lock.
    #[inline]
    pub(super) fn end_what_is_over(&mut self) {
        self.table.end_holds_of_gone(self.key, self.lock);
        if !self.lock.is_exclusive() {
            let over = self.lock.end_leases(self.now, &mut self.step.effects);
            over.iter().for_each(|_| self.count_expired());
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

    pub(super) fn count_expired(&mut self) {
        self.table.metrics.releases_expired += 1;
        self.step.events.push(LockEvent::Expired);
    }

    /// Takes the lock from all who hold it, if its newest token is this one. Returns whether
    /// anybody held it.
    pub fn break_lock(&mut self, token: Option<FencingToken>) -> Result<bool, LockError> {
        let holders = self.lock.break_holds(token, &mut self.step.effects);
        let Some(broken) = holders else {
            // If anybody holds the lock, its newest token is another one.
            self.table.metrics.tokens_refused += u64::from(!self.lock.is_free());
            return Ok(false);
        };
        self.step.freed = true;
        self.step.events.push(LockEvent::Broken);
        self.table.metrics.releases_broken += broken.len() as u64;
        for holder in &broken {
            if let Some(token) = holder.token {
                self.table.unclaimed.remove(&token);
            }
            self.table.sessions.unbind(self.key, &holder.owner);
        }
        Ok(true)
    }

    /// Whether nobody else waits in front of a newcomer.
    pub(super) fn is_next_in_line(&mut self, newcomer: &Owner) -> bool {
        let is_alone = self.table.queues.length(self.key) == 1;
        let first = self.first_in_line();
        let is_first = first.is_none_or(|first| is_alone && first.request.owner == *newcomer);
        is_first && self.passed < PASSED_A_STEP
    }

    pub(super) fn end(&mut self, ended: &Ended) {
        if let Some((held, 0)) = ended.end(self.lock, &mut self.step.effects) {
            self.count_release(&held, Some(ended.by));
        }
    }

    /// Counts that an owner's last hold is over, and why: `ended_by`, or, without it,
    /// because the owner gave the hold back.
    pub(super) fn count_release(&mut self, held: &Holder, ended_by: Option<EndedBy>) {
        self.step.freed = true;
        self.step.events.push(LockEvent::Released);
        #[cfg(feature = "planted-faults")]
        if !Fault::BindingKept.planted() {
            self.table.sessions.unbind(self.key, &held.owner);
        }
        #[cfg(not(feature = "planted-faults"))]
        self.table.sessions.unbind(self.key, &held.owner);
        let metrics = &mut self.table.metrics;
        match ended_by {
            None => metrics.releases += 1,
            Some(EndedBy::Session) => metrics.releases_session += 1,
            Some(EndedBy::Undelivered) => metrics.grants_undelivered += 1,
        }
        // A token is the wall clock of its grant, as long as that runs forward.
        if let Some(token) = held.token {
            metrics.holds.add(self.now.us - token.get());
            self.table.unclaimed.remove(&token);
        }
    }
}
