//! Clients that wait by places in the queue, many at a time, and are told by messages.
//!
//! Through the proxy a message may be lost. So there a request that is sent again is
//! another one, and nobody knows what became of the first. Else it keeps its place, and
//! its end is told.

use std::thread;
use std::time::Duration;

use rand::RngExt;
use redis_lock_testing::Told;

use super::holds::Hold;
use super::{Client, Wrap, transmit};
use crate::clock;
use crate::history::{Acquire, MS, Nanos, Outcome, Request};
use crate::locks::in_database;
use crate::protection::CLAIM_TIMEOUT_MS;
use crate::words::outcome_of_place;

const LOOK_EVERY: Duration = Duration::from_millis(4);

/// A request that stands in the queue.
pub(super) struct Place {
    owner: usize,
    lock: String,
    ask: Acquire,
    operation: usize,
    connection: usize,
    sent: Nanos,
    queued: Nanos,
    next: Option<(Nanos, Doubt)>,
    is_sent_again: bool,
    is_given_up: bool,
}

/// What somebody does who has waited for some time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Doubt {
    AsksAgain,
    GivesUp,
    /// The connection ends to which the place is bound.
    ClosesSession,
}

impl Client {
    /// Has some places, and serves the messages as they come.
    pub(super) fn place_round(&mut self) {
        let in_resp3 = self.rng.random_bool(0.5);
        if !self.open_ears(in_resp3) {
            return;
        }
        let mut line = Vec::new();
        for _ in 0..self.rng.random_range(1..=4) {
            if self.is_deaf() {
                break;
            }
            self.owners += 1;
            let (lock, mode) = self.any_lock();
            let session = self.rng.random_bool(0.2);
            let ask = Acquire {
                lease_ms: self.any_lease_ms(session),
                block_ms: Some(self.rng.random_range(50..=1500)),
                mode,
                hold: self.rng.random_bool(0.5).then_some(1),
                session,
                ..Acquire::default()
            };
            match self.ask_for_place(&lock, ask) {
                Ok(place) => line.push(place),
                Err(outcome) => self.hold(&lock, ask, &outcome, clock::now()),
            }
        }
        if self.rng.random_bool(0.1) {
            self.close_ears();
        }
        self.serve(line);
    }

    /// Waits for a lock by a place, and does nothing else meanwhile.
    pub(super) fn acquire_by_place(&mut self, lock: &str, ask: Acquire) -> Outcome {
        match self.ask_for_place(lock, ask) {
            Ok(place) => self.await_end(&place, None),
            Err(outcome) => outcome,
        }
    }

    /// Waits until a message tells of the end of a place, which need not come if this says
    /// for how long.
    pub(super) fn await_end(&mut self, place: &Place, until: Option<Nanos>) -> Outcome {
        let told = self.await_told(|client| match until {
            Some(until) => clock::now() < until,
            None => !client.is_overdue(place),
        });
        let (at, outcome) = told.unwrap_or_else(|| {
            let outcome = match until.is_none() && self.is_direct() && !self.is_deaf() {
                true => Outcome::Silent,
                false => self.unheard(),
            };
            self.close_ears();
            (clock::now(), outcome)
        });
        let journal = &self.shared.journal;
        journal.ended(place.operation, at, outcome.clone());
        outcome
    }

