//! What the clients saw, and whether any correct lock could have shown it to them.
//!
//! The history holds every operation with the times, on one monotonic clock,
//! at which it was sent and answered, and everything that was done to the
//! server meanwhile. [`check`] looks for what can't be: it claims a breach only
//! where no order of events between those times explains the answers.
//!
//! 1. **Tokens** rise with every new holding, over all locks, and each belongs
//!    to one owner of one lock.
//! 2. **Certain holds**: no more owners hold a lock together than the limit of
//!    each of them says, and nobody is told that it does not hold a lock that it
//!    certainly holds.
//! 3. **Order**: a waiter that was seen in the queue before another one asked
//!    is granted first, whatever the modes of the two.
//! 4. **Liveness**: whoever is connected is answered in time, and a waiter gets
//!    the lock of a session promptly when its connection is closed.
//! 5. **Unknown outcomes** may have happened or not, now or later. They
//!    shorten what is certain, and excuse nothing else.
//! 6. **Deadlocks**: nobody is refused for a cycle of waits that can't have
//!    been, and none lasts.

use std::collections::{HashMap, HashSet};
use std::fmt;

use serde::{Deserialize, Serialize};

/// Nanoseconds of the machine's monotonic clock.
pub type Nanos = u64;

/// A millisecond.
pub const MS: Nanos = 1_000_000;

/// With how many others an owner would hold a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// With none.
    Exclusive,
    /// With any number.
    Shared,
    /// So many may hold it together.
    Limited(usize),
}

impl Mode {
    /// How many may hold the lock together.
    pub const fn limit(self) -> usize {
        match self {
            Self::Exclusive => 1,
            Self::Shared => usize::MAX,
            Self::Limited(limit) => limit,
        }
    }
}

/// What a client asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// `LOCK.ACQUIRE`
    Acquire {
        /// The lease in milliseconds.
        lease_ms: u64,
        /// How long the client would wait, 0 for ever.
        block_ms: Option<u64>,
        /// With how many others.
        mode: Mode,
        /// Whether the hold shall last as long as the connection.
        session: bool,
    },
    /// `LOCK.RENEW`
    Renew {
        /// The lease in milliseconds.
        lease_ms: u64,
    },
    /// `LOCK.RELEASE`
    Release,
    /// `PING`, which shows that the connection of a session lives.
    Ping,
    /// The client closes the connection of a session. The answer is there when
    /// it is closed.
    Close,
}

/// What the client heard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Nothing yet.
    Pending,
    /// The connection ended first, so nobody can tell what happened.
    Lost,
    /// The connection lives, the server too, and no answer came in time.
    Silent,
    /// An error, by its code: nothing has changed.
    Error(String),
    /// An acquire was refused because of this cycle of waits.
    Deadlock(Vec<Link>),
    /// An acquire was granted, with this token.
    Granted(i64),
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
    /// A ping was answered, or the connection is closed.
    Done,
}

/// One command of one client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Operation {
    /// Which client sent it.
    pub client: usize,
    /// On which of the client's connections.
    pub connection: usize,
    /// On which lock.
    pub lock: String,
    /// As which owner.
    pub owner: String,
    /// What it asked for.
    pub request: Request,
    /// When it was sent.
    pub sent: Nanos,
    /// When the answer was there, or given up.
    pub answered: Option<Nanos>,
    /// When the server was seen to have it in a queue.
    pub queued: Option<Nanos>,
    /// The answer.
    pub outcome: Outcome,
}

/// How something that was done to the server bears on the locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// It may have ended every hold.
    EndsHolds,
    /// Commands may have been held back, which looks like queueing.
    HoldsCommandsBack,
    /// The server did nothing, not even for sessions.
    StopsTheServer,
}

/// Something that was done to the server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Interference {
    /// What it was, for the reader.
    pub what: String,
    /// What it may have done.
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
    /// What the clients did.
    pub operations: Vec<Operation>,
    /// What was done to the server.
    pub interferences: Vec<Interference>,
}

