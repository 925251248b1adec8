//! Clients that take, keep and give back locks, and write down what they see.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis::Value;
use redis_lock_testing::{Connection, Wait, local};

use crate::clock;
use crate::history::{Acquire, MS, Mode, Nanos, Operation, Outcome, Request};
use crate::journal::Journal;
use crate::locks::{Kind, Locks, database_and_key, in_database};
use crate::words::outcome;

mod ears;
mod pairs;
mod places;
mod quiet;
mod sessions;

use ears::Ears;

/// No lease is longer.
pub const LEASE_MS_MAX: u64 = 2000;

/// How long a grant that is told by a message lasts unclaimed.
pub const CLAIM_TIMEOUT_MS: u64 = 600;

/// How long after the last fault everybody must have been answered, when all
/// who are granted a lock release it at once.
const SETTLE_MS: u64 = LEASE_MS_MAX + 5000;

/// How long a client that waits for ever does so while there are faults.
const FOR_EVER_MS: u64 = 60_000;

/// How much longer than asked a connected client waits while there are faults.
const FAULTS_MS: u64 = 20_000;

/// How much longer than asked a client waits whose connection may stall.
const STALL_MS: u64 = 700;

/// How often each client takes a lock once the faults are over.
const LAST_ROUNDS: usize = 3;

/// How a client reaches the server.
#[derive(Clone)]
pub enum Route {
    /// By the port of whoever is the primary.
    Direct(Arc<AtomicU16>),
    /// Through the proxy on this port, where connections may stall.
    Proxied(u16),
}

/// How a command is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wrap {
    Plain,
    /// In `MULTI` and `EXEC`, maybe with the end of a connection after or before it.
    Transaction(Option<i64>),
    /// By a script.
    Script,
}

/// Calls the command that it is given, on the key that it is given.
const SCRIPT: &str = "return redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))";

/// When the faults ended: 0 while they go on.
pub type FaultsEnd = AtomicU64;

/// One client with its connection.
pub struct Client {
    id: usize,
    rng: StdRng,
    route: Route,
    locks: Arc<Locks>,
    journal: Arc<Journal>,
    faults_end: Arc<FaultsEnd>,
    database: i64,
    connection: Option<Connected>,
    ears: Option<Ears>,
    connections: usize,
    owners: usize,
}

/// A request that was sent and has no answer yet.
struct Asked {
    connected: Connected,
    operation: usize,
    request: Request,
    sent: Nanos,
    /// How many replies are to come.
    replies: usize,
    failed: bool,
}

/// A connection, with its number here and its id at the server.
struct Connected {
    connection: Connection,
    number: usize,
    id: i64,
    /// Whether messages come between the replies.
    hears: bool,
}

/// Which holds are given back.
#[derive(Clone, Copy)]
enum Extent {
    One,
    All,
    Hold(u64),
}

/// Whether nobody knows what became of a request.
fn is_lost(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Lost | Outcome::GivenUp)
}

/// A lock that a client believes to hold, and how often.
struct Section {
    lock: String,
    token: i64,
    holds: u64,
    lease_ms: u64,
    mode: Mode,
    numbered: bool,
}

