//! What is done to the servers and the clients while they work.
//!
//! One fault at a time, and each is over before the next begins, except that
//! stalled connections stay stalled. So the time in which a fault may have had
//! an effect is known.

use std::collections::BTreeMap;
use std::io::BufReader;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use redis::Value;
use redis_lock_testing::{
    Connection, Fate, Proxy, Server, Setup, Signal, local, reply_text, signal, spawn,
};

use crate::clients::CLAIM_TIMEOUT_MS;
use crate::clock;
use crate::fsync::Fsync;
use crate::history::{Effect, MS, Nanos};
use crate::journal::Journal;
use crate::locks::Locks;

mod keys;

const REPLY_TIMEOUT: Duration = Duration::from_secs(20);
const FAILOVER_TIMEOUT: Duration = Duration::from_secs(10);

type Action = fn(&mut Faults) -> Result<bool, String>;

#[derive(Clone, Copy)]
enum Fault {
    Do(Action),
    /// Commands of a stranger, which have these effects: `{k}` is a lock, `{ms}` a short time.
    Say(&'static [Effect], &'static [&'static str]),
}

use Fault::{Do, Say};

/// The kinds of faults, and how often each comes. Without an expiry a lock whose holder is
/// gone stays held, so what is persisted gets a new one.
const FAULTS: [(u32, &str, Fault); 30] = [
    (2, "server crash", Do(Faults::crash)),
    (2, "server stop", Do(Faults::stop_server)),
    (2, "fail-over", Do(Faults::fail_over)),
    (1, "promotion", Do(Faults::promote)),
    (1, "client crash", Do(Faults::crash_client)),
    (2, "client stop", Do(Faults::stop_client)),
    (2, "stall", Do(Faults::stall)),
    (3, "stall end", Do(Faults::end_stalls)),
    (4, "kill", Do(|it| it.kill(uses_locks))),
    (
        2,
        "subscriber kill",
        Do(|it| it.kill(|line| line.contains(" sub=1 "))),
    ),
    (
        2,
        "messages lost",
        Do(|it| it.let_pass_as(Fate::MessagesLost)),
    ),
    (
        2,
        "messages doubled",
        Do(|it| it.let_pass_as(Fate::MessagesDoubled)),
    ),
    (1, "delay", Do(Faults::delay)),
    (3, "unblock", Do(|it| it.unblock_with("TIMEOUT"))),
    (3, "unblock error", Do(|it| it.unblock_with("ERROR"))),
    (2, "pause", Do(Faults::pause)),
    (2, "del", Say(&[Effect::EndsHolds], &["DEL {k}"])),
    (1, "unlink", Say(&[Effect::EndsHolds], &["UNLINK {k}"])),
    (
        2,
        "pexpire",
        Say(&[Effect::ChangesLeases], &["PEXPIRE {k} {ms}"]),
    ),
    (
        1,
        "set",
        Say(&[Effect::EndsHolds], &["SET {k} 1", "DEL {k}"]),
    ),
    (
        2,
        "rename",
        Say(&[Effect::EndsHolds], &["RENAME {k} elsewhere"]),
    ),
    (1, "flushall", Say(&[Effect::EndsHolds], &["FLUSHALL"])),
    (
        2,
        "persist",
        Say(
            &[Effect::ChangesLeases],
            &["PERSIST {k}", "PEXPIRE {k} 100"],
        ),
    ),
    (2, "kill in multi", Do(Faults::kill_in_multi)),
    (2, "hdel", Do(Faults::hdel)),
    (1, "restore", Do(Faults::restore)),
    (1, "copy", Do(Faults::copy)),
    (1, "move", Do(Faults::move_away)),
    (
        1,
        "swapdb",
        Say(
            &[Effect::EndsHolds, Effect::BringsBack],
            &["SWAPDB 0 1", "SWAPDB 0 1"],
        ),
    ),
    (2, "oom", Do(Faults::out_of_memory)),
];

/// Everything that can be harmed.
pub struct Faults {
    /// What decides.
    pub rng: StdRng,
    /// What to start.
    pub setup: Setup,
    /// The locks of the campaign.
    pub locks: Arc<Locks>,
    /// Where it is written down.
    pub journal: Arc<Journal>,
    /// The port of the primary, for the clients.
    pub primary: Arc<AtomicU16>,
    /// Between some of the clients and the primary.
    pub proxy: Proxy,
    /// How often each fault was injected.
    pub counts: BTreeMap<&'static str, usize>,
    nodes: [Server; 2],
    fsync: Fsync,
    process: Option<(Child, JoinHandle<()>)>,
    processes: usize,
    admin: Option<Connection>,
}

impl Faults {
    /// Starts a primary, its replica, the proxy and a client process.
    pub fn start(
        mut rng: StdRng,
        setup: Setup,
        dir: &Path,
        locks: Arc<Locks>,
        journal: Arc<Journal>,
    ) -> Result<Self, String> {
        let fsync = any_fsync(&mut rng);
        let claim_timeout = CLAIM_TIMEOUT_MS.to_string();
        let setup = setup.options(&["--lock.claim-timeout", &claim_timeout]);
        let node = |name| fsync.of(&setup).in_dir(dir.join(name));
        let first = Server::start(node("server-1"))?;
        let second = Server::start(node("server-2").replica_of(first.addr()))?;
        let primary = Arc::new(AtomicU16::new(first.port()));
        let proxy = Proxy::to(first.addr())?;
        let mut faults = Self {
            rng,
            setup,
            locks,
            journal,
            primary,
            proxy,
            counts: BTreeMap::new(),
            nodes: [first, second],
            fsync,
            process: None,
            processes: 0,
            admin: None,
        };
        faults.start_client()?;
        Ok(faults)
    }

    /// Injects one fault. An error says that a server is broken.
    pub fn inject(&mut self) -> Result<(), String> {
        let chosen = FAULTS.choose_weighted(&mut self.rng, |(weight, ..)| *weight);
        let &(_, name, fault) = chosen.map_err(|error| error.to_string())?;
        let is_done = match fault {
            Do(action) => action(self)?,
            Say(effects, lines) => self.run_commands(name, effects, lines)?,
        };
        if is_done {
            *self.counts.entry(name).or_default() += 1;
        }
        self.examine()
            .map_err(|error| format!("{error}, after the fault \"{name}\""))
    }

    /// Whether the servers are well.
    pub fn examine(&mut self) -> Result<(), String> {
        Ok(self.nodes.iter_mut().try_for_each(Server::examine)?)
    }

    /// Ends what still goes on.
    pub fn end(&mut self) {
        self.end_client();
        self.proxy.close_swallowing();
    }

    /// Notes something that was done since then, and concerns all locks.
    fn note(&self, what: &str, effects: &[Effect], from: Nanos) {
        self.journal.interfered(what, effects, None, from);
    }

    fn call(&mut self, words: &[impl AsRef<[u8]>]) -> Option<Value> {
        let deadline = Instant::now() + REPLY_TIMEOUT;
        let mut connection = match self.admin.take() {
            Some(connection) => connection,
            None => Connection::open(local(self.primary.load(Ordering::SeqCst))).ok()?,
        };
        let reply = connection.call_while(words, || Instant::now() < deadline)?;
        self.admin = Some(connection);
        Some(reply)
    }

    /// A client by its line in `CLIENT LIST`.
    fn any_connection(&mut self, suits: impl Fn(&str) -> bool) -> Option<String> {
        let list = self.call(&["CLIENT", "LIST"]).and_then(reply_text)?;
        let ids: Vec<&str> = list
            .lines()
            .filter(|line| suits(line))
            .filter_map(|line| line.split(' ').find_map(|word| word.strip_prefix("id=")))
            .collect();
        let index = self.rng.random_range(0..ids.len().max(1));
        ids.get(index).map(ToString::to_string)
    }

    fn kill(&mut self, suits: impl Fn(&str) -> bool) -> Result<bool, String> {
        let Some(id) = self.any_connection(suits) else {
            return Ok(false);
        };
        Ok(self.call(&["CLIENT", "KILL", "ID", &id]) == Some(Value::Int(1)))
    }

    fn unblock_with(&mut self, how: &str) -> Result<bool, String> {
        let Some(id) = self.any_connection(|line| uses_locks(line) && line.contains(" flags=b"))
        else {
            return Ok(false);
        };
        let from = clock::now();
        let unblocked = self.call(&["CLIENT", "UNBLOCK", &id, how]);
        self.note("unblock", &[Effect::EndsWaits], from);
        Ok(unblocked == Some(Value::Int(1)))
    }

    fn pause(&mut self) -> Result<bool, String> {
        let ms = self.rng.random_range(50..=800);
        let from = clock::now();
        let paused = self.call(&["CLIENT", "PAUSE", &ms.to_string(), "WRITE"]);
        thread::sleep(Duration::from_millis(ms));
        self.call(&["CLIENT", "UNPAUSE"]);
        self.note("pause", &[Effect::HoldsCommandsBack], from);
        Ok(paused.is_some())
    }

    fn stop_server(&mut self) -> Result<bool, String> {
        let ms = self.rng.random_range(50..=1500);
        let from = clock::now();
        self.primary_node().stop()?;
        thread::sleep(Duration::from_millis(ms));
        self.primary_node().go_on()?;
        self.note("server stop", &[Effect::StopsTheServer], from);
        Ok(true)
    }

    fn stall(&mut self) -> Result<bool, String> {
        let share = self.rng.random_range(0.2..=1.0);
        self.proxy.swallow_on(|| self.rng.random_bool(share));
        Ok(true)
    }

    fn let_pass_as(&mut self, fate: Fate) -> Result<bool, String> {
        self.proxy.set(fate);
        thread::sleep(Duration::from_millis(self.rng.random_range(50..=500)));
        self.proxy.set(Fate::Passes);
        Ok(true)
    }

    /// What passes the proxy comes late, commands and messages alike.
    fn delay(&mut self) -> Result<bool, String> {
        let ms = self.rng.random_range(20..=200);
        let from = clock::now();
        self.let_pass_as(Fate::Delayed(Duration::from_millis(ms)))?;
        let (effects, span) = ([Effect::HoldsCommandsBack], (from, clock::now() + ms * MS));
        self.journal.interfered_until("delay", &effects, None, span);
        Ok(true)
    }

    fn end_stalls(&mut self) -> Result<bool, String> {
        let from = clock::now();
        self.proxy.close_swallowing();
        self.note("stall end", &[Effect::EndsStalls], from);
        Ok(true)
    }

    fn primary_index(&self) -> usize {
        let port = self.primary.load(Ordering::SeqCst);
        usize::from(self.nodes[0].port() != port)
    }

    fn primary_node(&mut self) -> &mut Server {
        let index = self.primary_index();
        &mut self.nodes[index]
    }

    /// The primary crashes and comes back on its data, or without them where
    /// it has promised nobody to keep them.
    fn crash(&mut self) -> Result<bool, String> {
        let loses_writes = self.fsync != Fsync::Always;
        let forget = loses_writes && self.rng.random_bool(0.5);
        let next = any_fsync(&mut self.rng);
        self.admin = None;
        let from = clock::now();
        self.primary_node().crash();
        if loses_writes {
            self.note("crash", &[Effect::EndsHolds, Effect::BringsBack], from);
        }
        thread::sleep(Duration::from_millis(self.rng.random_range(0..500)));
        self.fsync = next;
        let setup = next.of(&self.setup);
        let node = self.primary_node();
        node.setup = setup;
        if forget {
            node.forget();
        }
        node.restart()?;
        // The new process knows of no session.
        let effects = [Effect::StopsTheServer, Effect::HoldsCommandsBack];
        self.note("crash", &effects, from);
        Ok(true)
    }

    fn replication(&self, node: usize) -> Option<String> {
        let deadline = Instant::now() + FAILOVER_TIMEOUT;
        let mut connection = self.nodes[node].connect().ok()?;
        let patient = || Instant::now() < deadline;
        connection
            .call_while(&["INFO", "replication"], patient)
            .and_then(reply_text)
    }

    fn replica_in_step(&self) -> bool {
        self.replication(1 - self.primary_index())
            .is_some_and(|info| info.contains("master_link_status:up"))
    }

    /// The primary hands over to its replica, which is promised to lose nothing.
    fn fail_over(&mut self) -> Result<bool, String> {
        if !self.replica_in_step() {
            return Ok(false);
        }
        let (old, new) = (self.primary_index(), 1 - self.primary_index());
        let from = clock::now();
        if self.call(&["FAILOVER", "TIMEOUT", "5000"]) != Some(Value::Okay) {
            return Ok(false);
        }
        let deadline = Instant::now() + FAILOVER_TIMEOUT;
        let promoted = loop {
            if let (Some(there), Some(here)) = (self.replication(new), self.replication(old)) {
                let over = here.contains("master_failover_state:no-failover");
                if over && there.contains("role:master") && here.contains("role:slave") {
                    break true;
                }
                if over && here.contains("role:master") && there.contains("role:slave") {
                    break false;
                }
            }
            if Instant::now() > deadline {
                return Err("the fail-over does not end".into());
            }
            thread::sleep(Duration::from_millis(5));
        };
        if promoted {
            self.admin = None;
            self.lead_to(new);
        }
        self.note("fail-over", &[Effect::HoldsCommandsBack], from);
        Ok(promoted)
    }

    /// The primary crashes, and its replica takes over with what it has.
    fn promote(&mut self) -> Result<bool, String> {
        if !self.replica_in_step() {
            return Ok(false);
        }
        let (old, new) = (self.primary_index(), 1 - self.primary_index());
        let from = clock::now();
        self.nodes[old].crash();
        self.admin = self.nodes[new].connect().ok();
        if self.call(&["REPLICAOF", "NO", "ONE"]) != Some(Value::Okay) {
            return Err("the replica can't be promoted".into());
        }
        let effects = [
            Effect::EndsHolds,
            Effect::BringsBack,
            Effect::StopsTheServer,
        ];
        self.note("promotion", &effects, from);
        self.lead_to(new);
        let primary = self.nodes[new].addr();
        self.nodes[old].setup = self.fsync.of(&self.setup).replica_of(primary);
        self.nodes[old].restart()?;
        Ok(true)
    }

    /// Has the clients go to another node from now on.
    fn lead_to(&self, node: usize) {
        let primary = self.nodes[node].addr();
        self.primary.store(primary.port(), Ordering::SeqCst);
        self.proxy.lead_to(primary);
    }

    /// A client in a process of its own, which writes its journal to us.
    fn start_client(&mut self) -> Result<(), String> {
        self.processes += 1;
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command
            .args(["--as-client-of", &self.proxy.addr().port().to_string()])
            .args(["--seed", &self.rng.random::<u32>().to_string()])
            .args(["--number", &(1000 + self.processes).to_string()])
            .args(self.locks.names())
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = spawn(command)?;
        let output = child.stdout.take();
        let journal = Arc::clone(&self.journal);
        let reader = thread::spawn(move || {
            if let Some(output) = output {
                journal.copy_from(BufReader::new(output));
            }
        });
        self.process = Some((child, reader));
        Ok(())
    }

    fn end_client(&mut self) {
        if let Some((mut process, reader)) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
            let _ = reader.join();
        }
    }

    fn crash_client(&mut self) -> Result<bool, String> {
        self.end_client();
        self.start_client()?;
        Ok(true)
    }

    fn stop_client(&mut self) -> Result<bool, String> {
        let Some((process, _)) = &self.process else {
            return Ok(false);
        };
        let from = clock::now();
        signal(process.id(), Signal::STOP)?;
        thread::sleep(Duration::from_millis(self.rng.random_range(100..=1500)));
        signal(process.id(), Signal::CONT)?;
        self.note("client stop", &[Effect::StopsClients], from);
        Ok(true)
    }
}

impl Drop for Faults {
    fn drop(&mut self) {
        self.end_client();
    }
}

/// Whether a line of `CLIENT LIST` is of a client that talks to the module.
fn uses_locks(line: &str) -> bool {
    line.contains(" cmd=lock.")
}

fn any_fsync(rng: &mut StdRng) -> Fsync {
    match rng.random_range(0..4) {
        0 => Fsync::No,
        1 => Fsync::EverySecond,
        _ => Fsync::Always,
    }
}
