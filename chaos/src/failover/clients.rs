//! Clients that follow the primary, count their leases themselves, and write
//! down what they see. [`super`] says what they keep to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use redis::Value;
use redis_lock_testing::{Connection, Told, Wait, info_field, reply_text};

use crate::clock;
use crate::failover::fleet::{Guide, SIDES};
use crate::failover::protection::Protection;
use crate::failover::workload::Workload;
use crate::history::{Acquire, MS, Nanos, Operation, Outcome, Request};
use crate::journal::Journal;
use crate::words::{outcome, outcome_of_place};

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
const DISMISSED: &str = "DISMISSED";

/// What all clients share.
pub struct Shared {
    /// Where they write down what they do.
    pub journal: Journal,
    /// How they find the primary.
    pub guide: Guide,
    /// What all channels begin with, so that those who serve the locks serve them.
    pub prefix: String,
    /// What the servers do.
    pub protection: Protection,
    /// The locks.
    pub locks: Vec<String>,
    /// What they are used for, if for anything.
    pub workload: Option<Workload>,
    /// Whether the faults are over.
    pub over: AtomicBool,
    /// How often a lock was granted.
    pub grants: AtomicUsize,
}

impl Shared {
    /// Nothing has happened yet.
    pub fn new(
        guide: Guide,
        protection: Protection,
        prefix: &str,
        locks: Vec<String>,
        workload: Option<Workload>,
    ) -> Self {
        Self {
            journal: Journal::default(),
            guide,
            prefix: prefix.to_owned(),
            protection,
            locks,
            workload,
            over: AtomicBool::new(false),
            grants: AtomicUsize::new(0),
        }
    }
}

/// A connection to the primary, or one that was.
pub(super) struct Connected {
    pub(super) connection: Connection,
    pub(super) number: usize,
    node: usize,
    /// The name of the primary's data: another one after each promotion.
    reign: String,
    /// The grace period of this reign is over by then.
    grace_until: Nanos,
    /// Where it hears of places.
    channel: String,
    /// What hears of them, if the server blocks no connection that has subscribed.
    ears: Option<Connection>,
    /// The last message that came before a reply.
    told: Option<Told>,
}

/// A hold as its client sees it.
pub(super) struct Hold {
    pub(super) lock: String,
    pub(super) ask: Acquire,
    pub(super) token: i64,
    valid_until: Nanos,
    /// The reign in which it was told of last.
    reign: String,
}

/// A client. It is another owner for each holding.
pub struct Client {
    pub(super) id: usize,
    pub(super) rng: StdRng,
    pub(super) shared: Arc<Shared>,
    pub(super) connected: Option<Connected>,
    connections: usize,
    holdings: usize,
}

impl Client {
    /// A client that does as the seed says.
    pub fn new(id: usize, rng: StdRng, shared: Arc<Shared>) -> Self {
        Self {
            id,
            rng,
            shared,
            connected: None,
            connections: 0,
            holdings: 0,
        }
    }

    /// Works until the faults are over, and then takes each lock once more.
    pub fn run(mut self) -> Result<(), String> {
        while !self.is_over() {
            self.holding();
            self.sleep(0, 60);
        }
        let locks = self.shared.locks.clone();
        locks.iter().try_for_each(|lock| self.last_holding(lock))
    }

    fn is_over(&self) -> bool {
        self.shared.over.load(Ordering::SeqCst)
    }

    /// A number that no other holding has.
    pub(super) fn element(&self) -> u64 {
        (1_000_000 * self.id + self.holdings) as u64
    }

    pub(super) fn sleep(&mut self, from_ms: u64, to_ms: u64) {
        let ms = self.rng.random_range(from_ms..=to_ms);
        thread::sleep(Duration::from_millis(ms));
    }

