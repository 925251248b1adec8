//! Clients that wait by a place in the queue, and are told by a message.
//!
//! Through the proxy a message may be lost, and a request that is sent again is another one.
//! Else it keeps its place, and its end is told.

use std::time::Duration;

use rand::RngExt;
use redis::Value;
use redis_lock_testing::{Connection, Told};

use super::{Client, transmit};
use crate::clock;
use crate::history::{Acquire, MS, Nanos, Outcome, Request};
use crate::words::outcome_of_place;

const LOOK_EVERY: Duration = Duration::from_millis(4);

/// A subscription to a channel of its own, on a second connection.
pub(crate) struct Ears {
    pub(super) channel: String,
    pub(crate) connection: Connection,
}

/// A request that stands in the queue.
pub(super) struct Place {
    ask: Acquire,
    operation: usize,
    sent: Nanos,
    queued: Nanos,
}

/// What a client does when it has waited for some time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Doubt {
    AsksAgain,
    GivesUp,
    /// It closes the connection to which the place is bound.
    ClosesSession,
}

impl Client {
    /// Hears a channel from now on. Returns whether that succeeds.
    pub(crate) fn open_ears(&mut self) -> bool {
        let mut connected = self.connected();
        let prefix = &self.shared.prefix;
        let channel = format!("{prefix}client{}-{}", self.id, self.connections);
        // In a cluster only the nodes that serve the lock's slot pass on its messages.
        let subscribe = match prefix.is_empty() {
            true => "SUBSCRIBE",
            false => "SSUBSCRIBE",
        };
        let asked = clock::now();
        let patient = || clock::now() < self.patience(asked, None).0;
        let way = self.shared.guide.way(connected.node, self.side);
        connected.ears = Connection::open(way).ok().and_then(|mut connection| {
            let heard = connection.call_while(&[subscribe, &channel], patient)?;
            let is_heard = matches!(heard, Value::Array(_));
            is_heard.then_some(Ears {
                channel,
                connection,
            })
        });
        self.connection = Some(connected);
        !self.is_deaf()
    }

    /// Whether the messages about this client's places may not come any more.
    pub(crate) fn is_deaf(&self) -> bool {
        let Some(connected) = &self.connection else {
            return true;
        };
        let primary = self.shared.guide.primary(0);
        let has_moved = self.is_direct() && primary != Some(connected.node);
        has_moved || connected.ears.is_none()
    }

    /// Whether it hears how a place ends: on this connection, or on another one.
    pub(super) fn can_be_told(&mut self) -> bool {
        if !self.is_deaf() {
            return true;
        }
        self.connection = None;
        self.open_ears()
    }

    /// Waits for a lock by a place. Sometimes it can't wait.
    pub(super) fn acquire_by_place(&mut self, lock: &str, ask: Acquire) -> Outcome {
        let place = match self.ask_for_place(lock, ask) {
            Ok(place) => place,
            Err(outcome) => return outcome,
        };
        let (mut told, mut is_sent_again, mut is_given_up) = (None, false, false);
        if let Some((at, doubt)) = self.any_doubt(&place) {
            told = self.await_told(|_| clock::now() < at);
            match doubt {
                _ if told.is_some() || self.is_deaf() => {}
                Doubt::AsksAgain => {
                    is_sent_again = true;
                    if let Some(outcome) = self.ask_again(lock, &place) {
                        return outcome;
                    }
                }
                Doubt::GivesUp => {
                    is_given_up = true;
                    // The client is told of that a little later.
                    self.shared.journal.queued(place.operation, None);
                    self.release(lock, None, None);
                }
                Doubt::ClosesSession => self.connection = None,
            }
        }
        let is_overdue = |it: &Self| clock::now() > it.patience(place.sent, ask.block_ms).0;
        let told = told.or_else(|| self.await_told(|it| !is_overdue(it)));
        // Its connection may have ended, or this is the end of the place before it was asked
        // for again.
        if matches!(told, Some((_, Outcome::NotAvailable)))
            && (is_sent_again || ask.session)
            && !is_given_up
        {
            self.release(lock, None, None);
            return self.ends(&place, None, false);
        }
        let outcome = self.ends(&place, told, true);
        match is_given_up {
            true => Outcome::NotAvailable,
            false => outcome,
        }
    }

