//! Scenes: a few clients that do as they are told, one thing after the other,
//! and no faults but those that the scene wants.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use redis::Value;
use redis_lock_testing::{
    Connection, Fate, Proxy, SOON, Server, Setup, Told, Wait, eventually, local,
};

use crate::clients::{CLAIM_TIMEOUT_MS, FaultsEnd};
use crate::fsync::Fsync;
use crate::history::{
    self, Acquire, Breach, History, Mode, Operation, Outcome, Request, TOLERANCE,
};
use crate::journal::Journal;
use crate::words::{outcome, outcome_of_place};
use crate::{clock, observer};

/// A server with its replica, and what happens there.
pub struct Scene {
    /// The primary, and its replica if there is one.
    pub servers: Vec<Server>,
    /// The way of the replica to the primary.
    link: Option<Proxy>,
    port: Arc<AtomicU16>,
    journal: Arc<Journal>,
    over: Arc<FaultsEnd>,
    observer: Option<JoinHandle<()>>,
    admin: Connection,
    parties: usize,
    claim_ms: u64,
    dir: tempfile::TempDir,
    setup: Setup,
}

/// One client as one owner.
pub struct Party {
    number: usize,
    /// As whom it asks.
    pub owner: String,
    connection: Connection,
    /// The server's number of its connection.
    pub id: i64,
    journal: Arc<Journal>,
    asked: Option<(usize, Request)>,
    /// Hears the channel of its name.
    ears: Option<Connection>,
    /// The request that stands in the queue.
    place: Option<usize>,
    /// How long what a message grants to it lasts unclaimed.
    claim_ms: u64,
}

impl Scene {
    /// Starts such a server.
    pub fn start(setup: Setup) -> Self {
        let dir = tempfile::tempdir().expect("a directory can be made");
        let claim_timeout = CLAIM_TIMEOUT_MS.to_string();
        let setup = Fsync::No.of(&setup);
        let setup = setup.options(&["--lock.claim-timeout", &claim_timeout]);
        let primary = Server::start(setup.clone().in_dir(dir.path().join("server-1")))
            .expect("the server starts");
        let journal = Arc::new(Journal::default());
        let over = Arc::new(FaultsEnd::new(0));
        let port = Arc::new(AtomicU16::new(primary.port()));
        let observer = {
            let (journal, port, over) = (journal.clone(), port.clone(), over.clone());
            thread::spawn(move || observer::watch(&journal, &port, &over))
        };
        Self {
            admin: primary.connect().expect("the server answers"),
            servers: vec![primary],
            link: None,
            port,
            journal,
            over,
            observer: Some(observer),
            parties: 0,
            claim_ms: CLAIM_TIMEOUT_MS,
            dir,
            setup,
        }
    }

    /// A new client as this owner.
    pub fn party(&mut self, owner: &str) -> Party {
        let port = self.port.load(Ordering::SeqCst);
        let mut connection = Connection::open(local(port)).expect("the server answers");
        let Value::Int(id) = call(&mut connection, &["CLIENT", "ID"]) else {
            panic!("a connection has a number");
        };
        self.parties += 1;
        Party {
            number: self.parties,
            owner: owner.to_owned(),
            connection,
            id,
            journal: Arc::clone(&self.journal),
            asked: None,
            ears: None,
            place: None,
            claim_ms: self.claim_ms,
        }
    }

    /// As [`Scene::party`], where the client can be told of places.
    pub fn listener(&mut self, owner: &str) -> Party {
        let port = self.port.load(Ordering::SeqCst);
        let mut ears = Connection::open(local(port)).expect("the server answers");
        call(&mut ears, &["SUBSCRIBE", owner]);
        Party {
            ears: Some(ears),
            ..self.party(owner)
        }
    }

    /// Sends a command that is about no lock, with its words between spaces.
    pub fn admin(&mut self, line: &str) -> Value {
        let words: Vec<&str> = line.split(' ').collect();
        call(&mut self.admin, &words)
    }

    /// Waits until the server is seen to have this party's request in a queue.
    /// Returns whether it comes to that, and is not answered first.
    pub fn sees_queued(&self, party: &Party) -> bool {
        let Some((operation, _)) = party.asked else {
            return false;
        };
        eventually("it is seen to wait", || {
            self.journal.history().operations[operation]
                .queued
                .is_some()
                || party.connection.has_reply()
        });
        self.journal.history().operations[operation]
            .queued
            .is_some()
    }