impl History {
    /// When the operation was seen in a queue, and not just held back.
    fn surely_queued(&self, operation: &Operation) -> Option<Nanos> {
        let queued = operation.queued?;
        let doubtful = self.interferences.iter().any(|one| {
            one.effect == Effect::HoldsCommandsBack && one.overlaps(operation.sent, queued)
        });
        (!doubtful).then_some(queued)
    }
}

/// Which promise was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tokens => "tokens",
            Self::Exclusion => "exclusion",
            Self::Possession => "possession",
            Self::Order => "order",
            Self::Liveness => "liveness",
            Self::Deadlock => "deadlock",
        })
    }
}

/// A broken promise.
#[derive(Clone, Debug)]
pub struct Breach {
    /// Which one.
    pub promise: Promise,
    /// The operations that show it.
    pub evidence: String,
}

impl Breach {
    fn new<'o>(
        promise: Promise,
        what: &str,
        operations: impl IntoIterator<Item = &'o Operation>,
    ) -> Self {
        let mut evidence = what.to_owned();
        for operation in operations {
            evidence.push_str(&format!("\n  {operation}"));
        }
        Self { promise, evidence }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |at: Nanos| format!("{}.{:06}", at / MS, at % MS);
        write!(
            f,
            "{} ms: client {} as {} on {}: {:?}",
            ms(self.sent),
            self.client,
            self.owner,
            self.lock,
            self.request
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
    fn acquires(&self) -> bool {
        matches!(self.request, Request::Acquire { .. })
    }

    /// Whether it may have happened, and may still happen.
    fn unknown(&self) -> bool {
        matches!(
            self.outcome,
            Outcome::Pending | Outcome::Lost | Outcome::Silent
        )
    }

    /// How many may hold the lock with it, if it acquires.
    fn limit(&self) -> Option<usize> {
        match self.request {
            Request::Acquire { mode, .. } => Some(mode.limit()),
            _ => None,
        }
    }

    /// Whether it ties the hold to its connection.
    fn in_session(&self) -> bool {
        matches!(self.request, Request::Acquire { session: true, .. })
    }

    fn token(&self) -> Option<i64> {
        match self.outcome {
            Outcome::Granted(token) => Some(token),
            _ => None,
        }
    }
}

impl Interference {
    fn overlaps(&self, from: Nanos, until: Nanos) -> bool {
        self.from <= until && from <= self.until
    }

    fn concerns(&self, lock: &str) -> bool {
        self.lock
            .as_deref()
            .is_none_or(|concerned| concerned == lock)
    }
}

/// A time during which an owner held a lock for certain.
struct CertainHold<'o> {
    /// The answer that shows it.
    shown_by: &'o Operation,
    token: Option<i64>,
    /// How many may hold the lock together, at most.
    limit: usize,
    start: Nanos,
    end: Nanos,
}

/// What each owner did to each lock.
type Tenancies<'o> = HashMap<(&'o str, &'o str), Tenancy<'o>>;

/// Everything that one owner did to one lock, in the order of sending.
struct Tenancy<'o> {
    operations: Vec<&'o Operation>,
    holds: Vec<CertainHold<'o>>,
}

/// Looks for broken promises. `tolerance` is how far the server's clock may
/// stray from the clients' within a lease.
pub fn check(history: &History, tolerance: Nanos) -> Vec<Breach> {
    let mut tenancies = Tenancies::new();
    let mut sorted: Vec<&Operation> = history.operations.iter().collect();
    sorted.sort_by_key(|operation| operation.sent);
    for operation in sorted {
        tenancies
            .entry((&operation.lock, &operation.owner))
            .or_insert_with(|| Tenancy {
                operations: Vec::new(),
                holds: Vec::new(),
            })
            .operations
            .push(operation);
    }
    for ((lock, _), tenancy) in &mut tenancies {
        let in_session = tenancy.operations.iter().any(|one| one.in_session());
        let ends: Vec<&Interference> = history
            .interferences
            .iter()
            // The server can't keep up a lease while it must not write.
            .filter(|one| one.effect == Effect::EndsHolds || in_session)
            .filter(|one| one.concerns(lock))
            .collect();
        tenancy.holds = certain_holds(&tenancy.operations, &ends, tolerance, in_session);
    }
    let mut breaches = Vec::new();
    check_tokens(&tenancies, &mut breaches);
    check_exclusion(&tenancies, &mut breaches);
    check_possession(history, &tenancies, &mut breaches);
    check_order(history, &tenancies, &mut breaches);
    check_liveness(history, &mut breaches);
    sessions::check_ends(history, &mut breaches);
    deadlocks::check_refusals(history, &tenancies, &mut breaches);
    deadlocks::check_waits(history, &tenancies, &mut breaches);
    breaches
}