    /// What the next message says, and when it came.
    pub(crate) fn await_told(
        &mut self,
        patient: impl Fn(&Self) -> bool,
    ) -> Option<(Nanos, Outcome)> {
        loop {
            let connected = self.connection.as_mut()?;
            match connected.ears.as_mut()?.connection.next_within(LOOK_EVERY) {
                Ok(Some(heard)) => {
                    if let Some(told) = Told::of(&heard) {
                        return Some((clock::now(), outcome_of_place(&told)));
                    }
                }
                Ok(None) => {}
                Err(_) => connected.ears = None,
            }
            if self.is_deaf() || !patient(self) {
                return None;
            }
        }
    }

    /// Asks for a place, or comes to another end.
    pub(super) fn ask_for_place(&mut self, lock: &str, ask: Acquire) -> Result<Place, Outcome> {
        let wrap = self.any_wrap(10);
        let connected = self.connected();
        if connected.ears.is_none() {
            return Err(Outcome::Lost);
        }
        let ask = Acquire {
            claim_ms: Some(self.shared.protection.claim_ms()),
            ..ask
        };
        let asked = self.ask(connected, lock, Request::Acquire(ask), wrap);
        let (operation, sent) = (asked.operation, asked.sent);
        let outcome = self.answer(asked);
        if outcome != Outcome::Pending {
            return Err(outcome);
        }
        let queued = clock::now();
        // Clients that follow the primary are promised no order.
        if !self.is_watched() {
            self.shared.journal.queued(operation, Some(queued));
        }
        Ok(Place {
            ask,
            operation,
            sent,
            queued,
        })
    }

    fn any_doubt(&mut self, place: &Place) -> Option<(Nanos, Doubt)> {
        let doubt = match self.rng.random_range(0..10) {
            _ if self.shared.is_over() || !self.is_direct() => return None,
            0..=3 => Doubt::AsksAgain,
            4 => Doubt::GivesUp,
            5..=6 if place.ask.session => Doubt::ClosesSession,
            _ => return None,
        };
        let after_ms = self.rng.random_range(0..=place.ask.block_ms.unwrap_or(0));
        Some((place.sent + after_ms * MS, doubt))
    }

    /// Sends the same request again, which keeps the place. Returns what comes of it, if that
    /// is its end.
    fn ask_again(&mut self, lock: &str, place: &Place) -> Option<Outcome> {
        let waited_ms = (clock::now() - place.sent) / MS;
        let wait_ms = place.ask.block_ms.unwrap_or(0);
        let left_ms = wait_ms.checked_sub(waited_ms + 1)?;
        let connected = self.connection.take()?;
        let ask = Acquire {
            block_ms: Some(left_ms + 1),
            ..place.ask
        };
        let line = self.line(&connected, lock, Request::Acquire(ask));
        let (words, request) = (line.split(' ').collect(), Request::Acquire(place.ask));
        let journal = &self.shared.journal;
        // A token in a reply has its full lease.
        journal.queued(place.operation, None);
        let asked = transmit(connected, place.operation, request, clock::now(), &[words]);
        let outcome = self.answer(asked);
        match outcome {
            Outcome::Pending => {
                // If the place's time was over, this is a new place, at the end.
                if clock::now() + MS < place.sent + wait_ms * MS {
                    let journal = &self.shared.journal;
                    journal.queued(place.operation, Some(place.queued));
                }
                None
            }
            // A refused request changes nothing: the place is still there.
            Outcome::Error(_) | Outcome::Deadlock(_) => {
                self.connection = None;
                Some(self.ends(place, None, false))
            }
            _ => Some(outcome),
        }
    }

    /// Notes how a place ends. If no message told that, it may have come to a client that is
    /// deaf, or that does not wait for one; or else it `is_due`.
    pub(super) fn ends(
        &mut self,
        place: &Place,
        told: Option<(Nanos, Outcome)>,
        is_due: bool,
    ) -> Outcome {
        let (at, outcome) = told.unwrap_or_else(|| {
            let outcome = match is_due && self.is_direct() && !self.is_deaf() {
                true => Outcome::Silent,
                false => self.unheard(),
            };
            self.connection = None;
            (clock::now(), outcome)
        });
        let journal = &self.shared.journal;
        journal.ended(place.operation, at, outcome.clone());
        outcome
    }

    /// What became of a place whose messages nobody hears any more.
    pub(super) fn unheard(&self) -> Outcome {
        match self.is_direct() {
            true => Outcome::Lost,
            // The server may not know that nobody listens.
            false => Outcome::GivenUp,
        }
    }
}
