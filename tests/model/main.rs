//! Random commands by several clients, and after each the check that replies,
//! waiters and stored data are what a simple model of the contract says.
//!
//! The same run each time, and one that is new. `MODEL_SEED` repeats a run,
//! `MODEL_STEPS` makes the new one longer.

mod commands;
mod observed;
mod random;
mod stored;
mod world;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use commands::{Command, DATABASES, DEFAULT_LEASE, KEYS, LONGEST_SHORT_LEASE, in_a_script};
use observed::{counters, listing, sentence, shown};
use random::{Kind, Random};
use redis::Value;
use redis_lock_testing::{Client, SOON, TestServer, int, status};
use stored::Dump;
use world::{Expect, Peer, Place, Sender, World};

/// Clients 0 to 5 may wait. The last two never do, one in each database, so
/// that there is always somebody to go on.
const CLIENTS: usize = 8;
const MAY_WAIT: usize = 6;

/// How soon most waiters hear of a change. The module's regular looks are off,
/// so one that the event did not reach does not hear of it at all.
const AT_ONCE: Duration = Duration::from_secs(1);

/// What steps are filed under in which a client waits no more, or its session ends.
const WAITER_LEAVES: &str = "a waiter that leaves";
const SESSION_ENDS: &str = "the end of a session";

struct Connection {
    client: Client,
    peer: Peer,
    db: usize,
}

impl Connection {
    fn open(server: &TestServer, db: usize) -> Self {
        let mut client = server.client();
        assert_eq!(client.call(&format!("SELECT {db}")), status("OK"));
        let info = client.bulk("CLIENT INFO");
        let fields = info
            .split_whitespace()
            .filter_map(|field| field.split_once('='));
        let fields: BTreeMap<&str, &str> = fields.collect();
        let peer = Peer {
            id: fields["id"].parse().unwrap(),
            address: fields["addr"].into(),
        };
        Self { client, peer, db }
    }

    fn send(&mut self, words: &[Vec<u8>]) {
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        self.client.send_words(&words);
    }
}

struct Run {
    seed: u64,
    step: usize,
    server: TestServer,
    connections: Vec<Connection>,
    observer: Client,
    random: Random,
    world: World,
    dumps: Vec<Dump>,
    /// The last steps, for the report of a divergence.
    history: VecDeque<String>,
    /// How often each command got which kind of answer, as a sign of what the
    /// run has reached.
    answers: BTreeMap<(&'static str, String), usize>,
    /// How long waiters took to hear what a command did to their lock.
    delays: BTreeMap<&'static str, Vec<Duration>>,
}

impl Run {
    fn start(seed: u64) -> Self {
        let server = TestServer::start();
        let mut observer = server.client();
        let lease = format!("CONFIG SET lock.default-lease {DEFAULT_LEASE}");
        assert_eq!(observer.call(&lease), status("OK"));
        let connections: Vec<Connection> = (0..CLIENTS)
            .map(|n| Connection::open(&server, n % DATABASES))
            .collect();
        let peers = connections.iter().map(|open| open.peer.clone());
        Self {
            seed,
            step: 0,
            server,
            world: World::new(peers.collect()),
            connections,
            observer,
            random: Random::new(seed),
            dumps: Vec::new(),
            history: VecDeque::new(),
            answers: BTreeMap::new(),
            delays: BTreeMap::new(),
        }
    }

    fn count(&mut self, name: &'static str, expected: &Expect) {
        let kind = match expected {
            Expect::Token(_) => "token".into(),
            Expect::Error(code) => (*code).into(),
            Expect::Int(n) => n.to_string(),
            Expect::Lock(_) => "a lock".into(),
            Expect::Contended(locks) => format!("{} locks", locks.len()),
            expected => format!("{expected:?}"),
        };
        *self.answers.entry((name, kind)).or_default() += 1;
    }

    fn note(&mut self, line: String) {
        if self.history.len() > 60 {
            self.history.pop_front();
        }
        self.history.push_back(line);
    }

    fn diverges(&mut self, what: &str) -> ! {
        let listing = self.listing();
        let history: Vec<String> = self.history.drain(..).collect();
        panic!(
            "MODEL_SEED={} step {}: {what}\n\nThe steps before:\n{}\n\n\
             Expected, stored:\n{}waiting:\n{}\nActual, blocked clients and stored:\n{listing}",
            self.seed,
            self.step,
            history.join("\n"),
            self.world.listing(),
            self.world.queues(),
        );
    }

    fn listing(&mut self) -> String {
        listing(&mut self.observer)
    }

