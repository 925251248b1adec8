//! Locks that only a few owners want, so that nothing but the end of a hold makes
//! the server look at them. Before one that waits another may have a place that it does
//! not use.

use std::sync::Arc;

use rand::RngExt;
use redis_lock_testing::Wait;

use super::holds::release;
use super::{Asked, Client, Wrap};
use crate::clock;
use crate::history::{Acquire, MS, Outcome, Request};
use crate::locks::in_database;
use crate::protection::CLAIM_TIMEOUT_MS;
use crate::words::outcome;

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
        if !held {
            self.close(&lock, own);
        } else if end == End::ReleaseToTheDead {
            let (mut dying, mut staying) = (self.another(), self.another());
            let [dies, stays] = [&mut dying, &mut staying].map(|one| one.waits(&lock, ask));
            let wrap = Wrap::Transaction(Some(dies.connected.id));
            let asked = self.ask(own, &lock, release(None, None), wrap);
            self.hear(asked);
            dying.see_killed(dies);
            staying.hear_quietly(&lock, stays);
        } else {
            let has_idle = self.rng.random_bool(0.7);
            let is_heard = end != End::Session || self.rng.random_bool(0.4);
            let (mut idle, mut staying) = (self.another(), self.another());
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
            let stays = staying.waits(&lock, ask);
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
            staying.hear_quietly(&lock, stays);
        }
    }

    /// Another client, and another owner.
    fn another(&mut self) -> Self {
        self.companions += 1;
        let id = self.id + COMPANION * self.companions;
        Self::new(id, self.rng.random(), self.side, Arc::clone(&self.shared))
    }

    /// Hears the last of a connection that was ended in the turn in which its
    /// request was granted, if it was.
    fn see_killed(&mut self, asked: Asked) {
        let Asked {
            mut connected,
            operation,
            request,
            ..
        } = asked;
        let deadline = clock::now() + 500 * MS;
        let wait = connected.connection.wait(|| clock::now() < deadline);
        self.shared.journal.waits_no_more(connected.id);
        let outcome = match wait {
            Wait::Replied(value) => outcome(request, value, self.database),
            Wait::Closed => Outcome::Lost,
            Wait::GivenUp => Outcome::GivenUp,
        };
        self.ended(operation, outcome);
    }

    /// Waits for some time.
    fn waits(&mut self, lock: &str, ask: Acquire) -> Asked {
        let connected = self.connected();
        let ask = Acquire {
            block_ms: Some(1500),
            session: false,
            ..ask
        };
        let asked = self.ask(connected, lock, Request::Acquire(ask), Wrap::Plain);
        self.sleep(20, 60);
        asked
    }

    fn hear_quietly(&mut self, lock: &str, asked: Asked) {
        if self.answer(asked).token().is_some() {
            self.release(lock, None, None);
            // There is nothing to renew any more.
            let (lease_ms, fence) = (100, None);
            self.perform(lock, Request::Renew { lease_ms, fence });
        }
    }
}