/// `operations` are sorted by the time of sending.
fn certain_holds<'o>(
    operations: &[&'o Operation],
    ends: &[&Interference],
    tolerance: Nanos,
    in_session: bool,
) -> Vec<CertainHold<'o>> {
    let limits = operations.iter().filter_map(|operation| operation.limit());
    let limit = limits.max().unwrap_or(1);
    let unknown: Vec<&Operation> = operations
        .iter()
        .copied()
        .filter(|operation| operation.unknown())
        .collect();
    let certain = !unknown.iter().any(|operation| operation.acquires());
    let mut holds: Vec<CertainHold<'o>> = Vec::new();
    for (index, &shown_by) in operations.iter().enumerate() {
        let (Some(answered), Some(lease_ms)) = (shown_by.answered, lease_shown(shown_by)) else {
            continue;
        };
        // An owner that had been told of its grant before it renewed has held
        // the lock in between, unless it lost it and got it again unawares.
        let told = if shown_by.acquires() || !certain {
            None
        } else {
            let told_by_then =
                |earlier: &&Operation| earlier.answered.is_some_and(|at| at <= shown_by.sent);
            let earlier = operations[..index].iter().rev().copied();
            earlier.filter(told_by_then).find_map(Operation::token)
        };
        let start = told.map_or(answered, |_| shown_by.sent);
        let lease_end = shown_by.sent + (lease_ms * MS).saturating_sub(tolerance);
        let mut end = if !in_session {
            lease_end
        } else if certain && shown_by.in_session() {
            sessions::last_known_alive(operations, shown_by)
        } else {
            continue;
        };
        // What was sent earlier with an unknown outcome may come into force later.
        let unknown_before = unknown.iter().filter(|other| other.sent < shown_by.sent);
        let since = operations.partition_point(|other| other.sent < shown_by.sent);
        for other in unknown_before.chain(&operations[since..]) {
            if other.sent >= end {
                break;
            }
            match other.request {
                Request::Release if other.unknown() || other.outcome == Outcome::Released => {
                    end = end.min(other.sent);
                }
                Request::Renew { lease_ms }
                    if !std::ptr::eq(*other, shown_by)
                        && !in_session
                        && (other.unknown() || other.outcome == Outcome::Renewed) =>
                {
                    end = end.min(other.sent + (lease_ms * MS).saturating_sub(tolerance));
                }
                _ => {}
            }
        }
        for interference in ends {
            if interference.until > shown_by.sent && interference.from < end {
                end = interference.from;
            }
        }
        if start < end {
            holds.push(CertainHold {
                shown_by,
                token: shown_by.token().or(told),
                limit,
                start,
                end,
            });
        }
    }
    holds
}

/// The lease that an answer shows to run since the operation was sent, at least.
fn lease_shown(operation: &Operation) -> Option<u64> {
    match (operation.request, &operation.outcome) {
        (Request::Acquire { lease_ms, .. }, Outcome::Granted(_) | Outcome::GrantedWithoutToken)
        | (Request::Renew { lease_ms }, Outcome::Renewed) => Some(lease_ms),
        _ => None,
    }
}

/// The first that was heard of a token.
struct NewHolding<'o> {
    first: &'o Operation,
    token: i64,
    not_before: Nanos,
    not_after: Nanos,
}

