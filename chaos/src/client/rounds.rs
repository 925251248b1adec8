//! Rounds of a client on one server: it takes a lock, works, and gives it back or does not.

use rand::RngExt;

use super::{Client, LEASE_MS_MAX, is_lost};
use crate::history::{Acquire, Mode, Outcome, Request};
use crate::locks::{Kind, in_database};

/// How often each client takes a lock once the faults are over.
const LAST_ROUNDS: usize = 3;

/// Which holds are given back.
#[derive(Clone, Copy)]
pub(super) enum Extent {
    One,
    All,
    Hold(u64),
}

/// A lock that a client believes to hold, and how often.
pub(super) struct Section {
    pub(super) lock: String,
    pub(super) token: i64,
    pub(super) holds: u64,
    pub(super) lease_ms: u64,
    pub(super) mode: Mode,
    pub(super) numbered: bool,
}

impl Section {
    /// The first hold, as it was asked for.
    pub(super) fn of(lock: &str, ask: Acquire, token: i64) -> Self {
        Self {
            lock: lock.to_owned(),
            token,
            holds: 1,
            lease_ms: ask.lease_ms,
            mode: ask.mode,
            numbered: ask.hold.is_some(),
        }
    }
}

impl Client {
    pub(super) fn work_on_one_server(&mut self) {
        while !self.faults_over() {
            match self.rng.random_range(0..100) {
                0..16 => self.place_round(),
                16..68 => self.round(),
                68..80 => self.session_round(),
                80..90 if self.is_direct() => self.quiet_round(),
                _ => self.pair_round(),
            }
            self.sleep(0, 20);
        }
        for _ in 0..LAST_ROUNDS {
            self.last_round();
        }
    }

    /// A lock, and how to hold it.
    pub(super) fn any_lock(&mut self) -> (String, Mode) {
        let kind = if self.rng.random_bool(0.75) {
            Kind::Exclusive
        } else {
            Kind::Mixed
        };
        let key = self.shared.locks.any(kind, &mut self.rng);
        let lock = in_database(self.database, &key);
        let mode = match kind {
            Kind::Mixed => match self.rng.random_range(0..10) {
                0..=1 => Mode::Exclusive,
                2..=6 => Mode::Shared,
                _ => Mode::Limited(self.rng.random_range(2..=4)),
            },
            Kind::Exclusive | Kind::Paired => Mode::Exclusive,
        };
        (lock, mode)
    }

    pub(super) fn any_lease_ms(&mut self) -> u64 {
        match self.rng.random_range(0..3) {
            0 => self.rng.random_range(50..=200),
            1 => self.rng.random_range(200..=600),
            _ => self.rng.random_range(600..=LEASE_MS_MAX),
        }
    }

    pub(super) fn any_block_ms(&mut self) -> Option<u64> {
        let may_stall = !self.is_direct();
        match self.rng.random_range(0..10) {
            0..=2 => None,
            9 if !may_stall => Some(0),
            _ => Some(self.rng.random_range(50..=1500)),
        }
    }

    /// Takes a lock, does something with it, gives it back or does not.
    fn round(&mut self) {
        let (lock, mode) = self.any_lock();
        let numbered = self.rng.random_bool(0.5);
        let ask = Acquire {
            lease_ms: self.any_lease_ms(),
            block_ms: self.any_block_ms(),
            mode,
            hold: numbered.then_some(1),
            ..Acquire::default()
        };
        let mut outcome = self.acquire(&lock, ask);
        // With the number of the hold it is safe to ask again.
        for _ in 0..3 {
            if numbered && is_lost(&outcome) && !self.faults_over() {
                outcome = self.acquire(&lock, ask);
            }
        }
        match outcome {
            Outcome::Granted(token) => {
                let mut section = Section::of(&lock, ask, token);
                let may_have_queued = ask.block_ms.is_some();
                let in_order = self.work(&mut section, may_have_queued) && self.leave(&section);
                // There is nothing to renew any more.
                if in_order && self.rng.random_bool(0.3) {
                    self.renew_with(&section, None);
                }
                // Whoever can't tell what it holds begins anew as another.
                if !in_order || self.rng.random_bool(0.5) {
                    self.owners += 1;
                }
            }
            Outcome::NotAvailable => {
                if self.rng.random_bool(0.1) {
                    self.release(&lock, None, Extent::One);
                }
            }
            _ => self.owners += 1,
        }
    }

