//! A workload that uses the locks for something, as Jepsen's test of etcd does: each lock
//! guards a set of numbers in a key. Who holds it reads the set, adds a number of its own and
//! writes all back. Now and then it pauses in between for longer than its lease.
//!
//! An addition is acknowledged when the write was answered `OK`, and a `WAIT` after it, on the
//! same connection, with the number of *all* replicas: else Redis itself may lose the write at
//! a fail-over, whatever the lock does.
//!
//! Written back by `LOCK.GUARD`, no acknowledged addition is missing in the end, in any mode,
//! even in `plain`. The write takes place only where the token's hold is present. A primary
//! that knows the hold has granted it, or got it from the one that did, after all that had
//! been written there before. Since then nobody else could write. This holds for one addition
//! a hold: the next one might be read elsewhere.
//!
//! Written back plainly, the one who comes late undoes what others have added meanwhile.
//! Nobody promises otherwise, so how many additions were lost is told, and is no breach.

use anyhow::{Context, Result, bail};
use rand::RngExt;
use redis::Value;
use redis_lock_testing::reply_text;

use super::Client;
use super::holds::{Hold, LAST_WAIT};
use crate::clock;
use crate::fleet::NODES;
use crate::history::{Breach, History, MS, Outcome, Promise, Request};

/// How the set is written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Workload {
    /// Plainly.
    Set,
    /// By `LOCK.GUARD`.
    GuardedSet,
}

/// Nobody pauses who has a longer lease.
const PAUSED_LEASE_MS_MAX: u64 = 600;

/// How long all replicas may take to have a write.
const ACKNOWLEDGED_MS: u64 = 500;

/// Where the set of a lock is.
fn set_of(lock: &str) -> String {
    format!("{lock}-set")
}

impl Client {
    /// Adds a number of its own to the set of the lock that it holds.
    pub(super) fn add(&mut self, workload: Workload, hold: &Hold) {
        let (lock, set, token) = (&hold.lock, set_of(&hold.lock), hold.token.to_string());
        let Some(elements) = self.elements(lock) else {
            return;
        };
        let lease_ms = hold.ask.lease_ms;
        if lease_ms <= PAUSED_LEASE_MS_MAX && self.rng.random_bool(0.2) {
            self.sleep(lease_ms, lease_ms + 300);
        } else {
            self.sleep(0, 20);
        }
        // No other hold has the same.
        let element = (1_000_000 * self.id + self.owners) as u64;
        let value = format!("{elements} {element}");
        let guard = ["LOCK.GUARD", lock, &token];
        let write = ["SET", &set, value.trim_start()];
        let words = match workload {
            Workload::Set => write.to_vec(),
            Workload::GuardedSet => [guard, write].concat(),
        };
        let operation = self.began(lock, Request::Add { element }, 0).0;
        let outcome = match self.call(&words) {
            Some(Value::Okay) => {
                let replicas = NODES - 1;
                let wait = ["WAIT", &replicas.to_string(), &ACKNOWLEDGED_MS.to_string()];
                match self.call(&wait) {
                    Some(Value::Int(count)) if usize::try_from(count) == Ok(replicas) => {
                        Outcome::Done
                    }
                    _ => Outcome::Lost,
                }
            }
            Some(Value::ServerError(error)) => Outcome::Error(error.code().to_owned()),
            _ => Outcome::Lost,
        };
        self.ended(operation, outcome);
    }

    /// Notes what all sets have in the end.
    pub fn read_back(&mut self) -> Result<()> {
        for lock in self.shared.locks.names.clone() {
            let operation = self.began(&lock, Request::Read, 0).0;
            let deadline = clock::now() + LAST_WAIT;
            let text = loop {
                match self.elements(&lock) {
                    Some(text) => break text,
                    None if clock::now() > deadline => bail!("{lock} has no set"),
                    None => self.sleep(10, 50),
                }
            };
            let elements: Result<_, _> = text.split_whitespace().map(str::parse).collect();
            let read = Outcome::Elements(elements.with_context(|| format!("{lock}: {text}"))?);
            self.ended(operation, read);
        }
        Ok(())
    }

    fn elements(&mut self, lock: &str) -> Option<String> {
        match self.call(&["GET", &set_of(lock)])? {
            Value::Nil => Some(String::new()),
            other => reply_text(other),
        }
    }

    /// The reply to a command on the present connection.
    fn call(&mut self, words: &[&str]) -> Option<Value> {
        let mut connected = self.connected();
        let patience_ms = self.shared.protection.response_ms() + ACKNOWLEDGED_MS;
        let deadline = clock::now() + patience_ms * MS;
        let patient = || clock::now() < deadline;
        let reply = connected.connection.call_while(words, patient)?;
        let is_refused = matches!(&reply, Value::ServerError(error) if error.code() != "NOTHELD");
        self.connection = (!is_refused).then_some(connected);
        Some(reply)
    }
}

/// What came of the additions. Those that a plain workload has lost are no breaches.
pub fn sum_up(workload: Workload, history: &History, breaches: &mut Vec<Breach>) -> String {
    let is_lost = |one: &Breach| one.promise == Promise::Updates;
    let lost = breaches.iter().filter(|one| is_lost(one)).count();
    if workload == Workload::Set {
        breaches.retain(|one| !is_lost(one));
    }
    let added = history.operations.iter();
    let added = added.filter(|one| matches!(one.request, Request::Add { .. }));
    let outcomes: Vec<&Outcome> = added.map(|one| &one.outcome).collect();
    let count = |counts: fn(&Outcome) -> bool| outcomes.iter().filter(|one| counts(one)).count();
    let acknowledged = count(|one| *one == Outcome::Done);
    let refused = count(|one| matches!(one, Outcome::Error(_)));
    let unknown = outcomes.len() - acknowledged - refused;
    format!(
        "{workload:?}: {acknowledged} additions acknowledged, {refused} refused, \
         {unknown} unknown; {lost} acknowledged ones lost"
    )
}
