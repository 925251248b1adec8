//! Scenes as text: a few clients that do as they are told, one thing after the other, and no
//! faults but those that the scene wants.
//!
//! ```text
//! a takes l LEASE 5000               asks for the lock, and waits for the answer
//! b waits l LEASE 100 BLOCK 5000     asks, and is seen in the queue
//! b asks l LEASE 100 BLOCK 5000      only asks, as `b would renew l 5000` does
//! b answered                         waits for the answer
//! c queues l LEASE 100 QUEUE 5000    has a place in the queue, and `c repeats` the request
//! c told                             what a message says of the place
//! c deaf                             from now on it hears none
//! a renews l 5000                    and so `a releases l`, `a pings l`, `a closes l`
//! a at once: releases l, kills b     in one transaction; what b is told then of its request
//! a at once: kills b ending l, ...   where it holds or waits for l by a session
//! c releases l if held               where its last answer was a grant, or a renewal
//! primary set lock.min-replicas 1    or `all set`, on the replica too
//! primary fails over                 or `primary lost`
//! replica in step                    or `cut off`, or `promoted`
//! until b seen                       in the queue, or answered
//! until a withheld                   its answer, or it is answered
//! until a refused                    as its renewals are without a replica, or `until a taken`
//! after 700 ms
//! within 4000 ms                     of the last `takes`, or the scene ends here
//! ```
//!
//! Whoever is named connects when it is named first, and asks as the owner of its name: `a`
//! and `a'` are one owner.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use redis::Value;
use redis_lock_testing::{Connection, Fate, SOON, Setup, eventually};

use crate::client::{Asked, Client, Connected, LEASE_MS_MAX, Shared, Wrap};
use crate::fleet::{Fleet, Topology};
use crate::history::{self, Acquire, Breach, History, Outcome, Request, TOLERANCE};
use crate::locks::Locks;
use crate::protection::{CLAIM_TIMEOUT_MS, Protection};
use crate::words::{outcome, word_after};
use crate::{clock, observer};

/// A server with its replica, and what happens there.
pub struct Scene {
    fleet: Fleet,
    shared: Arc<Shared>,
    observer: Option<JoinHandle<()>>,
    admin: Connection,
    parties: BTreeMap<String, Party>,
    connected: usize,
    claim_ms: u64,
    /// When a lock was asked for last.
    asked: Instant,
    _dir: tempfile::TempDir,
}

/// One client as one owner.
struct Party {
    client: Client,
    asked: Option<Asked>,
    /// The request that stands in the queue.
    place: Option<usize>,
    last: Outcome,
}

impl Scene {
    /// Starts such a server.
    pub fn start(setup: &Setup) -> Self {
        let dir = tempfile::tempdir().expect("a directory can be made");
        let protection = Protection::none(LEASE_MS_MAX);
        let fleet = Fleet::start(setup, dir.path(), Topology::One, &protection, false);
        let fleet = fleet.expect("the servers start");
        let shared = Shared::new(fleet.guide(), protection, Locks { names: Vec::new() });
        let shared = Arc::new(shared);
        let watched = Arc::clone(&shared);
        Self {
            observer: Some(thread::spawn(move || observer::watch(&watched))),
            admin: connect(&fleet, 0),
            fleet,
            shared,
            parties: BTreeMap::new(),
            connected: 0,
            claim_ms: CLAIM_TIMEOUT_MS,
            asked: Instant::now(),
            _dir: dir,
        }
    }

