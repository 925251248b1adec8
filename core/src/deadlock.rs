//! Finds waits that could never end: cycles of owners that wait for each other.
//!
//! An owner that waits for a lock waits for everybody who holds it, and for
//! everybody who queued for it before. A new wait is a deadlock if one of those
//! waits, directly or through others, for the one who would wait. So each new wait is
//! checked, and a wait that comes to wait for somebody new: an owner's second request
//! in a queue when its first one leaves, and what a new holder waits for that took
//! its lock by other means than this module's commands.
//!
//! Whoever wants one of several permits waits for none of their holders in
//! particular: any of them may give one back. So a wait counts only if every
//! holder must be gone before it can end.
//!
//! # What the search costs
//! It
//! follows holders that wait themselves, and those in front in a queue that wait for
//! another lock as well; for most, whoever is in front waits for nothing but the
//! holders, which are followed anyhow. A search that would take long stops, and goes
//! on when others have had their turn. What it has found takes memory, so of all that
//! are unfinished only one is under way at a time.

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::bounds::CYCLE_AT_MOST;
use crate::cycle::WaitEdge;
#[cfg(test)]
use crate::explore::form::Form;
use crate::keys::{KeyBuf, KeyRef};
use crate::lock::Lock;
use crate::queue::{WaitQueues, WaiterId};
use crate::request::{Limit, Owner};

/// A wait that may close a cycle.
#[derive(Clone, Debug)]
pub(crate) struct WaitFor {
    /// Who would wait.
    pub(crate) owner: Owner,
    /// For which lock.
    pub(crate) key: KeyBuf,
    /// With how many others it would hold the lock.
    pub(crate) limit: Limit,
    /// Its position in the queue, if it waits already; else it would be the last.
    pub(crate) position: Option<WaiterId>,
}

/// Locks that were looked at just now, without what is over. Others may have changed.
pub(crate) type Certain = HashMap<KeyBuf, Lock>;

/// Who waits for whom.
#[derive(Clone, Copy)]
pub(crate) struct Graph<'g> {
    pub(crate) queues: &'g WaitQueues,
    pub(crate) certain: &'g Certain,
    /// The lock of the step that asks.
    pub(crate) here: (KeyRef<'g>, &'g Lock),
}

impl<'g> Graph<'g> {
    fn lock(self, key: &KeyBuf) -> Option<&'g Lock> {
        if key.as_ref() == self.here.0 {
            return Some(self.here.1);
        }
        let certain = self.certain.get(key);
        certain.or_else(|| self.queues.seen(key.as_ref()))
    }

    /// Whether this owner holds the lock, as far as is known.
    fn is_held_by(self, key: &KeyBuf, owner: &Owner) -> bool {
        let held = self.lock(key).and_then(|lock| lock.holder(owner));
        held.is_some()
    }

    pub(crate) fn is_certain(self, key: &KeyBuf) -> bool {
        key.as_ref() == self.here.0 || self.certain.contains_key(key)
    }

    /// Whether this wait can end only when every holder is gone.
    fn every_holder_must_go(self, wait: &WaitFor) -> bool {
        let key = wait.key.as_ref();
        wait.limit == Limit::EXCLUSIVE
            || self
                .queues
                .last_exclusive_before(key, wait.position)
                .is_some()
            || self.lock(&wait.key).is_none_or(Lock::is_exclusive)
    }

    /// Whether its owner holds the lock already: it is served as soon as anybody is,
    /// and so waits for nobody.
    fn is_of_a_holder(self, wait: &WaitFor) -> bool {
        self.is_held_by(&wait.key, &wait.owner)
    }

    /// The last in front with whom this wait can't be let in together.
    fn last_in_front(self, wait: &WaitFor) -> Option<WaiterId> {
        let key = wait.key.as_ref();
        match wait.position {
            position if wait.limit != Limit::EXCLUSIVE => {
                self.queues.last_exclusive_before(key, position)
            }
            Some(WaiterId(position)) => position.checked_sub(1).map(WaiterId),
            None => Some(WaiterId(u64::MAX)),
        }
    }

    /// Whether this edge is still one. The first of a cycle is the wait itself.
    fn is_edge(self, edge: &WaitEdge, wait: &WaitFor) -> bool {
        let found = (edge.waiter != wait.owner).then(|| self.wait_of(&edge.waiter, &edge.key));
        let wait = match &found {
            None => wait,
            Some(Some(found)) => found,
            Some(None) => return false,
        };
        if self.is_of_a_holder(wait) || !self.every_holder_must_go(wait) {
            return false;
        }
        if edge.held {
            return self.is_held_by(&edge.key, &edge.blocker);
        }
        let blocker = self.queues.first_id_of(edge.key.as_ref(), &edge.blocker);
        blocker.is_some_and(|id| self.last_in_front(wait).is_some_and(|last| id <= last))
    }

    /// The first request of an owner for this key.
    fn wait_of(self, owner: &Owner, key: &KeyBuf) -> Option<WaitFor> {
        let id = self.queues.first_id_of(key.as_ref(), owner)?;
        let waiter = self.queues.waiter(key.as_ref(), id)?;
        Some(WaitFor {
            owner: owner.clone(),
            key: key.clone(),
            limit: waiter.request.limit,
            position: Some(id),
        })
    }
}

