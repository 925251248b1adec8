//! Clients that take, keep and give back locks by bare commands, and write down what they
//! see.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis::Value;
use redis_lock_testing::Connection;

use crate::clock;
use crate::fleet::Guide;
use crate::history::{Acquire, MS, Nanos, Operation, Outcome, Request};
use crate::journal::Journal;
use crate::locks::{Locks, database_and_key};
use crate::protection::Protection;
use crate::words::outcome;

mod holds;
mod places;
mod quiet;
mod rounds;
pub mod sets;

use holds::{Hold, Reign};
use places::Ears;
use sets::Workload;

/// No lease of a client on one server is longer.
pub const LEASE_MS_MAX: u64 = 2000;

/// How long after the last fault everybody must have been answered, when all
/// who are granted a lock release it at once.
const SETTLE_MS: u64 = LEASE_MS_MAX + 5000;

/// How long a wait without end may last while there are faults.
const FOR_EVER_MS: u64 = 60_000;

/// How much longer than asked a connected client waits while there are faults.
const FAULTS_MS: u64 = 20_000;

/// How much longer than asked a client waits if its connection may stall.
const STALL_MS: u64 = 700;

/// What all clients share.
pub struct Shared {
    pub journal: Journal,
    pub guide: Guide,
    /// The prefix of all names, by which the nodes that serve the locks serve them.
    pub prefix: String,
    pub protection: Protection,
    pub locks: Locks,
    pub workload: Option<Workload>,
    /// When the faults ended: 0 while they go on.
    pub faults_end: AtomicU64,
}

impl Shared {
    pub fn new(guide: Guide, protection: Protection, locks: Locks) -> Self {
        Self {
            journal: Journal::default(),
            guide,
            prefix: String::new(),
            protection,
            locks,
            workload: None,
            faults_end: AtomicU64::new(0),
        }
    }

    pub fn is_over(&self) -> bool {
        self.faults_end.load(Ordering::SeqCst) != 0
    }

    pub fn end(&self) {
        self.faults_end.store(clock::now(), Ordering::SeqCst);
    }
}

/// How a command is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wrap {
    Plain,
    /// In `MULTI` and `EXEC`.
    Transaction,
    Script,
}

/// Calls the command that it is given, on the key that it is given.
const SCRIPT: &str = "return redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))";

/// One client with its connection.
pub struct Client {
    id: usize,
    rng: StdRng,
    shared: Arc<Shared>,
    /// Which of the ways it takes; none if it takes its own.
    side: Option<usize>,
    /// Whether it does as it is told: it sends no command by a detour, and stays with its
    /// connection.
    pub(crate) obeys: bool,
    database: i64,
    pub(crate) connection: Option<Connected>,
    connections: usize,
    companions: usize,
    /// How many owners it has been, unless it has a name.
    owners: usize,
    pub(crate) name: Option<String>,
    /// What it holds by its own count, behind witnesses.
    believed: Option<Hold>,
}

/// A request that was sent and has no answer yet.
pub(crate) struct Asked {
    pub(crate) connected: Connected,
    pub(crate) operation: usize,
    request: Request,
    sent: Nanos,
    /// How many replies are to come.
    replies: usize,
}

/// A connection, with its number here and its id at the server.
pub(crate) struct Connected {
    pub(crate) connection: Connection,
    /// The last digit is that of its node.
    pub(crate) number: usize,
    node: usize,
    pub(crate) id: i64,
    reign: Reign,
    pub(crate) ears: Option<Ears>,
}

/// Whether nobody knows what became of a request.
fn is_lost(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Lost | Outcome::GivenUp)
}

impl Client {
    /// A client that does as the seed says.
    pub fn new(id: usize, seed: u64, side: Option<usize>, shared: Arc<Shared>) -> Self {
        let is_watched = shared.guide.is_watched();
        Self {
            id,
            rng: StdRng::seed_from_u64(seed),
            side,
            obeys: false,
            database: i64::from(!is_watched && id % 5 == 4),
            shared,
            connection: None,
            connections: 0,
            companions: 0,
            owners: 0,
            name: None,
            believed: None,
        }
    }

