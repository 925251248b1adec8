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
//! Nobody waits for an owner that holds no contended lock and is the last in every
//! other queue in which it stands, so its wait closes no cycle, which takes a look
//! into a map and a few into these queues. Else the search
//! follows holders that wait themselves, and those in front in a queue that wait for
//! another lock as well; for most, whoever is in front waits for nothing but the
//! holders, which are followed anyhow. A search that would take long stops, and goes
//! on when others have had their turn. What it has found takes memory, so of all that
//! are unfinished only one is under way at a time.

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::bounds::CYCLE_AT_MOST;
use crate::cycle::WaitEdge;
use crate::deliveries::Deliveries;
use crate::ended::{Ended, EndedHolds};
#[cfg(test)]
use crate::explore::form::Form;
use crate::holder::Holder;
use crate::keys::{KeyBuf, KeyRef};
use crate::lock::Lock;
use crate::queue::{WaitQueues, WaiterId};
use crate::remembered::Remembered;
use crate::request::{Limit, Owner};
use crate::sessions::{HoldId, Sessions};
use crate::sharded::Sharded;
use crate::token::FencingToken;

/// In how many queues an owner is looked for. One that stands in more is taken to be
/// waited for.
const QUEUES_LOOKED_AT: usize = 8;

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

/// Locks that were looked at just now: as they were read, or nothing where they are
/// what is remembered of them. Others may have changed.
pub(crate) type Certain = HashMap<KeyBuf, Option<Lock>>;

/// Who waits for whom.
#[derive(Clone, Copy)]
pub(crate) struct Graph<'g> {
    pub(crate) queues: &'g WaitQueues,
    pub(crate) remembered: &'g Remembered,
    pub(crate) certain: &'g Certain,
    /// The lock of the step that asks.
    pub(crate) here: (KeyRef<'g>, &'g Lock),
    /// What shows which of many holders are over and still in their locks.
    pub(crate) sessions: &'g Sessions,
    pub(crate) deliveries: &'g Deliveries,
    pub(crate) ended: &'g EndedHolds,
    pub(crate) now_ms: i64,
}

impl<'g> Graph<'g> {
    fn lock(self, key: &KeyBuf) -> Option<&'g Lock> {
        if key.as_ref() == self.here.0 {
            return Some(self.here.1);
        }
        let certain = self.certain.get(key).and_then(Option::as_ref);
        certain.or_else(|| self.remembered.lock(key.as_ref()))
    }

    /// Whether this owner holds the lock by what is not over, as far as is known.
    fn is_held_by(self, key: &KeyBuf, owner: &Owner) -> bool {
        let held = self.lock(key).and_then(|lock| lock.holder(owner));
        held.is_some_and(|held| !self.is_over(key, held))
    }

    fn is_over(self, key: &KeyBuf, held: &Holder) -> bool {
        self.is_certain(key) && self.is_over_in(key.as_ref(), held)
    }

    /// Whether all holds of this holder of a lock are over, and are still stored.
    pub(crate) fn is_over_in(self, key: KeyRef<'_>, held: &Holder) -> bool {
        let has_ended = || {
            let hold = HoldId::new(key, &held.owner);
            let bound = self.sessions.ended_binding(&hold);
            let bound = bound.filter(|bound| held.token == Some(bound.token));
            bound.is_some_and(|bound| self.deliveries.promised(&hold, bound.token) == 0)
        };
        let is_noted = |ended: &Ended| {
            let is_it = ended.owner == held.owner && Some(ended.token) == held.token;
            let hold = || HoldId::new(key, &held.owner);
            is_it && self.deliveries.left(&hold(), ended, held.holds) == 0
        };
        held.is_overdue(self.now_ms)
            || self.sessions.any_ended() && has_ended()
            || self.ended.of(key).iter().any(is_noted)
    }

    pub(crate) fn is_certain(self, key: &KeyBuf) -> bool {
        key.as_ref() == self.here.0 || self.certain.contains_key(key)
    }

    /// Whether anybody can wait for this owner, other than by the request that is
    /// about to be queued, or that has this position.
    pub(crate) fn may_be_waited_for(self, wait: &WaitFor) -> bool {
        let others = self.queues.waits_of(&wait.owner);
        // Who waits for it here waits for all that it would wait for here, too.
        let mut others = others.filter(|key| **key != wait.key);
        let is_waited_for = |key: &KeyBuf| self.queues.is_anyone_behind(key.as_ref(), &wait.owner);
        self.remembered.is_holder(&wait.owner)
            || self.here.1.holder(&wait.owner).is_some()
            || others.by_ref().take(QUEUES_LOOKED_AT).any(is_waited_for)
            || others.next().is_some()
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
    found_by: Sharded<Owner, WaitEdge>,
    to_follow: VecDeque<Owner>,
    /// Whose waits are being followed, and the last of them.
    following: Option<(Owner, Option<KeyBuf>)>,
    /// A wait that was followed in part.
    rest: Option<(Owner, KeyBuf)>,
    /// Up to which token the holders of a lock of many have been searched.
    held_up_to: HashMap<KeyBuf, FencingToken>,
    /// Up to whom each queue has been searched.
    searched: Sharded<KeyBuf, Option<WaiterId>>,
}

impl Search {
    pub(crate) fn new(wait: WaitFor) -> Self {
        Self {
            wait,
            is_begun: false,
            found_by: Sharded::default(),
            to_follow: VecDeque::new(),
            following: None,
            rest: None,
            held_up_to: HashMap::new(),
            searched: Sharded::default(),
        }
    }

    /// The same search from its beginning.
    pub(crate) fn anew(self) -> Self {
        Self::new(self.wait)
    }

    /// Gives back some of the memory of a search that is over. Returns whether it was
    /// much.
    pub(crate) fn give_back(&mut self) -> bool {
        self.searched.give_back() || self.found_by.give_back()
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
            if first != self.wait.position || !graph.may_be_waited_for(&self.wait) {
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

    /// How much it keeps of what it has seen.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> usize {
        self.found_by.len() + self.to_follow.len()
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
            form.token(self.held_up_to.get(key).copied());
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
            let lock = graph.lock(&wait.key);
            let up_to = self.held_up_to.remove(&wait.key);
            let by_token = lock.and_then(|lock| lock.holders.by_token_after(up_to));
            let has_order = by_token.is_some();
            let all = lock.filter(|_| !has_order).map_or(&[][..], Lock::holders);
            let mut holders = by_token.into_iter().flatten().chain(all).peekable();
            while let Some(holder) = holders.next() {
                step(steps_left);
                if graph.queues.waits(&holder.owner) && !graph.is_over(&wait.key, holder) {
                    self.reach(&holder.owner, || edge(&holder.owner, true));
                }
                // Only somebody else writes one token twice.
                let next = holders.peek().map(|next| next.token);
                if let Some(token) = holder.token
                    && *steps_left == 0
                    && has_order
                    && next.is_some_and(|next| next > holder.token)
                {
                    // The others are searched in the next step. Whoever takes the lock
                    // meanwhile has a greater token.
                    self.held_up_to.insert(wait.key.clone(), token);
                    self.search_rest(wait);
                    return None;
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
                    self.searched.put(wait.key.clone(), Some(id));
                    return None;
                }
            }
        }
        self.searched.put(wait.key.clone(), last);
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
        self.found_by.insert_new(owner.clone(), edge());
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