    pub(super) fn owner(&self) -> String {
        format!("client{}-{}", self.id, self.holdings)
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
        self.holdings += 1;
        let index = self.rng.random_range(0..self.shared.locks.len());
        let lock = self.shared.locks[index].clone();
        let ask = self.any_ask();
        let Some(mut hold) = self.take(&lock, ask) else {
            return;
        };
        // A grant that may have waited can't be dated; its renewal can.
        if ask.block_ms.is_some() && !self.renew(&mut hold, true) {
            return;
        }
        if let Some(workload) = self.shared.workload {
            self.add(workload, &hold);
            return self.release(&hold);
        }
        let keep_ms = match self.rng.random_range(0..10) {
            0..8 => self.rng.random_range(0..=60),
            _ => self.rng.random_range(60..=HOLD_MS_MAX),
        };
        let end = clock::now() + keep_ms * MS;
        while clock::now() < end && !self.is_over() {
            let third = hold.ask.lease_ms / 3;
            let left_ms = end.saturating_sub(clock::now()) / MS;
            self.sleep(0, third.min(left_ms));
            let still_holds = if ask.hold.is_some() && self.rng.random_bool(0.2) {
                // It may be a grace period that does not confirm it.
                self.confirm(&mut hold) || self.shared.protection.grace_ms() > 0
            } else {
                self.renew(&mut hold, false)
            };
            if !still_holds {
                return;
            }
        }
        if self.rng.random_bool(0.9) {
            self.release(&hold);
        }
    }