    /// Whether events are in the order in which this client makes them.
    fn is_direct(&self) -> bool {
        self.side.is_none()
    }

    /// Whether it goes from one primary to the next.
    fn is_watched(&self) -> bool {
        self.shared.guide.is_watched()
    }

    /// Sleeps for a random time, or until the faults are over.
    fn sleep(&mut self, from_ms: u64, to_ms: u64) {
        let end = clock::now() + self.rng.random_range(from_ms..=to_ms) * MS;
        while !self.shared.is_over() {
            let left = end.saturating_sub(clock::now()).min(20 * MS);
            if left == 0 {
                break;
            }
            thread::sleep(Duration::from_nanos(left));
        }
    }

    pub(crate) fn owner(&self) -> String {
        match &self.name {
            Some(name) => name.clone(),
            None => format!("client{}-{}", self.id, self.owners),
        }
    }

    fn acquire(&mut self, lock: &str, ask: Acquire) -> Outcome {
        self.perform(lock, Request::Acquire(ask))
    }

    /// Sends a command about a lock, sometimes by a detour, and writes down what
    /// comes of it.
    pub(crate) fn perform(&mut self, lock: &str, request: Request) -> Outcome {
        let wrap = self.any_wrap(20);
        let connected = self.connected();
        let asked = self.ask(connected, lock, request, wrap);
        self.answer(asked)
    }

    /// One request in so many is sent in a transaction, and one in a script.
    fn any_wrap(&mut self, requests: u32) -> Wrap {
        match self.rng.random_range(0..requests) {
            _ if self.obeys || self.is_watched() => Wrap::Plain,
            // The replies of a transaction may not come together if the connection stalls.
            0 if self.is_direct() => Wrap::Transaction,
            1 => Wrap::Script,
            _ => Wrap::Plain,
        }
    }

    /// Notes a request that is sent now.
    pub(crate) fn began(&self, lock: &str, request: Request, connection: usize) -> (usize, Nanos) {
        let one = Operation::sent_now((self.id, connection), lock, &self.owner(), request);
        let sent = one.sent;
        (self.shared.journal.began(one), sent)
    }

    pub(crate) fn ended(&self, operation: usize, outcome: Outcome) {
        let journal = &self.shared.journal;
        journal.ended(operation, clock::now(), outcome);
    }

    /// Notes that it closes a connection, and does.
    pub(crate) fn close(&mut self, lock: &str, connected: Connected) {
        let (operation, _) = self.began(lock, Request::Close, connected.number);
        drop(connected);
        self.ended(operation, Outcome::Done);
    }

    /// A command on this connection, whose channel may hear of its end.
    pub(crate) fn line(&self, on: &Connected, lock: &str, request: Request) -> String {
        let channel = on.ears.as_ref().map_or("", |ears| &ears.channel);
        request.line(database_and_key(lock).1, &self.owner(), channel)
    }

    /// Sends a command about a lock.
    pub(crate) fn ask(
        &mut self,
        connected: Connected,
        lock: &str,
        mut request: Request,
        wrap: Wrap,
    ) -> Asked {
        let line = self.line(&connected, lock, request);
        let mut lines: Vec<Vec<&str>> = vec![line.split(' ').collect()];
        match wrap {
            Wrap::Plain => {}
            Wrap::Script => {
                let line = &mut lines[0];
                let (command, key) = (line[0], line[1]);
                line.splice(..2, ["EVAL", SCRIPT, "1", key, command]);
            }
            Wrap::Transaction => {
                lines.insert(0, vec!["MULTI"]);
                lines.push(vec!["EXEC"]);
            }
        }
        // Nobody waits in a transaction or a script.
        if wrap != Wrap::Plain
            && let Request::Acquire(asked) = &mut request
            && asked.claim_ms.is_none()
        {
            asked.block_ms = None;
        }
        let (operation, sent) = self.began(lock, request, connected.number);
        if request.block_ms().is_some() {
            self.shared.journal.may_wait(connected.id, operation);
        }
        transmit(connected, operation, request, sent, &lines)
    }