/// What came of a search, or of a part of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The wait closes no cycle.
    NoCycle,
    /// It closes this one. Its first edge is the wait itself.
    Cycle(Vec<WaitEdge>),
    /// There is more to be searched than was allowed.
    Unfinished,
}

/// A search for a cycle that one wait closes.
#[derive(Clone, Debug)]
pub(crate) struct Search {
    wait: WaitFor,
    is_begun: bool,
    /// How each owner was reached first.
    found_by: HashMap<Owner, WaitEdge>,
    to_follow: VecDeque<Owner>,
    /// Whose waits are being followed, and the last of them.
    following: Option<(Owner, Option<KeyBuf>)>,
    /// A wait that was followed in part.
    rest: Option<(Owner, KeyBuf)>,
    /// Up to whom each queue has been searched.
    searched: HashMap<KeyBuf, Option<WaiterId>>,
}

impl Search {
    pub(crate) fn new(wait: WaitFor) -> Self {
        Self {
            wait,
            is_begun: false,
            found_by: HashMap::new(),
            to_follow: VecDeque::new(),
            following: None,
            rest: None,
            searched: HashMap::new(),
        }
    }

    /// The same search from its beginning.
    pub(crate) fn anew(self) -> Self {
        Self::new(self.wait)
    }

    /// Whether anything has been found that is worth to be kept.
    pub(crate) const fn is_begun(&self) -> bool {
        self.is_begun
    }

    /// Searches on for as many steps as are left.
    pub(crate) fn run(&mut self, graph: Graph<'_>, steps_left: &mut usize) -> Found {
        if !std::mem::replace(&mut self.is_begun, true) {
            // One that waits there already will get both with one grant.
            let first = graph
                .queues
                .first_id_of(self.wait.key.as_ref(), &self.wait.owner);
            if first != self.wait.position {
                return Found::NoCycle;
            }
            let wait = self.wait.clone();
            if let Some(last) = self.follow(graph, &wait, steps_left) {
                return self.cycle(last);
            }
        }
        loop {
            if *steps_left == 0 {
                return Found::Unfinished;
            }
            let next = self.rest.take().or_else(|| self.next_wait(graph));
            if let Some((owner, key)) = next {
                if let Some(wait) = graph.wait_of(&owner, &key)
                    && let Some(last) = self.follow(graph, &wait, steps_left)
                {
                    return self.cycle(last);
                }
            } else if let Some(owner) = self.to_follow.pop_front() {
                *steps_left -= 1;
                self.following = Some((owner, None));
            } else {
                return Found::NoCycle;
            }
        }
    }

    /// The next wait of the owner whose waits are being followed.
    fn next_wait(&mut self, graph: Graph<'_>) -> Option<(Owner, KeyBuf)> {
        let (owner, last) = self.following.as_mut()?;
        let next = graph.queues.next_wait_of(owner, last.as_ref())?.clone();
        *last = Some(next.clone());
        Some((owner.clone(), next))
    }

