//! Holdings of a client that goes from one primary to the next, and counts its leases itself.
//!
//! # What is judged
//!
//! One history of all clients, whoever was the primary, and no fail-over is excused in it
//! ([`crate::history`]):
//!
//! - **Exclusion**: certain holds of two owners in one lock never overlap.
//! - **Tokens**: a later holding has a greater token.
//! - **Possession**: a hold that was told is kept, where the mode promises that
//!   ([`Protection::keeps_holds`](crate::protection::Protection::keeps_holds)).
//!
//! Order and prompt hand-offs are not promised across fail-overs. But when the faults are over
//! every client has to get every lock.
//!
//! # What the clients keep to
//!
//! - Some wait by a place in the queue, and are told by a message. They claim at once
//!   what they are told. Their connections hear a channel that no other one hears. Where
//!   the server blocks no connection that has subscribed, they have another one for that.
//! - An owner is there for one holding. Who released a hold, or was told that it
//!   has none, never asks again as that owner: a hold that the old primary had
//!   ended may be in the data of the new one, with its old token.
//! - Who holds counts its lease from when it sent the request, less what it keeps
//!   in hand, and sends no more renewals when that is over. A grant that may have
//!   waited is renewed at once.
//! - `NOREPLICAS` is not believed, neither as a yes nor as a no: in the history
//!   the outcome is unknown. The client asks again with `HOLD`, or releases. Nor are
//!   `UNBLOCKED`, and in a cluster `MOVED`, which a primary that is demoted says of all
//!   that it withholds.
//! - The clocks of all nodes and clients are that of one machine.
//! - A client asks a witness who is the primary, and works with a node only if
//!   that says so itself.
//!
//! A primary that is no longer the one may say that it knows nothing of a hold. That is no
//! breach, as it grants nothing by that: where some witness names another node just after the
//! answer, it is dismissed. Whoever was granted something by that other node had it named by a
//! witness, and witnesses are never hurt. With a grace period, what was told before a start or
//! a promotion may be lost, and an `ACQUIRE` that was sent within it tells of no hold.
//!
//! # Why it would notice
//!
//! Besides `plain`, a protection that is too weak has to be found at fault:
//! `--mode min-replicas --replicas 1`, and `--mode grace --grace 500`. In a cluster that may
//! take long: a primary that the others don't hear soon takes no writes, so fewer holds
//! outlive it.

use rand::RngExt;
use redis_lock_testing::{Connection, info_field, reply_text};

use super::{Client, Connected};
use crate::clock;
use crate::history::{Acquire, MS, Nanos, Outcome, Request};

/// What a client keeps in hand of a lease.
const IN_HAND: Nanos = 20 * MS;

/// How long a request waits in the queue at most.
const BLOCK_MS_MAX: u64 = 1200;

/// How long a hold is renewed at most.
const HOLD_MS_MAX: u64 = 6000;

/// How often a request is sent again whose outcome is unknown.
const RESENT_MAX: usize = 5;

/// How long each lock may take to be had when all is well.
pub(super) const LAST_WAIT: Nanos = 30_000 * MS;

/// What an answer counts as that says nothing about whether a hold is there.
pub(super) const DISMISSED: &str = "DISMISSED";

/// A hold as its client sees it.
#[derive(Clone)]
pub(super) struct Hold {
    pub(super) lock: String,
    pub(super) ask: Acquire,
    pub(super) token: i64,
    valid_until: Nanos,
    /// The reign in which it was told of last.
    reign: String,
}

/// What a primary says of itself.
#[derive(Default)]
pub(super) struct Reign {
    /// The name of its data: another one after each promotion.
    name: String,
    /// Its grace period is over by then.
    grace_until: Nanos,
    /// Whether it blocks no connection that has subscribed, as Valkey from 8.1 on. What has
    /// to be acknowledged could not be told to it.
    blocks_no_subscriber: bool,
}

impl Reign {
    /// Asks for it. Who is no primary has none.
    pub(super) fn of(connection: &mut Connection, patient: impl FnMut() -> bool) -> Option<Self> {
        let info = connection.call_while(&["INFO", "server", "replication", "lock"], patient);
        let info = info.and_then(reply_text)?;
        let grace_ms: u64 = info_field(&info, "lock_grace_ms").ok()?.parse().ok()?;
        let version = info_field(&info, "valkey_version").unwrap_or("0");
        let mut numbers = version.trim().split('.').map(|number| number.parse().ok());
        let [major, minor]: [Option<u32>; 2] = [(); 2].map(|()| numbers.next().flatten());
        (info_field(&info, "role").ok()?.trim() == "master").then_some(Self {
            name: info_field(&info, "master_replid").ok()?.to_owned(),
            grace_until: clock::now() + grace_ms * MS,
            blocks_no_subscriber: (major, minor) >= (Some(8), Some(1)),
        })
    }
}