    /// Waits for the answer, and keeps the connection if it can be used again. If the
    /// client has a place now, its answer is still to come.
    pub(crate) fn answer(&mut self, asked: Asked) -> Outcome {
        let (mut connected, request, sent) = (asked.connected, asked.request, asked.sent);
        let block_ms = request.block_ms();
        let mut given_up = Outcome::GivenUp;
        let patient = || {
            let (until, outcome) = self.patience(sent, block_ms);
            given_up = outcome;
            clock::now() < until
        };
        let wait = connected.connection.wait(asked.replies, patient);
        if block_ms.is_some() {
            self.shared.journal.waits_no_more(connected.id);
        }
        let heard = match wait {
            Ok(Some(value)) => outcome(request, value, self.database),
            Ok(None) => given_up,
            Err(_) if request.is_for_place() => self.unheard(),
            Err(_) => Outcome::Lost,
        };
        let is_doubtful = self.is_doubtful(&heard);
        // A node that answers with another code of doubt is the primary no more.
        let may_ask_again = is_doubtful && heard == Outcome::Error("NOREPLICAS".into());
        let outcome = match heard {
            _ if is_doubtful => Outcome::Lost,
            Outcome::NotHeld | Outcome::NotAvailable
                if self.is_dismissed(request, sent, &connected) =>
            {
                Outcome::Error(holds::DISMISSED.into())
            }
            other => other,
        };
        if outcome != Outcome::Pending {
            self.ended(asked.operation, outcome.clone());
        }
        // After most errors the server is not, or no more, the one to ask.
        let usable = match &outcome {
            Outcome::Error(code) => self.obeys || code == "UPGRADE",
            Outcome::Lost | Outcome::GivenUp | Outcome::Silent => may_ask_again,
            _ => true,
        };
        self.connection = usable.then_some(connected);
        outcome
    }

    /// How long to wait for an answer, and what it means if none comes.
    fn patience(&self, sent: Nanos, block_ms: Option<u64>) -> (Nanos, Outcome) {
        let faults_end = self.shared.faults_end.load(Ordering::SeqCst);
        if faults_end != 0 && !self.is_watched() {
            return (faults_end.max(sent) + SETTLE_MS * MS, Outcome::Silent);
        }
        let asked_ms = match block_ms {
            Some(0) => FOR_EVER_MS,
            block_ms => block_ms.unwrap_or(0),
        };
        let (margin_ms, outcome) = match self.side {
            None => (FAULTS_MS, Outcome::Silent),
            Some(_) if self.is_watched() => {
                (self.shared.protection.response_ms(), Outcome::GivenUp)
            }
            // The connection may be one that stalls.
            Some(_) => (STALL_MS, Outcome::GivenUp),
        };
        (sent + (asked_ms + margin_ms) * MS, outcome)
    }

    /// The connection, or a new one if there is none.
    pub(crate) fn connected(&mut self) -> Connected {
        loop {
            let connected = self.connection.take().or_else(|| self.new_connection());
            if let Some(connected) = connected {
                return connected;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// A connection to the primary that some witness names.
    fn new_connection(&mut self) -> Option<Connected> {
        let guide = &self.shared.guide;
        let node = guide.primary(self.rng.random_range(0..guide.witnesses()))?;
        let mut connection = Connection::open(guide.way(node, self.side)).ok()?;
        let asked = clock::now();
        let patient = || clock::now() < self.patience(asked, None).0;
        let Value::Int(id) = connection.call_while(&["CLIENT", "ID"], patient)? else {
            return None;
        };
        let select = ["SELECT", &self.database.to_string()];
        if self.database != 0 && connection.call_while(&select, patient)? != Value::Okay {
            return None;
        }
        let reign = match guide.is_watched() {
            true => Reign::of(&mut connection, patient)?,
            false => Reign::default(),
        };
        self.connections += 1;
        Some(Connected {
            connection,
            number: 10 * self.connections + node + 1,
            node,
            id,
            reign,
            ears: None,
        })
    }
}

fn transmit(
    mut connected: Connected,
    operation: usize,
    request: Request,
    sent: Nanos,
    lines: &[Vec<&str>],
) -> Asked {
    // If that fails, no answer will come either.
    let _ = connected.connection.send_all(lines);
    Asked {
        connected,
        operation,
        request,
        sent,
        replies: lines.len(),
    }
}