impl Section {
    /// The first hold, as it was asked for.
    fn of(lock: &str, ask: Acquire, token: i64) -> Self {
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
    /// A client that does as the seed says.
    pub fn new(
        id: usize,
        seed: u64,
        route: Route,
        locks: Arc<Locks>,
        journal: Arc<Journal>,
        faults_end: Arc<FaultsEnd>,
    ) -> Self {
        Self {
            id,
            rng: StdRng::seed_from_u64(seed),
            route,
            locks,
            journal,
            faults_end,
            database: i64::from(id % 5 == 4),
            connection: None,
            ears: None,
            connections: 0,
            owners: 0,
        }
    }

    /// Works until the faults are over, and then takes each lock some times more.
    pub fn run(mut self) {
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

    /// Whether events are in the order in which this client makes them.
    fn is_direct(&self) -> bool {
        matches!(self.route, Route::Direct(_))
    }

    fn faults_over(&self) -> bool {
        self.faults_end.load(Ordering::SeqCst) != 0
    }

    /// Sleeps for a random time, or until the faults are over.
    fn sleep(&mut self, from_ms: u64, to_ms: u64) {
        let end = clock::now() + self.rng.random_range(from_ms..=to_ms) * MS;
        while !self.faults_over() {
            let left = end.saturating_sub(clock::now()).min(20 * MS);
            if left == 0 {
                break;
            }
            thread::sleep(Duration::from_nanos(left));
            self.listen();
        }
    }

    fn owner(&self) -> String {
        format!("client{}-{}", self.id, self.owners)
    }

    fn lock_of(&mut self, kind: Kind) -> String {
        let key = self.locks.any(kind, &mut self.rng);
        in_database(self.database, &key)
    }

    /// A lock, and how to hold it.
    fn any_lock(&mut self) -> (String, Mode) {
        let kind = if self.rng.random_bool(0.75) {
            Kind::Exclusive
        } else {
            Kind::Mixed
        };
        let lock = self.lock_of(kind);
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

    fn any_lease_ms(&mut self) -> u64 {
        match self.rng.random_range(0..3) {
            0 => self.rng.random_range(50..=200),
            1 => self.rng.random_range(200..=600),
            _ => self.rng.random_range(600..=LEASE_MS_MAX),
        }
    }

    fn any_block_ms(&mut self) -> Option<u64> {
        let may_stall = matches!(self.route, Route::Proxied(_));
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
    fn work(&mut self, section: &mut Section, may_have_queued: bool) -> bool {
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
    fn leave(&mut self, section: &Section) -> bool {
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
        let key = self.locks.any_at_all(&mut self.rng);
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

    fn acquire(&mut self, lock: &str, ask: Acquire) -> Outcome {
        self.perform(lock, Request::Acquire(ask))
    }

    fn renew(&mut self, section: &Section) -> bool {
        let named = self.rng.random_bool(0.5).then_some(section.token);
        self.renew_with(section, named) == Outcome::Renewed
    }

    fn renew_with(&mut self, section: &Section, fence: Option<i64>) -> Outcome {
        let lease_ms = section.lease_ms;
        self.perform(&section.lock, Request::Renew { lease_ms, fence })
    }

    fn release(&mut self, lock: &str, fence: Option<i64>, extent: Extent) -> Outcome {
        let (hold, all) = match extent {
            Extent::One => (None, false),
            Extent::All => (None, true),
            Extent::Hold(hold) => (Some(hold), false),
        };
        self.perform(lock, Request::Release { hold, fence, all })
    }

    /// Sends a command about a lock, sometimes by a detour, and writes down what
    /// comes of it.
    fn perform(&mut self, lock: &str, request: Request) -> Outcome {
        let wrap = match self.rng.random_range(0..20) {
            0 if self.may_wrap_in_transaction() => Wrap::Transaction(None),
            1 => Wrap::Script,
            _ => Wrap::Plain,
        };
        let connected = self.connected();
        let asked = self.ask(connected, lock, request, wrap);
        let (outcome, connected) = self.hear(asked);
        self.connection = connected;
        outcome
    }

    /// The replies of a transaction may not come together if the connection stalls, and
    /// a message may come among them.
    fn may_wrap_in_transaction(&self) -> bool {
        let hears = self.connection.as_ref().is_some_and(|one| one.hears);
        self.is_direct() && !hears
    }

    /// Notes a request that is sent now.
    fn began(&self, lock: &str, request: Request, connection: usize) -> (usize, Nanos) {
        let one = Operation::sent_now((self.id, connection), lock, &self.owner(), request);
        let sent = one.sent;
        (self.journal.began(one), sent)
    }

    fn line(&self, lock: &str, request: Request) -> String {
        let channel = self.ears.as_ref().map_or("", |ears| &ears.channel);
        request.line(database_and_key(lock).1, &self.owner(), channel)
    }

    /// Sends a command about a lock.
    fn ask(&mut self, connected: Connected, lock: &str, mut request: Request, wrap: Wrap) -> Asked {
        let line = self.line(lock, request);
        let mut lines: Vec<Vec<&str>> = vec![line.split(' ').collect()];
        let id;
        match wrap {
            Wrap::Plain => {}
            Wrap::Script => {
                let line = &mut lines[0];
                let (command, key) = (line[0], line[1]);
                line.splice(..2, ["EVAL", SCRIPT, "1", key, command]);
            }
            Wrap::Transaction(killed) => {
                if let Some(killed) = killed {
                    id = killed.to_string();
                    let kill = vec!["CLIENT", "KILL", "ID", &id];
                    // Those that wait are killed after what wakes them.
                    let at = usize::from(matches!(request, Request::Release { .. }));
                    lines.insert(at, kill);
                }
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
        self.send(connected, lock, request, &lines)
    }

    fn send(
        &mut self,
        connected: Connected,
        lock: &str,
        request: Request,
        lines: &[Vec<&str>],
    ) -> Asked {
        let (operation, sent) = self.began(lock, request, connected.number);
        if request.block_ms().is_some() {
            self.journal.may_wait(connected.id, operation);
        }
        Self::transmit(connected, operation, request, sent, lines)
    }

    fn transmit(
        mut connected: Connected,
        operation: usize,
        request: Request,
        sent: Nanos,
        lines: &[Vec<&str>],
    ) -> Asked {
        let failed = connected.connection.send_all(lines).is_err();
        Asked {
            connected,
            operation,
            request,
            sent,
            replies: lines.len(),
            failed,
        }
    }

    /// Waits for the answer. Returns the connection too, if it can be used again. The
    /// answer to who has a place is still to come then.
    fn hear(&mut self, asked: Asked) -> (Outcome, Option<Connected>) {
        let Asked {
            mut connected,
            operation,
            request,
            sent,
            replies,
            failed,
        } = asked;
        let block_ms = request.block_ms();
        let mut ears = self.ears.take();
        let mut given_up = Outcome::GivenUp;
        let patient = || {
            let (until, outcome) = self.patience(sent, block_ms);
            given_up = outcome;
            clock::now() < until
        };
        let wait = if failed {
            Wait::Closed
        } else {
            connected.wait_for(replies, &mut ears, patient)
        };
        self.ears = ears;
        if block_ms.is_some() {
            self.journal.waits_no_more(connected.id);
        }
        let outcome = match wait {
            Wait::Replied(value) => outcome(request, value, self.database),
            Wait::Closed if request.is_for_place() => {
                self.ears.iter_mut().for_each(Ears::close);
                self.unheard()
            }
            Wait::Closed => Outcome::Lost,
            Wait::GivenUp => given_up,
        };
        if outcome != Outcome::Pending {
            self.journal.ended(operation, clock::now(), outcome.clone());
        }
        // After most errors the server is not, or no more, the one to ask.
        let usable = match &outcome {
            Outcome::Error(code) => code == "UPGRADE",
            Outcome::Lost | Outcome::GivenUp | Outcome::Silent => false,
            _ => true,
        };
        (outcome, usable.then_some(connected))
    }

    /// How long to wait for an answer, and what it means if none comes.
    fn patience(&self, sent: Nanos, block_ms: Option<u64>) -> (Nanos, Outcome) {
        let faults_end = self.faults_end.load(Ordering::SeqCst);
        if faults_end != 0 {
            return (faults_end.max(sent) + SETTLE_MS * MS, Outcome::Silent);
        }
        let asked_ms = match block_ms {
            Some(0) => FOR_EVER_MS,
            Some(block_ms) => block_ms,
            None => 0,
        };
        let (margin_ms, outcome) = match self.route {
            Route::Direct(_) => (FAULTS_MS, Outcome::Silent),
            // The connection may be one that stalls.
            Route::Proxied(_) => (STALL_MS, Outcome::GivenUp),
        };
        (sent + (asked_ms + margin_ms) * MS, outcome)
    }

    /// Where the client connects.
    fn port(&self) -> u16 {
        match &self.route {
            Route::Direct(port) => port.load(Ordering::SeqCst),
            Route::Proxied(port) => *port,
        }
    }

    /// The connection, made anew where there is none.
    fn connected(&mut self) -> Connected {
        loop {
            if let Some(connected) = self.connection.take() {
                return connected;
            }
            if let Ok(mut connection) = Connection::open(local(self.port())) {
                let asked = clock::now();
                let patient = || clock::now() < self.patience(asked, None).0;
                let id = connection.call_while(&["CLIENT", "ID"], patient);
                let selected = self.database == 0
                    || connection.call_while(&["SELECT", "1"], patient) == Some(Value::Okay);
                if let (Some(Value::Int(id)), true) = (id, selected) {
                    self.connections += 1;
                    return Connected {
                        connection,
                        number: self.connections,
                        id,
                        hears: false,
                    };
                }
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}