    /// Plays these lines, with clients of its own.
    pub fn play(&mut self, lines: &str) {
        self.parties.clear();
        for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["primary" | "replica" | "all", ..] => self.servers(line),
                ["after", ms, "ms"] => thread::sleep(Duration::from_millis(number(ms))),
                ["within", ms, "ms"] if self.asked.elapsed().as_millis() <= number(ms).into() => {}
                ["within", ..] => return,
                ["until", who, what] => self.until(who, what),
                [who, ..] => {
                    let mut party = self.party(who);
                    let holds = party.last.token().is_some() || party.last == Outcome::Renewed;
                    let is_left_out = line.ends_with(" if held") && !holds;
                    if is_left_out || self.act(&mut party, line) {
                        self.parties.insert(who.to_owned(), party);
                    }
                }
                [] => {}
            }
        }
    }

    /// The party of this name, which is not there meanwhile.
    fn party(&mut self, name: &str) -> Party {
        self.parties.remove(name).unwrap_or_else(|| {
            self.connected += 1;
            let id = 5 * self.connected;
            let mut client = Client::new(id, 0, None, Arc::clone(&self.shared));
            client.obeys = true;
            client.name = Some(name.trim_end_matches('\'').to_owned());
            let connected = client.connected();
            client.connection = Some(connected);
            Party {
                client,
                asked: None,
                place: None,
                last: Outcome::Pending,
            }
        })
    }

    /// What a party does. Returns whether it stays.
    fn act(&mut self, party: &mut Party, line: &str) -> bool {
        if let Some((_, steps)) = line.split_once(" at once: ") {
            self.at_once(party, steps);
            return true;
        }
        let words: Vec<&str> = line.split(' ').collect();
        let (what, lock) = (words[1], words.get(2).copied().unwrap_or_default());
        let request = || self.request(&words[1..]);
        match what {
            "takes" => {
                party.ask(lock, request());
                self.asked = Instant::now();
                party.answer();
            }
            "asks" => party.ask(lock, request()),
            "waits" => {
                party.ask(lock, request());
                self.look_for(party);
            }
            "answered" => party.answer(),
            "queues" => {
                assert!(!party.client.is_deaf() || party.client.open_ears());
                party.ask(lock, request());
                let place = party.asked.as_ref().map_or(0, |asked| asked.operation);
                party.answer();
                assert_eq!(party.last, Outcome::Pending, "{line}");
                self.shared.journal.queued(place, Some(clock::now()));
                party.place = Some(place);
            }
            "repeats" => {
                let request = party.client.line(party.connected(), lock, request());
                let replies = party.call(&[request]);
                assert_eq!(replies, Value::Int(0), "{line}");
            }
            "told" => {
                party.hear();
                self.end_place(party);
            }
            "deaf" => {
                let connection = party.client.connection.as_mut();
                connection.expect("it is connected").ears = None;
                party.last = Outcome::Lost;
                self.end_place(party);
            }
            "would" => party.ask(words[3], self.request(&words[2..])),
            "renews" | "pings" | "releases" => party.perform(lock, request()),
            "closes" => {
                let connected = party.client.connected();
                party.client.close(lock, connected);
                return false;
            }
            _ => panic!("what is this? {line}"),
        }
        true
    }

    /// The request of a verb, a lock and options.
    fn request(&self, words: &[&str]) -> Request {
        let (hold, fence, all) = (None, None, false);
        match words[0] {
            "renew" | "renews" => Request::Renew {
                lease_ms: number(words[2]),
                fence,
            },
            "releases" => Request::Release { hold, fence, all },
            "pings" => Request::Ping,
            _ => Request::Acquire(Acquire::of(words, self.claim_ms)),
        }
    }

    /// In one transaction a party ends connections of others, and asks for something.
    fn at_once(&mut self, party: &mut Party, steps: &str) {
        let (mut lines, mut asked) = (vec!["MULTI".to_owned()], Vec::new());
        let (number, mut killed) = (party.connected().number, Vec::new());
        for step in steps.split(", ") {
            let words: Vec<&str> = step.split(' ').collect();
            if words[0] == "kills" {
                let other = self.party(words[1]);
                let Connected { number, id, .. } = *other.connected();
                if let Some(lock) = word_after(&words, "ending") {
                    let (closing, _) = other.client.began(lock, Request::Close, number);
                    other.client.ended(closing, Outcome::Done);
                }
                killed.push(other);
                lines.push(format!("CLIENT KILL ID {id}"));
            } else {
                let (lock, request) = (words[1], self.request(&words));
                let (operation, _) = party.client.began(lock, request, number);
                asked.push((lines.len() - 1, operation, request));
                lines.push(party.client.line(party.connected(), lock, request));
            }
        }
        lines.push("EXEC".to_owned());
        let Value::Array(replies) = party.call(&lines) else {
            panic!("{steps} is refused");
        };
        for (at, operation, request) in asked {
            party.last = outcome(request, replies[at].clone(), 0);
            party.client.ended(operation, party.last.clone());
        }
        for other in &mut killed {
            if other.asked.is_some() {
                other.answer();
            }
            if other.place.is_some() {
                other.hear();
                self.end_place(other);
            }
        }
    }

    fn end_place(&self, party: &mut Party) {
        let place = party.place.take().expect("it had a place");
        let outcome = party.last.clone();
        self.shared.journal.ended(place, clock::now(), outcome);
    }

    /// What becomes of the servers.
    fn servers(&mut self, line: &str) {
        match line {
            "replica in step" => eventually("the replica has everything", || {
                self.admin("SET written 1");
                self.admin("WAIT 1 1000") == Value::Int(1)
            }),
            "replica cut off" => {
                let (fleet, lost) = (&self.fleet, (Fate::Swallowed, [true; 2]));
                let cut = fleet.cut_off(1, &[fleet.nodes[0].source], lost);
                cut.expect("it is cut off");
            }
            "replica promoted" => {
                self.lead_to_replica();
                assert_eq!(self.admin("REPLICAOF NO ONE"), Value::Okay);
            }
            "primary lost" => {
                self.fleet.nodes[0].server.crash();
                self.servers("replica promoted");
            }
            "primary fails over" => {
                eventually("the fail-over begins", || {
                    self.admin("FAILOVER TIMEOUT 5000") == Value::Okay
                });
                self.lead_to_replica();
                eventually("the replica is promoted", || {
                    let info = self.fleet.nodes[1].replication();
                    info.is_some_and(|info| info.contains("role:master"))
                });
            }
            _ => {
                let (whom, settings) = line.split_once(" set ").expect("a setting");
                if let Some(("lock.claim-timeout", ms)) = settings.split_once(' ') {
                    self.claim_ms = number(ms);
                }
                let set = format!("CONFIG SET {settings}");
                assert_eq!(self.admin(&set), Value::Okay, "{set}");
                if whom == "all" {
                    let set: Vec<&str> = set.split(' ').collect();
                    let done = connect(&self.fleet, 1).call_ok(&set);
                    done.expect("the replica is configured");
                }
            }
        }
    }

    /// Who comes from now on finds the replica.
    fn lead_to_replica(&mut self) {
        self.fleet.lead_to(1);
        self.admin = connect(&self.fleet, 1);
    }

    /// Sends a command that is about no lock, with its words between spaces.
    fn admin(&mut self, line: &str) -> Value {
        let words: Vec<&str> = line.split(' ').collect();
        self.admin.call(&words).expect("the server answers")
    }

    fn until(&mut self, who: &str, what: &str) {
        let mut party = self.party(who);
        match what {
            "seen" => {
                self.look_for(&party);
            }
            "withheld" => eventually("it is withheld or answered", || {
                let withheld = self.admin.info("lock_replies_withheld");
                matches!(withheld, Ok(1..)) || party.has_answer()
            }),
            _ => eventually(what, || {
                party.perform("another", self.request(&["renew", "another", "1000"]));
                let refused = Outcome::Error("NOREPLICAS".to_owned());
                (party.last == refused) == (what == "refused")
            }),
        }
        self.parties.insert(who.to_owned(), party);
    }

    /// Waits until the server is seen to have this party's request in a queue, or has answered
    /// it: on a machine that stood still its time may be over before.
    fn look_for(&self, party: &Party) {
        let Some(asked) = &party.asked else {
            return;
        };
        let queued = || self.history().operations[asked.operation].queued.is_some();
        eventually("it is seen to wait", || queued() || party.has_answer());
    }

    /// What the clients saw.
    pub fn history(&self) -> History {
        self.shared.journal.history()
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
        self.shared.end();
        if let Some(observer) = self.observer.take() {
            let _ = observer.join();
        }
    }
}

