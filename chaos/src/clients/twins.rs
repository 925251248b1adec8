//! Owners that wait for one lock on two connections, one of which ends when the
//! lock comes free.

use rand::RngExt;

use super::{Ask, Asked, Client, Extent, LEASE_MS_MAX, Section, Wrap, outcome, release_words};
use redis_lock_testing::Wait;

use crate::clock;
use crate::history::{MS, Mode, Outcome};
use crate::locks::Kind;

impl Client {
    /// Holds a lock for which another owner waits twice, and gives it back.
    pub(super) fn twins_round(&mut self) {
        self.owners += 1;
        let (holder, twin) = (self.owners, self.owners + 1);
        let lock = self.lock_of(Kind::Exclusive);
        let ask = Ask {
            lease_ms: LEASE_MS_MAX,
            block_ms: Some(self.rng.random_range(500..=1000)),
            mode: Mode::Exclusive,
            hold: Some(1),
            session: false,
        };
        if matches!(self.acquire(&lock, ask), Outcome::Granted(_)) {
            self.let_twins_wait(&lock, ask, holder, twin);
        }
        self.owners = twin + 1;
    }

    fn let_twins_wait(&mut self, lock: &str, ask: Ask, holder: usize, twin: usize) {
        let own = self.connected();
        self.owners = twin;
        let mut twins = Vec::new();
        // Sometimes the one that dies has no twin.
        let count = if self.rng.random_bool(0.3) { 1 } else { 2 };
        for _ in 0..count {
            let connected = self.connected();
            twins.push(self.ask_for(connected, lock, ask, Wrap::Plain));
            self.sleep(2, 20);
        }
        let which = usize::from(count == 2 && self.rng.random_bool(0.8));
        let dying = twins.remove(which);
        self.owners = holder;
        let killed = self.rng.random_bool(0.5).then_some(dying.connected.id);
        let wrap = match killed {
            Some(_) => Wrap::Transaction(killed),
            None => Wrap::Plain,
        };
        let (request, words) = release_words(None, Extent::All);
        let asked = self.ask(own, "LOCK.RELEASE", lock, request, &words, wrap);
        if killed.is_none() {
            self.hang_up(dying);
            self.hear(asked);
        } else {
            self.hear(asked);
            self.see_killed(dying);
        }
        self.owners = twin;
        for staying in twins {
            let (outcome, connected) = self.hear(staying);
            self.connection = connected;
            if let Outcome::Granted(token) = outcome {
                self.hold_for_a_moment(Section {
                    numbered: true,
                    ..Section::of(lock, ask, token)
                });
            }
        }
    }

    /// Hears the last of a connection that was ended in the turn in which its
    /// request was granted, if it was.
    pub(super) fn see_killed(&mut self, asked: Asked) {
        let Asked {
            mut connected,
            operation,
            request,
            ..
        } = asked;
        let deadline = clock::now() + 500 * MS;
        let wait = connected.connection.wait(|| clock::now() < deadline);
        self.journal.waits_no_more(connected.id);
        let outcome = match wait {
            Wait::Replied(value) => outcome(request, value, self.database),
            Wait::Closed => Outcome::Lost,
            Wait::GivenUp => Outcome::GivenUp,
        };
        self.journal.ended(operation, clock::now(), outcome);
    }
}
