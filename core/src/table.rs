//! The lock table: everything that decides.
//!
//! A request or an event goes in, with what is stored and the time; one [`Step`]
//! comes out, and is all that there is to be done, as data: what has to be written,
//! who has to be answered, what has to be told. The table never calls anybody. Its
//! caller reads the lock, asks for the step, writes, replicates, notifies, sets its
//! timer to [`LockTable::wake_at_ms`], and answers.
//!
//! # The rule of the road
//! What has ended is over before the next command sees the lock. Each step begins
//! with the ends that are due: leases, sessions, grants that nobody heard of.
//!
//! # Invariants
//! - What is remembered never says that somebody holds a lock: only the stored hash says
//!   so. It may say that a stored hold is over. If that is lost, by a restart or a
//!   fail-over, the hold lasts until its lease ends, and no two owners ever hold one lock.
//! - If a lock has room for its first waiter, a recheck is planned.
//! - No step makes more than [`GRANTS_A_STEP`] grants. The rest is planned for now, so
//!   that other locks have their turn in between.

mod acknowledged;
mod connections;
mod due;
mod ends;
mod hand_off;
mod places;
mod transition;
mod view;
mod waits;

use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;

use crate::acks::{Acknowledgement, Acks};
pub use crate::bounds::{ENDS_A_STEP, GRANTS_A_STEP, PASSED_A_STEP, UNHEARD_A_STEP, WORK_A_WAKE};
use crate::cycle::WaitEdge;
use crate::effect::Effects;
use crate::ended::EndedHolds;
use crate::error::LockError;
use crate::keys::KeyRef;
use crate::lock::{Lock, Now};
use crate::metrics::Metrics;
use crate::outbox::Outbox;
use crate::queue::{Addressee, Place, WaitQueues, WaiterId};
use crate::request::{ClientId, Lease, Owner};
use crate::sessions::{HoldId, Sessions};
use crate::token::{FencingToken, TokenClock};

pub use connections::WaitEnd;
pub use due::{Due, NotNow, RECHECK_INTERVAL_MS, REFUSED_RETRY_MS, Work};
pub use transition::Transition;
pub use view::{ContendedView, HolderView, LockView, Totals};

/// What an operator can set.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Whether a wait that would never end is refused.
    pub deadlock_detection: bool,
    /// Whether other keys can be read while a command runs. In a cluster they can't.
    pub reads_other_keys: bool,
    /// Whether anything may be granted or handed on now. If not, requests that may wait do
    /// so, and holds are renewed and given back as ever.
    pub may_grant: bool,
    /// Which replicas have to acknowledge what is told, if any.
    pub acks: Option<Acknowledgement>,
    /// The longest lease of a grant or of a session's renewal.
    pub max_lease: Lease,
    /// How many may wait for one lock.
    pub max_waiters: usize,
    /// How many may hold one lock together.
    pub max_holders: usize,
    /// How many places there may be in all queues.
    pub max_places: usize,
    /// How long an unclaimed grant to a place lasts at most, in milliseconds.
    pub claim_timeout_ms: i64,
    /// How often a contended lock is looked at for no other reason, in milliseconds.
    pub recheck_interval_ms: i64,
    /// After how many milliseconds a wait is logged, if ever.
    pub log_slow_wait_ms: Option<i64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            deadlock_detection: true,
            reads_other_keys: true,
            may_grant: true,
            acks: None,
            max_lease: Lease::LONGEST,
            max_waiters: usize::MAX,
            max_holders: usize::MAX,
            max_places: usize::MAX,
            claim_timeout_ms: 2000,
            recheck_interval_ms: RECHECK_INTERVAL_MS,
            log_slow_wait_ms: None,
        }
    }
}

/// What a waiter is told in the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It has the lock, with this token.
    Granted(FencingToken),
    /// It can't have it.
    Refused(LockError),
    /// It has not got it: its time is over, or it had the lock and has it no more.
    NotGranted,
    /// Whether the owner holds the lock, until the end of its new lease.
    Renewed(bool),
}

/// Something in the life of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockEvent {
    /// An owner began to hold it.
    Acquired,
    /// An owner gave its last hold back, or its connection ended.
    Released,
    /// An owner's lease was found to be over.
    Expired,
    /// Somebody took it from its holders.
    Broken,
}

/// Something for the server's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogLine {
    /// A wait was refused, because it would have closed this cycle.
    DeadlockRefused(Vec<WaitEdge>),
    /// Somebody has waited for long.
    SlowWait {
        /// Who waits.
        owner: Owner,
        /// The client that waits.
        client: ClientId,
        /// For how long.
        waited_ms: i64,
        /// Some of those who hold the lock, each with the client that its holds are
        /// bound to.
        holders: Vec<(Owner, Option<ClientId>)>,
        /// How many others hold it.
        others: usize,
    },
}