    /// Asks for a lock, again if nobody knows what became of it.
    fn take(&mut self, lock: &str, ask: Acquire) -> Option<Hold> {
        for _ in 0..RESENT_MAX {
            let (sent, outcome) = self.acquire(lock, ask, None);
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
                _ if ask.hold.is_none() || self.is_over() => break,
                _ => {}
            }
        }
        let (hold, fence, all) = (None, None, true);
        self.perform(lock, Request::Release { hold, fence, all }, None);
        None
    }

    /// Asks for the same hold again. Returns whether the client still has it.
    fn confirm(&mut self, hold: &mut Hold) -> bool {
        let (lock, ask) = (hold.lock.clone(), hold.ask);
        self.repeat(hold, false, |client, hold| {
            client.acquire(&lock, ask, Some(hold))
        })
    }

    /// Renews a hold. Returns whether the client still has it. `at_once` if its
    /// client can't tell how old it is.
    fn renew(&mut self, hold: &mut Hold, at_once: bool) -> bool {
        let lock = hold.lock.clone();
        let lease_ms = hold.ask.lease_ms;
        let fence = self.rng.random_bool(0.5).then_some(hold.token);
        let request = Request::Renew { lease_ms, fence };
        self.repeat(hold, at_once, |client, hold| {
            client.perform(&lock, request, Some(hold))
        })
    }

    /// Sends a request that makes a hold last until an answer is there, or the
    /// hold is over by its own count.
    fn repeat(
        &mut self,
        hold: &mut Hold,
        at_once: bool,
        mut send: impl FnMut(&mut Self, &Hold) -> (Nanos, Outcome),
    ) -> bool {
        for repeated in 0..RESENT_MAX {
            let is_over = clock::now() >= hold.valid_until;
            if is_over && !(at_once && repeated == 0) {
                return false;
            }
            let (sent, outcome) = send(self, hold);
            match outcome {
                // It was lost, and this is another one.
                Outcome::Granted(token) if token != hold.token => return false,
                Outcome::Renewed | Outcome::Granted(_) => {
                    hold.valid_until = sent + (hold.ask.lease_ms * MS).saturating_sub(IN_HAND);
                    hold.reign = self.reign();
                    return true;
                }
                Outcome::NotHeld | Outcome::NotAvailable => return false,
                Outcome::Error(code) if code == DISMISSED => return false,
                _ => {}
            }
        }
        false
    }

    fn release(&mut self, hold: &Hold) {
        let fence = self.rng.random_bool(0.5).then_some(hold.token);
        let request = Request::Release {
            hold: hold.ask.hold,
            fence,
            all: hold.ask.hold.is_none(),
        };
        for _ in 0..RESENT_MAX {
            let believed = (clock::now() < hold.valid_until).then_some(hold);
            let (_, outcome) = self.perform(&hold.lock, request, believed);
            if matches!(outcome, Outcome::Released | Outcome::NotHeld) || self.is_over() {
                return;
            }
        }
    }

    /// Takes a lock when all is well, which has to succeed, and gives it back.
    fn last_holding(&mut self, lock: &str) -> Result<(), String> {
        self.holdings += 1;
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
                self.release(&hold);
                return Ok(());
            }
            if clock::now() > deadline {
                return Err(format!("client {} can't get {lock} in the end", self.id));
            }
        }
    }

    fn acquire(&mut self, lock: &str, ask: Acquire, hold: Option<&Hold>) -> (Nanos, Outcome) {
        // A holder never waits.
        let claim_ms = ask.claim_ms.filter(|_| hold.is_none());
        let request = Request::Acquire(Acquire { claim_ms, ..ask });
        let (sent, outcome) = self.perform(lock, request, hold);
        if outcome.token().is_some() {
            self.shared.grants.fetch_add(1, Ordering::SeqCst);
        }
        (sent, outcome)
    }

    /// Sends a request and writes down what comes of it; `believed` is the hold
    /// that the owner has by its own count.
    fn perform(
        &mut self,
        lock: &str,
        request: Request,
        believed: Option<&Hold>,
    ) -> (Nanos, Outcome) {
        let mut connected = self.connect();
        let owner = self.owner();
        let block_ms = match request {
            Request::Acquire(asked) => asked.block_ms.unwrap_or(0),
            _ => 0,
        };
        let line = request.line(lock, &owner, &connected.channel);
        let line: Vec<&str> = line.split(' ').collect();
        let of = (self.id, connected.number);
        let operation = Operation::sent_now(of, lock, &owner, request);
        let sent = operation.sent;
        let operation = self.shared.journal.began(operation);
        let deadline = sent + (self.shared.protection.response_ms() + block_ms) * MS;
        let heard = match connected.connection.send(&line) {
            Ok(()) => connected.outcome_of(request, &owner, deadline),
            Err(_) => Outcome::Lost,
        };
        let answered = clock::now();
        // It may have been written, and may be taken back or not.
        let is_refused = matches!(&heard,
            Outcome::Error(code) if matches!(code.as_str(), "NOREPLICAS" | "UNBLOCKED" | "MOVED"));
        let outcome = match heard {
            _ if is_refused => Outcome::Lost,
            Outcome::NotHeld | Outcome::NotAvailable
                if believed
                    .is_some_and(|hold| self.is_excused(hold, request, sent, &connected)) =>
            {
                Outcome::Error(DISMISSED.to_owned())
            }
            other => other,
        };
        self.shared
            .journal
            .ended(operation, answered, outcome.clone());
        let failed = matches!(
            outcome,
            Outcome::Lost | Outcome::GivenUp | Outcome::Error(_)
        );
        if is_refused || !failed {
            self.connected = Some(connected);
        }
        if is_refused || matches!(outcome, Outcome::Error(_)) {
            self.sleep(10, 50);
        }
        (sent, outcome)
    }

    /// Whether a node may say that a hold is not there which the client has.
    fn is_excused(
        &self,
        hold: &Hold,
        request: Request,
        sent: Nanos,
        connected: &Connected,
    ) -> bool {
        let may_be_lost = !self.shared.protection.keeps_holds() && hold.reign != connected.reign;
        // Within a grace period no request for a hold is answered with a token.
        let is_grace = matches!(request, Request::Acquire(_)) && sent <= connected.grace_until;
        may_be_lost || is_grace || self.shared.guide.agreed() != Some(connected.node)
    }

    fn reign(&self) -> String {
        let connected = self.connected.as_ref();
        connected.map_or_else(String::new, |connected| connected.reign.clone())
    }

    /// The connection, made anew where there is none.
    pub(super) fn connect(&mut self) -> Connected {
        loop {
            if let Some(connected) = self.connected.take() {
                return connected;
            }
            self.connected = self.new_connection();
            if self.connected.is_none() {
                self.sleep(10, 40);
            }
        }
    }

    /// A connection to whom some witness names, if that is a primary.
    fn new_connection(&mut self) -> Option<Connected> {
        let guide = &self.shared.guide;
        let node = guide.primary(self.rng.random_range(0..guide.witnesses()))?;
        let way = guide.way(node, self.id % SIDES);
        let mut connection = Connection::open(way).ok()?;
        let deadline = clock::now() + self.shared.protection.response_ms() * MS;
        let patient = || clock::now() < deadline;
        let info = connection.call_while(&["INFO", "server", "replication", "lock"], patient);
        let info = info.and_then(reply_text)?;
        let grace_ms: u64 = info_field(&info, "lock_grace_ms").ok()?.parse().ok()?;
        let grace_until = clock::now() + grace_ms * MS;
        if info_field(&info, "role").ok()?.trim() != "master" {
            return None;
        }
        self.connections += 1;
        let number = 10 * self.connections + node + 1;
        let channel = format!("{}client{}-{number}", self.shared.prefix, self.id);
        let subscribe = match self.shared.prefix.is_empty() {
            true => "SUBSCRIBE",
            false => "SSUBSCRIBE",
        };
        let mut ears = match blocks_no_subscriber(&info) {
            true => Some(Connection::open(way).ok()?),
            false => None,
        };
        let subscriber = ears.as_mut().unwrap_or(&mut connection);
        subscriber.call_while(&["HELLO", "3"], patient)?;
        let heard = subscriber.call_while(&[subscribe, &channel], patient)?;
        if !matches!(heard, Value::Push { .. }) {
            return None;
        }
        Some(Connected {
            connection,
            number,
            node,
            reign: info_field(&info, "master_replid").ok()?.to_owned(),
            grace_until,
            channel,
            ears,
            told: None,
        })
    }
}