impl Client {
    /// Works until the faults are over, and then takes each lock once more.
    pub(super) fn follow(&mut self) -> Result<(), String> {
        while !self.faults_over() {
            self.holding();
            self.sleep(0, 60);
        }
        let locks = self.shared.locks.names().to_vec();
        locks.iter().try_for_each(|lock| self.last_holding(lock))
    }

    /// A number that no other holding has.
    pub(super) fn element(&self) -> u64 {
        (1_000_000 * self.id + self.owners) as u64
    }

    fn any_ask(&mut self) -> Acquire {
        let most = self.shared.protection.lease_max_ms;
        let lease_ms = if self.rng.random_bool(0.5) {
            self.rng.random_range(100..=600)
        } else {
            self.rng.random_range(600..=most)
        };
        let waits = self.rng.random_bool(0.6);
        let by_place = waits && self.rng.random_bool(0.5);
        Acquire {
            lease_ms,
            block_ms: waits.then(|| self.rng.random_range(50..=BLOCK_MS_MAX)),
            claim_ms: by_place.then(|| self.shared.protection.claim_ms()),
            // A place is for a first hold anyway.
            hold: (by_place || self.rng.random_bool(0.7)).then_some(1),
            ..Acquire::default()
        }
    }

    /// Takes a lock, keeps it for a while, and gives it back or does not.
    fn holding(&mut self) {
        self.owners += 1;
        let lock = self.shared.locks.any_at_all(&mut self.rng);
        let ask = self.any_ask();
        let Some(mut hold) = self.take(&lock, ask) else {
            return;
        };
        // A grant that may have waited can't be dated; its renewal can.
        if ask.block_ms.is_some() && !self.renew_hold(&mut hold, true) {
            return;
        }
        if let Some(workload) = self.shared.workload {
            self.add(workload, &hold);
            return self.release_hold(&hold);
        }
        let keep_ms = match self.rng.random_range(0..10) {
            0..8 => self.rng.random_range(0..=60),
            _ => self.rng.random_range(60..=HOLD_MS_MAX),
        };
        let end = clock::now() + keep_ms * MS;
        while clock::now() < end && !self.faults_over() {
            let third = hold.ask.lease_ms / 3;
            let left_ms = end.saturating_sub(clock::now()) / MS;
            self.sleep(0, third.min(left_ms));
            let still_holds = if ask.hold.is_some() && self.rng.random_bool(0.2) {
                // It may be a grace period that does not confirm it.
                self.confirm(&mut hold) || self.shared.protection.grace_ms() > 0
            } else {
                self.renew_hold(&mut hold, false)
            };
            if !still_holds {
                return;
            }
        }
        if self.rng.random_bool(0.9) {
            self.release_hold(&hold);
        }
    }

    /// Asks for a lock, again if nobody knows what became of it.
    fn take(&mut self, lock: &str, ask: Acquire) -> Option<Hold> {
        for _ in 0..RESENT_MAX {
            let sent = clock::now();
            let outcome = match ask.claim_ms {
                Some(_) if !self.can_be_told() => Outcome::Lost,
                Some(_) => self.acquire_by_place(lock, ask),
                None => self.acquire(lock, ask),
            };
            match outcome {
                Outcome::Granted(token) | Outcome::Told { token, .. } => {
                    let lease_ms = match outcome {
                        Outcome::Told { lease_ms, .. } => lease_ms,
                        _ => ask.lease_ms,
                    };
                    return Some(Hold {
                        lock: lock.to_owned(),
                        ask,
                        token,
                        valid_until: sent + (lease_ms * MS).saturating_sub(IN_HAND),
                        reign: self.reign(),
                    });
                }
                Outcome::NotAvailable => return None,
                _ if ask.hold.is_none() || self.faults_over() => break,
                _ => self.sleep(10, 50),
            }
        }
        let (hold, fence, all) = (None, None, true);
        self.perform(lock, Request::Release { hold, fence, all });
        None
    }

    /// Whether it hears how a place ends: on this connection, or on another one.
    fn can_be_told(&mut self) -> bool {
        if self.connection.is_some() && !self.is_deaf() {
            return true;
        }
        self.close_ears();
        let connected = self.connected();
        let in_resp3 = !connected.reign.blocks_no_subscriber;
        self.connection = Some(connected);
        self.open_ears(in_resp3)
    }

