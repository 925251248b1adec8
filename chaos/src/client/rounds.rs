//! Rounds of a client: it takes a lock, works, and gives it back or does not.

use std::sync::Arc;

use anyhow::{Result, bail};
use rand::RngExt;

use super::holds::{Hold, LAST_WAIT, release};
use super::{Client, Wrap};
use crate::clock;
use crate::history::{Acquire, MS, Mode, Outcome, Request};
use crate::locks::{EXCLUSIVE, MIXED, PAIRED, in_database};
use crate::protection::CLAIM_TIMEOUT_MS;

/// How long a request waits in the queue at most, if not for ever.
const BLOCK_MS_MAX: u64 = 1500;

/// How long a hold is renewed at most, by clients that go from one primary to the next.
const HOLD_MS_MAX: u64 = 6000;

/// The server must find the time to renew even the shortest lease of a session.
const SESSION_LEASE_MS_MIN: u64 = 600;

impl Client {
    /// Works until the faults are over, and then takes each lock once more.
    pub fn run(mut self) -> Result<()> {
        while !self.shared.is_over() {
            match self.rng.random_range(0..100) {
                0..35 if self.is_watched() => self.round(true, false),
                _ if self.is_watched() => self.round(false, false),
                0..16 => self.apart(|it| it.round(true, false)),
                16..20 => self.apart(|it| it.round(true, true)),
                20..68 => self.round(false, false),
                68..80 => self.apart(|it| it.round(false, true)),
                80..90 if self.is_direct() => self.apart(Self::quiet_round),
                _ => self.apart(Self::pair_round),
            }
            let pause_ms = if self.is_watched() { 60 } else { 20 };
            self.sleep(0, pause_ms);
        }
        let shared = Arc::clone(&self.shared);
        let mut keys = shared.locks.names.iter();
        keys.try_for_each(|key| self.last_round(&in_database(self.database, key)))
    }

    /// Does something as another owner, and by another connection than usual.
    fn apart(&mut self, round: fn(&mut Self)) {
        let usual = self.connection.take();
        self.owners += 1;
        round(self);
        self.owners += 1;
        self.connection = usual;
    }

    /// A lock, and how to hold it.
    pub(super) fn any_lock(&mut self) -> (String, Mode) {
        if self.is_watched() {
            return (self.shared.locks.any_at_all(&mut self.rng), Mode::Exclusive);
        }
        let is_mixed = self.rng.random_bool(0.25);
        let kind = if is_mixed { MIXED } else { EXCLUSIVE };
        let (key, _) = self.shared.locks.any_two(kind, &mut self.rng);
        let mode = match self.rng.random_range(0..10) {
            2..=6 if is_mixed => Mode::Shared,
            7.. if is_mixed => Mode::Limited(self.rng.random_range(2..=4)),
            _ => Mode::Exclusive,
        };
        (in_database(self.database, &key), mode)
    }

    /// A random lease; for a session never a short one.
    pub(super) fn any_lease_ms(&mut self, session: bool) -> u64 {
        match self.rng.random_range(0..3) {
            0 if !session => self.rng.random_range(50..=200),
            1 if !session => self.rng.random_range(200..=600),
            _ => {
                let most = self.shared.protection.lease_max_ms;
                self.rng.random_range(SESSION_LEASE_MS_MIN..=most)
            }
        }
    }

    pub(super) fn any_block_ms(&mut self) -> Option<u64> {
        match self.rng.random_range(0..10) {
            0..=2 => None,
            9 if self.is_direct() => Some(0),
            _ => Some(self.rng.random_range(50..=BLOCK_MS_MAX)),
        }
    }

    /// Takes a lock, does something with it, gives it back or does not. A session ends with
    /// the connection.
    fn round(&mut self, by_place: bool, session: bool) {
        let (lock, mode) = self.any_lock();
        let ask = Acquire {
            lease_ms: self.any_lease_ms(session),
            block_ms: match by_place {
                true => Some(self.rng.random_range(50..=BLOCK_MS_MAX)),
                false => self.any_block_ms(),
            },
            mode,
            // A place is for a first hold anyway.
            hold: (by_place || !session && self.rng.random_bool(0.6)).then_some(1),
            session,
            claim_ms: by_place.then(|| self.shared.protection.claim_ms()),
        };
        let mut in_order = false;
        if let Some(mut hold) = self.take(&lock, ask)
            && self.claims(&mut hold)
        {
            in_order = self.work(&mut hold) && self.leave(&mut hold);
            // There is nothing to renew any more.
            if in_order && !self.is_watched() && self.rng.random_bool(0.3) {
                let (lease_ms, fence) = (hold.ask.lease_ms, None);
                self.perform(&lock, Request::Renew { lease_ms, fence });
            }
        }
        // A client that can't tell what it holds begins anew as another owner.
        if !in_order || self.is_watched() || self.rng.random_bool(0.5) {
            self.owners += 1;
        }
    }