    /// Waits until the server withholds the answer to what this party asked. Says
    /// whether it comes to that, and is not answered first.
    pub fn sees_withheld(&mut self, party: &Party) -> bool {
        let mut is_withheld = false;
        eventually("it is withheld or answered", || {
            is_withheld = matches!(self.admin.info("lock_replies_withheld"), Ok(1..));
            is_withheld || party.has_answer()
        });
        is_withheld
    }

    /// From now on a grant that is told by a message lasts this long unclaimed.
    pub fn set_claim_timeout(&mut self, ms: u64) {
        self.claim_ms = ms;
        self.configure(&format!("lock.claim-timeout {ms}"));
    }

    /// Adds a replica, and waits until it is in step.
    pub fn add_replica(&mut self) {
        let setup = self.setup.clone().in_dir(self.dir.path().join("server-2"));
        let link = Proxy::to(self.servers[0].addr()).expect("a proxy starts");
        let replica = Server::start(setup.replica_of(link.addr())).expect("the replica starts");
        replica.await_link().expect("the replica is in step");
        self.servers.push(replica);
        self.link = Some(link);
        self.await_replica();
    }

    /// Sets this on each server.
    pub fn configure(&mut self, settings: &str) {
        let words: Vec<&str> = ["CONFIG", "SET"]
            .into_iter()
            .chain(settings.split(' '))
            .collect();
        for server in &self.servers {
            let mut connection = server.connect().expect("the server answers");
            assert_eq!(call(&mut connection, &words), Value::Okay, "{settings}");
        }
    }

    /// Waits until the replica has all that was written.
    pub fn await_replica(&mut self) {
        eventually("the replica has everything", || {
            self.admin("SET written 1");
            self.admin("WAIT 1 1000") == Value::Int(1)
        });
    }

    /// From now on the replica misses what is written.
    pub fn cut_off_replica(&mut self) {
        let link = self.link.as_ref().expect("there is a replica");
        link.set(Fate::Swallowed);
    }

    /// Promotes the replica, whatever the primary does. Who comes from now on finds it.
    pub fn promote(&mut self) {
        let mut there = self.servers[1].connect().expect("the replica answers");
        let promoted = call(&mut there, &["REPLICAOF", "NO", "ONE"]);
        assert_eq!(promoted, Value::Okay);
        self.port.store(self.servers[1].port(), Ordering::SeqCst);
        self.admin = there;
    }

    /// The primary dies, and the replica is promoted.
    pub fn lose_primary(&mut self) {
        self.servers[0].crash();
        self.promote();
    }

    /// Hands over to the replica.
    pub fn fail_over(&mut self) {
        let mut there = self.servers[1].connect().expect("the replica answers");
        eventually("the fail-over begins", || {
            self.admin("FAILOVER TIMEOUT 5000") == Value::Okay
        });
        eventually("the replica is promoted", || {
            replication(&mut there).contains("role:master")
        });
        self.port.store(self.servers[1].port(), Ordering::SeqCst);
        self.admin = there;
    }

    /// What the clients saw.
    pub fn history(&self) -> History {
        self.journal.history()
    }

    /// What is wrong with what the clients saw.
    pub fn breaches(&self) -> Vec<Breach> {
        history::check(&self.history(), TOLERANCE)
    }

    /// What may be wrong while some wait.
    pub fn breaches_so_far(&self) -> Vec<Breach> {
        history::check_so_far(&self.history(), TOLERANCE)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.over.store(clock::now(), Ordering::SeqCst);
        if let Some(observer) = self.observer.take() {
            let _ = observer.join();
        }
    }
}

impl Party {
    fn begin(&mut self, lock: &str, request: Request) -> usize {
        let of = (self.number, 1);
        let operation = Operation::sent_now(of, lock, &self.owner, request);
        let operation = self.journal.began(operation);
        self.asked = Some((operation, request));
        operation
    }

    fn line(&self, lock: &str, request: Request) -> String {
        request.line(lock, &self.owner, &self.owner)
    }

