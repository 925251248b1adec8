//! A wait is looked at for deadlocks before it is queued, or soon after, where other keys
//! can't be read at once.

use super::hand_off::HandedOff;
use super::offers::After;
use super::transition::Transition;
use super::{Acquired, Answer, LogLine, Progress, Question, Then};
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
    pub(super) fn enqueue<T>(
        self,
        request: AcquireRequest,
        wait: Wait,
        acquired: fn(Acquired) -> T,
    ) -> Progress<T> {
        if let Some(id) = self.own_place
            && wait.is_for_place()
        {
            return self.done(Ok(acquired(Acquired::Queued(id))));
        }
        self.decide(Certain::new(), Then::Enqueue(request, wait, acquired))
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
    pub(super) fn check_wait<T>(mut self, id: WaiterId, result: T) -> Progress<T> {
        // Who can have the lock now waits for nobody.
        match self.hand_off() {
            HandedOff::Offers(waiter, token) => {
                self.offer(waiter, token, After::CheckWait(id, result))
            }
            HandedOff::All | HandedOff::ToWhoAsks(_) => {
                self.decide(Certain::new(), Then::Stay(id, result))
            }
        }
    }

    /// Refuses a wait that closes a cycle, or lets it begin.
    pub(super) fn decide<T>(mut self, certain: Certain, then: Then<T>) -> Progress<T> {
        let cycle = self.cycle(&certain, &then).unwrap_or_default();
        let graph = self.graph(&certain);
        // Who holds the other locks is known from the last look at them, and may not be
        // true any more.
        let keys = cycle.iter().map(|edge| &edge.key);
        let mut asked: Vec<KeyBuf> = keys.filter(|key| !graph.is_certain(key)).cloned().collect();
        asked.sort();
        asked.dedup();
        let is_queued = matches!(then, Then::Stay(..));
        let is_certain = asked.is_empty();
        if !cycle.is_empty() && is_certain {
            return self.refuse(cycle, then);
        }
        if !is_certain && (is_queued || self.table.settings.reads_other_keys) {
            return Progress::Asks(Box::new(Question {
                suspended: self.suspend(),
                certain,
                asked,
                then,
            }));
        }
        match then {
            Then::Stay(_, result) => self.done(Ok(result)),
            Then::Enqueue(request, wait, acquired) => {
                let id = self.push(request, wait);
                if let (Ok(id), false) = (&id, is_certain) {
                    self.table.unchecked.push_back(*id);
                }
                self.done(id.map(|id| acquired(Acquired::Queued(id))))
            }
        }
    }

    /// The cycle that a wait closes, if a look shows one.
    fn cycle<T>(&self, certain: &Certain, then: &Then<T>) -> Option<Vec<WaitEdge>> {
        if self.table.queues.is_empty() || !self.table.settings.deadlock_detection {
            return None;
        }
        #[cfg(feature = "planted-faults")]
        if Fault::DeadlockMissed.planted() {
            return None;
        }
        let (request, position) = match then {
            Then::Enqueue(request, ..) => (request, None),
            Then::Stay(id, _) => {
                let waiter = self.table.queues.waiter(self.key, *id)?;
                (&waiter.request, Some(*id))
            }
        };
        let wait = WaitFor {
            owner: request.owner.clone(),
            key: self.key.into(),
            limit: request.limit,
            position,
        };
        self.graph(certain).cycle_of(&wait)
    }

    fn graph<'g>(&'g self, certain: &'g Certain) -> Graph<'g> {
        Graph {
            queues: &self.table.queues,
            certain,
            here: (self.key, &self.lock),
            steady_ms: self.now.steady_ms,
        }
    }

    fn refuse<T>(mut self, cycle: Vec<WaitEdge>, then: Then<T>) -> Progress<T> {
        self.table.metrics.deadlocks_refused += 1;
        self.step.log.push(LogLine::DeadlockRefused(cycle.clone()));
        let error = LockError::Deadlock { cycle };
        match then {
            Then::Enqueue(..) => self.done(Err(error)),
            Then::Stay(id, result) => {
                if let Some(waiter) = self.table.remove_waiter(self.key, id) {
                    let answer = Answer::Refused(error);
                    self.step.answers.push((waiter.addressee(), answer));
                }
                // Those behind it may be let in.
                self.hand_off_and_finish(Ok(result))
            }
        }
    }
}
