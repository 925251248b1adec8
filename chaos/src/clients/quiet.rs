//! Locks that only two owners want, so that nothing but the end of a hold makes
//! the server look at them.

use rand::RngExt;

use super::{Ask, Client, Extent, Wrap, acquire_words};
use crate::history::{Mode, Outcome};
use crate::locks::in_database;

impl Client {
    /// Lets a lease or a session end while another owner waits.
    pub(super) fn quiet_round(&mut self) {
        self.owners += 1;
        let (holder, waiter) = (self.owners, self.owners + 1);
        let lock = in_database(self.database, &format!("quiet:{}", self.id));
        let session = self.rng.random_bool(0.5);
        let lease_ms = if session { 600..=1200 } else { 50..=300 };
        let ask = Ask {
            lease_ms: self.rng.random_range(lease_ms),
            block_ms: Some(500),
            mode: Mode::Exclusive,
            hold: None,
            session,
        };
        // A session has a connection of its own.
        let usual = self.connection.take();
        let held = matches!(self.acquire(&lock, ask), Outcome::Granted(_)) && self.ping(&lock);
        let own = self.connection.take();
        if held {
            self.owners = waiter;
            let connected = self.connected();
            let ask = Ask {
                block_ms: Some(1500),
                session: false,
                ..ask
            };
            let (request, words) = acquire_words(ask);
            let wrap = Wrap::Plain;
            let command = "LOCK.ACQUIRE";
            let asked = self.ask(connected, command, &lock, request, &words, wrap, None);
            self.sleep(20, 60);
            self.owners = holder;
            if let Some(own) = own
                && session
            {
                self.close(&lock, own);
            }
            self.owners = waiter;
            let (outcome, connected) = self.hear(asked);
            self.connection = connected;
            if matches!(outcome, Outcome::Granted(_)) {
                self.release(&lock, None, Extent::All);
            }
        } else if let Some(own) = own {
            self.close(&lock, own);
        }
        self.owners = waiter + 1;
        self.connection = usual;
    }
}
