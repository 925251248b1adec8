//! Locks that only a few owners want, so that nothing but the end of a hold makes the server look
//! at them. In front of the waiter there may be a place whose client does not claim its grant.

use std::sync::Arc;
use std::thread;

use rand::RngExt;

use super::{Client, Wrap};
use crate::clock;
use crate::history::{Acquire, MS, Request};
use crate::locks::in_database;
use crate::protection::CLAIM_TIMEOUT_MS;

/// How far apart the numbers of one client's companions are. The last digit chooses the database.
const COMPANION: usize = 100_000;

impl Client {
    /// Lets a hold end by its lease or with its session while another client waits.
    pub(super) fn quiet_round(&mut self) {
        let lock = in_database(self.database, &format!("quiet:{}", self.id));
        let session = self.rng.random_bool(0.5);
        let lease_ms = if session { 600..=1200 } else { 50..=300 };
        let ask = Acquire {
            lease_ms: self.rng.random_range(lease_ms),
            block_ms: Some(500),
            session,
            ..Acquire::default()
        };
        if self.acquire(&lock, ask).token().is_none() || !self.ping(&lock) {
            return;
        }
        let mut idle = self.another();
        let is_heard = !session || self.rng.random_bool(0.4);
        let ask_idly = Acquire {
            lease_ms: self.rng.random_range(CLAIM_TIMEOUT_MS..=2000),
            block_ms: Some(3000),
            session: is_heard,
            ..Acquire::default()
        };
        let has_idle = self.rng.random_bool(0.7) && idle.can_be_told();
        let place = has_idle.then(|| idle.ask_for_place(&lock, ask_idly));
        let place = place.and_then(Result::ok);
        if let Some(place) = place.as_ref().filter(|_| !is_heard) {
            idle.ends(place, None, false);
        }
        let (waiter, of_waiter) = (self.another(), lock.clone());
        let waiting = thread::spawn(move || waiter.wait_quietly(&of_waiter, ask));
        self.sleep(20, 60);
        if place.is_some() && !is_heard {
            // For so long the history may suppose that the place was granted the lock.
            self.sleep(CLAIM_TIMEOUT_MS + 120, CLAIM_TIMEOUT_MS + 200);
        }
        if let Some(own) = self.connection.take().filter(|_| session) {
            self.close(&lock, own);
        }
        if let Some(place) = place.filter(|_| is_heard) {
            // It hears of the grant, and does not claim it.
            let deadline = clock::now() + CLAIM_TIMEOUT_MS * MS;
            let told = idle.await_told(|_| clock::now() < deadline);
            idle.ends(&place, told, false);
        }
        waiting.join().expect("it waits until its end");
    }

    /// Another client, and another owner.
    fn another(&mut self) -> Self {
        self.companions += 1;
        let id = self.id + COMPANION * self.companions;
        Self::new(id, self.rng.random(), self.side, Arc::clone(&self.shared))
    }

    /// Waits for some time, gives back what it gets, and has nothing to renew then.
    fn wait_quietly(mut self, lock: &str, ask: Acquire) {
        let ask = Acquire {
            block_ms: Some(1500),
            session: false,
            ..ask
        };
        let connected = self.connected();
        let asked = self.ask(connected, lock, Request::Acquire(ask), Wrap::Plain);
        if self.answer(asked).token().is_some() {
            self.release(lock, None, None);
            let (lease_ms, fence) = (100, None);
            self.perform(lock, Request::Renew { lease_ms, fence });
        }
    }
}
