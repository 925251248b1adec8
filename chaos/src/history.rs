//! What the clients saw, and whether any correct lock could have shown it to them.
//!
//! The history holds every operation with the times, on one monotonic clock, at which it was
//! sent and answered, and everything that was done to the server meanwhile. [`check`] claims a
//! breach only where no order of events between those times explains the answers.
//!
//! 1. **Tokens** rise with every new holding, over all locks, and each belongs to one owner of
//!    one lock.
//! 2. **Certain holds**: no more owners hold a lock together than the limit of each of them says.
//!    A hold that was told is kept: until its lease is over, it is given back, or the connection
//!    that it is bound to ends, nobody is told that it does not hold it. And nobody is told of a
//!    hold that it can't have.
//! 3. **Order**: a waiter that was seen in the queue before another one asked is granted first,
//!    whatever the modes of the two and however they wait, or gives up first.
//! 4. **Liveness**: whoever is connected is answered in time, and a lock that nobody can hold
//!    goes to a waiter promptly.
//! 5. **Unknown outcomes** may have happened or not, now or later. They shorten what is certain,
//!    and excuse nothing else.
//! 6. **Deadlocks**: nobody is refused for a cycle of waits that can't have been, and none lasts.
//! 7. **Updates**: what was added to a set under the lock, and acknowledged, is there when
//!    the set is read later. Who writes it back without `LOCK.GUARD` is not promised that.
//!
//! Who waits by a place in the queue makes one request as well: it is answered by the message
//! that tells of its end, however often it is sent again meanwhile. What such a message grants
//! lasts as long as it takes to claim it, and is a hold like any other when it is claimed.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::clock;

/// Nanoseconds of the machine's monotonic clock.
pub type Nanos = u64;

pub const MS: Nanos = 1_000_000;

/// The clocks of the server count whole milliseconds.
const ROUNDING: Nanos = 3 * MS;

/// With how many others an owner would hold a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// With none.
    #[default]
    Exclusive,
    /// With any number.
    Shared,
    /// How many may hold it together.
    Limited(usize),
}

impl Mode {
    pub const fn limit(self) -> usize {
        match self {
            Self::Exclusive => 1,
            Self::Shared => usize::MAX,
            Self::Limited(limit) => limit,
        }
    }
}

/// What a client asks for with `LOCK.ACQUIRE`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acquire {
    pub lease_ms: u64,
    /// How long the client would wait, 0 for ever.
    pub block_ms: Option<u64>,
    pub mode: Mode,
    /// Which hold, if the client numbers it.
    #[serde(default)]
    pub hold: Option<u64>,
    /// Whether the hold shall last as long as the connection.
    pub session: bool,
    /// If it waits by a place in the queue: how long what a message grants lasts
    /// before it is claimed, in milliseconds.
    #[serde(default)]
    pub claim_ms: Option<u64>,
}

/// What a client asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    Acquire(Acquire),
    Renew {
        lease_ms: u64,
        fence: Option<i64>,
    },
    Release {
        /// Which hold, if the client numbered it.
        hold: Option<u64>,
        fence: Option<i64>,
        /// Whether all holds of the owner.
        #[serde(default)]
        all: bool,
    },
    /// `PING`, which shows that the connection of a session lives.
    Ping,
    /// The client closes the connection of a session. The answer is there when
    /// it is closed.
    Close,
    /// The set of the lock is read, and written back with this number in it.
    Add {
        /// No other addition has the same.
        element: u64,
    },
    /// The set of the lock is read.
    Read,
}

/// What the client heard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Nothing yet.
    Pending,
    /// The connection ended first, so nobody can tell what happened.
    Lost,
    /// The client went away first, and the connection may have stalled.
    GivenUp,
    /// The connection lives, the server too, and no answer came in time.
    Silent,
    /// An error, by its code: nothing has changed.
    Error(String),
    /// An acquire was refused because of this cycle of waits.
    Deadlock(Vec<Link>),
    /// An acquire was granted, with this token.
    Granted(i64),
    /// A message told of the grant of a place. It is to be claimed.
    Told { token: i64, lease_ms: u64 },
    /// An acquire was granted by a library that knows no tokens.
    GrantedWithoutToken,
    /// An acquire was answered null.
    NotAvailable,
    /// A renewal was answered 1.
    Renewed,
    /// A release ended the last hold.
    Released,
    /// A release left the owner some holds.
    StillHeld,
    /// A renewal was answered 0, or a release null.
    NotHeld,
    /// A ping was answered, the connection is closed, or an addition acknowledged.
    Done,
    /// The set had these numbers.
    Elements(Vec<u64>),
}

impl Outcome {
    pub fn token(&self) -> Option<i64> {
        match *self {
            Self::Granted(token) | Self::Told { token, .. } => Some(token),
            _ => None,
        }
    }
}