/// What is to be done.
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// What has to be written and replicated, in order and as one.
    pub effects: Effects,
    /// What has become of waiters, in the order in which they are to be told.
    pub answers: SmallVec<[(Addressee, Answer); 1]>,
    /// What subscribers are told.
    pub events: SmallVec<[LockEvent; 2]>,
    /// What is logged.
    pub log: Vec<LogLine>,
    /// The last holder gave the lock back, or was made to, and nobody has it now.
    pub freed: bool,
    /// The result of the request is not told yet. Its client waits by this name for the
    /// [`Answer`].
    pub withheld: Option<WaiterId>,
    /// Nothing is written, but something waits for a fresh acknowledgement of replicas, or
    /// the client may, by `WAIT`, which since Redis 7.2 covers only what the client wrote
    /// itself. An old acknowledgement proves nothing: a replica may have been promoted
    /// since. So a write that changes nothing has to go to the replicas.
    pub stream_goes_on: bool,
}

/// What a step asks of its caller while it is taken. Neither may come back to the table.
pub trait World {
    /// The client that asks, if one does.
    fn asker(&self) -> Option<ClientId>;

    /// Publishes that a place is granted its lock with this token. Returns whether anybody
    /// heard it, which decides whether it is granted.
    fn say(&mut self, place: &Place, token: FencingToken) -> bool;

    /// Reads another lock. What is no lock counts as a free one.
    fn read(&mut self, key: KeyRef<'_>) -> Lock;
}

/// What came of a request for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// The owner holds it, with this token.
    Granted(FencingToken),
    /// The client waits, and is answered later.
    Queued(WaiterId),
    /// Others hold it, or come first.
    Busy,
}

/// All that is remembered of the locks of a server.
#[derive(Clone, Debug, Default)]
pub struct LockTable {
    /// What an operator has set.
    pub settings: Settings,
    queues: WaitQueues,
    tokens: TokenClock,
    metrics: Metrics,
    sessions: Sessions,
    /// What is written and not yet told.
    outbox: Outbox,
    /// What replicas have to acknowledge first.
    acks: Acks,
    /// Waits that the server does not end by itself, those for a place and those for replicas:
    /// when each ends, in milliseconds of the steady clock.
    time_outs: BTreeSet<(i64, WaiterId)>,
    /// Clients whose connections have ended, while something of theirs is still here.
    gone: BTreeSet<ClientId>,
    /// The one of them that had its turn last.
    last_gone: ClientId,
    /// How much has ended at once with connections since the last wake.
    ended_at_once: usize,
    /// Ends of places that are still to be told.
    untold: BTreeMap<(HoldId, WaiterId), Box<Place>>,
    /// Grants to places that nobody has claimed yet, in the order in which they were made, each
    /// with when its first lease is over, in milliseconds since 1970. Nothing keeps such a
    /// grant up. It is claimed by a renewal, or by any other reply with its token.
    unclaimed: BTreeMap<FencingToken, i64>,
    /// Holds that are over because of what became of a client.
    ended: EndedHolds,
    /// Waits that may close a cycle.
    unchecked: BTreeSet<WaiterId>,
    /// Clients whose sessions are over unnoticed: their connections have to be
    /// closed.
    to_close: BTreeSet<ClientId>,
    /// Which kind of work that is due comes next.
    turn: usize,
}

impl LockTable {
    /// Who held this lock alone when it was looked at last, if anybody waits for it.
    pub fn sole_holder(&self, key: KeyRef<'_>) -> Option<Owner> {
        match self.queues.seen(key)?.holders() {
            [holder] => Some(holder.owner.clone()),
            _ => None,
        }
    }

    /// Takes a step with a lock as it is stored: ends what is over, does what is asked,
    /// hands the lock off, and plans the next look at it. What is to be done goes to
    /// `step`, which is empty and too large to be moved. The caller does it before it
    /// tells the result, unless the result is withheld.
    #[inline]
    pub fn step<T>(
        &mut self,
        key: KeyRef<'_>,
        stored: &mut Lock,
        now: Now,
        world: &mut dyn World,
        step: &mut Step,
        ask: impl FnOnce(&mut Transition<'_>) -> Result<T, LockError>,
    ) -> Result<T, LockError> {
        let mut transition = Transition {
            table: self,
            key,
            now,
            world,
            lock: stored,
            withheld: 0,
            unheard: 0,
            passed: 0,
            earlier: None,
            replaced: Vec::new(),
            has_queued: false,
            step,
            #[cfg(feature = "planted-faults")]
            noted_before: None,
        };
        transition.begin();
        let result = ask(&mut transition);
        if result.is_err() {
            let replaced = std::mem::take(&mut transition.replaced);
            transition.tell_not_granted(replaced);
        }
        // A client that has just begun to wait is told so before it is served.
        if !transition.has_queued {
            // If the owner's earlier request still waits, it is served in its turn.
            transition.earlier = None;
            transition.hand_off();
        }
        transition.finish();
        result
    }

    /// Whether anybody waits for any lock.
    pub fn anybody_waits(&self) -> bool {
        !self.queues.is_empty()
    }

    /// Whether anything is remembered of holds: sessions, grants on their way, what
    /// has ended.
    pub fn remembers_holds(&self) -> bool {
        !(self.sessions.is_empty() && self.outbox.is_empty() && self.ended.is_empty())
    }

    /// Whether it matters what happens to keys.
    pub fn follows_keys(&self) -> bool {
        self.anybody_waits() || self.remembers_holds()
    }

    /// What has happened so far.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }
}

#[cfg(test)]
mod tests;