    /// Writes down what decides what will happen.
    #[cfg(test)]
    pub(crate) fn take_down(&self, form: &mut Form<'_>) {
        form.flag(self.is_begun);
        form.owner(&self.wait.owner);
        form.key(self.wait.key.as_ref());
        form.number(self.wait.limit.count_or_zero());
        form.waiter(self.wait.position);
        for owner in form.owners() {
            let edge = self.found_by.get(owner);
            form.flag(edge.is_some());
            if let Some(edge) = edge {
                form.owner(&edge.waiter);
                form.key(edge.key.as_ref());
                form.owner(&edge.blocker);
                form.flag(edge.held);
            }
        }
        form.count(self.to_follow.len());
        self.to_follow.iter().for_each(|owner| form.owner(owner));
        let following = self.following.iter();
        let following = following.map(|(owner, last)| (owner, last.as_ref()));
        let rest = self.rest.iter().map(|(owner, key)| (owner, Some(key)));
        for waits in [following.collect::<Vec<_>>(), rest.collect()] {
            form.count(waits.len());
            for (owner, key) in waits {
                form.owner(owner);
                form.flag(key.is_some());
                key.into_iter().for_each(|key| form.key(key.as_ref()));
            }
        }
        for key in form.keys() {
            let searched = self.searched.get(key);
            form.flag(searched.is_some());
            form.waiter(searched.copied().flatten());
        }
    }

    /// Whether all edges of a cycle that was found are still there.
    pub(crate) fn still_closes(&self, graph: Graph<'_>, cycle: &[WaitEdge]) -> bool {
        let first = self.wait.position;
        let is_there = first
            == graph
                .queues
                .first_id_of(self.wait.key.as_ref(), &self.wait.owner);
        is_there && cycle.iter().all(|edge| graph.is_edge(edge, &self.wait))
    }

    /// Follows one wait. Returns the edge that leads back to the newcomer, if
    /// there is one.
    fn follow(
        &mut self,
        graph: Graph<'_>,
        wait: &WaitFor,
        steps_left: &mut usize,
    ) -> Option<WaitEdge> {
        let step = |steps_left: &mut usize| *steps_left = steps_left.saturating_sub(1);
        step(steps_left);
        if graph.is_of_a_holder(wait) {
            return None;
        }
        let before = self.searched.get(&wait.key).copied();
        let last = graph.last_in_front(wait);
        if before.is_some_and(|searched| searched >= last) || !graph.every_holder_must_go(wait) {
            return None;
        }
        let edge = |blocker: &Owner, held| WaitEdge {
            waiter: wait.owner.clone(),
            key: wait.key.clone(),
            blocker: blocker.clone(),
            held,
        };
        if before.is_none() {
            if graph.is_held_by(&wait.key, &self.wait.owner) {
                return Some(edge(&self.wait.owner, true));
            }
            for holder in graph.lock(&wait.key).map_or(&[][..], Lock::holders) {
                if graph.queues.waits(&holder.owner) {
                    step(steps_left);
                    self.reach(&holder.owner, || edge(&holder.owner, true));
                }
            }
        }
        if let Some(last) = last {
            let newcomer = graph
                .queues
                .first_id_of(wait.key.as_ref(), &self.wait.owner);
            if wait.owner != self.wait.owner && newcomer.is_some_and(|id| id <= last) {
                return Some(edge(&self.wait.owner, false));
            }
            let from = before
                .flatten()
                .map_or(WaiterId(0), |WaiterId(id)| WaiterId(id + 1));
            for (id, owner) in graph
                .queues
                .waiting_elsewhere(wait.key.as_ref(), from..=last)
            {
                step(steps_left);
                self.reach(owner, || edge(owner, false));
                if *steps_left == 0 {
                    // The rest of the queue is searched in the next step.
                    self.search_rest(wait);
                    self.searched.insert(wait.key.clone(), Some(id));
                    return None;
                }
            }
        }
        self.searched.insert(wait.key.clone(), last);
        None
    }

    /// Has a wait searched on before all others.
    fn search_rest(&mut self, wait: &WaitFor) {
        self.rest = Some((wait.owner.clone(), wait.key.clone()));
    }

    /// Has an owner followed that waits itself, unless it was reached before.
    fn reach(&mut self, owner: &Owner, edge: impl FnOnce() -> WaitEdge) {
        if self.found_by.contains_key(owner) {
            return;
        }
        self.found_by.insert(owner.clone(), edge());
        self.to_follow.push_back(owner.clone());
    }

    /// The way from the newcomer to this edge, which leads back to it. There is no shorter
    /// one, so where it is too long there is no cycle to be reported.
    fn cycle(&self, last: WaitEdge) -> Found {
        let mut cycle = vec![last];
        while let Some(edge) = cycle
            .last()
            .and_then(|edge| self.found_by.get(&edge.waiter))
        {
            if cycle.len() == CYCLE_AT_MOST {
                return Found::NoCycle;
            }
            cycle.push(edge.clone());
        }
        cycle.reverse();
        Found::Cycle(cycle)
    }
}