/// One command of one client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Operation {
    pub client: usize,
    pub connection: usize,
    pub lock: String,
    pub owner: String,
    pub request: Request,
    pub sent: Nanos,
    /// When the answer was there, or given up.
    pub answered: Option<Nanos>,
    /// When the server was seen to have it in a queue.
    pub queued: Option<Nanos>,
    pub outcome: Outcome,
}

/// How something that was done to the server bears on the locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// It may have ended every hold.
    EndsHolds,
    /// It may have lengthened leases.
    ChangesLeases,
    /// Holds that were over, or those of strangers, may be there again.
    BringsBack,
    /// It may have ended some waits.
    EndsWaits,
    /// Commands may have been held back, which looks like queueing.
    HoldsCommandsBack,
    /// The server did nothing, not even for sessions.
    StopsTheServer,
    /// Some clients did nothing, and hear late.
    StopsClients,
    /// Connections that had stalled were closed.
    EndsStalls,
}

/// Something that was done to the server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Interference {
    pub what: String,
    pub effect: Effect,
    /// The lock concerned; none means all.
    pub lock: Option<String>,
    /// Before this time it had no effect.
    pub from: Nanos,
    /// After this time it had no further effect.
    pub until: Nanos,
}

/// All that happened in a campaign.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct History {
    pub operations: Vec<Operation>,
    pub interferences: Vec<Interference>,
}

/// Which promise was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum)]
pub enum Promise {
    /// Check 1.
    Tokens,
    /// Check 2, between owners.
    Exclusion,
    /// Check 2, of one owner.
    Possession,
    /// Check 3.
    Order,
    /// Check 4.
    Liveness,
    /// Check 6.
    Deadlock,
    /// Check 7.
    Updates,
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        value.map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}

/// A broken promise.
#[derive(Clone, Debug)]
pub struct Breach {
    /// Which one.
    pub promise: Promise,
    /// What is wrong.
    pub what: String,
    pub(crate) shown: Vec<Operation>,
}

/// What was found to be wrong.
#[derive(Default)]
struct Breaches(Vec<Breach>);

impl Breaches {
    fn add<'o>(
        &mut self,
        promise: Promise,
        what: &str,
        shown: impl IntoIterator<Item = &'o Operation>,
    ) {
        self.0.push(Breach {
            promise,
            what: what.to_owned(),
            shown: shown.into_iter().cloned().collect(),
        });
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |at: Nanos| format!("{}.{:06}", at / MS, at % MS);
        let (client, connection) = (self.client, self.connection);
        write!(
            f,
            "{} ms: client {client}, connection {connection}",
            ms(self.sent)
        )?;
        write!(
            f,
            ", as {} on {}: {:?}",
            self.owner, self.lock, self.request
        )?;
        if let Some(queued) = self.queued {
            write!(f, ", seen in the queue at {}", ms(queued))?;
        }
        write!(f, " -> {:?}", self.outcome)?;
        match self.answered {
            Some(answered) => write!(f, " at {}", ms(answered)),
            None => Ok(()),
        }
    }
}

impl Operation {
    /// One that is sent now, on this connection of this client.
    pub fn sent_now(
        (client, connection): (usize, usize),
        lock: &str,
        owner: &str,
        request: Request,
    ) -> Self {
        Self {
            client,
            connection,
            lock: lock.to_owned(),
            owner: owner.to_owned(),
            request,
            sent: clock::now(),
            answered: None,
            queued: None,
            outcome: Outcome::Pending,
        }
    }

    /// What it asks for, if it acquires.
    fn asked(&self) -> Option<Acquire> {
        match self.request {
            Request::Acquire(asked) => Some(asked),
            _ => None,
        }
    }

    fn acquires(&self) -> bool {
        self.asked().is_some()
    }

    /// Whether it may have happened, and may still happen.
    fn unknown(&self) -> bool {
        matches!(
            self.outcome,
            Outcome::Pending | Outcome::Lost | Outcome::GivenUp | Outcome::Silent
        )
    }

    /// How many may hold the lock with it, if it acquires.
    fn limit(&self) -> Option<usize> {
        self.asked().map(|asked| asked.mode.limit())
    }

    /// Whether it binds the hold to its connection.
    fn in_session(&self) -> bool {
        self.asked().is_some_and(|asked| asked.session)
    }

    /// Whether a message told of its grant.
    fn is_told(&self) -> bool {
        matches!(self.outcome, Outcome::Told { .. })
    }

    fn token(&self) -> Option<i64> {
        self.outcome.token()
    }

    fn granted(&self) -> bool {
        self.token().is_some() || self.outcome == Outcome::GrantedWithoutToken
    }

