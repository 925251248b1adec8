//! Finds waits that could never end: cycles of owners that wait for each other.
//!
//! An owner that waits for a lock waits for everybody who holds it, and for
//! everybody who queued for it before. A new wait is a deadlock if one of those
//! waits, directly or through others, for the one who would wait. Hardly any other
//! event makes an owner wait for somebody new, so each new wait is checked and
//! nothing else. The one exception: an owner with two requests in one queue, the
//! first of which leaves, then waits for those between them.
//!
//! # What the search costs
//! It follows holders that wait themselves, and those in front in a queue that
//! wait for another lock as well; for most, whoever is in front waits for
//! nothing but the holders, which are followed anyhow. So a wait whose holders
//! wait for nothing costs one look into a map.

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::lock::request::Owner;
use crate::lock::waiters::{KeyBuf, KeyRef, WaitQueues, WaiterId};

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

/// Says who waits for what in words.
pub(crate) fn spell(cycle: &[Link]) -> String {
    let spelled: Vec<String> = cycle
        .iter()
        .map(|link| {
            format!(
                "'{}' waits for '{}' {} '{}'",
                link.waiter.as_bytes().escape_ascii(),
                link.key.as_ref().name.escape_ascii(),
                if link.held { "held by" } else { "behind" },
                link.blocker.as_bytes().escape_ascii(),
            )
        })
        .collect();
    spelled.join(", ")
}

/// The cycle that would close if `newcomer` queued for this key, which these
/// owners hold. Its first link is that new wait.
pub(crate) fn find<'h, T>(
    queues: &WaitQueues<T>,
    key: KeyRef<'_>,
    holders: impl Iterator<Item = &'h Owner>,
    newcomer: &Owner,
) -> Option<Vec<Link>> {
    // Where nobody waits, no cycle can close; and one that waits there already
    // will get both with one grant.
    if queues.is_empty() || queues.first_id_of(key, newcomer).is_some() {
        return None;
    }
    let mut search = Search {
        queues,
        newcomer,
        found_by: HashMap::new(),
        to_follow: VecDeque::new(),
        searched: HashMap::new(),
    };
    search.wait(newcomer, key, holders, None);
    while let Some(owner) = search.to_follow.pop_front() {
        for wait in queues.waits_of(&owner) {
            let first = queues.first_id_of(wait.as_ref(), &owner);
            let holders = queues.holders(wait.as_ref()).iter();
            let holders = holders.map(|noted| &noted.owner);
            if let Some(last) = search.wait(&owner, wait.as_ref(), holders, first) {
                return Some(search.cycle(last));
            }
        }
    }
    None
}

struct Search<'q, T> {
    queues: &'q WaitQueues<T>,
    newcomer: &'q Owner,
    /// How each owner was reached first.
    found_by: HashMap<Owner, Link>,
    to_follow: VecDeque<Owner>,
    /// How far back each queue has been searched.
    searched: HashMap<KeyBuf, Option<WaiterId>>,
}

impl<'q, T> Search<'q, T> {
    /// Follows one wait, of an owner whose first request in that queue has this
    /// id, or that would join the end of it. Returns the link that leads back to
    /// the newcomer, if there is one.
    fn wait<'h>(
        &mut self,
        waiter: &Owner,
        key: KeyRef<'_>,
        holders: impl Iterator<Item = &'h Owner>,
        first: Option<WaiterId>,
    ) -> Option<Link> {
        let in_front = |id: WaiterId| first.is_none_or(|first| id < first);
        let key: KeyBuf = key.into();
        match self.searched.get(&key) {
            Some(None) => return None,
            Some(&Some(searched)) if first.is_some_and(|first| first <= searched) => return None,
            _ => {}
        }
        let link = |blocker: &Owner, held| Link {
            waiter: waiter.clone(),
            key: key.clone(),
            blocker: blocker.clone(),
            held,
        };
        for holder in holders {
            if holder == self.newcomer {
                return Some(link(holder, true));
            }
            self.reach(holder, || link(holder, true));
        }
        let queues = self.queues;
        let newcomers = queues.first_id_of(key.as_ref(), self.newcomer);
        if waiter != self.newcomer && newcomers.is_some_and(in_front) {
            return Some(link(self.newcomer, false));
        }
        for owner in queues.waiting_for_several() {
            if queues
                .first_id_of(key.as_ref(), owner)
                .is_some_and(in_front)
            {
                self.reach(owner, || link(owner, false));
            }
        }
        self.searched.insert(key, first);
        None
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