    /// A replica has the same data, and soon.
    fn check_replica(&mut self, replica: &TestServer) {
        let mut there = replica.client();
        let deadline = Instant::now() + SOON;
        loop {
            let listing = listing(&mut there);
            let (_, stored) = listing.split_once('\n').unwrap_or_default();
            if stored == self.world.listing() {
                break;
            }
            if Instant::now() > deadline {
                self.diverges(&format!("the replica stores:\n{stored}"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // The server may still keep keys whose time is over. It deletes them
        // when they are asked for, and then not in the middle of the comparison.
        for db in 0..DATABASES {
            self.observer.call(&format!("SELECT {db}"));
            self.observer.call(&format!("EXISTS {}", KEYS.join(" ")));
        }
        let same = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            self.server.assert_same_data(replica)
        }));
        if same.is_err() {
            self.diverges("the replica's data differs");
        }
    }
}

impl Run {
    /// Reads a client's reply and compares it.
    fn hear(&mut self, client: usize, expected: &Expect) -> Value {
        let Some(reply) = self.connections[client].client.try_reply() else {
            self.diverges(&format!("client {client} hears nothing, not {expected:?}"));
        };
        self.note(format!("    client {client} hears {}", shown(&reply)));
        if !self.world.agrees(expected, &reply) {
            let expected = match expected {
                Expect::Token(token) => format!("{expected:?}, {:?}", self.world.value(*token)),
                _ => format!("{expected:?}"),
            };
            self.diverges(&format!(
                "client {client} hears {}, not {expected}",
                shown(&reply)
            ));
        }
        reply
    }

    fn step(&mut self) {
        self.step += 1;
        let name = match random::kind(&mut self.random) {
            Kind::Single => self.single(),
            Kind::Transaction => self.transaction(),
            Kind::Script => self.script(),
            Kind::Setting => self.change_setting(),
            kind => self.disturb(kind),
        };
        let sent = Instant::now();
        if name.starts_with("SET") {
            self.have_everything_looked_at();
        }
        let time_passed = self.world.settle();
        let answers = self.world.take_answers();
        for (client, expected) in &answers {
            self.count("a wait", expected);
            self.hear(*client, expected);
        }
        if time_passed {
            // The last short lease may have begun with the last answer.
            let longest = u64::try_from(LONGEST_SHORT_LEASE).unwrap();
            std::thread::sleep(Duration::from_millis(longest + 5));
        } else if !answers.is_empty() {
            self.delays.entry(name).or_default().push(sent.elapsed());
        }
        if let Err(what) = self.world.check_new_tokens() {
            self.diverges(&what);
        }
        // What follows from time and from the end of a connection has no reply
        // that says it did.
        self.check_all(time_passed || [WAITER_LEAVES, SESSION_ENDS].contains(&name));
        self.have_locks_looked_at();
        self.check_counters();
    }