    fn send(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let _ = self.connection.send(&words);
    }

    fn send_request(&mut self, lock: &str, request: Request) -> usize {
        let operation = self.begin(lock, request);
        self.send(&self.line(lock, request));
        operation
    }

    fn perform(&mut self, lock: &str, request: Request) -> Outcome {
        self.send_request(lock, request);
        self.answer()
    }

    /// Asks for a lock, with options as on the command line, and doesn't wait for
    /// the answer.
    pub fn ask(&mut self, lock: &str, options: &str) {
        let operation = self.send_request(lock, Request::Acquire(acquire(options)));
        self.journal.may_wait(self.id, operation);
    }

    fn has_answer(&self) -> bool {
        let mut ways = [&self.connection].into_iter().chain(&self.ears);
        ways.any(Connection::has_reply)
    }

    /// The answer to what was asked.
    pub fn answer(&mut self) -> Outcome {
        self.answer_or(Outcome::Lost)
    }

    fn answer_or(&mut self, closed: Outcome) -> Outcome {
        let deadline = Instant::now() + SOON;
        let wait = self.connection.wait(|| Instant::now() < deadline);
        let (operation, request) = self.asked.take().expect("something was asked");
        self.journal.waits_no_more(self.id);
        let outcome = match wait {
            Wait::Replied(value) => outcome(request, value, 0),
            Wait::Closed => closed,
            Wait::GivenUp => Outcome::Silent,
        };
        self.journal.ended(operation, clock::now(), outcome.clone());
        outcome
    }

    /// Asks for a lock and waits for the answer.
    pub fn acquire(&mut self, lock: &str, options: &str) -> Outcome {
        self.ask(lock, options);
        self.answer()
    }

    /// Asks for a place in the queue for this long. There has to be one.
    pub fn queue(&mut self, lock: &str, options: &str, wait_ms: u64) {
        let operation = self.begin(lock, self.place(options, wait_ms));
        self.place = Some(operation);
        self.queue_again(lock, options, wait_ms);
        self.journal.queued(operation, Some(clock::now()));
    }

    /// The request for a place that these options make.
    fn place(&self, options: &str, wait_ms: u64) -> Request {
        Request::Acquire(Acquire {
            block_ms: Some(wait_ms),
            claim_ms: Some(self.claim_ms),
            ..acquire(options)
        })
    }

    /// Sends the same request again.
    pub fn queue_again(&mut self, lock: &str, options: &str, wait_ms: u64) {
        self.send(&self.line(lock, self.place(options, wait_ms)));
        let deadline = Instant::now() + SOON;
        let Wait::Replied(Value::Int(0)) = self.connection.wait(|| Instant::now() < deadline)
        else {
            panic!("{} has no place", self.owner);
        };
    }

    /// What is told of its place.
    pub fn told(&mut self) -> Outcome {
        let deadline = Instant::now() + SOON;
        let ears = self.ears.as_mut().expect("it hears");
        let outcome = match ears.wait(|| Instant::now() < deadline) {
            Wait::Replied(heard) => {
                let told = Told::of(&heard).expect("a message tells of a place");
                outcome_of_place(&told)
            }
            Wait::Closed => Outcome::Lost,
            Wait::GivenUp => Outcome::Silent,
        };
        let operation = self.place.take().expect("it had a place");
        self.journal.ended(operation, clock::now(), outcome.clone());
        outcome
    }

    /// From now on it hears nothing.
    pub fn stop_listening(&mut self) {
        self.ears = None;
        let operation = self.place.take().expect("it had a place");
        self.journal.ended(operation, clock::now(), Outcome::Lost);
    }

    /// Asks for another lease, and doesn't wait for the answer.
    pub fn ask_to_renew(&mut self, lock: &str, lease_ms: u64) {
        let fence = None;
        self.send_request(lock, Request::Renew { lease_ms, fence });
    }

    /// Renews a lease.
    pub fn renew(&mut self, lock: &str, lease_ms: u64) -> Outcome {
        self.ask_to_renew(lock, lease_ms);
        self.answer()
    }

    /// Gives one hold back.
    pub fn release(&mut self, lock: &str) -> Outcome {
        self.perform(lock, RELEASE)
    }

