//! A wait is looked at for deadlocks before it is queued, or soon after, where other keys
//! can't be read at once.

use super::transition::Transition;
use super::{Answer, LogLine};
use crate::bounds::{ENDS_A_STEP, HOLDERS_LOOKED_AT, bound};
use crate::deadlock::{Certain, Cycle, Graph, WaitFor};
use crate::error::LockError;
use crate::keys::KeyBuf;
#[cfg(feature = "planted-faults")]
use crate::planted::Fault;
use crate::queue::{Wait, Waiter, WaiterId};
use crate::request::{AcquireRequest, HoldNumber};

impl Transition<'_> {
    /// Puts a request at the end of the queue, unless its wait could never end. If an earlier
    /// one of its owner waits in the same mode, the request takes over that one's position.
    pub(super) fn enqueue(
        &mut self,
        mut request: AcquireRequest,
        wait: Wait,
    ) -> Result<WaiterId, LockError> {
        let untold = self.untold_grant(&request.owner);
        let held = untold.map_or(self.holds_of(&request.owner), |(_, before)| before);
        if held > 0 && request.hold.is_none() {
            request.hold = HoldNumber::new(held + 1).ok();
        }
        if let Some((id, true)) = self.earlier {
            return self.take_over(id, request, wait);
        }
        let reads = self.table.settings.reads_other_keys;
        let is_certain = self.look_for_cycle(&request, None, reads)?;
        let id = self.push(request, wait)?;
        if !is_certain {
            self.table.unchecked.insert(id);
        }
        Ok(id)
    }

    /// Takes over the position of an earlier request.
    fn take_over(
        &mut self,
        id: WaiterId,
        request: AcquireRequest,
        wait: Wait,
    ) -> Result<WaiterId, LockError> {
        let queues = &self.table.queues;
        let was_place = queues.waiter(id).is_some_and(Waiter::is_place);
        if wait.is_for_place() && !was_place {
            self.check_room(true, Some(false))?;
        }
        let later = wait.clone();
        if let Some(earlier) = self.table.queues.take_over(id, request, wait) {
            self.table.forget_time_out(&earlier);
            self.supersede(earlier.addressee(), Some(&later));
        }
        self.table.end_here(id, &later);
        Ok(id)
    }

    fn push(&mut self, request: AcquireRequest, wait: Wait) -> Result<WaiterId, LockError> {
        let earlier = self
            .earlier
            .and_then(|(id, _)| self.table.queues.waiter(id));
        let leaves = earlier.map(Waiter::is_place);
        let (earlier, now_ms) = (earlier.map(|earlier| earlier.id), self.now.ms());
        // A refusal leaves the earlier request in the queue.
        self.check_room(wait.is_for_place(), leaves)?;
        let earlier = earlier.and_then(|id| self.table.take_out(id, now_ms));
        if let Some(earlier) = &earlier {
            self.supersede(earlier.addressee(), Some(&wait));
        }
        if let Some((id, _)) = self.untold_grant(&request.owner) {
            // In a grace period an owner with a grant on its way may have to wait, too.
            if let Some(out) = self.table.lose(id) {
                self.supersede(out.to, Some(&wait));
            }
            self.end_noted();
        }
        let later = wait.clone();
        let queues = &mut self.table.queues;
        let id = queues.push(self.key, request, wait, self.now.us);
        self.table.end_here(id, &later);
        if earlier.is_some() {
            // Its own earlier request may have been all that was in its way.
            self.table.queues.recheck_by(self.key, now_ms);
        }
        Ok(id)
    }

    /// Fails if there is no room for one more. `leaves` says of an earlier request that
    /// makes room whether it is a place. Waits whose time is over make room, too.
    fn check_room(&mut self, is_place: bool, leaves: Option<bool>) -> Result<(), LockError> {
        if self.room_lacks(is_place, leaves).is_none() {
            return Ok(());
        }
        self.table.end_some_gone(bound(ENDS_A_STEP));
        let ended = self.table.give_up(self.now, bound(ENDS_A_STEP));
        self.step.answers.extend(ended);
        self.room_lacks(is_place, leaves).map_or(Ok(()), |full| {
            self.table.metrics.queues_full += 1;
            Err(full)
        })
    }

    fn room_lacks(&self, is_place: bool, leaves: Option<bool>) -> Option<LockError> {
        let (settings, queues) = (&self.table.settings, &self.table.queues);
        let (max_waiters, max_places) = (settings.max_waiters, settings.max_places);
        let places = queues.counts().places - usize::from(leaves == Some(true));
        if is_place && places >= max_places {
            return Some(LockError::PlacesFull { max_places });
        }
        let waiters = queues.length(self.key) - usize::from(leaves.is_some());
        (waiters >= max_waiters).then_some(LockError::QueueFull { max_waiters })
    }

    /// Looks for a deadlock, for a wait that stands in the queue already.
    pub(super) fn check_wait(&mut self, id: WaiterId) {
        // A waiter that can have the lock now waits for nobody.
        self.hand_off();
        let Some(waiter) = self.table.queues.waiter(id) else {
            return;
        };
        let request = waiter.request.clone();
        if let Err(error) = self.look_for_cycle(&request, Some(id), true)
            && let Some(waiter) = self.table.remove_waiter(id)
        {
            let answer = Answer::Refused(error);
            self.step.answers.push((waiter.addressee(), answer));
        }
    }

    /// Refuses a wait that closes a cycle. Returns whether it certainly closes none: the
    /// holders of other locks are known from the last look at them. If those can't be read
    /// now, a new wait begins and is looked at again.
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
        let (mut certain, mut holders_left) = (Certain::new(), HOLDERS_LOOKED_AT);
        while let Some(cycle) = self.cycle(&certain, wait, &mut holders_left) {
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
                let mut lock = self.world.read(key.as_ref());
                self.table.end_holds_of_gone(key.as_ref(), &lock);
                self.table.end_in_view(key.as_ref(), &mut lock, self.now);
                certain.insert(key, lock);
            }
        }
        Ok(true)
    }

    /// The cycle that a wait closes, if a look at so many holders shows one.
    fn cycle(&self, certain: &Certain, wait: WaitFor<'_>, left: &mut usize) -> Cycle {
        if self.table.queues.is_empty() || !self.table.settings.deadlock_detection {
            return None;
        }
        #[cfg(feature = "planted-faults")]
        if Fault::DeadlockMissed.planted() {
            return None;
        }
        self.graph(certain).cycle_of(wait, left)
    }

    fn graph<'g>(&'g self, certain: &'g Certain) -> Graph<'g> {
        Graph {
            queues: &self.table.queues,
            certain,
            here: (self.key, &*self.lock),
            steady_ms: self.now.steady_ms,
            ended: &self.table.gone,
        }
    }
}