    /// All others still wait, and what is stored is what the model says.
    fn check_all(&mut self, patient: bool) {
        let deadline = Instant::now() + SOON;
        let waiting = self.world.waiting().to_string();
        loop {
            let listing = self.listing();
            let (blocked, stored) = listing.split_once('\n').unwrap_or_default();
            let in_time = Instant::now() <= deadline;
            if blocked == waiting {
                self.world.learn_lost_tokens(stored);
                if stored == self.world.listing() {
                    return;
                }
                if !patient || !in_time {
                    self.diverges("the stored data differs");
                }
            }
            // A command that blocks has no reply that says it did.
            if !in_time {
                self.diverges(&format!("{blocked} clients wait, not {waiting}"));
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// The module is not told that a string overwrote a lock, and would find out
    /// with its next regular look. After a flush, of a database that nobody
    /// uses, it looks at all locks.
    fn have_everything_looked_at(&mut self) {
        for command in ["SELECT 15", "FLUSHDB"] {
            assert_eq!(self.observer.call(command), status("OK"));
        }
    }

    /// The search for deadlocks, and the counters, go by the last look at each
    /// lock, and after other commands than the lock's own the next look may be
    /// some milliseconds away. Each of these commands is one, and changes nothing.
    fn have_locks_looked_at(&mut self) {
        let places: Vec<Place> = self.world.contended().collect();
        for at in &places {
            self.observer.send(&format!("SELECT {}", at.db));
            self.observer.send(&format!("LOCK.RENEW {} nobody", at.key));
        }
        for _ in &places {
            assert_eq!(self.observer.reply(), status("OK"));
            assert_eq!(self.observer.reply(), int(0));
        }
    }

    /// The server has counted what the model says. It may hear late that a
    /// connection ended.
    fn check_counters(&mut self) {
        let deadline = Instant::now() + SOON;
        loop {
            let shown = counters(&mut self.observer);
            let Err(what) = self.world.check_account(&shown) else {
                return;
            };
            if Instant::now() > deadline {
                self.diverges(&what);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn idle_client(&mut self) -> usize {
        // Mostly one that may wait, for the sake of long queues.
        let first_choice = if self.random.percent(75) {
            MAY_WAIT
        } else {
            CLIENTS
        };
        let can_act = |client: &usize| !self.world.waits(*client);
        let clients = if (0..first_choice).any(|client| can_act(&client)) {
            first_choice
        } else {
            CLIENTS
        };
        let idle: Vec<usize> = (0..clients).filter(can_act).collect();
        self.random.one_of(&idle)
    }

    fn command_of(&mut self, client: usize, alone: bool) -> Command {
        random::command(
            &mut self.random,
            &self.world,
            &self.dumps,
            self.connections[client].db,
            client < MAY_WAIT,
            alone,
        )
    }

    fn single(&mut self) -> &'static str {
        let client = self.idle_client();
        let command = self.command_of(client, true);
        let words = command.words();
        let db = self.connections[client].db;
        self.note(format!(
            "{}: client {client} in {db}: {}",
            self.step,
            sentence(&words)
        ));
        self.connections[client].send(&words);
        let expected = self.world.run(db, &command, Sender::Client(client));
        self.count(command.name(), &expected);
        if expected != Expect::Waits {
            let reply = self.hear(client, &expected);
            if let (Command::Dump(key), Value::BulkString(bytes)) = (&command, reply) {
                let dump = self.world.dump(Place { db, key }, bytes);
                self.dumps.extend(dump);
                if self.dumps.len() > 5 {
                    self.dumps.remove(0);
                }
            }
        }
        command.name()
    }

    /// The commands of a transaction or a script, and their replies.
    fn several(&mut self, client: usize, within: &'static str) -> (Vec<Command>, Expect) {
        let db = self.connections[client].db;
        let mut commands = match within {
            "MULTI" => random::scene(&mut self.random, &self.world, client, db),
            _ => Vec::new(),
        };
        let others = if commands.is_empty() { 2 } else { 0 };
        for _ in 0..others + self.random.below(others + 1) {
            let command = self.command_of(client, false);
            // Scripts don't run scripts.
            if within == "EVAL" && command.name().starts_with("Redisson") {
                continue;
            }
            let is_last = command.may_delete_at_once();
            commands.push(command);
            if is_last {
                break;
            }
        }
        let sender = match within {
            "EVAL" => Sender::Script,
            _ => Sender::Transaction(client),
        };
        let mut expected = Vec::new();
        for command in &commands {
            expected.push(self.world.run(db, command, sender));
            self.count(within, &expected[expected.len() - 1]);
        }
        let sentences: Vec<String> = commands
            .iter()
            .map(|command| sentence(&command.words()))
            .collect();
        self.note(format!(
            "{}: client {client} in {db}: {within}: {}",
            self.step,
            sentences.join("; ")
        ));
        (commands, Expect::List(expected))
    }

    fn transaction(&mut self) -> &'static str {
        let client = self.idle_client();
        let (commands, expected) = self.several(client, "MULTI");
        let connection = &mut self.connections[client];
        connection.client.send("MULTI");
        for command in &commands {
            connection.send(&command.words());
        }
        connection.client.send("EXEC");
        assert_eq!(connection.client.reply(), status("OK"));
        for _ in &commands {
            assert_eq!(connection.client.reply(), status("QUEUED"));
        }
        self.hear(client, &expected);
        for command in &commands {
            if let Command::Kill { client, .. } = command {
                self.reconnect(*client);
            }
        }
        name_of_several("MULTI", &commands)
    }

    fn script(&mut self) -> &'static str {
        let client = self.idle_client();
        let (commands, expected) = self.several(client, "EVAL");
        self.connections[client].send(&in_a_script(&commands));
        self.hear(client, &expected);
        name_of_several("EVAL", &commands)
    }

    fn change_setting(&mut self) -> &'static str {
        let change = if self.random.percent(50) {
            let refuses = !self.world.refuses_deadlocks;
            self.world.refuses_deadlocks = refuses;
            let setting = if refuses { "yes" } else { "no" };
            format!("CONFIG SET lock.deadlock-detection {setting}")
        } else {
            let max = self.random.one_of(&[2, 3, CLIENTS, CLIENTS]);
            self.world.max_waiters = max;
            format!("CONFIG SET lock.max-waiters {max}")
        };
        assert_eq!(self.observer.call(&change), status("OK"));
        self.note(format!("{}: {change}", self.step));
        "CONFIG"
    }

    /// Something happens to a client that waits, or that has a session.
    fn disturb(&mut self, kind: Kind) -> &'static str {
        let suits = |client: &usize| match kind {
            Kind::UnblockAsTimeout | Kind::UnblockAsError => self.world.waits(*client),
            // While a client waits, the server does not hear it.
            Kind::Quit => self.world.has_sessions(*client) && !self.world.waits(*client),
            _ => self.world.has_sessions(*client) || self.world.waits(*client),
        };
        let clients: Vec<usize> = (0..CLIENTS).filter(suits).collect();
        if clients.is_empty() {
            return "nothing";
        }
        let client = self.random.one_of(&clients);
        self.note(format!("{}: client {client}: {kind:?}", self.step));
        let name = if self.world.waits(client) {
            WAITER_LEAVES
        } else {
            SESSION_ENDS
        };
        *self.answers.entry((name, format!("{kind:?}"))).or_default() += 1;
        let id = self.connections[client].peer.id;
        match kind {
            Kind::UnblockAsTimeout => {
                self.world.times_out(client);
                let unblock = format!("CLIENT UNBLOCK {id}");
                assert_eq!(self.observer.call(&unblock), int(1));
                self.hear(client, &Expect::Nil);
            }
            Kind::UnblockAsError => {
                self.world.is_sent_away(client);
                let unblock = format!("CLIENT UNBLOCK {id} ERROR");
                assert_eq!(self.observer.call(&unblock), int(1));
                self.hear(client, &Expect::Error("UNBLOCKED"));
            }
            _ => {
                self.world.disconnects(client);
                match kind {
                    Kind::Kill => {
                        let kill = format!("CLIENT KILL ID {id}");
                        assert_eq!(self.observer.call(&kill), int(1));
                    }
                    Kind::Quit => {
                        self.connections[client].client.send("QUIT");
                        self.hear(client, &Expect::Ok);
                    }
                    _ => {}
                }
                self.reconnect(client);
            }
        }
        name
    }

    fn reconnect(&mut self, client: usize) {
        let db = self.connections[client].db;
        self.connections[client] = Connection::open(&self.server, db);
        self.world.peers[client] = self.connections[client].peer.clone();
    }

    /// Prints what the run has reached and how soon waiters heard, and checks
    /// that it was at once.
    fn check_delays(&mut self) {
        for (name, number) in counters(&mut self.observer) {
            println!("{name}: {number}");
        }
        for ((name, answer), times) in &self.answers {
            println!("{name}: {answer} {times} times");
        }
        for (name, delays) in &mut self.delays {
            delays.sort();
            let (count, most) = (delays.len(), delays[delays.len() - 1]);
            let nine_in_ten = delays[count * 9 / 10];
            println!(
                "{name}: waiters heard {count} times, 9 in 10 within {nine_in_ten:?}, all within {most:?}"
            );
            assert!(
                count < 10 || nine_in_ten < AT_ONCE,
                "MODEL_SEED={}: waiters hear late of {name}",
                self.seed
            );
        }
    }
}

/// What delays after a transaction or a script are filed under. A `SET` in it
/// may make its waiters hear as late as a `SET` does.
fn name_of_several(within: &'static str, commands: &[Command]) -> &'static str {
    let kills = |command: &Command| matches!(command, Command::Kill { .. });
    let overwrites = |command: &Command| matches!(command, Command::Set(_));
    if commands.iter().any(overwrites) {
        "SET among others"
    } else if commands.iter().any(kills) {
        WAITER_LEAVES
    } else {
        within
    }
}

fn number_from_env(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number")),
    )
}

fn random_seed() -> u64 {
    let since_1970 = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    u64::from(since_1970.subsec_nanos()) ^ since_1970.as_secs() << 20
}

#[test]
fn server_and_model_agree_at_every_step_of_a_random_run() {
    let seed = number_from_env("MODEL_SEED");
    let steps = number_from_env("MODEL_STEPS");
    if seed.is_none() {
        run(1, 2000);
    }
    run(seed.unwrap_or_else(random_seed), steps.unwrap_or(3000));
}

fn run(seed: u64, steps: u64) {
    println!("MODEL_SEED={seed} MODEL_STEPS={steps}");
    let mut run = Run::start(seed);
    let replica = run.server.replica(true);
    for step in 1..=steps {
        run.step();
        if step % 100 == 0 || step == steps {
            run.check_replica(&replica);
        }
    }
    run.check_delays();
}