    /// Shows that the connection lives.
    pub fn ping(&mut self, lock: &str) -> Outcome {
        self.perform(lock, Request::Ping)
    }

    /// Closes the connection.
    pub fn close(mut self, lock: &str) {
        let operation = self.begin(lock, Request::Close);
        drop(self.connection);
        self.journal.ended(operation, clock::now(), Outcome::Done);
    }

    /// In one transaction gives the lock back and ends the connection of one that
    /// waits for it.
    pub fn release_and_kill(&mut self, lock: &str, mut victim: Party) {
        let operation = self.begin(lock, RELEASE);
        let kill = format!("CLIENT KILL ID {}", victim.id);
        let reply = self.transaction(&[&self.line(lock, RELEASE), &kill]);
        self.end(operation, outcome(RELEASE, reply, 0));
        victim.answer_or(Outcome::Lost);
    }

    /// In one transaction ends the connection of a session and asks for the lock.
    pub fn kill_and_acquire(&mut self, lock: &str, mut session: Party, options: &str) -> Outcome {
        let kill = session.ends(lock);
        let request = Request::Acquire(acquire(options));
        let operation = self.begin(lock, request);
        let reply = self.transaction(&[&kill, &self.line(lock, request)]);
        self.end(operation, outcome(request, reply, 0))
    }

    /// In one transaction ends the connection to which a place is bound, takes another
    /// lock, and gives this one back.
    pub fn kill_acquire_and_release(&mut self, session: &mut Party, another: &str, lock: &str) {
        let kill = session.ends(lock);
        let request = Request::Acquire(acquire("LEASE 1000"));
        let acquiring = self.begin(another, request);
        let releasing = self.begin(lock, RELEASE);
        let (acquire, release) = (self.line(another, request), self.line(lock, RELEASE));
        let reply = self.transaction(&[&kill, &acquire, &release]);
        let Value::Array(replies) = reply else {
            panic!("{reply:?}");
        };
        let [_, Value::Int(token), Value::Int(1)] = replies[..] else {
            panic!("{replies:?}");
        };
        self.end(acquiring, Outcome::Granted(token));
        self.end(releasing, Outcome::Released);
    }

    /// Its connection is to end with a session. Returns the command that ends it.
    fn ends(&mut self, lock: &str) -> String {
        let closing = self.begin(lock, Request::Close);
        self.end(closing, Outcome::Done);
        format!("CLIENT KILL ID {}", self.id)
    }

    fn end(&mut self, operation: usize, outcome: Outcome) -> Outcome {
        self.asked = None;
        self.journal.ended(operation, clock::now(), outcome.clone());
        outcome
    }

    fn transaction(&mut self, lines: &[&str]) -> Value {
        for line in [&["MULTI"], lines, &["EXEC"]].concat() {
            self.send(line);
        }
        let (replies, deadline) = (lines.len() + 2, Instant::now() + SOON);
        let wait = (self.connection).wait_for(replies, || Instant::now() < deadline);
        let Wait::Replied(value) = wait else {
            panic!("a transaction is answered");
        };
        value
    }
}

/// The release of one hold.
const RELEASE: Request = Request::Release {
    hold: None,
    fence: None,
    all: false,
};

fn call(connection: &mut Connection, words: &[&str]) -> Value {
    connection.call(words).expect("the server answers")
}

fn replication(connection: &mut Connection) -> String {
    let info = connection.info_section("replication");
    info.expect("the server answers")
}

/// The request that these options make.
fn acquire(options: &str) -> Acquire {
    let words: Vec<&str> = options.split(' ').collect();
    let number = |name: &str| {
        let at = words.iter().position(|word| *word == name)?;
        words.get(at + 1)?.parse::<u64>().ok()
    };
    let mode = match number("LIMIT") {
        Some(limit) => Mode::Limited(usize::try_from(limit).unwrap_or(usize::MAX)),
        None if words.contains(&"SHARED") => Mode::Shared,
        None => Mode::Exclusive,
    };
    Acquire {
        lease_ms: number("LEASE").unwrap_or(30_000),
        block_ms: number("BLOCK"),
        mode,
        hold: number("HOLD"),
        session: words.contains(&"SESSION"),
        claim_ms: None,
    }
}