    /// Whether a client that is told of a grant claims it in time. On one server some do not.
    fn claims(&mut self, hold: &mut Hold) -> bool {
        if !hold.is_told || self.is_watched() || self.shared.is_over() {
            return true;
        }
        match self.rng.random_range(0..20) {
            way @ 0..=3 if way == 0 || hold.ask.session => {
                self.sleep(CLAIM_TIMEOUT_MS + 300, CLAIM_TIMEOUT_MS + 900);
            }
            1 => {}
            2 => self.connection = None,
            3 => {
                self.sleep(CLAIM_TIMEOUT_MS, CLAIM_TIMEOUT_MS + 300);
                self.renew(hold, true);
                self.release(&hold.lock, None, None);
            }
            // As a client that does not trust the message.
            4..=6 => return self.confirm(hold, true),
            _ => return true,
        }
        false
    }

    /// Holds one lock and waits for another, each client in an order of its own, so that
    /// some wait for each other. A client that is refused gives way.
    fn pair_round(&mut self) {
        let (first, second) = self.shared.locks.any_two(PAIRED, &mut self.rng);
        let [first, second] = [first, second].map(|key| in_database(self.database, &key));
        let mut ask = Acquire {
            lease_ms: self.shared.protection.lease_max_ms,
            block_ms: Some(self.rng.random_range(300..=1000)),
            ..Acquire::default()
        };
        let by_place = self.is_direct() && self.rng.random_bool(0.4);
        if self.acquire(&first, ask).token().is_none() {
            return;
        }
        self.sleep(0, 30);
        if self.rng.random_bool(0.2) {
            ask.mode = Mode::Shared;
        }
        let outcome = match by_place {
            true if self.can_be_told() => self.acquire_by_place(&second, ask),
            _ => self.acquire(&second, ask),
        };
        if outcome.token().is_some() {
            self.sleep(0, 10);
            self.release(&second, None, None);
        }
        self.release(&first, None, None);
    }

    /// What happens while the lock is held. Returns whether all of it went as it should.
    pub(super) fn work(&mut self, hold: &mut Hold) -> bool {
        let ask = hold.ask;
        // A grant that may have waited can't be dated; its renewal can. A session needs none.
        let may_be_old = ask.block_ms.is_some() && (!ask.session || ask.claim_ms.is_some());
        if may_be_old && !self.renew(hold, true) {
            return false;
        }
        if let Some(workload) = self.shared.workload {
            self.add(workload, hold);
            return true;
        }
        let (short_ms, long_ms, chance) = match self.is_watched() {
            true => (60, HOLD_MS_MAX, 0.2),
            false => (20, ask.lease_ms, 0.1),
        };
        let is_long = self.rng.random_bool(chance);
        let most_ms = if is_long { long_ms } else { short_ms };
        let end = clock::now() + self.rng.random_range(0..=most_ms) * MS;
        while clock::now() < end && !self.shared.is_over() {
            let left_ms = end.saturating_sub(clock::now()) / MS;
            // A session works for longer than its lease without a renewal.
            let unrenewed_ms = match ask.session {
                true => left_ms,
                false => left_ms.min(hold.ask.lease_ms / 3),
            };
            self.sleep(0, unrenewed_ms);
            if !self.act(hold) {
                if !self.is_watched() {
                    // The request may have been lost, or may take effect later.
                    self.release(&hold.lock, None, None);
                }
                return false;
            }
        }
        true
    }

