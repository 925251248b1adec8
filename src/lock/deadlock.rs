//! Finds waits that could never end: cycles of owners that wait for each other.
//!
//! An owner that waits for a lock waits for everybody who holds it, and for
//! everybody who queued for it before. A new wait is a deadlock if one of those
//! waits, directly or through others, for the one who would wait. Hardly any other
//! event makes an owner wait for somebody new, so each new wait is checked and
//! nothing else. The one exception: an owner with two requests in one queue, the
//! first of which leaves, then waits for those between them.
//!
//! Whoever wants one of several permits waits for none of their holders in
//! particular: any of them may give one back. So a wait counts only if every
//! holder must be gone before it can end.
//!
//! # What the search costs
//! It follows holders that wait themselves, and those in front in a queue that
//! wait for another lock as well; for most, whoever is in front waits for
//! nothing but the holders, which are followed anyhow. So a wait whose holders
//! wait for nothing costs one look into a map.

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::lock::record::Holder;
use crate::lock::request::{Limit, Owner};
use crate::lock::waiters::{KeyBuf, KeyRef, NotedHolder, WaitQueues, WaiterId};

/// An owner that waits, and one that it waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// Who waits.
    pub(crate) waiter: Owner,
    /// For which lock.
    pub(crate) key: KeyBuf,
    /// Who holds it, or queued for it before.
    pub(crate) blocker: Owner,
    /// Whether the blocker holds the lock.
    pub(crate) held: bool,
}

/// Says who waits for what in words. Of keys that the reader may not read it
/// says only that there are some.
pub(crate) fn spell(cycle: &[Link], may_read: impl Fn(KeyRef<'_>) -> bool) -> String {
    const HIDDEN: &str = "others wait for keys that this user may not read";
    let mut spelled: Vec<String> = Vec::new();
    for link in cycle {
        let key = link.key.as_ref();
        if may_read(key) {
            spelled.push(format!(
                "'{}' waits for '{}' {} '{}'",
                link.waiter.as_bytes().escape_ascii(),
                key.name.escape_ascii(),
                if link.held { "held by" } else { "behind" },
                link.blocker.as_bytes().escape_ascii(),
            ));
        } else if spelled.last().is_none_or(|last| last != HIDDEN) {
            spelled.push(HIDDEN.into());
        }
    }
    spelled.join(", ")
}

/// A wait that may close a cycle.
#[derive(Clone, Copy)]
pub(crate) struct Wait<'w> {
    /// Who would wait.
    pub(crate) owner: &'w Owner,
    /// For which lock.
    pub(crate) key: KeyRef<'w>,
    /// With how many others it would hold the lock.
    pub(crate) limit: Limit,
    /// Its place in the queue, if it waits already; else it would be the last.
    pub(crate) place: Option<WaiterId>,
}

/// Who holds a lock.
pub(crate) type Holders = Vec<(Owner, Limit)>;

/// Who holds some locks for certain. Of others the queues note who held them
/// when they were looked at last.
pub(crate) type Certain = HashMap<KeyBuf, Holders>;

/// Who holds this lock.
pub(crate) fn holders_of(holders: &[Holder]) -> Holders {
    let holders = holders.iter();
    holders
        .map(|holder| (holder.owner.clone(), holder.limit))
        .collect()
}

/// The cycle that closes with this wait. Its first link is the wait itself. The
/// holders of its lock must be certain.
pub(crate) fn find<T>(
    queues: &WaitQueues<T>,
    wait: Wait<'_>,
    certain: &Certain,
) -> Option<Vec<Link>> {
    // Where nobody waits, no cycle can close; and one that waits there already
    // will get both with one grant.
    if queues.is_empty() || queues.first_id_of(wait.key, wait.owner) != wait.place {
        return None;
    }
    let mut search = Search {
        queues,
        certain,
        newcomer: wait.owner,
        found_by: HashMap::new(),
        to_follow: VecDeque::new(),
        searched: HashMap::new(),
    };
    if let Some(last) = search.wait(wait) {
        return Some(search.cycle(last));
    }
    while let Some(owner) = search.to_follow.pop_front() {
        for key in queues.waits_of(&owner) {
            let key = key.as_ref();
            let Some(place) = queues.first_id_of(key, &owner) else {
                continue;
            };
            let Some(waiter) = queues.waiter(key, place) else {
                continue;
            };
            let wait = Wait {
                owner: &owner,
                key,
                limit: waiter.request.limit,
                place: Some(place),
            };
            if let Some(last) = search.wait(wait) {
                return Some(search.cycle(last));
            }
        }
    }
    None
}

