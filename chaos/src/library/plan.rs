//! Which servers are hurt, how and when. [`super`] says why it is sound.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rand::RngExt;
use rand::rngs::StdRng;
use redis_lock_testing::{Fate, Proxy, Server, Setup};

use crate::clock;
use crate::fsync::Fsync;
use crate::history::{MS, Nanos};
use crate::library::workers::LEASE_MS_MAX;

/// How often the plan looks whether something is due.
const LOOK_EVERY: Duration = Duration::from_millis(3);

/// How long a step may take.
const STEP: Duration = Duration::from_secs(1);

/// A killed server may start this much later than the longest lease, in any case.
const SLACK_MS: u64 = 100;

const KILLED: &str = "killed and emptied";

/// A server and the ways to it, one for each client.
struct Node {
    server: Server,
    ways: Vec<Proxy>,
    wound: Option<Wound>,
    dir: PathBuf,
    starts: usize,
}

/// What is wrong with a server.
struct Wound {
    kind: &'static str,
    since: Nanos,
    heals_at: Instant,
    is_killed: bool,
}

/// What a plan may do.
#[derive(Clone, Copy)]
pub struct Rules {
    /// How many servers may be hurt at a time.
    pub most: usize,
    /// Whether a killed server starts again while holds rest on its votes, which
    /// is not fair.
    pub restart_at_once: bool,
}

/// When each acquire was called that is under way, or whose hold is.
#[derive(Default)]
pub struct Open(Mutex<BTreeSet<(Nanos, usize)>>);

impl Open {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<(Nanos, usize)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An acquire of this task is about to be called. It and its hold are over when this is
    /// dropped.
    pub fn enter(self: &Arc<Self>, task: usize) -> Entered {
        let entry = (clock::now(), task);
        self.lock().insert(entry);
        Entered(Arc::clone(self), entry)
    }

    /// Whether all that began before this time is over.
    fn is_over(&self, time: Nanos) -> bool {
        self.lock().first().is_none_or(|(begun, _)| *begun > time)
    }
}

/// An acquire that was called, or its hold.
pub struct Entered(Arc<Open>, (Nanos, usize));

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.lock().remove(&self.1);
    }
}

/// The servers and what happens to them.
pub struct Plan {
    rng: StdRng,
    setup: Setup,
    /// What is asked of them.
    pub open: Arc<Open>,
    nodes: Vec<Node>,
    rules: Rules,
    next: Instant,
}

impl Plan {
    /// Starts this many servers.
    pub fn start(
        rng: StdRng,
        setup: Setup,
        dir: &Path,
        servers: usize,
        rules: Rules,
    ) -> Result<Self, String> {
        let setup = Fsync::No.of(&setup);
        let mut nodes = Vec::new();
        for number in 1..=servers {
            let dir = dir.join(format!("server-{number}"));
            nodes.push(Node {
                server: Server::start(setup.clone().in_dir(&dir))?,
                ways: Vec::new(),
                wound: None,
                dir,
                starts: 1,
            });
        }
        Ok(Self {
            rng,
            setup,
            open: Arc::default(),
            nodes,
            rules,
            next: Instant::now(),
        })
    }

    /// A way of its own to each server, for one client more.
    pub fn ways(&mut self) -> Result<Vec<String>, String> {
        let mut urls = Vec::new();
        for node in &mut self.nodes {
            let way = Proxy::to(node.server.addr())?;
            urls.push(format!("redis://{}", way.addr()));
            node.ways.push(way);
        }
        Ok(urls)
    }

    /// Hurts servers until one of them has been healed. Returns what it suffered, if it
    /// does not take too long.
    pub fn step(&mut self) -> Result<Option<(&'static str, Nanos)>, String> {
        let end = Instant::now() + STEP;
        while Instant::now() < end {
            if let Some(index) = (0..self.nodes.len()).find(|&index| self.is_due(index)) {
                let healed = self.heal(index)?;
                self.pause();
                return Ok(healed);
            }
            self.hurt_one_more()?;
            thread::sleep(LOOK_EVERY);
        }
        Ok(None)
    }

    /// Heals all.
    pub fn end(&mut self) -> Result<(), String> {
        for index in 0..self.nodes.len() {
            while self.nodes[index].wound.is_some() && !self.is_due(index) {
                thread::sleep(LOOK_EVERY);
            }
            self.heal(index)?;
        }
        Ok(self
            .nodes
            .iter_mut()
            .try_for_each(|node| node.server.examine())?)
    }

    /// The servers.
    pub fn servers(&self) -> impl Iterator<Item = &Server> {
        self.nodes.iter().map(|node| &node.server)
    }

