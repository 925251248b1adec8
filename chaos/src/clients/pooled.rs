//! Owners whose session ended, and that ask again on a connection that is open
//! already.

use rand::RngExt;

use super::{Ask, Client, Connected, Extent, LEASE_MS_MAX, Section, Wrap};
use crate::clock;
use crate::history::{Mode, Outcome, Request};
use crate::locks::Kind;

impl Client {
    /// Takes a lock for as long as a connection lasts, ends that, and asks for
    /// the lock at once on another.
    pub(super) fn pooled_round(&mut self) {
        self.owners += 1;
        let lock = self.lock_of(Kind::Exclusive);
        let pooled = self.connected();
        let hold = self.rng.random_bool(0.5).then_some(1);
        let ask = Ask {
            lease_ms: LEASE_MS_MAX,
            block_ms: Some(self.rng.random_range(200..=1000)),
            mode: Mode::Exclusive,
            hold,
            session: true,
        };
        let session = self.connected();
        let asked = self.ask_for(session, &lock, ask, Wrap::Plain);
        let (outcome, session) = self.hear(asked);
        self.connection = session;
        if matches!(outcome, Outcome::Granted(_))
            && self.ping(&lock)
            && let Some(session) = self.connection.take()
        {
            let ask = Ask {
                block_ms: self.rng.random_bool(0.3).then_some(500),
                session: self.rng.random_bool(0.5),
                ..ask
            };
            self.ask_again(&lock, ask, session, pooled);
        } else {
            self.connection = Some(pooled);
        }
        self.owners += 1;
    }

    fn ask_again(&mut self, lock: &str, ask: Ask, session: Connected, pooled: Connected) {
        // Sometimes the server ends the connection before it reads the request.
        let killed = self.rng.random_bool(0.3).then_some(session.id);
        let (outcome, connected) = if killed.is_some() {
            let before = clock::now();
            let closing = self.began(lock, Request::Close, session.number, before);
            let asked = self.ask_for(pooled, lock, ask, Wrap::Transaction(killed));
            let heard = self.hear(asked);
            let (at, closed) = match &heard.0 {
                Outcome::Granted(_) | Outcome::NotAvailable => (before, Outcome::Done),
                _ => (clock::now(), Outcome::Lost),
            };
            drop(session);
            self.journal.ended(closing, at, closed);
            heard
        } else {
            self.close(lock, session);
            let asked = self.ask_for(pooled, lock, ask, Wrap::Plain);
            self.hear(asked)
        };
        self.connection = connected;
        if let Outcome::Granted(token) = outcome {
            self.hold_for_a_moment(Section::of(lock, ask, token));
        }
    }

    /// Sees that a hold stays, and gives it back.
    pub(super) fn hold_for_a_moment(&mut self, section: Section) {
        for _ in 0..2 {
            self.sleep(5, 40);
            if !self.renew(&section) || self.connection.is_some() && !self.ping(&section.lock) {
                break;
            }
        }
        self.release(&section.lock, None, Extent::All);
    }
}
