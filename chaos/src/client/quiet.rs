//! Locks that only a few owners want, so that nothing but the end of a hold makes
//! the server look at them. Before one that waits another may have a place that it does
//! not use.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use rand::RngExt;

use super::holds::release;
use super::{Client, Wrap};
use crate::clock;
use crate::history::{Acquire, MS, Request};
use crate::locks::in_database;
use crate::protection::CLAIM_TIMEOUT_MS;

/// The numbers of one client's companions are so far apart. Its database goes by the last digit.
const COMPANION: usize = 100_000;

/// How a hold ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Lease,
    Session,
    /// By a release that goes to a client that dies just then.
    ReleaseToTheDead,
}

impl Client {
    /// Lets a hold end while others wait.
    pub(super) fn quiet_round(&mut self) {
        let lock = in_database(self.database, &format!("quiet:{}", self.id));
        let (end, lease_ms) = match self.rng.random_range(0..3) {
            0 => (End::Lease, 50..=300),
            1 => (End::Session, 600..=1200),
            _ => (End::ReleaseToTheDead, 1500..=2000),
        };
        let ask = Acquire {
            lease_ms: self.rng.random_range(lease_ms),
            block_ms: Some(500),
            session: end == End::Session,
            ..Acquire::default()
        };
        let held = self.acquire(&lock, ask).token().is_some() && self.ping(&lock);
        let Some(own) = self.connection.take() else {
            return;
        };
        let mut others = Vec::new();
        if !held {
            self.close(&lock, own);
        } else if end == End::ReleaseToTheDead {
            let (killed, dying) = self.another_waits(&lock, ask);
            let (_, staying) = self.another_waits(&lock, ask);
            let wrap = Wrap::Transaction(Some(killed));
            let asked = self.ask(own, &lock, release(None, None), wrap);
            self.hear(asked);
            others.extend([dying, staying]);
        } else {
            let has_idle = self.rng.random_bool(0.7);
            let is_heard = end != End::Session || self.rng.random_bool(0.4);
            let mut idle = self.another();
            let ask_idly = Acquire {
                lease_ms: self.rng.random_range(CLAIM_TIMEOUT_MS..=2000),
                block_ms: Some(3000),
                session: is_heard,
                ..Acquire::default()
            };
            let has_idle = has_idle && idle.can_be_told();
            let place = match has_idle {
                true => idle.ask_for_place(&lock, ask_idly).ok(),
                false => None,
            };
            if let Some(place) = place.as_ref().filter(|_| !is_heard) {
                idle.ends(place, None, false);
            }
            let (_, staying) = self.another_waits(&lock, ask);
            others.push(staying);
            if has_idle && !is_heard {
                // So long it may be supposed to have been granted before.
                self.sleep(CLAIM_TIMEOUT_MS + 120, CLAIM_TIMEOUT_MS + 200);
            }
            if end == End::Session {
                self.close(&lock, own);
            }
            if let Some(place) = place.filter(|_| is_heard) {
                // Hears of the grant, and does not claim it.
                let deadline = clock::now() + CLAIM_TIMEOUT_MS * MS;
                let told = idle.await_told(|_| clock::now() < deadline);
                idle.ends(&place, told, false);
            }
        }
        for other in others {
            other.join().expect("it waits until its end");
        }
    }

    /// Another client, and another owner.
    fn another(&mut self) -> Self {
        self.companions += 1;
        let id = self.id + COMPANION * self.companions;
        Self::new(id, self.rng.random(), self.side, Arc::clone(&self.shared))
    }

    /// Another one waits for some time, gives back what it gets, and has nothing to renew then.
    /// Returns the number of its connection too.
    fn another_waits(&mut self, lock: &str, ask: Acquire) -> (i64, JoinHandle<()>) {
        let ask = Acquire {
            block_ms: Some(1500),
            session: false,
            ..ask
        };
        let (mut other, lock) = (self.another(), lock.to_owned());
        let connected = other.connected();
        let id = connected.id;
        let waits = thread::spawn(move || {
            let asked = other.ask(connected, &lock, Request::Acquire(ask), Wrap::Plain);
            if other.answer(asked).token().is_some() {
                other.release(&lock, None, None);
                let (lease_ms, fence) = (100, None);
                other.perform(&lock, Request::Renew { lease_ms, fence });
            }
        });
        self.sleep(20, 60);
        (id, waits)
    }
}
