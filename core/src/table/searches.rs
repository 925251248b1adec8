//! Waits that may close a cycle are searched for deadlocks before they are queued, and
//! again when something has changed for them.

use std::iter;

use super::hand_off::HandedOff;
use super::offers::After;
use super::transition::Transition;
use super::{Acquired, Answer, LogLine, Progress, Question, Then, Unchecked};
use crate::bounds::search_a_step;
use crate::cycle::WaitEdge;
use crate::deadlock::{Certain, Found, Graph, Search, WaitFor};
use crate::error::LockError;
use crate::keys::KeyRef;
#[cfg(feature = "planted-faults")]
use crate::planted::Fault;
use crate::queue::{Wait, WaiterId};
use crate::request::{AcquireRequest, Owner};
use crate::sessions::HoldId;

/// What a search for deadlocks says of a wait.
pub(super) enum Verdict {
    /// It closes no cycle.
    Free,
    /// It closes this one.
    Deadlock(Vec<WaitEdge>),
    /// It closes this one, if some locks are still what is remembered of them.
    Perhaps(Search, Vec<WaitEdge>),
    /// The search has begun, and takes long.
    Unfinished(Search),
}

impl Transition<'_> {
    /// Puts a request at the end of the queue, unless its wait could never end.
    pub(super) fn enqueue<T>(
        mut self,
        request: AcquireRequest,
        wait: Wait,
        acquired: fn(Acquired) -> T,
    ) -> Progress<T> {
        if let Some(id) = self.own_place
            && wait.is_for_place()
        {
            return self.done(Ok(acquired(Acquired::Queued(id))));
        }
        let search = Search::new(WaitFor {
            owner: request.owner.clone(),
            key: self.key.into(),
            limit: request.limit,
            position: None,
        });
        let certain = Certain::new();
        let verdict = self.search(search, &certain);
        self.settle(verdict, certain, Then::Enqueue(request, wait, acquired))
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

    /// Searches on for a deadlock, for a wait that stands in the queue already.
    pub(super) fn check_wait<T>(mut self, unchecked: Unchecked, result: T) -> Progress<T> {
        // Who can have the lock now waits for nobody.
        match self.hand_off() {
            HandedOff::Offers(waiter, token) => {
                self.offer(waiter, token, After::CheckWait(unchecked, result))
            }
            HandedOff::All | HandedOff::ToWhoAsks(_) => self.search_for(unchecked, result),
        }
    }

    fn search_for<T>(mut self, unchecked: Unchecked, result: T) -> Progress<T> {
        let Some(waiter) = self.table.queues.waiter(self.key, unchecked.id) else {
            return self.done(Ok(result));
        };
        let wait = WaitFor {
            owner: waiter.request.owner.clone(),
            key: self.key.into(),
            limit: waiter.request.limit,
            position: Some(unchecked.id),
        };
        let search = unchecked
            .search
            .map_or_else(|| Search::new(wait), |begun| *begun);
        let certain = Certain::new();
        let verdict = self.search(search, &certain);
        self.settle(verdict, certain, Then::Stay(unchecked.id, result))
    }

    /// Checks a cycle that was found before other locks were looked at. If it is none
    /// any more, searches from the beginning.
    pub(super) fn check_again(
        &mut self,
        search: Search,
        cycle: Vec<WaitEdge>,
        certain: &Certain,
    ) -> Verdict {
        if search.still_closes(self.graph(certain), &cycle) {
            Verdict::Deadlock(cycle)
        } else {
            self.search(search.anew(), certain)
        }
    }

    /// Goes by what the search finds.
    pub(super) fn settle<T>(
        mut self,
        verdict: Verdict,
        certain: Certain,
        then: Then<T>,
    ) -> Progress<T> {
        let is_queued = matches!(then, Then::Stay(..));
        let begun = match verdict {
            Verdict::Free => None,
            Verdict::Deadlock(cycle) => return self.refuse(cycle, then),
            Verdict::Perhaps(search, cycle) => {
                if is_queued || self.table.settings.reads_other_keys {
                    return self.ask(search, cycle, certain, then);
                }
                Some(search.anew())
            }
            Verdict::Unfinished(search) => Some(search),
        };
        let (id, result) = match then {
            Then::Stay(id, result) => (Ok(id), Ok(result)),
            Then::Enqueue(request, wait, acquired) => {
                let id = self.push(request, wait);
                (id.clone(), id.map(|id| acquired(Acquired::Queued(id))))
            }
        };
        match (id, begun) {
            (Ok(id), Some(search)) if is_queued && search.is_begun() => {
                let search = Some(Box::new(search));
                self.table.unchecked.push_front(Unchecked { id, search });
            }
            (Ok(id), Some(_)) => {
                let search = None;
                self.table.unchecked.push_back(Unchecked { id, search });
            }
            _ => {}
        }
        self.done(result)
    }

    pub(super) fn search(&mut self, mut search: Search, certain: &Certain) -> Verdict {
        if self.table.queues.is_empty() || !self.table.settings.deadlock_detection {
            return Verdict::Free;
        }
        #[cfg(feature = "planted-faults")]
        if Fault::DeadlockMissed.planted() {
            return Verdict::Free;
        }
        let mut steps_left = search_a_step();
        let cycle = loop {
            match search.run(self.graph(certain), &mut steps_left) {
                Found::NoCycle => return Verdict::Free,
                Found::Unfinished => return Verdict::Unfinished(search),
                // Nobody waits by a place that is over.
                Found::Cycle(cycle) if self.end_places_in(&cycle) => search = search.anew(),
                Found::Cycle(cycle) => break cycle,
            }
        };
        let graph = self.graph(certain);
        if !search.still_closes(graph, &cycle) {
            // It was begun in another step, and much has happened since.
            return Verdict::Unfinished(search.anew());
        }
        // Who holds the other locks is known from the last look at them, and may not be
        // true any more.
        match cycle.iter().all(|edge| graph.is_certain(&edge.key)) {
            true => Verdict::Deadlock(cycle),
            false => Verdict::Perhaps(search, cycle),
        }
    }

    /// Ends the places in this cycle that are over. Returns whether there were any.
    fn end_places_in(&mut self, cycle: &[WaitEdge]) -> bool {
        let mut any_withheld = false;
        for edge in cycle.iter().filter(|edge| edge.held) {
            let hold = HoldId::new(edge.key.as_ref(), &edge.blocker);
            any_withheld |= self.table.end_withheld_of(&hold);
        }
        let (queues, now_ms) = (&self.table.queues, self.now.steady_ms);
        let first_if_over = |key: KeyRef<'_>, owner: &Owner| {
            let id = queues.first_id_of(key, owner)?;
            let first = queues.waiter(key, id)?;
            queues.is_over(first, now_ms).then_some(id)
        };
        let mut over: Vec<_> = cycle
            .iter()
            .flat_map(|edge| {
                let blocker = (!edge.held).then_some(&edge.blocker);
                let owners = iter::once(&edge.waiter).chain(blocker);
                owners.filter_map(|owner| first_if_over(edge.key.as_ref(), owner))
            })
            .collect();
        over.sort();
        over.dedup();
        for id in &over {
            self.end_place(*id);
        }
        any_withheld || !over.is_empty()
    }

    pub(super) fn graph<'g>(&'g self, certain: &'g Certain) -> Graph<'g> {
        Graph {
            queues: &self.table.queues,
            certain,
            here: (self.key, &self.lock),
        }
    }

    pub(super) fn ask<T>(
        self,
        search: Search,
        cycle: Vec<WaitEdge>,
        certain: Certain,
        then: Then<T>,
    ) -> Progress<T> {
        let keys = cycle.iter().map(|edge| &edge.key);
        let graph = self.graph(&certain);
        let mut asked: Vec<_> = keys.filter(|key| !graph.is_certain(key)).cloned().collect();
        asked.sort();
        asked.dedup();
        Progress::Asks(Box::new(Question {
            suspended: self.suspend(),
            search,
            cycle,
            certain,
            asked,
            then,
        }))
    }

    pub(super) fn refuse<T>(mut self, cycle: Vec<WaitEdge>, then: Then<T>) -> Progress<T> {
        self.table.metrics.deadlocks_refused += 1;
        self.step.log.push(LogLine::DeadlockRefused(cycle.clone()));
        let error = LockError::Deadlock { cycle };
        match then {
            Then::Enqueue(..) => self.done(Err(error)),
            Then::Stay(id, result) => {
                if let Some(waiter) = self.table.remove_waiter(self.key, id) {
                    self.table.check_next_of(self.key, &waiter.request.owner);
                    let answer = Answer::Refused(error);
                    self.step.answers.push((waiter.addressee(), answer));
                }
                // Those behind it may be let in.
                self.hand_off_and_finish(Ok(result))
            }
        }
    }
}