fn new_holdings<'o>(tenancy: &Tenancy<'o>) -> Vec<NewHolding<'o>> {
    let mut seen = HashSet::new();
    let mut not_before = Nanos::MAX;
    let mut holdings = Vec::new();
    for &operation in &tenancy.operations {
        if operation.acquires() && operation.unknown() {
            // The grant may be this one's, and its answer a later one's.
            not_before = not_before.min(operation.sent);
        }
        if let (Some(token), Some(not_after)) = (operation.token(), operation.answered)
            && seen.insert(token)
        {
            holdings.push(NewHolding {
                first: operation,
                token,
                not_before: not_before.min(operation.sent),
                not_after,
            });
        }
    }
    holdings
}

fn check_tokens(tenancies: &Tenancies<'_>, breaches: &mut Vec<Breach>) {
    let mut by_start: Vec<NewHolding<'_>> = tenancies.values().flat_map(new_holdings).collect();
    let mut owners: HashMap<i64, &Operation> = HashMap::new();
    for holding in &by_start {
        if let Some(other) = owners.insert(holding.token, holding.first) {
            breaches.push(Breach::new(
                Promise::Tokens,
                "one token, two holdings",
                [other, holding.first],
            ));
        }
    }
    by_start.sort_by_key(|holding| holding.not_before);
    let mut by_end: Vec<&NewHolding<'_>> = by_start.iter().collect();
    by_end.sort_by_key(|holding| holding.not_after);
    let mut ended = by_end.into_iter().peekable();
    let mut greatest: Option<&NewHolding<'_>> = None;
    for holding in &by_start {
        while let Some(earlier) = ended.next_if(|other| other.not_after < holding.not_before) {
            if greatest.is_none_or(|greatest| greatest.token < earlier.token) {
                greatest = Some(earlier);
            }
        }
        if let Some(greatest) = greatest
            && holding.token < greatest.token
        {
            breaches.push(Breach::new(
                Promise::Tokens,
                "a later holding has a smaller token",
                [greatest.first, holding.first],
            ));
        }
    }
    for tenancy in tenancies.values() {
        for operation in &tenancy.operations {
            let Some(token) = operation.token() else {
                continue;
            };
            let other = |hold: &&CertainHold<'_>| {
                hold.covers(operation) && hold.token.is_some_and(|held| held != token)
            };
            if let Some(hold) = tenancy.holds.iter().find(other) {
                breaches.push(Breach::new(
                    Promise::Tokens,
                    "re-entry changed the token",
                    [hold.shown_by, operation],
                ));
            }
        }
    }
}

impl CertainHold<'_> {
    /// Whether the owner held the lock all the time while this operation of
    /// its own was under way.
    fn covers(&self, operation: &Operation) -> bool {
        !std::ptr::eq(self.shown_by, operation)
            && self.start <= operation.sent
            && operation.answered.is_some_and(|at| at <= self.end)
    }
}

fn check_exclusion(tenancies: &Tenancies<'_>, breaches: &mut Vec<Breach>) {
    let mut by_lock: HashMap<&str, Vec<&CertainHold<'_>>> = HashMap::new();
    for ((lock, _), tenancy) in tenancies {
        by_lock.entry(lock).or_default().extend(&tenancy.holds);
    }
    for holds in by_lock.values_mut() {
        holds.sort_by_key(|hold| hold.start);
        let mut together: Vec<&CertainHold<'_>> = Vec::new();
        for &hold in holds.iter() {
            together.retain(|other| other.end > hold.start);
            let owner = &hold.shown_by.owner;
            let mut rivals: Vec<&CertainHold<'_>> = Vec::new();
            for &other in &together {
                let is_new =
                    |known: &&CertainHold<'_>| known.shown_by.owner != other.shown_by.owner;
                if other.shown_by.owner != *owner && rivals.iter().all(is_new) {
                    rivals.push(other);
                }
            }
            let limit = rivals
                .iter()
                .fold(hold.limit, |limit, rival| limit.min(rival.limit));
            if rivals.len() >= limit {
                let end = rivals
                    .iter()
                    .fold(hold.end, |end, rival| end.min(rival.end));
                let what = format!(
                    "{} owners together held a lock that admits {limit}, for {} us",
                    rivals.len() + 1,
                    (end - hold.start) / 1000
                );
                let shown = rivals.iter().chain([&hold]).map(|hold| hold.shown_by);
                breaches.push(Breach::new(Promise::Exclusion, &what, shown));
            }
            together.push(hold);
        }
    }
}