    /// Asks for the same hold again. Returns whether the client still has it.
    fn confirm(&mut self, hold: &mut Hold) -> bool {
        // A holder never waits.
        let claim_ms = None;
        let request = Request::Acquire(Acquire {
            claim_ms,
            ..hold.ask
        });
        self.repeat(hold, request, false)
    }

    /// Renews a hold. Returns whether the client still has it. `at_once` if its
    /// client can't tell how old it is.
    fn renew_hold(&mut self, hold: &mut Hold, at_once: bool) -> bool {
        let lease_ms = hold.ask.lease_ms;
        let fence = self.rng.random_bool(0.5).then_some(hold.token);
        self.repeat(hold, Request::Renew { lease_ms, fence }, at_once)
    }

    /// Sends a request that makes a hold last until an answer is there, or the
    /// hold is over by its own count.
    fn repeat(&mut self, hold: &mut Hold, request: Request, at_once: bool) -> bool {
        for repeated in 0..RESENT_MAX {
            let sent = clock::now();
            if sent >= hold.valid_until && !(at_once && repeated == 0) {
                return false;
            }
            match self.perform_believing(hold, request) {
                // It was lost, and this is another one.
                Outcome::Granted(token) if token != hold.token => return false,
                Outcome::Renewed | Outcome::Granted(_) => {
                    hold.valid_until = sent + (hold.ask.lease_ms * MS).saturating_sub(IN_HAND);
                    hold.reign = self.reign();
                    return true;
                }
                Outcome::NotHeld | Outcome::NotAvailable => return false,
                Outcome::Error(code) if code == DISMISSED => return false,
                _ => self.sleep(10, 50),
            }
        }
        false
    }

    fn release_hold(&mut self, hold: &Hold) {
        let fence = self.rng.random_bool(0.5).then_some(hold.token);
        let request = Request::Release {
            hold: hold.ask.hold,
            fence,
            all: hold.ask.hold.is_none(),
        };
        for _ in 0..RESENT_MAX {
            let outcome = match clock::now() < hold.valid_until {
                true => self.perform_believing(hold, request),
                false => self.perform(&hold.lock, request),
            };
            if matches!(outcome, Outcome::Released | Outcome::NotHeld) || self.faults_over() {
                return;
            }
            self.sleep(10, 50);
        }
    }

    /// Takes a lock when all is well, which has to succeed, and gives it back.
    fn last_holding(&mut self, lock: &str) -> Result<(), String> {
        self.owners += 1;
        let by_place = self.rng.random_bool(0.5);
        let ask = Acquire {
            lease_ms: self.shared.protection.lease_max_ms,
            block_ms: Some(BLOCK_MS_MAX),
            claim_ms: by_place.then(|| self.shared.protection.claim_ms()),
            hold: Some(1),
            ..Acquire::default()
        };
        let wait = LAST_WAIT + self.shared.protection.grace_ms() * MS;
        let deadline = clock::now() + wait;
        loop {
            if let Some(hold) = self.take(lock, ask) {
                self.release_hold(&hold);
                return Ok(());
            }
            if clock::now() > deadline {
                return Err(format!("client {} can't get {lock} in the end", self.id));
            }
        }
    }

    /// Sends a request of an owner that has this hold by its own count.
    fn perform_believing(&mut self, hold: &Hold, request: Request) -> Outcome {
        self.believed = Some(hold.clone());
        let outcome = self.perform(&hold.lock, request);
        self.believed = None;
        outcome
    }

    /// Whether what was asked may have been written, and may be taken back or not.
    pub(super) fn is_doubtful(&self, outcome: &Outcome) -> bool {
        let codes = ["NOREPLICAS", "UNBLOCKED", "MOVED"];
        self.is_watched()
            && matches!(outcome, Outcome::Error(code) if codes.contains(&code.as_str()))
    }

    /// Whether a node may say that a hold is not there which the client has.
    pub(super) fn is_dismissed(&self, request: Request, sent: Nanos, at: &Connected) -> bool {
        let Some(hold) = &self.believed else {
            return false;
        };
        let may_be_lost = !self.shared.protection.keeps_holds() && hold.reign != at.reign.name;
        // Within a grace period no request for a hold is answered with a token.
        let is_grace = matches!(request, Request::Acquire(_)) && sent <= at.reign.grace_until;
        may_be_lost || is_grace || self.shared.guide.agreed() != Some(at.node)
    }

    fn reign(&self) -> String {
        let connected = self.connection.as_ref();
        connected.map_or_else(String::new, |connected| connected.reign.name.clone())
    }
}
