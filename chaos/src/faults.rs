//! What is done to the servers, the clients and the ways between them while all work.
//!
//! One fault at a time, and each is over before the next begins, except that stalled
//! connections stay stalled, and that a minority of a Redlock's servers may be hurt together.
//! So the time in which a fault may have had an effect is known. Behind witnesses all nodes
//! have found together again before the next one begins.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Shutdown;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use redis::Value;
use redis_lock_testing::{Connection, Fate, reply_text};

use crate::client::Shared;
use crate::clock;
use crate::fleet::{DOWN_AFTER_MS, Fleet, SIDES};
use crate::history::{Effect, Nanos};

mod keys;
pub mod minority;
mod nodes;

use minority::Minority;
use nodes::Hurt;

const REPLY_TIMEOUT: Duration = Duration::from_secs(20);

/// The longest delay of traffic.
const LATE_MAX: Duration = Duration::from_millis(250);

#[derive(Clone, Copy)]
enum Fault {
    Do(fn(&mut Faults) -> Result<bool>),
    /// The primary is hurt for a time between these, in milliseconds.
    Primary(Hurt, u64, u64),
    /// So is a replica.
    Replica(Hurt, u64, u64),
    /// The primary is hurt until another one has its place, and then for so many
    /// milliseconds at the most.
    Replace(Hurt, u64),
    /// For a while, traffic between some clients and a node meets this fate. A delay is
    /// cut to a random part of itself.
    Pass(Fate),
    /// Commands of a stranger, which have these effects: `{k}` is a lock, `{db}` its database,
    /// `{other}` the other one, `{owner}` has it, `{dump}` is it as it was before the first
    /// command, and `{ms}` a short time. There are a `{client}` that may wait, one that is
    /// `{blocked}`, and a `{subscriber}`.
    Say(&'static [Effect], &'static [&'static str]),
}

use Effect::{BringsBack, ChangesLeases, EndsHolds, EndsWaits};
use Fault::{Do, Pass, Primary, Replace, Replica, Say};
use Hurt::{CutOff, CutOffFromPrimary, Killed, Stopped};

/// How often the fault comes, its name, and what it does.
type Kind = (u32, &'static str, Fault);

/// What is done to bare commands on one server. Without an expiry a lock whose holder is gone
/// stays held, so what is persisted gets a new one.
const TO_COMMANDS: [Kind; 30] = [
    (2, "server crash", Do(Faults::crash)),
    (2, "server stop", Primary(Stopped, 50, 1500)),
    (2, "fail-over", Do(Faults::fail_over)),
    (1, "promotion", Do(Faults::promote)),
    (1, HUNG_UP, Do(Faults::hang_up)),
    (2, "kept back", Pass(Fate::KeptBack)),
    (2, "stall", Do(Faults::stall)),
    (3, "stall end", Do(Faults::end_stalls)),
    (4, "kill", Say(&[], &["CLIENT KILL ID {client}"])),
    (2, "subscriber kill", Say(&[], &KILL_SUBSCRIBER)),
    (2, "messages lost", Pass(Fate::Messages(0))),
    (2, "messages doubled", Pass(Fate::Messages(2))),
    (1, "delay", Pass(Fate::Delayed(LATE_MAX))),
    (3, "unblock", Say(&[EndsWaits], &UNBLOCK)),
    (3, "unblock error", Say(&[EndsWaits], &UNBLOCK_BY_ERROR)),
    (2, "pause", Do(Faults::pause)),
    (2, "del", Say(&[EndsHolds], &["DEL {k}"])),
    (1, "unlink", Say(&[EndsHolds], &["UNLINK {k}"])),
    (2, "pexpire", Say(&[ChangesLeases], &["PEXPIRE {k} {ms}"])),
    (1, "set", Say(&[EndsHolds], &["SET {k} 1", "DEL {k}"])),
    (2, "rename", Say(&[EndsHolds], &["RENAME {k} elsewhere"])),
    (1, "flushall", Say(&[EndsHolds], &["FLUSHALL"])),
    (2, "persist", Say(&[ChangesLeases], &PERSIST)),
    (2, "kill in multi", Say(&[EndsHolds], &KILL_IN_MULTI)),
    (2, "hdel", Say(&[EndsHolds], &["HDEL {k} {owner}"])),
    (1, "restore", Say(&[EndsHolds, BringsBack], &RESTORE)),
    (1, "copy", Say(&[EndsHolds, BringsBack], &COPY)),
    (1, "move", Say(&[EndsHolds], &["MOVE {k} {other}"])),
    (1, "swapdb", Say(&[EndsHolds, BringsBack], &SWAPDB)),
    (2, "oom", Say(&[], &OUT_OF_MEMORY)),
];
const KILL_SUBSCRIBER: [&str; 1] = ["CLIENT KILL ID {subscriber}"];
const UNBLOCK: [&str; 1] = ["CLIENT UNBLOCK {blocked} TIMEOUT"];
const UNBLOCK_BY_ERROR: [&str; 1] = ["CLIENT UNBLOCK {blocked} ERROR"];
const KILL_IN_MULTI: [&str; 4] = ["MULTI", "DEL {k}", "CLIENT KILL ID {client}", "EXEC"];
const COPY: [&str; 2] = ["SELECT {other}", "COPY {k} {k} DB {db} REPLACE"];
const RESTORE: [&str; 2] = ["PING", "RESTORE {k} 100 {dump} REPLACE"];
const OUT_OF_MEMORY: [&str; 2] = ["CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"];
const PERSIST: [&str; 2] = ["PERSIST {k}", "PEXPIRE {k} 100"];
const SWAPDB: [&str; 2] = ["SWAPDB 0 1", "SWAPDB 0 1"];

/// What is done to them behind witnesses.
const TO_FOLLOWERS: [Kind; 11] = [
    (1, "primary killed", Replace(Killed, 500)),
    (1, BACK_AT_ONCE, Primary(Killed, 0, 0)),
    (1, "short stop", Primary(Stopped, 50, DOWN_AFTER_MS - 100)),
    (2, "primary stopped", Replace(Stopped, 1000)),
    (3, "primary cut off", Replace(CutOff, 2000)),
    (2, "late replica promoted", Do(Faults::promote_late_one)),
    (1, "replica late", Replica(CutOffFromPrimary, 50, 2500)),
    (1, "replica killed", Replica(Killed, 0, 3 * DOWN_AFTER_MS)),
    (1, "replica stopped", Replica(Stopped, 50, LONG_MS)),
    (1, "promotion by command", Do(Faults::order_promotion)),
    (1, "two killed in turn", Do(Faults::replace_twice)),
];
/// So long a silence is a death.
const LONG_MS: u64 = 4 * DOWN_AFTER_MS;
const BACK_AT_ONCE: &str = "primary killed, back at once";

/// What is done to a library.
const TO_LIBRARIES: [Kind; 10] = [
    (1, "delay", Pass(Fate::Delayed(LATE_MAX))),
    (1, "kept back", Pass(Fate::KeptBack)),
    (2, "half-closed", Pass(Fate::Swallowed)),
    (1, "commands lost", Pass(Fate::CommandsSwallowed)),
    (1, "cut at a reply", Pass(Fate::RepliesLost(20))),
    (1, "replies lost", Pass(Fate::RepliesSwallowed(20))),
    (1, "messages lost", Pass(Fate::Messages(0))),
    (1, "messages doubled", Pass(Fate::Messages(2))),
    (2, HUNG_UP, Do(Faults::hang_up)),
    (4, "primary killed", Replace(Killed, 500)),
];
const HUNG_UP: &str = "hung up";

fn kinds(bare_commands: bool, is_watched: bool) -> Vec<Kind> {
    let (all, but) = match (bare_commands, is_watched) {
        (true, false) => (&TO_COMMANDS[..], ""),
        (true, true) => (&TO_FOLLOWERS[..], ""),
        (false, false) => (&TO_LIBRARIES[..], "primary killed"),
        (false, true) => (&TO_LIBRARIES[..], HUNG_UP),
    };
    all.iter().filter(|kind| kind.1 != but).copied().collect()
}

pub fn names() -> BTreeSet<&'static str> {
    let all = TO_COMMANDS.iter().chain(&TO_FOLLOWERS).chain(&TO_LIBRARIES);
    all.map(|&(_, name, _)| name).collect()
}

/// Everything that can be harmed.
pub struct Faults {
    pub fleet: Fleet,
    pub counts: BTreeMap<&'static str, usize>,
    shared: Arc<Shared>,
    bare_commands: bool,
    is_watched: bool,
    rng: StdRng,
    kinds: Vec<Kind>,
    primary: usize,
    /// How servers are hurt, if several are hurt at a time.
    minority: Option<Minority>,
    fsync: &'static str,
    admin: Option<Connection>,
}

impl Faults {
    /// Faults for a fleet, of these kinds or, if none is named, of all.
    pub fn new(
        fleet: Fleet,
        bare_commands: bool,
        rng: StdRng,
        shared: Arc<Shared>,
        only: &[String],
        minority: Option<Minority>,
    ) -> Result<Self> {
        let may_start_empty =
            shared.protection.survives_an_empty_start() && shared.workload.is_none();
        let is_watched = shared.guide.is_watched();
        let mut kinds = kinds(bare_commands, is_watched);
        kinds.retain(|(_, name, _)| only.is_empty() || only.iter().any(|one| one == name));
        kinds.retain(|(_, name, _)| may_start_empty || *name != BACK_AT_ONCE);
        if kinds.is_empty() {
            bail!("in this mode there is no fault of {only:?}");
        }
        let mut faults = Self {
            primary: fleet.await_well()?,
            fleet,
            counts: BTreeMap::new(),
            shared,
            bare_commands,
            is_watched,
            rng,
            kinds,
            minority,
            fsync: "no",
            admin: None,
        };
        if bare_commands && !is_watched {
            faults.set_any_fsync()?;
        }
        Ok(faults)
    }

    /// Injects one fault, and waits until all is well again. An error says that a server
    /// is broken.
    pub fn inject(&mut self) -> Result<()> {
        if let Some(minority) = &mut self.minority {
            if let Some((name, from)) = minority.step(&mut self.fleet)? {
                self.count(name, from);
            }
            return Ok(());
        }
        if !(self.bare_commands && self.is_watched) {
            self.sleep(20, 300);
        }
        let chosen = self.kinds.choose_weighted(&mut self.rng, |kind| kind.0);
        let &(_, name, fault) = chosen?;
        let told = || format!("in the fault \"{name}\"");
        let from = clock::now();
        let is_done = match fault {
            Do(action) => action(self),
            Primary(how, from_ms, to_ms) => self.hurt_for(self.primary, how, from_ms, to_ms),
            Replica(how, from_ms, to_ms) => {
                let replica = self.any_replica();
                self.hurt_for(replica, how, from_ms, to_ms)
            }
            Replace(how, most_ms) => self.replace_primary(how, most_ms),
            Pass(fate) => self.let_pass_as(name, fate),
            Say(effects, lines) => self.run_commands(name, effects, lines),
        };
        let is_done = is_done.with_context(told)?;
        self.primary = self.fleet.await_well().with_context(told)?;
        if is_done {
            self.count(name, from);
        }
        self.fleet.examine().with_context(told)
    }

    fn count(&mut self, name: &'static str, from: Nanos) {
        *self.counts.entry(name).or_default() += 1;
        if !self.bare_commands || self.is_watched {
            // It excuses no hold, but commands may have been delayed.
            let what = format!("{name}, and now the primary is node {}", self.primary + 1);
            self.note_effects(&what, &[Effect::HoldsCommandsBack], from);
        }
    }

    /// Ends what still goes on.
    pub fn end(&mut self) -> Result<()> {
        let ways = self.fleet.nodes.iter().flat_map(|node| &node.clients);
        ways.for_each(|way| way.close_swallowing());
        match &mut self.minority {
            Some(minority) => minority.end(&mut self.fleet),
            None => Ok(()),
        }
    }

    /// Notes something that was done since then, and concerns all locks.
    fn note_effects(&self, what: &str, effects: &[Effect], from: Nanos) {
        let journal = &self.shared.journal;
        journal.interfered(what, effects, None, (from, clock::now()));
    }

    fn sleep(&mut self, from_ms: u64, to_ms: u64) {
        let ms = self.rng.random_range(from_ms..=to_ms);
        thread::sleep(Duration::from_millis(ms));
    }

    fn call(&mut self, words: &[impl AsRef<[u8]>]) -> Option<Value> {
        let deadline = Instant::now() + REPLY_TIMEOUT;
        let mut connection = match self.admin.take() {
            Some(connection) => connection,
            None => self.fleet.nodes[self.primary].server.connect().ok()?,
        };
        let reply = connection.call_while(words, || Instant::now() < deadline)?;
        self.admin = Some(connection);
        Some(reply)
    }

    /// A client whose line in `CLIENT LIST` has these.
    fn any_connection(&mut self, marks: &[&str]) -> Option<Vec<u8>> {
        let list = self.call(&["CLIENT", "LIST"]).and_then(reply_text)?;
        let suits = |line: &&str| marks.iter().all(|mark| line.contains(mark));
        let ids: Vec<&str> = list
            .lines()
            .filter(suits)
            .filter_map(|line| line.split(' ').find_map(|word| word.strip_prefix("id=")))
            .collect();
        ids.choose(&mut self.rng).map(|id| id.as_bytes().to_vec())
    }

    fn pause(&mut self) -> Result<bool> {
        let ms = self.rng.random_range(50..=800);
        let from = clock::now();
        let paused = self.call(&["CLIENT", "PAUSE", &ms.to_string(), "WRITE"]);
        thread::sleep(Duration::from_millis(ms));
        self.call(&["CLIENT", "UNPAUSE"]);
        self.note_effects("pause", &[Effect::HoldsCommandsBack], from);
        Ok(paused.is_some())
    }

    fn stall(&mut self) -> Result<bool> {
        let share = self.rng.random_range(0.2..=1.0);
        for way in &self.fleet.nodes[0].clients {
            way.swallow_on(|| self.rng.random_bool(share));
        }
        Ok(true)
    }

    fn end_stalls(&mut self) -> Result<bool> {
        let from = clock::now();
        let ways = self.fleet.nodes[0].clients.iter();
        ways.for_each(|way| way.close_swallowing());
        self.note_effects("stall end", &[Effect::EndsStalls], from);
        Ok(true)
    }

    fn hang_up(&mut self) -> Result<bool> {
        self.fleet.nodes[0].clients[self.rng.random_range(0..SIDES)].hang_up(Shutdown::Both);
        Ok(true)
    }

    fn let_pass_as(&mut self, name: &str, mut fate: Fate) -> Result<bool> {
        if let Fate::Delayed(late) = &mut fate {
            *late = late.mul_f64(self.rng.random_range(0.0..1.0));
        }
        let node = match self.is_watched {
            true => self.rng.random_range(0..self.fleet.nodes.len()),
            false => 0,
        };
        let mut sides = [(); SIDES].map(|()| self.rng.random_bool(0.5));
        sides[self.rng.random_range(0..SIDES)] = true;
        let from = clock::now();
        self.fleet.set(node, sides, fate);
        self.sleep(10, 1000);
        self.fleet.set(node, [true; SIDES], Fate::Passes);
        let late = match fate {
            Fate::Delayed(late) => late,
            Fate::KeptBack => Duration::ZERO,
            _ => return Ok(true),
        };
        // Commands come late, and so do messages, as to clients that stand still.
        let effects = [Effect::HoldsCommandsBack, Effect::StopsClients];
        let until = clock::now() + u64::try_from(late.as_nanos()).unwrap_or(Nanos::MAX);
        let journal = &self.shared.journal;
        journal.interfered(name, &effects, None, (from, until));
        Ok(true)
    }
}
