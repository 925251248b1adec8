//! Where everybody writes down what happens, while it happens.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::history::{Effect, History, Interference, Nanos, Operation, Outcome};

/// The history as it grows.
#[derive(Default)]
pub struct Journal {
    history: Mutex<History>,
    /// The operations that may wait, by the id of their connection.
    waiting: Mutex<HashMap<i64, usize>>,
    grants: AtomicUsize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Journal {
    fn change(&self, number: usize, change: impl FnOnce(&mut Operation)) {
        change(&mut lock(&self.history).operations[number]);
    }

    /// Notes an operation just before it is sent.
    pub fn began(&self, operation: Operation) -> usize {
        let mut history = lock(&self.history);
        history.operations.push(operation);
        history.operations.len() - 1
    }

    /// Notes since when an operation has its place in a queue, if that is known.
    pub fn queued(&self, operation: usize, since: Option<Nanos>) {
        self.change(operation, |noted| noted.queued = since);
    }

    pub fn ended(&self, operation: usize, answered: Nanos, outcome: Outcome) {
        if outcome.token().is_some() {
            self.grants.fetch_add(1, Ordering::Relaxed);
        }
        self.change(operation, |noted| {
            noted.answered = Some(answered);
            noted.outcome = outcome;
        });
    }

    /// Notes something that was done to the server in this time, to one lock or to all.
    pub fn interfered(
        &self,
        what: &str,
        effects: &[Effect],
        key: Option<&str>,
        (from, until): (Nanos, Nanos),
    ) {
        let interference = |&effect| Interference {
            what: what.to_owned(),
            effect,
            lock: key.map(str::to_owned),
            from,
            until,
        };
        let interferences = effects.iter().map(interference);
        lock(&self.history).interferences.extend(interferences);
    }

    /// Tells the observer of the queues that this operation may wait.
    pub fn may_wait(&self, connection: i64, operation: usize) {
        lock(&self.waiting).insert(connection, operation);
    }

    /// The operation on this connection does not wait any more.
    pub fn waits_no_more(&self, connection: i64) {
        lock(&self.waiting).remove(&connection);
    }

    pub fn waiting(&self) -> HashMap<i64, usize> {
        lock(&self.waiting).clone()
    }

    /// These operations were under way before and after the server was seen to
    /// have them blocked, at `seen` at the latest.
    pub fn seen_blocked(&self, blocked: impl Iterator<Item = (i64, usize)>, seen: Nanos) {
        let waiting = self.waiting();
        let mut history = lock(&self.history);
        for (connection, operation) in blocked {
            if waiting.get(&connection) == Some(&operation) {
                history.operations[operation].queued.get_or_insert(seen);
            }
        }
    }

    pub fn operations(&self) -> usize {
        lock(&self.history).operations.len()
    }

    pub fn grants(&self) -> usize {
        self.grants.load(Ordering::Relaxed)
    }

    pub fn history(&self) -> History {
        lock(&self.history).clone()
    }
}
