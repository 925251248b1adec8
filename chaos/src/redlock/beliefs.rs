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
    /// The owner by its name, or none for one that nobody else is.
    pub owner: Option<String>,
    /// Which task of which client.
    pub task: (usize, usize),
    /// Whether others may have it at the same time.
    pub shared: bool,
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
    /// The token.
    pub token: u64,
    /// How it ended.
    pub end: String,
}

impl Belief {
    /// Whether this and a later one can't both be true.
    fn contradicts(&self, later: &Self) -> bool {
        let same_owner = self.claim.owner.is_some() && self.claim.owner == later.claim.owner;
        self.claim.key == later.claim.key
            && later.granted < self.until
            && later.granted < later.until
            && !same_owner
            && !(self.claim.shared && later.claim.shared)
    }

    /// This one, with times from `start`.
    pub fn told(&self, start: Nanos) -> String {
        let claim = &self.claim;
        let (client, task) = claim.task;
        format!(
            "client {client}, task {task}, {}{}, lease {} ms{}, token {}: asked at {}, had it at {}, \
             relied upon it until {} ({})",
            claim
                .owner
                .as_ref()
                .map_or("without a name".into(), |owner| format!("as {owner}")),
            if claim.shared { ", shared" } else { "" },
            claim.lease_ms,
            if claim.renewed { ", renewed" } else { "" },
            self.token,
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

/// An acquire that was called and what came of it, as long as that goes on.
struct Open {
    key: String,
    owner: Option<String>,
    /// When it began, or the hold that it shares did.
    rests_on: Nanos,
    granted: bool,
}

#[derive(Default)]
struct Book {
    open: HashMap<u64, Open>,
    /// Those that somebody gave up without giving the lock back.
    forgotten: Vec<(Nanos, Belief)>,
    over: Vec<Belief>,
}

impl Book {
    /// Moves what is over to the others that are.
    fn turn_over(&mut self, now: Nanos) {
        let (over, forgotten) = std::mem::take(&mut self.forgotten)
            .into_iter()
            .partition(|(_, belief)| belief.until <= now);
        self.forgotten = forgotten;
        let over: Vec<(Nanos, Belief)> = over;
        self.over.extend(over.into_iter().map(|(_, belief)| belief));
    }
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
        let mut book = lock(&self.book);
        if claim.owner.is_some() {
            // From now on its holds are whoever's the new guard is.
            for (_, belief) in &mut book.forgotten {
                if belief.claim.key == claim.key && belief.claim.owner == claim.owner {
                    belief.until = belief.until.min(now);
                }
            }
        }
        book.open.insert(
            id,
            Open {
                key: claim.key.clone(),
                owner: claim.owner.clone(),
                rests_on: now,
                granted: false,
            },
        );
        drop(book);
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
        let mut book = lock(&self.book);
        book.turn_over(clock::now());
        book.open.values().all(|open| open.rests_on > time)
            && book.forgotten.iter().all(|(rests_on, _)| *rests_on > time)
    }

    /// All that is over.
    pub fn beliefs(&self) -> Vec<Belief> {
        let mut book = lock(&self.book);
        book.turn_over(clock::now());
        book.over.clone()
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
    pub fn granted(self, token: u64) -> Held {
        let now = clock::now();
        let mut book = lock(&self.journal.book);
        // It may share a hold that is older.
        let rests_on = book
            .open
            .values()
            .filter(|open| open.granted && open.owner.is_some())
            .filter(|open| open.owner == self.claim.owner && open.key == self.claim.key)
            .map(|open| open.rests_on)
            .chain([self.begun])
            .min()
            .unwrap_or(self.begun);
        if let Some(open) = book.open.get_mut(&self.id) {
            open.granted = true;
            open.rests_on = rests_on;
        }
        drop(book);
        let belief = Belief {
            claim: self.claim.clone(),
            begun: self.begun,
            granted: now,
            until: now,
            token,
            end: String::new(),
        };
        Held {
            asked: self,
            rests_on,
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
    rests_on: Nanos,
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

    /// It is kept until its lease is over, and nobody looks after it.
    pub fn forget(mut self) {
        self.belief.end = "forgotten".into();
        let now = clock::now();
        let mut book = lock(&self.asked.journal.book);
        let is_shared = |open: &Open| {
            !open.granted
                && open.owner.is_some()
                && open.owner == self.belief.claim.owner
                && open.key == self.belief.claim.key
        };
        if book.open.values().any(is_shared) {
            // What the same owner asked for meanwhile may give it back.
            self.belief.until = self.belief.until.min(now);
        }
        book.forgotten.push((self.rests_on, self.belief.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A belief of a task, from one millisecond to another.
    fn belief(task: usize, owner: Option<&str>, shared: bool, from: u64, until: u64) -> Belief {
        Belief {
            claim: Claim {
                key: "lock".into(),
                owner: owner.map(str::to_owned),
                task: (task, 0),
                shared,
                lease_ms: 1000,
                renewed: false,
            },
            begun: from * MS,
            granted: from * MS,
            until: until * MS,
            token: 1,
            end: "released".into(),
        }
    }

    #[test]
    fn two_beliefs_that_overlap_are_a_breach() {
        let long = belief(1, None, false, 0, 100);
        let found = check(&[belief(2, None, false, 99, 120), long.clone()]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].first.claim.task, (1, 0));
        assert_eq!(found[0].overlap(), (99 * MS, 100 * MS));
        let amid = [long, belief(2, None, false, 10, 20)];
        assert_eq!(check(&amid).len(), 1);
    }

    #[test]
    fn one_belief_after_another_is_none() {
        let one = belief(1, None, false, 0, 100);
        let next = belief(2, None, false, 100, 200);
        let never = belief(3, None, false, 50, 50);
        assert!(check(&[one, next, never]).is_empty());
    }

    #[test]
    fn a_long_belief_is_compared_with_all_that_follow() {
        let long = belief(1, None, false, 0, 100);
        let short = [2, 3].map(|task| belief(task, None, false, task as u64 * 10, 35));
        let beliefs = [&[long][..], &short].concat();
        // Each of the short ones overlaps with the long one and with the other.
        assert_eq!(check(&beliefs).len(), 3);
    }

    #[test]
    fn sharing_excuses_only_those_who_both_share() {
        let reader = belief(1, None, true, 0, 100);
        assert!(check(&[reader.clone(), belief(2, None, true, 10, 90)]).is_empty());
        assert_eq!(check(&[reader, belief(2, None, false, 10, 90)]).len(), 1);
    }

    #[test]
    fn guards_of_one_owner_may_overlap() {
        let outer = belief(1, Some("ann"), false, 0, 100);
        assert!(check(&[outer.clone(), belief(2, Some("ann"), false, 10, 50)]).is_empty());
        assert_eq!(
            check(&[outer, belief(2, Some("bob"), false, 10, 50)]).len(),
            1
        );
    }

    #[test]
    fn other_locks_are_no_matter() {
        let mut other = belief(2, None, false, 10, 90);
        other.claim.key = "other".into();
        assert!(check(&[belief(1, None, false, 0, 100), other]).is_empty());
    }

    fn claim(owner: Option<&str>) -> Claim {
        belief(1, owner, false, 0, 0).claim
    }

    #[test]
    fn a_server_may_start_once_all_from_before_is_over() {
        let journal = Arc::new(Journal::default());
        let asked = journal.ask(claim(None));
        let killed_at = clock::now();
        assert!(!journal.is_over(killed_at));
        let held = asked.granted(7);
        assert!(!journal.is_over(killed_at));
        let later = journal.ask(claim(None));
        held.end("released");
        assert!(journal.is_over(killed_at), "the other began later");
        drop(later);
        assert!(journal.is_over(clock::now()));
    }

    #[test]
    fn a_guard_that_shares_an_older_hold_is_as_old() {
        let journal = Arc::new(Journal::default());
        let outer = journal.ask(claim(Some("ann"))).granted(7);
        let killed_at = clock::now();
        let inner = journal.ask(claim(Some("ann"))).granted(7);
        outer.end("released");
        assert!(!journal.is_over(killed_at));
        inner.end("released");
        assert!(journal.is_over(killed_at));
    }

    #[test]
    fn a_forgotten_hold_lasts_as_long_as_was_said() {
        let journal = Arc::new(Journal::default());
        let mut held = journal.ask(claim(None)).granted(7);
        let until = clock::now() + 3_600_000 * MS;
        held.valid_for(until, 0);
        held.forget();
        assert!(!journal.is_over(clock::now()));
        assert!(journal.beliefs().is_empty());
    }

    #[test]
    fn a_forgotten_hold_ends_when_its_owner_asks_again() {
        let journal = Arc::new(Journal::default());
        let mut held = journal.ask(claim(Some("ann"))).granted(7);
        held.valid_for(clock::now(), 3_600_000 * MS);
        held.forget();
        drop(journal.ask(claim(Some("ann"))));
        assert!(journal.is_over(clock::now()));
        assert_eq!(journal.beliefs().len(), 1);
    }
}
