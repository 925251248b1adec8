//! Clients that take, keep and give back locks, and write down what they see.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis::Value;

use crate::clock;
use crate::history::{Link, MS, Mode, Nanos, Operation, Outcome, Request};
use crate::journal::Journal;
use crate::locks::{Kind, Locks};
use crate::wire::{Connection, Wait};

mod pairs;
mod sessions;

/// No lease is longer.
pub const LEASE_MS_MAX: u64 = 2000;

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
    connection: Option<Connected>,
    connections: usize,
    owners: usize,
}

/// A connection, with its number here and its id at the server.
struct Connected {
    connection: Connection,
    number: usize,
    id: i64,
}

/// What a client asks of a lock.
#[derive(Clone, Copy)]
struct Ask {
    lease_ms: u64,
    block_ms: Option<u64>,
    mode: Mode,
    hold: Option<u64>,
    session: bool,
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
            connection: None,
            connections: 0,
            owners: 0,
        }
    }

    /// Works until the faults are over, and then takes each lock some times more.
    pub fn run(mut self) {
        while !self.faults_over() {
            match self.rng.random_range(0..100) {
                0..70 => self.round(),
                70..80 => self.session_round(),
                _ => self.pair_round(),
            }
            self.sleep(0, 20);
        }
        for _ in 0..LAST_ROUNDS {
            self.last_round();
        }
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
        }
    }

    fn owner(&self) -> String {
        format!("client{}-{}", self.id, self.owners)
    }

    /// A lock, and how to hold it.
    fn any_lock(&mut self) -> (String, Mode) {
        let kind = if self.rng.random_bool(0.75) {
            Kind::Exclusive
        } else {
            Kind::Mixed
        };
        let lock = self.locks.any(kind, &mut self.rng);
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
        let ask = Ask {
            lease_ms: self.any_lease_ms(),
            block_ms: self.any_block_ms(),
            mode,
            hold: numbered.then_some(1),
            session: false,
        };
        let mut outcome = self.acquire(&lock, ask);
        // With the number of the hold it is safe to ask again.
        for _ in 0..3 {
            if numbered && outcome == Outcome::Lost && !self.faults_over() {
                outcome = self.acquire(&lock, ask);
            }
        }
        match outcome {
            Outcome::Granted(token) => {
                let mut section = Section {
                    lock,
                    token,
                    holds: 1,
                    lease_ms: ask.lease_ms,
                    mode,
                    numbered,
                };
                let may_have_queued = ask.block_ms.is_some();
                let in_order = self.work(&mut section, may_have_queued) && self.leave(&section);
                // Whoever can't tell what it holds begins anew as another.
                if !in_order || self.rng.random_bool(0.5) {
                    self.owners += 1;
                }
            }
            Outcome::NotAvailable => {
                if self.rng.random_bool(0.1) {
                    self.release(&lock, None, &[]);
                }
            }
            _ => self.owners += 1,
        }
    }

    /// What happens while the lock is held. Says whether all of it went as it
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
            let in_order = match self.rng.random_range(0..8) {
                0..=1 => self.re_enter(section),
                2 if section.mode != Mode::Exclusive => self.ask_for_more(section),
                3..=4 => {
                    section.lease_ms = self.any_lease_ms();
                    self.renew(section)
                }
                5..=6 if section.holds > 1 => {
                    let hold = section.holds.to_string();
                    section.holds -= 1;
                    let options = ["HOLD", hold.as_str()];
                    let options = if section.numbered { &options[..] } else { &[] };
                    self.release(&section.lock, None, options) == Outcome::StillHeld
                }
                _ => true,
            };
            if !in_order {
                // It may have been lost, or may come into force later.
                self.release(&section.lock, None, &["ALL"]);
                return false;
            }
        }
        true
    }

    fn re_enter(&mut self, section: &mut Section) -> bool {
        // A looser mode is granted too, and changes nothing.
        let looser = self.rng.random_bool(0.1);
        let ask = Ask {
            lease_ms: self.any_lease_ms(),
            block_ms: self.any_block_ms(),
            mode: if looser { Mode::Shared } else { section.mode },
            hold: section.numbered.then_some(section.holds + 1),
            session: false,
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
        let ask = Ask {
            lease_ms: section.lease_ms,
            block_ms: self.any_block_ms(),
            mode: Mode::Exclusive,
            hold: None,
            session: false,
        };
        self.acquire(&section.lock, ask) == Outcome::Error("UPGRADE".into())
    }

    /// Gives the lock back: in time, too late, or never. Says whether the owner
    /// can be sure to hold nothing.
    fn leave(&mut self, section: &Section) -> bool {
        match self.rng.random_range(0..40) {
            0 => return false,
            1 | 2 => {
                self.sleep(section.lease_ms + 20, section.lease_ms + 300);
                if self.rng.random_bool(0.5) {
                    self.renew(section);
                }
                self.release(&section.lock, None, &["ALL"]);
                return false;
            }
            _ => {}
        }
        let fence = self.rng.random_bool(0.5).then_some(section.token);
        if !section.numbered {
            return self.release(&section.lock, fence, &["ALL"]) == Outcome::Released;
        }
        for hold in (1..=section.holds).rev() {
            let hold = hold.to_string();
            let options = ["HOLD", hold.as_str()];
            let mut outcome = self.release(&section.lock, fence, &options);
            if outcome == Outcome::Lost {
                outcome = self.release(&section.lock, fence, &options);
            }
            match outcome {
                Outcome::StillHeld => {}
                Outcome::Released => return hold == "1",
                _ => return false,
            }
        }
        false
    }

    /// Waits for a lock as long as it takes, and gives it back at once.
    fn last_round(&mut self) {
        self.owners += 1;
        let lock = self.locks.any_at_all(&mut self.rng);
        let ask = Ask {
            lease_ms: LEASE_MS_MAX,
            block_ms: Some(0),
            mode: Mode::Exclusive,
            hold: Some(1),
            session: false,
        };
        let mut outcome = Outcome::Lost;
        while outcome == Outcome::Lost {
            outcome = self.acquire(&lock, ask);
        }
        if matches!(outcome, Outcome::Granted(_)) {
            self.release(&lock, None, &["ALL"]);
        }
    }

    fn acquire(&mut self, lock: &str, ask: Ask) -> Outcome {
        let request = Request::Acquire {
            lease_ms: ask.lease_ms,
            block_ms: ask.block_ms,
            mode: ask.mode,
            session: ask.session,
        };
        let mut words = vec!["LEASE".to_owned(), ask.lease_ms.to_string()];
        if let Some(block_ms) = ask.block_ms {
            words.extend(["BLOCK".to_owned(), block_ms.to_string()]);
        }
        if let Some(hold) = ask.hold {
            words.extend(["HOLD".to_owned(), hold.to_string()]);
        }
        match ask.mode {
            Mode::Exclusive => {}
            Mode::Shared => words.push("SHARED".to_owned()),
            Mode::Limited(limit) => words.extend(["LIMIT".to_owned(), limit.to_string()]),
        }
        if ask.session {
            words.push("SESSION".to_owned());
        }
        self.perform("LOCK.ACQUIRE", lock, request, &words)
    }

    fn renew(&mut self, section: &Section) -> bool {
        let lease_ms = section.lease_ms;
        let mut words = vec!["LEASE".to_owned(), lease_ms.to_string()];
        if self.rng.random_bool(0.5) {
            words.extend(["FENCE".to_owned(), section.token.to_string()]);
        }
        let request = Request::Renew { lease_ms };
        self.perform("LOCK.RENEW", &section.lock, request, &words) == Outcome::Renewed
    }

    fn release(&mut self, lock: &str, fence: Option<i64>, options: &[&str]) -> Outcome {
        let mut words: Vec<String> = options.iter().map(ToString::to_string).collect();
        if let Some(token) = fence {
            words.extend(["FENCE".to_owned(), token.to_string()]);
        }
        self.perform("LOCK.RELEASE", lock, Request::Release, &words)
    }

    /// Sends a command about a lock and writes down what comes of it.
    fn perform(
        &mut self,
        command: &str,
        lock: &str,
        request: Request,
        words: &[String],
    ) -> Outcome {
        let owner = self.owner();
        let mut line = vec![command, lock, &owner];
        line.extend(words.iter().map(String::as_str));
        let connected = self.connected();
        self.exchange(connected, lock, request, &line)
    }

    fn began(&self, lock: &str, request: Request, connection: usize, sent: Nanos) -> usize {
        self.journal.began(Operation {
            client: self.id,
            connection,
            lock: lock.to_owned(),
            owner: self.owner(),
            request,
            sent,
            answered: None,
            queued: None,
            outcome: Outcome::Pending,
        })
    }

    fn exchange(
        &mut self,
        mut connected: Connected,
        lock: &str,
        request: Request,
        line: &[&str],
    ) -> Outcome {
        let sent = clock::now();
        let operation = self.began(lock, request, connected.number, sent);
        let block_ms = match request {
            Request::Acquire { block_ms, .. } => block_ms,
            _ => None,
        };
        if block_ms.is_some() {
            self.journal.may_wait(connected.id, operation);
        }
        let mut given_up = Outcome::Lost;
        let connection = &mut connected.connection;
        let wait = match connection.send(line) {
            Ok(()) => connection.wait(|| {
                let (until, outcome) = self.patience(sent, block_ms);
                given_up = outcome;
                clock::now() < until
            }),
            Err(_) => Wait::Closed,
        };
        if block_ms.is_some() {
            self.journal.waits_no_more(connected.id);
        }
        let outcome = match wait {
            Wait::Replied(value) => outcome(request, value),
            Wait::Closed => Outcome::Lost,
            Wait::GivenUp => given_up,
        };
        self.journal.ended(operation, clock::now(), outcome.clone());
        // After most errors the server is not, or no more, the one to ask.
        let usable = match &outcome {
            Outcome::Error(code) => code == "UPGRADE",
            Outcome::Lost | Outcome::Silent => false,
            _ => true,
        };
        self.connection = usable.then_some(connected);
        outcome
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
            Route::Proxied(_) => (STALL_MS, Outcome::Lost),
        };
        (sent + (asked_ms + margin_ms) * MS, outcome)
    }

    /// The connection, made anew where there is none.
    fn connected(&mut self) -> Connected {
        loop {
            if let Some(connected) = self.connection.take() {
                return connected;
            }
            let port = match &self.route {
                Route::Direct(port) => port.load(Ordering::SeqCst),
                Route::Proxied(port) => *port,
            };
            if let Ok(mut connection) = Connection::open(port) {
                let asked = clock::now();
                let patient = || clock::now() < self.patience(asked, None).0;
                let id = connection.call(&["CLIENT", "ID"], patient);
                if let Some(Value::Int(id)) = id {
                    self.connections += 1;
                    return Connected {
                        connection,
                        number: self.connections,
                        id,
                    };
                }
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

fn outcome(request: Request, reply: Value) -> Outcome {
    match (request, reply) {
        (Request::Acquire { .. }, Value::Int(token)) => Outcome::Granted(token),
        (Request::Acquire { .. }, Value::Nil) => Outcome::NotAvailable,
        (Request::Renew { .. }, Value::Int(1)) => Outcome::Renewed,
        (Request::Renew { .. }, Value::Int(0)) => Outcome::NotHeld,
        (Request::Release, Value::Int(1)) => Outcome::Released,
        (Request::Release, Value::Int(0)) => Outcome::StillHeld,
        (Request::Release, Value::Nil) => Outcome::NotHeld,
        (Request::Ping, Value::SimpleString(_)) => Outcome::Done,
        (Request::Acquire { .. }, Value::ServerError(error)) if error.code() == "DEADLOCK" => {
            let links = error.details().and_then(Link::parse_all);
            Outcome::Deadlock(links.unwrap_or_default())
        }
        (_, Value::ServerError(error)) => Outcome::Error(error.code().to_owned()),
        (_, other) => Outcome::Error(format!("{other:?}")),
    }
}