fn check_possession(history: &History, tenancies: &Tenancies<'_>, breaches: &mut Vec<Breach>) {
    for tenancy in tenancies.values() {
        for operation in &tenancy.operations {
            let looser = |other: &&Operation| other.limit() > operation.limit();
            if operation.outcome == Outcome::Error("UPGRADE".into())
                && !tenancy.operations.iter().any(looser)
            {
                breaches.push(Breach::new(
                    Promise::Possession,
                    "the owner was told of a looser hold that it never asked for",
                    [*operation],
                ));
            }
            let denied = match &operation.outcome {
                Outcome::NotHeld | Outcome::NotAvailable => true,
                Outcome::Error(code) => {
                    code == "HOLDCOUNT" && count_known(history, tenancy, operation)
                }
                _ => false,
            };
            if !denied {
                continue;
            }
            if let Some(hold) = tenancy.holds.iter().find(|hold| hold.covers(operation)) {
                breaches.push(Breach::new(
                    Promise::Possession,
                    "the owner lost a lock that it certainly held",
                    [hold.shown_by, operation],
                ));
            }
        }
    }
}

/// Whether the owner must have counted its holds right: no outcome is unknown,
/// and nothing took a hold away without a word.
fn count_known(history: &History, tenancy: &Tenancy<'_>, operation: &Operation) -> bool {
    let begun = tenancy.operations.first().map(|first| first.sent);
    let harmed = history.interferences.iter().any(|one| {
        one.effect == Effect::EndsHolds
            && one.concerns(&operation.lock)
            && Some(one.until) >= begun
            && Some(one.from) <= operation.answered
    });
    !harmed && !tenancy.operations.iter().any(|one| one.unknown())
}

fn check_order(history: &History, tenancies: &Tenancies<'_>, breaches: &mut Vec<Breach>) {
    // Who may have been granted the lock by an older request of its own says
    // nothing of the order.
    let mut granted_once: HashMap<&str, Vec<(&Operation, i64)>> = HashMap::new();
    for ((lock, _), tenancy) in tenancies {
        let mut seen = HashSet::new();
        for operation in &tenancy.operations {
            if operation.acquires() && operation.unknown() {
                break;
            }
            if let Some(token) = operation.token()
                && seen.insert(token)
            {
                granted_once
                    .entry(lock)
                    .or_default()
                    .push((operation, token));
            }
        }
    }
    for granted in granted_once.values_mut() {
        let mut queued: Vec<(Nanos, &Operation, i64)> = granted
            .iter()
            .filter_map(|&(operation, token)| {
                let queued = history.surely_queued(operation)?;
                Some((queued, operation, token))
            })
            .collect();
        queued.sort_by_key(|&(at, ..)| at);
        granted.sort_by_key(|(operation, _)| operation.sent);
        let mut before = queued.iter().peekable();
        let mut last: Option<(&Operation, i64)> = None;
        for &(operation, token) in granted.iter() {
            while let Some(&(_, earlier, token)) = before.next_if(|&&(at, ..)| at < operation.sent)
            {
                if last.is_none_or(|(_, greatest)| greatest < token) {
                    last = Some((earlier, token));
                }
            }
            if let Some((earlier, earlier_token)) = last
                && token < earlier_token
            {
                breaches.push(Breach::new(
                    Promise::Order,
                    "a waiter was passed by one that came later",
                    [earlier, operation],
                ));
            }
        }
    }
}

fn check_liveness(history: &History, breaches: &mut Vec<Breach>) {
    for operation in &history.operations {
        if matches!(operation.outcome, Outcome::Silent | Outcome::Pending) {
            breaches.push(Breach::new(
                Promise::Liveness,
                "a connected client was not answered in time",
                [operation],
            ));
        }
    }
}

mod deadlocks;
mod sessions;

pub use deadlocks::Link;

#[cfg(test)]
mod tests;
