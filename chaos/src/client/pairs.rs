//! Clients that take two locks, each in an order of its own, so that some wait
//! for each other.

use rand::RngExt;

use super::rounds::Extent;
use super::{Client, LEASE_MS_MAX};
use crate::history::{Acquire, Mode, Outcome};
use crate::locks::{Kind, in_database};

impl Client {
    /// Holds one lock and waits for another. Whoever is refused gives way.
    pub(super) fn pair_round(&mut self) {
        self.owners += 1;
        let (first, second) = self.shared.locks.any_two(Kind::Paired, &mut self.rng);
        let [first, second] = [first, second].map(|key| in_database(self.database, &key));
        let ask = Acquire {
            lease_ms: LEASE_MS_MAX,
            block_ms: Some(self.rng.random_range(300..=1000)),
            ..Acquire::default()
        };
        let by_place = self.is_direct() && self.rng.random_bool(0.4);
        let usual = by_place.then(|| self.connection.take());
        let in_resp3 = self.rng.random_bool(0.5);
        let by_place = by_place && self.open_ears(in_resp3);
        if matches!(self.acquire(&first, ask), Outcome::Granted(_)) {
            self.sleep(0, 30);
            let mode = if self.rng.random_bool(0.2) {
                Mode::Shared
            } else {
                Mode::Exclusive
            };
            let ask = Acquire { mode, ..ask };
            let outcome = match by_place {
                true => self.acquire_by_place(&second, ask),
                false => self.acquire(&second, ask),
            };
            if outcome.token().is_some() {
                self.sleep(0, 10);
                self.release(&second, None, Extent::All);
            }
            self.release(&first, None, Extent::All);
        }
        if let Some(usual) = usual {
            self.close_ears();
            self.connection = usual;
        }
        self.owners += 1;
    }
}
