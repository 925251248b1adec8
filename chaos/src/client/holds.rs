//! Holds of a client, which counts their leases itself where it goes from one primary to the next.
//!
//! # What is judged there
//!
//! One history of all clients, in which no fail-over is excused ([`crate::history`]):
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
//! - An owner that released a hold, or was told that it has none, is never used again: a hold
//!   that the old primary had ended may be in the data of the new one, with its old token.
//! - A holder counts its lease from when it sent the request, less a margin, and sends no
//!   more renewals when that is over. A grant that may have waited is renewed at once.
//! - `NOREPLICAS` is not believed, neither as a yes nor as a no. The client asks again with
//!   `HOLD`, or releases. Nor are `UNBLOCKED`, and in a cluster `MOVED`, which a primary that
//!   is demoted says of all that it withholds.
//! - A client asks a witness who is the primary, and works with a node only if
//!   that says so itself.
//!
//! A primary that is no longer the one may say that it knows nothing of a hold. That is no
//! breach, as it grants nothing by that: where some witness names another node just after the
//! answer, it is dismissed. Whoever was granted something by that other node had it named by a
//! witness, and witnesses are never hurt. With a grace period, what was told before a start or a
//! promotion may be lost, and an `ACQUIRE` that was sent within it tells of no hold.

use rand::RngExt;
use redis_lock_testing::{Connection, info_field, reply_text};

use super::{Client, Connected, is_lost};
use crate::clock;
use crate::history::{Acquire, MS, Nanos, Outcome, Request};

/// The margin by which a client counts a lease shorter.
const IN_HAND: Nanos = 20 * MS;

/// How often a request is sent again whose outcome is unknown.
const RESENT_MAX: usize = 5;

/// How long it may take to get each lock when all is well.
pub(super) const LAST_WAIT: Nanos = 30_000 * MS;

/// The code for an answer that says nothing about whether a hold is there.
pub(super) const DISMISSED: &str = "DISMISSED";

/// A hold as its client sees it.
#[derive(Clone)]
pub(super) struct Hold {
    pub(super) lock: String,
    pub(super) ask: Acquire,
    pub(super) token: i64,
    /// Whether a message told of it.
    pub(super) is_told: bool,
    /// How often its owner has the lock.
    pub(super) count: u64,
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
}

impl Reign {
    /// Asks for it. A node that is no primary has none.
    pub(super) fn of(connection: &mut Connection, patient: impl FnMut() -> bool) -> Option<Self> {
        let info = connection.call_while(&["INFO", "server", "replication", "lock"], patient);
        let info = info.and_then(reply_text)?;
        let grace_ms: u64 = info_field(&info, "lock_grace_ms").ok()?.parse().ok()?;
        (info_field(&info, "role").ok()?.trim() == "master").then_some(Self {
            name: info_field(&info, "master_replid").ok()?.to_owned(),
            grace_until: clock::now() + grace_ms * MS,
        })
    }
}

impl Hold {
    /// The hold that this answer tells of, to a request that was sent then.
    pub(super) fn told(
        client: &Client,
        (lock, ask): (&str, Acquire),
        outcome: &Outcome,
        sent: Nanos,
    ) -> Option<Self> {
        let lease_ms = match *outcome {
            Outcome::Told { lease_ms, .. } => lease_ms,
            _ => ask.lease_ms,
        };
        let mut hold = Self {
            lock: lock.to_owned(),
            ask,
            token: outcome.token()?,
            is_told: matches!(outcome, Outcome::Told { .. }),
            count: 1,
            valid_until: 0,
            reign: String::new(),
        };
        hold.lasts(client, lease_ms, sent);
        Some(hold)
    }

    /// It lasts for this lease since then, as its client was told now.
    pub(super) fn lasts(&mut self, client: &Client, lease_ms: u64, sent: Nanos) {
        self.valid_until = sent + (lease_ms * MS).saturating_sub(IN_HAND);
        let connected = client.connection.as_ref();
        self.reign = connected.map_or_else(String::new, |connected| connected.reign.name.clone());
    }

    fn is_valid(&self) -> bool {
        clock::now() < self.valid_until
    }
}

