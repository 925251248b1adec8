//! Who believed to have which lock, from when until when.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::clock;
use crate::history::{MS, Nanos};

/// Who believes, and in what.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The lock.
    pub key: String,
    /// Which task of which client.
    pub task: (usize, usize),
    /// The lease that was asked for.
    pub lease_ms: u64,
    /// Whether the client renews it by itself.
    pub renewed: bool,
}

/// A time in which somebody relied upon a lock.
#[derive(Clone, Debug)]
pub struct Belief {
    /// Who, and upon what.
    pub claim: Claim,
    /// When the acquire was called that led to it.
    pub begun: Nanos,
    /// When its answer was there.
    pub granted: Nanos,
    /// It was not relied upon from then on.
    pub until: Nanos,
    /// How it ended.
    pub end: String,
}

impl Belief {
    /// Whether this and a later one can't both be true.
    fn contradicts(&self, later: &Self) -> bool {
        self.claim.key == later.claim.key
            && later.granted < self.until
            && later.granted < later.until
    }

    /// This one, with times from `start`.
    pub fn told(&self, start: Nanos) -> String {
        let claim = &self.claim;
        let (client, task) = claim.task;
        format!(
            "client {client}, task {task}, lease {} ms{}: asked at {}, had it at {}, \
             relied upon it until {} ({})",
            claim.lease_ms,
            if claim.renewed { ", renewed" } else { "" },
            at(self.begun, start),
            at(self.granted, start),
            at(self.until, start),
            self.end
        )
    }
}

/// A time of the campaign, in milliseconds.
pub fn at(time: Nanos, start: Nanos) -> String {
    let since = time.saturating_sub(start);
    format!("{}.{:03} ms", since / MS, since % MS / 1000)
}

/// Two who had one lock at the same time.
#[derive(Clone, Debug)]
pub struct Breach {
    /// Who had it first.
    pub first: Belief,
    /// Who had it too.
    pub second: Belief,
}

impl Breach {
    /// From when until when.
    pub fn overlap(&self) -> (Nanos, Nanos) {
        (self.second.granted, self.first.until.min(self.second.until))
    }
}

/// Finds all pairs that had a lock at the same time and must not.
pub fn check(beliefs: &[Belief]) -> Vec<Breach> {
    let mut sorted: Vec<&Belief> = beliefs.iter().collect();
    sorted.sort_by_key(|belief| belief.granted);
    let mut breaches = Vec::new();
    // Those that may not be over yet.
    let mut live: Vec<&Belief> = Vec::new();
    for belief in sorted {
        live.retain(|earlier| earlier.until > belief.granted);
        breaches.extend(
            live.iter()
                .filter(|earlier| earlier.contradicts(belief))
                .map(|earlier| Breach {
                    first: (*earlier).clone(),
                    second: belief.clone(),
                }),
        );
        live.push(belief);
    }
    breaches
}

#[derive(Default)]
struct Book {
    /// When each acquire was called that is under way, or whose hold is.
    open: HashMap<u64, Nanos>,
    over: Vec<Belief>,
}

/// Where every task writes down what it believes.
#[derive(Default)]
pub struct Journal {
    book: Mutex<Book>,
    serial: AtomicU64,
    operations: AtomicU64,
}

fn lock(book: &Mutex<Book>) -> MutexGuard<'_, Book> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Journal {
    /// An acquire is about to be called.
    pub fn ask(self: &Arc<Self>, claim: Claim) -> Asked {
        self.operated();
        let now = clock::now();
        let id = self.serial.fetch_add(1, Ordering::Relaxed);
        lock(&self.book).open.insert(id, now);
        Asked {
            journal: Arc::clone(self),
            id,
            begun: now,
            claim,
        }
    }

    /// One thing more was asked of a client.
    pub fn operated(&self) {
        self.operations.fetch_add(1, Ordering::Relaxed);
    }

    /// How much was asked of the clients.
    pub fn operations(&self) -> u64 {
        self.operations.load(Ordering::Relaxed)
    }

    /// Whether all that began before this time is over.
    pub fn is_over(&self, time: Nanos) -> bool {
        lock(&self.book).open.values().all(|begun| *begun > time)
    }

    /// All that is over.
    pub fn beliefs(&self) -> Vec<Belief> {
        lock(&self.book).over.clone()
    }
}

