//! A wait is looked at for deadlocks before it is queued, or soon after, where other keys
//! can't be read at once.

use super::transition::Transition;
use super::{Answer, LogLine};
use crate::cycle::WaitEdge;
use crate::deadlock::{Certain, Graph, WaitFor};
use crate::error::LockError;
use crate::keys::KeyBuf;
#[cfg(feature = "planted-faults")]
use crate::planted::Fault;
use crate::queue::{Wait, WaiterId};
use crate::request::AcquireRequest;

impl Transition<'_> {
    /// Puts a request at the end of the queue, unless its wait could never end.
    pub(super) fn enqueue(
        &mut self,
        request: AcquireRequest,
        wait: Wait,
    ) -> Result<WaiterId, LockError> {
        if let Some(id) = self.own_place
            && wait.is_for_place()
        {
            return Ok(id);
        }
        let reads = self.table.settings.reads_other_keys;
        let is_certain = self.look_for_cycle(&request, None, reads)?;
        let id = self.push(request, wait)?;
        if !is_certain {
            self.table.unchecked.push_back(id);
        }
        Ok(id)
    }

    pub(super) fn push(
        &mut self,
        request: AcquireRequest,
        wait: Wait,
    ) -> Result<WaiterId, LockError> {
        let settings = &self.table.settings;
        let (max, max_places) = (settings.max_waiters, settings.max_places);
        let is_place = wait.is_for_place();
        let mut left_another = false;
        let other = is_place.then(|| self.table.queues.place_of(self.key, &request.owner));
        let other = other.flatten().map(|place| place.id);
        let left = usize::from(other.is_some());
        self.make_room(is_place, left);
        if is_place {
            // A refusal leaves the other place.
            let queues = &self.table.queues;
            let full = if queues.counts().places - left >= max_places {
                Some(LockError::PlacesFull { max_places })
            } else if left > 0 && queues.length(self.key) - left >= max {
                Some(LockError::QueueFull { max_waiters: max })
            } else {
                None
            };
            if let Some(full) = full {
                self.table.metrics.queues_full += 1;
                return Err(full);
            }
            if let Some(other) = other {
                // The owner is about to have a new place.
                let taken = self.table.take_out(self.key, other, self.now.ms());
                left_another = taken.is_some();
            }
        }
        let ends_here = is_place || self.table.settings.acks.is_some();
        let until_ms = wait.until_ms.filter(|_| ends_here);
        let queues = &mut self.table.queues;
        let id = queues.push(self.key, request, wait, self.now.us, max);
        if let (Ok(id), Some(until_ms)) = (&id, until_ms) {
            self.table.time_outs.insert(*id, until_ms);
        }
        if left_another {
            // Nobody but itself may have been in its way.
            self.table.queues.recheck_by(self.key, self.now.ms());
        }
        self.table.metrics.queues_full += u64::from(id.is_err());
        id
    }

    /// Looks for a deadlock, for a wait that stands in the queue already.
    pub(super) fn check_wait(&mut self, id: WaiterId) {
        // Who can have the lock now waits for nobody.
        self.hand_off();
        let Some(waiter) = self.table.queues.waiter(self.key, id) else {
            return;
        };
        let request = waiter.request.clone();
        if let Err(error) = self.look_for_cycle(&request, Some(id), true) {
            if let Some(waiter) = self.table.remove_waiter(self.key, id) {
                let answer = Answer::Refused(error);
                self.step.answers.push((waiter.addressee(), answer));
            }
            // Those behind it may be let in.
            self.hand_off();
        }
    }

    /// Refuses a wait that closes a cycle. Returns whether it certainly closes none: who
    /// holds the other locks is known from the last look at them, and where they can't be
    /// read now, a new wait begins and is looked at again.
    fn look_for_cycle(
        &mut self,
        request: &AcquireRequest,
        position: Option<WaiterId>,
        reads: bool,
    ) -> Result<bool, LockError> {
        let wait = WaitFor {
            owner: &request.owner,
            key: self.key,
            limit: request.limit,
            position,
        };
        let mut certain = Certain::new();
        while let Some(cycle) = self.cycle(&certain, wait) {
            let graph = self.graph(&certain);
            let keys = cycle.iter().map(|edge| &edge.key);
            let uncertain: Vec<KeyBuf> =
                keys.filter(|key| !graph.is_certain(key)).cloned().collect();
            if uncertain.is_empty() {
                self.table.metrics.deadlocks_refused += 1;
                self.step.log.push(LogLine::DeadlockRefused(cycle.clone()));
                return Err(LockError::Deadlock { cycle });
            }
            if !reads {
                return Ok(false);
            }
            for key in uncertain {
                let stored = self.world.read(key.as_ref());
                let lock = self.table.certain(key.as_ref(), stored, self.now);
                certain.insert(key, lock);
            }
        }
        Ok(true)
    }

    /// The cycle that a wait closes, if a look shows one.
    fn cycle(&self, certain: &Certain, wait: WaitFor<'_>) -> Option<Vec<WaitEdge>> {
        if self.table.queues.is_empty() || !self.table.settings.deadlock_detection {
            return None;
        }
        #[cfg(feature = "planted-faults")]
        if Fault::DeadlockMissed.planted() {
            return None;
        }
        self.graph(certain).cycle_of(wait)
    }

    fn graph<'g>(&'g self, certain: &'g Certain) -> Graph<'g> {
        Graph {
            queues: &self.table.queues,
            certain,
            here: (self.key, &self.lock),
            steady_ms: self.now.steady_ms,
        }
    }
}
