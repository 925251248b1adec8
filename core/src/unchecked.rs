//! Owners of many waits, each of which may close a cycle.
//!
//! Such an owner is noted once, however often it is handed a lock, and its waits are
//! searched one by one, each owner in turn. Everything takes logarithmic time, and as much
//! again for each owner that is passed over because it waits no more.

use std::collections::{BTreeMap, VecDeque};

#[cfg(test)]
use crate::explore::form::Form;
use crate::keys::KeyBuf;
use crate::queue::WaitQueues;
use crate::request::Owner;

/// How far the waits of one owner have been searched.
#[derive(Clone, Debug, Default)]
struct Searched {
    /// The key of the last of them.
    last: Option<KeyBuf>,
    /// It was noted again since the first of them.
    is_noted_again: bool,
}

/// The owners whose waits are to be searched.
#[derive(Clone, Debug, Default)]
pub(crate) struct UncheckedOwners {
    searched: BTreeMap<Owner, Searched>,
    turns: VecDeque<Owner>,
}

impl UncheckedOwners {
    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Has all waits of this owner searched.
    pub(crate) fn note(&mut self, owner: &Owner) {
        if let Some(searched) = self.searched.get_mut(owner) {
            searched.is_noted_again |= searched.last.is_some();
            return;
        }
        self.searched.insert(owner.clone(), Searched::default());
        self.turns.push_back(owner.clone());
    }

    /// The owner whose turn it is.
    pub(crate) fn next(&self) -> Option<&Owner> {
        self.turns.front()
    }

    /// Takes an owner, and the key of the wait that comes next.
    pub(crate) fn take(&mut self, queues: &WaitQueues) -> Option<(Owner, KeyBuf)> {
        loop {
            let owner = self.turns.pop_front()?;
            let searched = self.searched.get_mut(&owner)?;
            let mut next = queues.next_wait_of(&owner, searched.last.as_ref());
            if next.is_none() && std::mem::take(&mut searched.is_noted_again) {
                next = queues.next_wait_of(&owner, None);
            }
            match next.cloned() {
                None => drop(self.searched.remove(&owner)),
                Some(key) => {
                    searched.last = Some(key.clone());
                    self.turns.push_back(owner.clone());
                    return Some((owner, key));
                }
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.turns.len()
    }

    /// Writes down what decides what will happen.
    #[cfg(test)]
    pub(crate) fn take_down(&self, form: &mut Form<'_>) {
        form.count(self.turns.len());
        for owner in &self.turns {
            form.owner(owner);
            let searched = self.searched.get(owner);
            let last = searched.and_then(|searched| searched.last.as_ref());
            form.flag(searched.is_some_and(|searched| searched.is_noted_again));
            form.flag(last.is_some());
            if let Some(last) = last {
                form.key(last.as_ref());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::KeyRef;
    use crate::queue::Wait;
    use crate::request::{AcquireRequest, ClientId, Lease, Limit};

    fn owner(name: &str) -> Owner {
        Owner::new(name.as_bytes()).unwrap()
    }

    fn waits(queues: &mut WaitQueues, name: &str, key: &str) {
        let request = AcquireRequest {
            owner: owner(name),
            lease: Lease::LONGEST,
            hold: None,
            limit: Limit::EXCLUSIVE,
            session: None,
        };
        let wait = Wait {
            client: ClientId(1),
            until_ms: None,
            channel: None,
        };
        let name = key.as_bytes();
        let pushed = queues.push(KeyRef { db: 0, name }, request, wait, 0, usize::MAX);
        pushed.unwrap();
    }

    #[test]
    fn owners_take_turns_and_are_searched_again_where_they_are_noted_again() {
        let mut queues = WaitQueues::default();
        for (name, key) in [("a", "k1"), ("a", "k2"), ("b", "k1"), ("b", "k3")] {
            waits(&mut queues, name, key);
        }
        let mut owners = UncheckedOwners::default();
        let mut taken = Vec::new();
        for name in ["a", "b", "a"] {
            owners.note(&owner(name));
        }
        for nth in 0..10 {
            if nth == 1 {
                owners.note(&owner("a"));
            }
            let Some((owner, key)) = owners.take(&queues) else {
                break;
            };
            let names = [owner.as_bytes(), key.as_ref().name].concat();
            taken.push(String::from_utf8(names).unwrap());
        }
        assert_eq!(taken, ["ak1", "bk1", "ak2", "bk3", "ak1", "ak2"]);
        assert!(owners.is_empty() && owners.searched.is_empty());
    }
}