impl Party {
    fn ask(&mut self, lock: &str, request: Request) {
        let connected = self.client.connected();
        self.asked = Some(self.client.ask(connected, lock, request, Wrap::Plain));
    }

    fn answer(&mut self) {
        let asked = self.asked.take().expect("something was asked");
        self.last = self.client.answer(asked);
    }

    /// What a message says of its place.
    fn hear(&mut self) {
        let deadline = Instant::now() + SOON;
        let told = self.client.await_told(|_| Instant::now() < deadline);
        self.last = told.map_or(Outcome::Lost, |(_, outcome)| outcome);
    }

    fn perform(&mut self, lock: &str, request: Request) {
        self.last = self.client.perform(lock, request);
    }

    /// Whether something is to be read on one of its connections.
    fn has_answer(&self) -> bool {
        let connected = self.connected();
        let ears = connected.ears.as_ref().map(|ears| &ears.connection);
        let mut ways = [&connected.connection].into_iter().chain(ears);
        ways.any(Connection::has_reply)
    }

    fn connected(&self) -> &Connected {
        let asked = self.asked.as_ref().map(|asked| &asked.connected);
        let connected = asked.or(self.client.connection.as_ref());
        connected.expect("it is connected")
    }

    /// The last reply to some commands, which are written down elsewhere.
    fn call(&mut self, lines: &[String]) -> Value {
        let mut connected = self.client.connected();
        let words = lines.iter().map(|line| line.split(' ').collect());
        let sent = connected.connection.send_all(&words.collect::<Vec<_>>());
        sent.expect("the server takes commands");
        let deadline = Instant::now() + SOON;
        let patient = || Instant::now() < deadline;
        let value = connected.connection.wait(lines.len(), patient);
        let value = value.ok().flatten().expect("the commands are answered");
        self.client.connection = Some(connected);
        value
    }
}

fn connect(fleet: &Fleet, node: usize) -> Connection {
    let connection = fleet.nodes[node].server.connect();
    connection.expect("the server answers")
}

fn number(word: &str) -> u64 {
    word.parse()
        .unwrap_or_else(|_| panic!("{word} is no number"))
}