    fn hurt_one_more(&mut self) -> Result<(), String> {
        let sound: Vec<usize> = (0..self.nodes.len())
            .filter(|&index| self.nodes[index].wound.is_none())
            .collect();
        if Instant::now() < self.next || self.nodes.len() - sound.len() >= self.rules.most {
            return Ok(());
        }
        let index = sound[self.rng.random_range(0..sound.len())];
        self.nodes[index].wound = Some(self.hurt(index)?);
        self.pause();
        Ok(())
    }

    /// What comes next often comes at once.
    fn pause(&mut self) {
        let pause_ms = match self.rng.random_range(0..10) {
            0..6 => 0,
            6..9 => self.rng.random_range(1..=100),
            _ => self.rng.random_range(100..=1000),
        };
        self.next = Instant::now() + Duration::from_millis(pause_ms);
    }

    fn hurt(&mut self, index: usize) -> Result<Wound, String> {
        let since = clock::now();
        let long = self.rng.random_bool(0.5);
        let ms = self
            .rng
            .random_range(if long { 200..=1500 } else { 10..=200 });
        let kind = match self.rng.random_range(0..10) {
            0..4 => {
                self.kill(index);
                KILLED
            }
            4..7 => {
                self.nodes[index].server.stop()?;
                "stopped"
            }
            7 => {
                let delay = Duration::from_millis(self.rng.random_range(5..=200));
                self.set_some(index, Fate::Delayed(delay));
                "slow"
            }
            8 => {
                self.set_some(index, Fate::KeptBack);
                "cut off, messages kept back"
            }
            _ => {
                self.set_some(index, Fate::Swallowed);
                "cut off, messages lost"
            }
        };
        let is_killed = kind == KILLED;
        Ok(Wound {
            kind,
            // A vote may have been cast until now.
            since: if is_killed { clock::now() } else { since },
            heals_at: Instant::now() + Duration::from_millis(ms),
            is_killed,
        })
    }

    /// Kills a server, counted from 0.
    pub fn kill(&mut self, index: usize) {
        self.set_all(index, Fate::Down);
        self.nodes[index].server.crash();
    }

    /// Starts a server again after [`Plan::kill`], without its data.
    pub fn start_empty(&mut self, index: usize) -> Result<(), String> {
        self.nodes[index].start_empty(&self.setup)?;
        self.set_all(index, Fate::Passes);
        Ok(())
    }

    /// What happens from now on between a client and a server, counted from 0.
    pub fn set(&self, index: usize, client: usize, fate: Fate) {
        self.nodes[index].ways[client].set(fate);
    }

    fn set_all(&self, index: usize, fate: Fate) {
        for way in &self.nodes[index].ways {
            way.set(fate);
        }
    }

    /// Some clients may reach a server that others can't.
    fn set_some(&mut self, index: usize, fate: Fate) {
        let ways = &self.nodes[index].ways;
        let certain = self.rng.random_range(0..ways.len());
        for (client, way) in ways.iter().enumerate() {
            if client == certain || self.rng.random_bool(0.5) {
                way.set(fate);
            }
        }
    }

    fn is_due(&self, index: usize) -> bool {
        let Some(wound) = &self.nodes[index].wound else {
            return false;
        };
        let is_over = Instant::now() >= wound.heals_at;
        if !wound.is_killed {
            return is_over;
        }
        let late_enough = wound.since + (LEASE_MS_MAX + SLACK_MS) * MS;
        self.rules.restart_at_once
            || clock::now() >= late_enough
            || (is_over && self.open.is_over(wound.since))
    }

    fn heal(&mut self, index: usize) -> Result<Option<(&'static str, Nanos)>, String> {
        let Some(wound) = self.nodes[index].wound.take() else {
            return Ok(None);
        };
        if wound.is_killed {
            self.start_empty(index)?;
        } else {
            let server = &mut self.nodes[index].server;
            let examined = server.examine();
            examined.map_err(|error| format!("{error}, while it was {}", wound.kind))?;
            server.go_on()?;
            self.set_all(index, Fate::Passes);
        }
        Ok(Some((wound.kind, wound.since)))
    }
}

impl Node {
    /// On its old port, if nobody has taken that meanwhile.
    fn start_empty(&mut self, setup: &Setup) -> Result<(), String> {
        self.server.forget();
        if self.server.restart().is_err() {
            self.starts += 1;
            let dir = self.dir.with_file_name(format!(
                "{}-{}",
                self.dir.file_name().unwrap_or_default().display(),
                self.starts
            ));
            self.server = Server::start(setup.clone().in_dir(dir))?;
            let addr = self.server.addr();
            self.ways.iter().for_each(|way| way.lead_to(addr));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_may_start_once_all_from_before_is_over() {
        let open = Arc::new(Open::default());
        let held = open.enter(1);
        let killed_at = clock::now();
        assert!(!open.is_over(killed_at));
        let later = open.enter(2);
        drop(held);
        assert!(open.is_over(killed_at), "the other began later");
        drop(later);
        assert!(open.is_over(clock::now()));
    }
}
