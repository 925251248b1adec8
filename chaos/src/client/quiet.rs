//! Locks that only a few owners want, so that nothing but the end of a hold makes
//! the server look at them. Before one that waits another may have a place that it does
//! not use.

use rand::RngExt;

use redis_lock_testing::Wait;

use super::rounds::{Extent, Section};
use super::{Asked, Client, Wrap};
use crate::clock;
use crate::history::{Acquire, MS, Mode, Outcome, Request};
use crate::locks::in_database;
use crate::protection::CLAIM_TIMEOUT_MS;
use crate::words::outcome;

/// How a hold ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Lease,
    Session,
    /// By a release that goes to a client that dies just then.
    ReleaseToTheDead,
}

impl Client {
    /// Lets a hold end while other owners wait.
    pub(super) fn quiet_round(&mut self) {
        self.owners += 1;
        let holder = self.owners;
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
        // A session has a connection of its own.
        let usual = self.connection.take();
        let held = matches!(self.acquire(&lock, ask), Outcome::Granted(_)) && self.ping(&lock);
        let own = self.connection.take();
        if let Some(own) = own {
            if held && end == End::ReleaseToTheDead {
                let dying = self.quiet_waiter(&lock, ask);
                let staying = self.quiet_waiter(&lock, ask);
                let (waiter, killed) = (self.owners, Some(dying.connected.id));
                self.owners = holder;
                let (hold, fence, all) = (None, None, true);
                let request = Request::Release { hold, fence, all };
                let asked = self.ask(own, &lock, request, Wrap::Transaction(killed));
                self.hear(asked);
                self.see_killed(dying);
                self.owners = waiter;
                self.hear_quietly(&lock, staying);
            } else if held {
                let has_idle = self.rng.random_bool(0.7);
                let is_heard = end != End::Session || self.rng.random_bool(0.4);
                let mut idle = has_idle.then(|| self.idle_place(&lock, is_heard)).flatten();
                let staying = self.quiet_waiter(&lock, ask);
                let waiter = self.owners;
                self.owners = holder;
                if has_idle && !is_heard {
                    // So long it may be supposed to have been granted before.
                    self.sleep(CLAIM_TIMEOUT_MS + 120, CLAIM_TIMEOUT_MS + 200);
                }
                if end == End::Session {
                    self.close(&lock, own);
                }
                self.owners = waiter;
                idle.iter_mut().for_each(|idle| self.hear_idly(idle));
                self.hear_quietly(&lock, staying);
            } else {
                self.close(&lock, own);
            }
        }
        self.owners += 1;
        self.connection = usual;
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

    /// Another owner waits for some time.
    fn quiet_waiter(&mut self, lock: &str, ask: Acquire) -> Asked {
        self.owners += 1;
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
        if let Outcome::Granted(token) = self.answer(asked) {
            self.release(lock, None, Extent::All);
            // There is nothing to renew any more.
            let section = Section {
                lock: lock.to_owned(),
                token,
                holds: 0,
                lease_ms: 100,
                mode: Mode::Exclusive,
                numbered: false,
            };
            self.renew_with(&section, None);
        }
    }
}