impl Connected {
    /// What comes of a request that was sent: a reply, or the message that tells how the
    /// place ended that it replies.
    fn outcome_of(&mut self, request: Request, owner: &str, deadline: Nanos) -> Outcome {
        // The server may tell of a place before it replies that there is one.
        self.told = None;
        let mut has_place = false;
        loop {
            if has_place && let Some(told) = self.told.take() {
                return outcome_of_place(&told);
            }
            let listens = match &mut self.ears {
                Some(ears) if has_place => ears,
                _ => &mut self.connection,
            };
            match listens.wait(|| clock::now() < deadline) {
                Wait::Replied(heard @ Value::Push { .. }) => {
                    let told = Told::of(&heard).filter(|told| told.owner == owner);
                    self.told = told.or(self.told.take());
                }
                Wait::Replied(value) => match outcome(request, value, 0) {
                    Outcome::Pending => has_place = true,
                    other => return other,
                },
                Wait::Closed => return Outcome::Lost,
                Wait::GivenUp => return Outcome::GivenUp,
            }
        }
    }
}

/// What `INFO` tells: whether the server blocks no connection that has subscribed, as
/// Valkey from 8.1 on. What has to be acknowledged could not be told to it.
fn blocks_no_subscriber(info: &str) -> bool {
    let Ok(version) = info_field(info, "valkey_version") else {
        return false;
    };
    let mut numbers = version.trim().split('.').map(|number| number.parse().ok());
    let [major, minor]: [Option<u32>; 2] = [(); 2].map(|()| numbers.next().flatten());
    (major, minor) >= (Some(8), Some(1))
}