impl Client {
    /// Asks for a lock, again if nobody knows what became of it.
    pub(super) fn take(&mut self, lock: &str, ask: Acquire) -> Option<Hold> {
        for _ in 0..RESENT_MAX {
            let sent = clock::now();
            let outcome = match ask.claim_ms {
                Some(_) if !self.can_be_told() => Outcome::Lost,
                Some(_) => self.acquire_by_place(lock, ask),
                None => self.acquire(lock, ask),
            };
            let told = Hold::told(self, (lock, ask), &outcome, sent);
            match outcome {
                _ if told.is_some() => return told,
                Outcome::NotAvailable => return None,
                // With the number of the hold it is safe to ask again.
                _ if ask.hold.is_none() || self.shared.is_over() => break,
                _ => self.sleep(10, 50),
            }
        }
        self.release(lock, None, None);
        None
    }

    /// Asks for the same hold again, without a wait. Returns whether the client still has it.
    pub(super) fn confirm(&mut self, hold: &mut Hold, at_once: bool) -> bool {
        let ask = Acquire {
            block_ms: None,
            claim_ms: None,
            ..hold.ask
        };
        self.repeat(hold, Request::Acquire(ask), at_once)
    }

    /// Renews a hold. Returns whether the client still has it. `at_once` if its client can't
    /// tell how old it is.
    pub(super) fn renew(&mut self, hold: &mut Hold, at_once: bool) -> bool {
        let lease_ms = hold.ask.lease_ms;
        let fence = self.rng.random_bool(0.5).then_some(hold.token);
        self.repeat(hold, Request::Renew { lease_ms, fence }, at_once)
    }

    /// Sends a request that makes a hold last until an answer is there, or the hold is over by
    /// its client's own count.
    fn repeat(&mut self, hold: &mut Hold, request: Request, at_once: bool) -> bool {
        for repeated in 0..RESENT_MAX {
            let sent = clock::now();
            if !(hold.is_valid() || at_once && repeated == 0) {
                return false;
            }
            match self.perform_believing(hold, request) {
                // It was lost, and this is another one.
                Outcome::Granted(token) if token != hold.token => return false,
                Outcome::Renewed | Outcome::Granted(_) => {
                    hold.lasts(self, hold.ask.lease_ms, sent);
                    return true;
                }
                Outcome::NotHeld | Outcome::NotAvailable => return false,
                Outcome::Error(code) if code == DISMISSED => return false,
                _ => self.sleep(10, 50),
            }
        }
        false
    }

    /// Gives a hold back, the last count first if it is numbered. Returns whether its owner can
    /// be sure to hold nothing.
    pub(super) fn give_back(&mut self, hold: &Hold) -> bool {
        let fence = self.rng.random_bool(0.5).then_some(hold.token);
        let counts = match hold.ask.hold {
            Some(_) => (1..=hold.count).rev().map(Some).collect(),
            None => vec![None],
        };
        let mut outcome = Outcome::Lost;
        for count in counts {
            let request = release(count, fence);
            for _ in 0..RESENT_MAX {
                outcome = match hold.is_valid() {
                    true => self.perform_believing(hold, request),
                    false => self.perform(&hold.lock, request),
                };
                let is_unclear = is_lost(&outcome) || matches!(outcome, Outcome::Error(_));
                if !is_unclear || self.shared.is_over() {
                    break;
                }
                self.sleep(10, 50);
            }
            if outcome != Outcome::StillHeld {
                return outcome == Outcome::Released && matches!(count, None | Some(1));
            }
        }
        false
    }

    /// Gives one hold back, or all.
    pub(super) fn release(&mut self, lock: &str, hold: Option<u64>, fence: Option<i64>) -> Outcome {
        self.perform(lock, release(hold, fence))
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
        let Some(hold) = self.believed.as_ref().filter(|_| self.is_watched()) else {
            return false;
        };
        let may_be_lost = !self.shared.protection.keeps_holds() && hold.reign != at.reign.name;
        // Within a grace period no request for a hold is answered with a token.
        let is_grace = matches!(request, Request::Acquire(_)) && sent <= at.reign.grace_until;
        may_be_lost || is_grace || self.shared.guide.agreed() != Some(at.node)
    }
}

/// The release of one hold, or of all.
pub(super) fn release(hold: Option<u64>, fence: Option<i64>) -> Request {
    let all = hold.is_none();
    Request::Release { hold, fence, all }
}
