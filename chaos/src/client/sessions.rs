//! Holds that last as long as a connection of their own.

use rand::RngExt;

use super::rounds::Extent;
use super::{Client, LEASE_MS_MAX, Wrap};
use crate::history::{Acquire, Outcome, Request};

/// The server must find the time to renew even the shortest.
pub(super) const SESSION_LEASE_MS_MIN: u64 = 600;

impl Client {
    /// Takes a lock for as long as a connection lasts, and ends that.
    pub(super) fn session_round(&mut self) {
        let usual = self.connection.take();
        self.owners += 1;
        let (lock, mode) = self.any_lock();
        let ask = Acquire {
            lease_ms: self.rng.random_range(SESSION_LEASE_MS_MIN..=LEASE_MS_MAX),
            block_ms: self.any_block_ms(),
            mode,
            session: true,
            ..Acquire::default()
        };
        if let Outcome::Granted(token) = self.acquire(&lock, ask)
            && self.keep_session(&lock, ask, token)
        {
            if self.rng.random_bool(0.2) {
                self.release(&lock, None, Extent::All);
            } else {
                self.close_session(&lock);
            }
        }
        if self.connection.is_some() {
            self.close_session(&lock);
        }
        self.owners += 1;
        self.connection = usual;
    }

    /// Works without a renewal, now and then for longer than the lease. Says
    /// whether the connection lives, and with it the hold.
    fn keep_session(&mut self, lock: &str, ask: Acquire, token: i64) -> bool {
        let rest_ms = if self.rng.random_bool(0.1) {
            ask.lease_ms
        } else {
            10
        };
        for _ in 0..self.rng.random_range(1..4) {
            self.sleep(rest_ms / 2, rest_ms);
            if self.rng.random_bool(0.3) && self.acquire(lock, ask) != Outcome::Granted(token) {
                return false;
            }
            if !self.ping(lock) {
                return false;
            }
        }
        true
    }

    pub(super) fn ping(&mut self, lock: &str) -> bool {
        let Some(connected) = self.connection.take() else {
            return false;
        };
        let asked = self.ask(connected, lock, Request::Ping, Wrap::Plain);
        self.answer(asked) == Outcome::Done
    }

    fn close_session(&mut self, lock: &str) {
        let Some(connected) = self.connection.take() else {
            return;
        };
        // A proxy hands the end of a connection on in its own time.
        if !self.is_direct() {
            return;
        }
        self.close(lock, connected);
    }
}