    /// One thing that a holder does. Returns whether it went as it should.
    fn act(&mut self, hold: &mut Hold) -> bool {
        if hold.ask.session {
            let asks_again = self.rng.random_bool(0.3);
            return (!asks_again || self.confirm(hold, true)) && self.ping(&hold.lock);
        }
        if self.is_watched() {
            return match hold.ask.hold.is_some() && self.rng.random_bool(0.2) {
                // A grace period may be the reason why it is not confirmed.
                true => self.confirm(hold, false) || self.shared.protection.grace_ms() > 0,
                false => self.renew(hold, false),
            };
        }
        let (lease_ms, sent) = (self.any_lease_ms(false), clock::now());
        let fence = Some(hold.token + self.rng.random_range(1..=2) * 2 - 3);
        let ask = Acquire {
            lease_ms,
            block_ms: self.any_block_ms(),
            ..Acquire::default()
        };
        let (request, expected) = match self.rng.random_range(0..9) {
            0..=1 => {
                // A looser mode is granted too, and changes nothing.
                let is_looser = self.rng.random_bool(0.1);
                let looser = is_looser.then_some(Mode::Shared);
                let ask = Acquire {
                    mode: looser.unwrap_or(hold.ask.mode),
                    hold: hold.ask.hold.map(|_| hold.count + 1),
                    ..ask
                };
                (Request::Acquire(ask), Outcome::Granted(hold.token))
            }
            // A request for an exclusive hold is refused at once.
            2 if hold.ask.mode != Mode::Exclusive => {
                (Request::Acquire(ask), Outcome::Error("UPGRADE".into()))
            }
            3..=4 => {
                hold.ask.lease_ms = lease_ms;
                return self.renew(hold, false);
            }
            5..=6 if hold.count > 1 => {
                let (count, fence, all) = (hold.ask.hold.map(|_| hold.count), None, false);
                let hold = count;
                (Request::Release { hold, fence, all }, Outcome::StillHeld)
            }
            // A request with another token than the hold's does nothing.
            7 => (Request::Renew { lease_ms, fence }, Outcome::NotHeld),
            8 => (release(None, fence), Outcome::NotHeld),
            _ => return true,
        };
        if self.perform(&hold.lock, request) != expected {
            return false;
        }
        match expected {
            Outcome::Granted(_) => {
                hold.count += 1;
                hold.ask.lease_ms = hold.ask.lease_ms.max(lease_ms);
                hold.lasts(self, lease_ms, sent);
            }
            Outcome::StillHeld => hold.count -= 1,
            _ => {}
        }
        true
    }

    /// Gives the lock back: in time, too late, or never. Returns whether the owner
    /// can be sure to hold nothing.
    pub(super) fn leave(&mut self, hold: &mut Hold) -> bool {
        match self.rng.random_range(0..40) {
            _ if hold.ask.session => {
                if self.rng.random_bool(0.2) {
                    self.release(&hold.lock, None, None);
                }
                // A proxy passes the end of a connection on in its own time.
                if let Some(connected) = self.connection.take()
                    && self.is_direct()
                {
                    self.close(&hold.lock, connected);
                }
                false
            }
            0..=2 if self.shared.workload.is_none() => false,
            3 | 4 if !self.is_watched() => {
                self.sleep(hold.ask.lease_ms + 20, hold.ask.lease_ms + 300);
                if self.rng.random_bool(0.5) {
                    self.renew(hold, true);
                }
                self.release(&hold.lock, None, None);
                false
            }
            _ => self.give_back(hold),
        }
    }

    /// Takes a lock when all is well, which has to succeed, and gives it back.
    fn last_round(&mut self, lock: &str) -> Result<()> {
        self.owners += 1;
        let by_place = self.rng.random_bool(0.5);
        let is_patient = !by_place && !self.is_watched();
        let ask = Acquire {
            lease_ms: self.shared.protection.lease_max_ms,
            block_ms: Some(if is_patient { 0 } else { BLOCK_MS_MAX }),
            claim_ms: by_place.then(|| self.shared.protection.claim_ms()),
            hold: Some(1),
            ..Acquire::default()
        };
        let wait = LAST_WAIT + self.shared.protection.grace_ms() * MS;
        let deadline = clock::now() + wait;
        loop {
            if let Some(hold) = self.take(lock, ask) {
                self.give_back(&hold);
                return Ok(());
            }
            if clock::now() > deadline {
                bail!("client {} can't get {lock} in the end", self.id);
            }
        }
    }

    /// Shows that the connection lives.
    pub(super) fn ping(&mut self, lock: &str) -> bool {
        let Some(connected) = self.connection.take() else {
            return false;
        };
        let asked = self.ask(connected, lock, Request::Ping, Wrap::Plain);
        self.answer(asked) == Outcome::Done
    }
}