    /// What happens while the lock is held. Returns whether all of it went as it
    /// should.
    pub(super) fn work(&mut self, section: &mut Section, may_have_queued: bool) -> bool {
        // A grant that may have been queued can't be dated; its renewal can.
        if may_have_queued && !self.renew(section) {
            return false;
        }
        for _ in 0..self.rng.random_range(0..4) {
            let rest_ms = if self.rng.random_bool(0.1) {
                section.lease_ms / 3
            } else {
                10
            };
            self.sleep(0, rest_ms);
            let in_order = match self.rng.random_range(0..9) {
                0..=1 => self.re_enter(section),
                2 if section.mode != Mode::Exclusive => self.ask_for_more(section),
                3..=4 => {
                    section.lease_ms = self.any_lease_ms();
                    self.renew(section)
                }
                5..=6 if section.holds > 1 => {
                    let hold = section.holds;
                    section.holds -= 1;
                    let extent = if section.numbered {
                        Extent::Hold(hold)
                    } else {
                        Extent::One
                    };
                    self.release(&section.lock, None, extent) == Outcome::StillHeld
                }
                8 => self.name_another_token(section),
                _ => true,
            };
            if !in_order {
                // It may have been lost, or may come into force later.
                self.release(&section.lock, None, Extent::All);
                return false;
            }
        }
        true
    }

    /// Names a token that is not that of the hold, which does nothing.
    fn name_another_token(&mut self, section: &Section) -> bool {
        let other = Some(section.token + self.rng.random_range(1..=2) * 2 - 3);
        let outcome = if self.rng.random_bool(0.5) {
            self.renew_with(section, other)
        } else {
            self.release(&section.lock, other, Extent::All)
        };
        outcome == Outcome::NotHeld
    }

    fn re_enter(&mut self, section: &mut Section) -> bool {
        // A looser mode is granted too, and changes nothing.
        let looser = self.rng.random_bool(0.1);
        let ask = Acquire {
            lease_ms: self.any_lease_ms(),
            block_ms: self.any_block_ms(),
            mode: if looser { Mode::Shared } else { section.mode },
            hold: section.numbered.then_some(section.holds + 1),
            ..Acquire::default()
        };
        let outcome = self.acquire(&section.lock, ask);
        if outcome != Outcome::Granted(section.token) {
            return false;
        }
        section.holds += 1;
        section.lease_ms = section.lease_ms.max(ask.lease_ms);
        true
    }

    /// Asks for the lock all alone, which is refused at once.
    fn ask_for_more(&mut self, section: &Section) -> bool {
        let ask = Acquire {
            lease_ms: section.lease_ms,
            block_ms: self.any_block_ms(),
            ..Acquire::default()
        };
        self.acquire(&section.lock, ask) == Outcome::Error("UPGRADE".into())
    }

    /// Gives the lock back: in time, too late, or never. Returns whether the owner
    /// can be sure to hold nothing.
    pub(super) fn leave(&mut self, section: &Section) -> bool {
        match self.rng.random_range(0..40) {
            0..=2 => return false,
            3 | 4 => {
                self.sleep(section.lease_ms + 20, section.lease_ms + 300);
                if self.rng.random_bool(0.5) {
                    self.renew(section);
                }
                self.release(&section.lock, None, Extent::All);
                return false;
            }
            _ => {}
        }
        let fence = self.rng.random_bool(0.5).then_some(section.token);
        if !section.numbered {
            return self.release(&section.lock, fence, Extent::All) == Outcome::Released;
        }
        for hold in (1..=section.holds).rev() {
            let mut outcome = self.release(&section.lock, fence, Extent::Hold(hold));
            if is_lost(&outcome) {
                outcome = self.release(&section.lock, fence, Extent::Hold(hold));
            }
            match outcome {
                Outcome::StillHeld => {}
                Outcome::Released => return hold == 1,
                _ => return false,
            }
        }
        false
    }

    /// Waits for a lock as long as it takes, and gives it back at once.
    fn last_round(&mut self) {
        self.owners += 1;
        let key = self.shared.locks.any_at_all(&mut self.rng);
        let lock = in_database(self.database, &key);
        if self.rng.random_bool(0.3) {
            return self.last_place_round(&lock);
        }
        let ask = Acquire {
            lease_ms: LEASE_MS_MAX,
            block_ms: Some(0),
            hold: Some(1),
            ..Acquire::default()
        };
        let mut outcome = Outcome::Lost;
        while is_lost(&outcome) {
            outcome = self.acquire(&lock, ask);
        }
        if matches!(outcome, Outcome::Granted(_)) {
            self.release(&lock, None, Extent::All);
        }
    }

    pub(super) fn renew(&mut self, section: &Section) -> bool {
        let named = self.rng.random_bool(0.5).then_some(section.token);
        self.renew_with(section, named) == Outcome::Renewed
    }

    pub(super) fn renew_with(&mut self, section: &Section, fence: Option<i64>) -> Outcome {
        let lease_ms = section.lease_ms;
        self.perform(&section.lock, Request::Renew { lease_ms, fence })
    }

    pub(super) fn release(&mut self, lock: &str, fence: Option<i64>, extent: Extent) -> Outcome {
        let (hold, all) = match extent {
            Extent::One => (None, false),
            Extent::All => (None, true),
            Extent::Hold(hold) => (Some(hold), false),
        };
        self.perform(lock, Request::Release { hold, fence, all })
    }
}