struct Search<'q, T> {
    queues: &'q WaitQueues<T>,
    certain: &'q Certain,
    newcomer: &'q Owner,
    /// How each owner was reached first.
    found_by: HashMap<Owner, Link>,
    to_follow: VecDeque<Owner>,
    /// How far back each queue has been searched.
    searched: HashMap<KeyBuf, Option<WaiterId>>,
}

impl<'q, T> Search<'q, T> {
    /// Follows one wait. Returns the link that leads back to the newcomer, if
    /// there is one.
    fn wait(&mut self, wait: Wait<'_>) -> Option<Link> {
        let in_front = |id: WaiterId| wait.place.is_none_or(|place| id < place);
        let key: KeyBuf = wait.key.into();
        match self.searched.get(&key) {
            Some(None) => return None,
            Some(&Some(searched)) if wait.place.is_some_and(|place| place <= searched) => {
                return None;
            }
            _ => {}
        }
        let queues = self.queues;
        let holders = self.holders(&key);
        let every_holder_must_go = wait.limit == Limit::EXCLUSIVE
            || queues.first_exclusive(wait.key).is_some_and(in_front)
            || holders.iter().all(|&(_, limit)| limit == Limit::EXCLUSIVE);
        if !every_holder_must_go {
            return None;
        }
        let link = |blocker: &Owner, held| Link {
            waiter: wait.owner.clone(),
            key: key.clone(),
            blocker: blocker.clone(),
            held,
        };
        for (holder, _) in &holders {
            if holder == self.newcomer {
                return Some(link(holder, true));
            }
            self.reach(holder, || link(holder, true));
        }
        // Those in front are let in together with this one, unless one of them or of
        // those between them wants the lock alone.
        let is_blocked_by = |id: WaiterId| {
            let alone = wait.limit == Limit::EXCLUSIVE;
            in_front(id) && (alone || queues.exclusive_between(wait.key, id, wait.place))
        };
        let newcomers = queues.first_id_of(wait.key, self.newcomer);
        if wait.owner != self.newcomer && newcomers.is_some_and(is_blocked_by) {
            return Some(link(self.newcomer, false));
        }
        for owner in queues.waiting_for_several() {
            if queues
                .first_id_of(wait.key, owner)
                .is_some_and(is_blocked_by)
            {
                self.reach(owner, || link(owner, false));
            }
        }
        self.searched.insert(key, wait.place);
        None
    }

    fn holders(&self, key: &KeyBuf) -> Holders {
        let note = |noted: &NotedHolder| (noted.owner.clone(), noted.limit);
        match self.certain.get(key) {
            Some(holders) => holders.clone(),
            None => self.queues.holders(key.as_ref()).iter().map(note).collect(),
        }
    }

    fn reach(&mut self, owner: &Owner, link: impl FnOnce() -> Link) {
        if self.queues.waits_of(owner).is_empty() || self.found_by.contains_key(owner) {
            return;
        }
        self.found_by.insert(owner.clone(), link());
        self.to_follow.push_back(owner.clone());
    }

    /// The way from the newcomer to this link, which leads back to it.
    fn cycle(&self, last: Link) -> Vec<Link> {
        let mut cycle = vec![last];
        while let Some(link) = cycle
            .last()
            .and_then(|link| self.found_by.get(&link.waiter))
        {
            cycle.push(link.clone());
        }
        cycle.reverse();
        cycle
    }
}

#[cfg(test)]
mod tests;