    /// What the next message says, and when it came.
    pub(crate) fn await_told(
        &mut self,
        patient: impl Fn(&Self) -> bool,
    ) -> Option<(Nanos, Outcome)> {
        loop {
            self.listen();
            if let Some((at, told)) = self.next_told() {
                return Some((at, outcome_of_place(&told)));
            }
            if self.is_deaf() || !patient(self) {
                return None;
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Asks for a place, or comes to another end.
    pub(super) fn ask_for_place(&mut self, lock: &str, ask: Acquire) -> Result<Place, Outcome> {
        let wrap = self.any_wrap(10);
        let connected = self.connected();
        if self.ears.is_none() {
            return Err(Outcome::Lost);
        }
        let ask = Acquire {
            claim_ms: Some(self.shared.protection.claim_ms()),
            ..ask
        };
        let asked = self.ask(connected, lock, Request::Acquire(ask), wrap);
        let (operation, sent) = (asked.operation, asked.sent);
        let connection = asked.connected.number;
        let outcome = self.answer(asked);
        if outcome != Outcome::Pending {
            return Err(outcome);
        }
        let queued = clock::now();
        // Nothing is promised of the order in which those are served who follow the primary.
        if !self.is_watched() {
            self.shared.journal.queued(operation, Some(queued));
        }
        Ok(Place {
            owner: self.owners,
            lock: lock.to_owned(),
            ask,
            operation,
            connection,
            sent,
            queued,
            next: self.any_doubt(sent, ask),
            is_sent_again: false,
            is_given_up: false,
        })
    }

    fn any_doubt(&mut self, sent: Nanos, ask: Acquire) -> Option<(Nanos, Doubt)> {
        let doubt = match self.rng.random_range(0..10) {
            _ if self.faults_over() => return None,
            0..=3 => Doubt::AsksAgain,
            4 => Doubt::GivesUp,
            5..=6 if ask.session && self.is_direct() => Doubt::ClosesSession,
            _ => return None,
        };
        let after_ms = self.rng.random_range(0..=ask.block_ms.unwrap_or(0));
        Some((sent + after_ms * MS, doubt))
    }

    /// Serves messages until all places have come to an end.
    fn serve(&mut self, mut line: Vec<Place>) {
        let newest = self.owners;
        while !line.is_empty() {
            self.listen();
            let now = clock::now();
            let is_due = |place: &Place| place.next.is_some_and(|(at, _)| at <= now);
            if let Some((at, told)) = self.next_told() {
                self.end(&mut line, at, &told);
            } else if self.is_deaf() {
                break;
            } else if let Some(index) = line.iter().position(is_due) {
                self.doubt(&mut line, index);
            } else if let Some(index) = line.iter().position(|place| self.is_overdue(place)) {
                let place = line.swap_remove(index);
                // The message may have been lost while there were faults.
                let outcome = match self.is_direct() {
                    true => Outcome::Silent,
                    false => Outcome::GivenUp,
                };
                self.ended(place.operation, outcome);
                self.owners = place.owner;
                self.release(&place.lock, None, None);
            } else {
                thread::sleep(LOOK_EVERY);
            }
        }
        self.owners = newest;
        if !line.is_empty() {
            self.close_ears();
            line.iter().for_each(|place| self.ends_unheard(place));
        }
    }

    /// Nobody hears any more what becomes of a place.
    pub(super) fn ends_unheard(&self, place: &Place) {
        self.ended(place.operation, self.unheard());
    }

    pub(super) fn unheard(&self) -> Outcome {
        match self.is_direct() {
            true => Outcome::Lost,
            // The server may not know that nobody listens.
            false => Outcome::GivenUp,
        }
    }

    fn is_overdue(&self, place: &Place) -> bool {
        clock::now() > self.patience(place.sent, place.ask.block_ms).0
    }

    /// Ends the place of which a message tells.
    fn end(&mut self, line: &mut Vec<Place>, at: Nanos, told: &Told) {
        let lock = in_database(told.db, &String::from_utf8_lossy(&told.key));
        let is_meant = |place: &Place| {
            place.lock == lock && told.owner == format!("client{}-{}", self.id, place.owner)
        };
        let Some(index) = line.iter().position(is_meant) else {
            return;
        };
        let place = line.swap_remove(index);
        let outcome = outcome_of_place(told);
        self.owners = place.owner;
        // Its connection may have ended, or this is the end of the place before it was
        // asked for again.
        let ends_otherwise = place.is_sent_again || place.ask.session;
        if outcome == Outcome::NotAvailable && ends_otherwise && !place.is_given_up {
            self.release(&place.lock, None, None);
            return self.ends_unheard(&place);
        }
        let journal = &self.shared.journal;
        journal.ended(place.operation, at, outcome.clone());
        if !place.is_given_up {
            self.hold(&place.lock, place.ask, &outcome, at);
        }
    }

    fn doubt(&mut self, line: &mut Vec<Place>, index: usize) {
        self.owners = line[index].owner;
        match line[index].next.take() {
            Some((_, Doubt::AsksAgain)) => self.send_again(line, index),
            Some((_, Doubt::GivesUp)) => {
                line[index].is_given_up = true;
                let (operation, lock) = (line[index].operation, line[index].lock.clone());
                // It is told so a little later.
                self.shared.journal.queued(operation, None);
                self.release(&lock, None, None);
            }
            Some((_, Doubt::ClosesSession)) => {
                // The server may grant it before it sees the end. With RESP2 that is
                // heard for a while.
                self.connection = None;
                self.sleep(0, 400);
                self.listen();
                while let Some((at, told)) = self.next_told() {
                    self.end(line, at, &told);
                }
                self.close_ears();
            }
            None => {}
        }
    }

    /// Sends the same request again. Who has missed no message keeps the place.
    fn send_again(&mut self, line: &mut Vec<Place>, index: usize) {
        let waited_ms = (clock::now() - line[index].sent) / MS;
        let wait_ms = line[index].ask.block_ms.unwrap_or(0);
        let left_ms = wait_ms.saturating_sub(waited_ms);
        let connected = self.connected();
        let place = &mut line[index];
        // On another connection it would be another session.
        let is_other_session = place.ask.session && connected.number != place.connection;
        let (true, 1.., false) = (self.ears.is_some(), left_ms, is_other_session) else {
            self.connection = Some(connected);
            return;
        };
        place.is_sent_again = true;
        let ask = Acquire {
            block_ms: Some(left_ms),
            ..place.ask
        };
        let asked = match self.is_direct() {
            true => {
                let line = self.line(&place.lock, Request::Acquire(ask));
                let words = line.split(' ').collect();
                let (operation, request) = (place.operation, Request::Acquire(place.ask));
                transmit(connected, operation, request, clock::now(), &[words])
            }
            false => {
                self.shared
                    .journal
                    .ended(place.operation, clock::now(), Outcome::GivenUp);
                let asked = self.ask(connected, &place.lock, Request::Acquire(ask), Wrap::Plain);
                (place.operation, place.sent) = (asked.operation, asked.sent);
                place.ask = ask;
                asked
            }
        };
        if self.is_direct() {
            // A token that is replied has its full lease.
            self.shared.journal.queued(line[index].operation, None);
        }
        let since = line[index].queued;
        let outcome = self.answer(asked);
        if outcome == Outcome::Pending {
            let (now, place) = (clock::now(), &line[index]);
            let is_kept = now + MS < place.sent + wait_ms * MS;
            let journal = &self.shared.journal;
            match self.is_direct() {
                // What was told of it may have been lost.
                false => journal.queued(place.operation, Some(now)),
                true if is_kept => journal.queued(place.operation, Some(since)),
                // Its time may have been over. Then this is another one, at the end.
                true => {}
            }
            return;
        }
        let place = line.swap_remove(index);
        // What is refused changes nothing: the place is still there.
        if matches!(outcome, Outcome::Error(_) | Outcome::Deadlock(_)) {
            self.close_ears();
            self.ends_unheard(&place);
        }
        self.hold(&place.lock, place.ask, &outcome, clock::now());
    }

    /// Has the lock if this says so, a reply or a message that is to be claimed.
    fn hold(&mut self, lock: &str, ask: Acquire, outcome: &Outcome, at: Nanos) {
        let hold = Some(1);
        let ask = Acquire { hold, ..ask };
        let Some(mut hold) = Hold::told(self, (lock, ask), outcome, at) else {
            return;
        };
        let claim_ms = CLAIM_TIMEOUT_MS;
        let is_told = matches!(outcome, Outcome::Told { .. });
        let way = match self.faults_over() {
            true => 19,
            false if is_told && ask.session && self.rng.random_bool(0.2) => 4,
            false => self.rng.random_range(0..20),
        };
        let claims = match way {
            0..=2 => self.acquires_again(&hold) && self.work(&mut hold),
            3 => {
                self.sleep(claim_ms, claim_ms + 300);
                self.renew(&mut hold, true);
                false
            }
            // Nobody claims it.
            4 if is_told => return self.sleep(claim_ms + 300, claim_ms + 900),
            5 if is_told => return,
            6 => return self.close_ears(),
            19 => false,
            _ => self.work(&mut hold),
        };
        let is_left = claims && !ask.session && self.leave(&mut hold);
        if !is_left {
            self.release(lock, None, None);
        }
    }
}