/// An acquire that was called. Nothing came of it if this is dropped.
pub struct Asked {
    journal: Arc<Journal>,
    id: u64,
    begun: Nanos,
    claim: Claim,
}

impl Asked {
    /// It returned a guard.
    pub fn granted(self) -> Held {
        let now = clock::now();
        let belief = Belief {
            claim: self.claim.clone(),
            begun: self.begun,
            granted: now,
            until: now,
            end: String::new(),
        };
        Held {
            asked: self,
            belief,
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        lock(&self.journal.book).open.remove(&self.id);
    }
}

/// A guard that somebody has.
pub struct Held {
    asked: Asked,
    belief: Belief,
}

impl Held {
    /// The guard said at `now` or later that it can be relied upon for this long.
    pub fn valid_for(&mut self, now: Nanos, left: Nanos) {
        // What was said once stands until the loss is told.
        self.belief.until = self.belief.until.max(now + left);
    }

    /// It is given back now, or its loss was told.
    pub fn end(mut self, how: impl fmt::Display) {
        self.belief.until = self.belief.until.min(clock::now());
        self.belief.end = how.to_string();
        let mut book = lock(&self.asked.journal.book);
        book.over.push(self.belief.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A belief of a task, from one millisecond to another.
    fn belief(task: usize, from: u64, until: u64) -> Belief {
        Belief {
            claim: Claim {
                key: "lock".into(),
                task: (task, 0),
                lease_ms: 1000,
                renewed: false,
            },
            begun: from * MS,
            granted: from * MS,
            until: until * MS,
            end: "released".into(),
        }
    }

    #[test]
    fn two_beliefs_that_overlap_are_a_breach() {
        let long = belief(1, 0, 100);
        let found = check(&[belief(2, 99, 120), long.clone()]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].first.claim.task, (1, 0));
        assert_eq!(found[0].overlap(), (99 * MS, 100 * MS));
        let amid = [long, belief(2, 10, 20)];
        assert_eq!(check(&amid).len(), 1);
    }

    #[test]
    fn one_belief_after_another_is_none() {
        let never = belief(3, 50, 50);
        assert!(check(&[belief(1, 0, 100), belief(2, 100, 200), never]).is_empty());
    }

    #[test]
    fn a_long_belief_is_compared_with_all_that_follow() {
        let long = belief(1, 0, 100);
        let short = [2, 3].map(|task| belief(task, task as u64 * 10, 35));
        let beliefs = [&[long][..], &short].concat();
        // Each of the short ones overlaps with the long one and with the other.
        assert_eq!(check(&beliefs).len(), 3);
    }

    #[test]
    fn other_locks_are_no_matter() {
        let mut other = belief(2, 10, 90);
        other.claim.key = "other".into();
        assert!(check(&[belief(1, 0, 100), other]).is_empty());
    }

    #[test]
    fn a_server_may_start_once_all_from_before_is_over() {
        let journal = Arc::new(Journal::default());
        let claim = || belief(1, 0, 0).claim;
        let asked = journal.ask(claim());
        let killed_at = clock::now();
        assert!(!journal.is_over(killed_at));
        let held = asked.granted();
        assert!(!journal.is_over(killed_at));
        let later = journal.ask(claim());
        held.end("released");
        assert!(journal.is_over(killed_at), "the other began later");
        drop(later);
        assert!(journal.is_over(clock::now()));
        assert_eq!(journal.beliefs().len(), 1);
    }
}