    /// The lease in milliseconds with which its grant began. Who has a place is not
    /// granted the lock otherwise than by a message.
    fn first_lease_ms(&self) -> Option<u64> {
        if let Outcome::Told { lease_ms, .. } = self.outcome {
            return Some(lease_ms);
        }
        let Acquire {
            lease_ms, claim_ms, ..
        } = self.asked()?;
        let may_be_told = self.unknown() && self.queued.is_some();
        let claim_ms = claim_ms.filter(|_| may_be_told);
        Some(lease_ms.min(claim_ms.unwrap_or(lease_ms)))
    }

    fn fence(&self) -> Option<i64> {
        match self.request {
            Request::Renew { fence, .. } | Request::Release { fence, .. } => fence,
            _ => None,
        }
    }

    /// Whether its answer was there before this time.
    fn over_by(&self, time: Nanos) -> bool {
        !self.unknown() && self.answered.is_some_and(|answered| answered <= time)
    }

    /// Whether both were sent on one connection.
    fn shares_connection_with(&self, other: &Self) -> bool {
        (self.client, self.connection) == (other.client, other.connection)
    }

    /// Whether its answer says that the owner holds nothing now.
    fn shows_no_hold(&self) -> bool {
        match self.outcome {
            Outcome::Released => true,
            Outcome::NotHeld => self.fence().is_none(),
            _ => false,
        }
    }
}

/// A strange expiry ends this long after it was set, at the latest.
const EXPIRY_MAX: Nanos = 150 * MS;

/// A hold that was brought back ends this long after, at the latest.
const STRANGE_LEASE_MAX: Nanos = 2200 * MS;

impl Interference {
    /// Until when nobody may get the lock because of it, at the latest.
    fn blocks_until(&self) -> Nanos {
        match self.effect {
            Effect::ChangesLeases => self.until + EXPIRY_MAX,
            Effect::BringsBack => self.until + STRANGE_LEASE_MAX,
            _ => self.until,
        }
    }

    pub(crate) fn overlaps(&self, from: Nanos, until: Nanos) -> bool {
        self.from <= until && from <= self.until
    }

    fn concerns(&self, lock: &str) -> bool {
        self.lock.as_deref().is_none_or(|one| one == lock)
    }
}

/// How far the clocks of server and clients may be apart, where all are of one machine.
pub const TOLERANCE: Nanos = 2 * MS;

/// Looks for broken promises. `tolerance` is how far the server's clock may
/// stray from the clients' within a lease.
pub fn check(history: &History, tolerance: Nanos) -> Vec<Breach> {
    let mut breaches = found_so_far(history, tolerance);
    liveness::check_answers(history, &mut breaches);
    breaches.0
}

/// As [`check`], while clients are still at work: nobody need have an answer yet.
pub fn check_so_far(history: &History, tolerance: Nanos) -> Vec<Breach> {
    found_so_far(history, tolerance).0
}

fn found_so_far(history: &History, tolerance: Nanos) -> Breaches {
    let mut locks = Locks::new();
    let mut sorted: Vec<&Operation> = history.operations.iter().collect();
    sorted.sort_by_key(|operation| operation.sent);
    for one in sorted {
        let lock = || Lock::of(&one.lock, &history.interferences);
        let lock = locks.entry(&one.lock).or_insert_with(lock);
        let tenancy = lock.tenancies.entry(&one.owner).or_default();
        tenancy.operations.push(one);
    }
    let times = GrantTimes::new(&locks);
    let mut breaches = Breaches::default();
    for lock in locks.values_mut() {
        let interferences = &lock.interferences;
        for tenancy in lock.tenancies.values_mut() {
            tenancy.certain = certain::holds(tenancy, interferences, &times, tolerance);
            tenancy.possible = possible::holds(&tenancy.operations, interferences, tolerance);
        }
        possible::shorten_by_later_grants(lock);
        tokens::check(lock, &mut breaches);
        exclusion::check(lock, &mut breaches);
        possession::check(lock, &times, &mut breaches);
        order::check(lock, &mut breaches);
        liveness::check_hand_offs(lock, &times, &mut breaches);
        updates::check(lock, &mut breaches);
    }
    tokens::check_rise(&locks, &mut breaches);
    deadlocks::check_refusals(history, &locks, &mut breaches);
    deadlocks::check_waits(&locks, &mut breaches);
    breaches
}

mod certain;
mod deadlocks;
mod exclusion;
mod liveness;
mod lock;
mod order;
mod possession;
mod possible;
mod tokens;
mod updates;

use certain::CertainHold;
pub use deadlocks::Link;
use lock::{GrantTimes, Lock, Locks};
use possible::PossibleHold;

#[cfg(test)]
mod tests;
