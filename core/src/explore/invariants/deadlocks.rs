//! Who waits for whom, and which waits must be refused.

use std::collections::BTreeSet;

use super::Seen;
use crate::cycle::WaitEdge;
use crate::error::LockError;
use crate::explore::scope::{Ask, Event};
use crate::explore::world::{Changed, Doing, World};
use crate::request::{Limit, Owner};
use crate::table::Answer;

/// Who waits for whom, by the rules in words.
#[derive(Clone, Debug, Default)]
pub(super) struct Edges {
    /// Who waits, for which key, for whom.
    all: Vec<(usize, usize, usize)>,
}

impl Edges {
    /// With one request more at the end of a queue, if there is one: whose, for
    /// which key, how.
    pub(super) fn of(world: &World, newcomer: Option<(usize, usize, Ask)>) -> Self {
        let mut all = Vec::new();
        for key in 0..world.cast.keys.len() {
            let waiting = world.waiting(key);
            let mut queue: Vec<(usize, Limit)> = waiting
                .iter()
                .map(|&(_, at, ask)| (world.cast.owner_of[at], ask.limit))
                .collect();
            if let Some((owner, its_key, ask)) = newcomer
                && its_key == key
            {
                queue.retain(|&(earlier, _)| earlier != owner);
                queue.push((owner, ask.limit));
            }
            if queue.is_empty() {
                continue;
            }
            let holders = world.holders(key).into_iter();
            let holders: Vec<usize> = holders.map(|one| world.owner_number(&one.owner)).collect();
            let lock = world.data.read(key).unwrap_or_default();
            let mut held = lock.holders().iter();
            let all_exclusive = held.all(|one| {
                let is_there = holders.contains(&world.owner_number(&one.owner));
                one.limit == Limit::EXCLUSIVE || !is_there
            });
            let mut seen = BTreeSet::new();
            for (at, &(owner, limit)) in queue.iter().enumerate() {
                // Only an owner's first request counts.
                if !seen.insert(owner) {
                    continue;
                }
                let before = &queue[..at];
                let last_exclusive = before
                    .iter()
                    .rposition(|&(_, limit)| limit == Limit::EXCLUSIVE);
                let exclusive = limit == Limit::EXCLUSIVE;
                // Who wants one of several permits waits for nobody in particular.
                if !exclusive && last_exclusive.is_none() && !all_exclusive {
                    continue;
                }
                let in_front = match (exclusive, last_exclusive) {
                    (true, _) => before,
                    (false, Some(last)) => &before[..=last],
                    (false, None) => &[],
                };
                let in_front = in_front.iter().map(|&(blocker, _)| blocker);
                let blockers = holders.iter().copied().chain(in_front);
                all.extend(blockers.map(|blocker| (owner, key, blocker)));
            }
        }
        Self { all }
    }

    /// The owners that wait for each other in a circle through this one.
    fn leads_back(&self, owner: usize) -> bool {
        let mut reached = BTreeSet::new();
        let mut to_follow = vec![owner];
        while let Some(one) = to_follow.pop() {
            for &(waiter, _, blocker) in &self.all {
                if waiter == one && blocker != one {
                    if blocker == owner {
                        return true;
                    }
                    if reached.insert(blocker) {
                        to_follow.push(blocker);
                    }
                }
            }
        }
        false
    }
}

pub(super) fn only_a_deadlock_is_refused(world: &World, seen: &Seen) -> bool {
    let newcomer = seen.refused.iter().map(|(at, ask, cycle)| {
        let newcomer = (world.cast.owner_of[*at], seen.key, *ask);
        (*at, Edges::of(world, Some(newcomer)), cycle)
    });
    let answers = seen.answers.iter();
    let others = answers.filter_map(|(_, at, _, answer)| match answer {
        Answer::Refused(LockError::Deadlock { cycle }) => Some((*at, Edges::default(), cycle)),
        _ => None,
    });
    newcomer.chain(others).all(|(at, edges, cycle)| {
        let number = |owner: &Owner| world.owner_number(owner);
        let is_edge = |edge: &WaitEdge| {
            let key = world.cast.number(edge.key.as_ref());
            let edge = (number(&edge.waiter), key, number(&edge.blocker));
            edges.all.contains(&edge) || seen.edges_before.all.contains(&edge)
        };
        let mut pairs = cycle.iter().zip(cycle.iter().cycle().skip(1));
        let first = cycle.first();
        first.is_some_and(|edge| edge.waiter == *world.owner(at))
            && pairs.all(|(edge, next)| edge.blocker == next.waiter)
            && cycle.iter().all(is_edge)
    })
}

/// Where each owner is one thread, nothing is left to be done, and nobody else writes to
/// the locks, nobody waits for each other.
pub(super) fn no_deadlock_stays(world: &World) -> bool {
    let scope = &world.cast.scope;
    let is_one_thread = scope.connections.iter().all(|&count| count == 1)
        && !scope.asks.iter().any(|words| words.contains("QUEUE"));
    if !is_one_thread || scope.has(Event::Redisson) || scope.moves() || scope.has(Event::Overwrite)
    {
        return true;
    }
    let mut changed = world.changed.iter();
    let is_quiet = world.wake_at_ms().is_none_or(|at_ms| at_ms > world.now_ms);
    let is_known = changed.all(|&changed| changed == Changed::Nothing);
    let mut connections = world.connections.iter();
    let is_awaited = connections.any(|one| matches!(one.doing, Doing::Waiting(..)));
    // What has expired is found when it is due.
    let mut keys = 0..world.cast.keys.len();
    let expires =
        keys.any(|key| world.data.is_expired(key, world.now_ms) || world.data.value(key).is_other);
    if !is_quiet || !is_known || !is_awaited || expires {
        return true;
    }
    let edges = Edges::of(world, None);
    !(0..world.cast.owners.len()).any(|owner| edges.leads_back(owner))
}
