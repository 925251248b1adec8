//! The servers of the campaign, the ways to them, and what is done to both.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use redis::Value;
use redis_lock_testing::{Connection, Fate, Proxy, Server, Setup, comes_true};

use crate::clock;
use crate::failover::fleet::{self, Fleet, NODES};
use crate::failover::protection::{Mode, Protection};
use crate::history::Effect;
use crate::journal::Journal;
use crate::rust_client::workers::LEASE_MS_MAX;

/// How long what was given back may be at the servers: less than what is left of any lease.
const RELEASED_WITHIN: Duration = Duration::from_millis(150);

/// How many processes there are.
pub const PROCESSES: usize = 3;

/// Where the locks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Topology {
    /// On one server.
    One,
    /// On a primary that sentinels name.
    Sentinel,
    /// In a cluster.
    Cluster,
}

enum Place {
    /// A server, and a way to it for each process.
    One(Box<Server>, Vec<Proxy>),
    Fleet(Box<Fleet>),
}

/// Servers with ways to them.
pub struct Servers {
    place: Place,
    rng: StdRng,
    /// What was done to them, and how often.
    pub counts: BTreeMap<&'static str, usize>,
    /// What the names of all locks begin with.
    pub prefix: String,
}

impl Servers {
    /// Starts them.
    pub fn start(
        topology: Topology,
        setup: &Setup,
        dir: &Path,
        rng: StdRng,
    ) -> Result<Self, String> {
        let fleet_of = |topology: fleet::Topology| {
            let protection = Protection {
                mode: Mode::MinReplicas,
                replicas: NODES - 1,
                lease_max_ms: LEASE_MS_MAX,
                grace_ms: None,
            };
            let fleet = Fleet::start(setup, dir, topology, &protection)?;
            Ok::<_, String>((Place::Fleet(Box::new(fleet)), topology.prefix()))
        };
        let (place, prefix) = match topology {
            Topology::One => {
                let server = Server::start(setup.clone().in_dir(dir.join("server")))?;
                let ways = (0..PROCESSES).map(|_| Proxy::to(server.addr()));
                let ways = ways.collect::<Result<_, _>>()?;
                (Place::One(Box::new(server), ways), String::new())
            }
            Topology::Sentinel => fleet_of(fleet::Topology::Sentinel)?,
            Topology::Cluster => fleet_of(fleet::Topology::Cluster)?,
        };
        Ok(Self {
            place,
            rng,
            counts: BTreeMap::new(),
            prefix,
        })
    }

    /// By which URL a process reaches them.
    pub fn url(&self, process: usize) -> String {
        match &self.place {
            Place::One(_, ways) => format!("redis://{}", ways[process].addr()),
            Place::Fleet(fleet) => fleet.url(),
        }
    }

    /// Hurts something for a while, and heals it. Notes from when until when.
    pub fn hurt(&mut self, journal: &Journal) -> Result<(), String> {
        let from = clock::now();
        let what = self.hurt_somehow()?;
        *self.counts.entry(what).or_default() += 1;
        // It excuses no hold.
        let effect = Effect::HoldsCommandsBack;
        journal.interfered(what, effect, None, from, clock::now());
        Ok(())
    }

    fn hurt_somehow(&mut self) -> Result<&'static str, String> {
        self.sleep(5, 400);
        if matches!(self.place, Place::Fleet(_)) && self.rng.random_bool(0.3) {
            self.kill_primary()?;
            return Ok("primary killed");
        }
        let (what, fate) = self.any_fate();
        let processes = [(); PROCESSES].map(|()| self.rng.random_bool(0.5));
        let node = self.rng.random_range(0..NODES);
        self.set(&processes, node, fate);
        self.sleep(10, 1500);
        self.set(&[true; PROCESSES], node, Fate::Passes);
        match &mut self.place {
            Place::One(server, ways) => {
                if self.rng.random_bool(0.2) {
                    ways[self.rng.random_range(0..PROCESSES)].hang_up();
                }
                server.examine()?;
            }
            Place::Fleet(fleet) => fleet.examine()?,
        }
        Ok(what)
    }

    fn set(&self, processes: &[bool], node: usize, fate: Fate) {
        match &self.place {
            Place::One(_, ways) => {
                let chosen = ways
                    .iter()
                    .zip(processes)
                    .filter(|(_, is_chosen)| **is_chosen);
                chosen.for_each(|(way, _)| way.set(fate));
            }
            Place::Fleet(fleet) => fleet.hurt_clients(node, fate),
        }
    }

    fn any_fate(&mut self) -> (&'static str, Fate) {
        let delay = Duration::from_millis(self.rng.random_range(1..=300));
        match self.rng.random_range(0..9) {
            0 => ("delayed", Fate::Delayed(delay)),
            1 => ("kept back", Fate::KeptBack),
            2 | 3 => ("half-closed", Fate::Swallowed),
            4 => ("commands lost", Fate::CommandsSwallowed),
            5 => ("cut after a reply was lost", Fate::RepliesLost(20)),
            6 => ("replies lost", Fate::RepliesSwallowed(20)),
            7 => ("messages lost", Fate::MessagesLost),
            _ => ("messages doubled", Fate::MessagesDoubled),
        }
    }

    fn kill_primary(&mut self) -> Result<(), String> {
        let Place::Fleet(fleet) = &mut self.place else {
            return Ok(());
        };
        let primary = fleet.await_well()?;
        fleet.nodes[primary].server.crash();
        fleet.await_other_than(primary)?;
        fleet.nodes[primary].server.restart()?;
        fleet.await_well().map(drop)
    }

    fn sleep(&mut self, from_ms: u64, to_ms: u64) {
        let ms = self.rng.random_range(from_ms..=to_ms);
        thread::sleep(Duration::from_millis(ms));
    }

    /// Waits until nobody holds or waits for anything.
    pub fn await_empty(&self) -> Result<(), String> {
        let mut left = None;
        let is_empty = comes_true(RELEASED_WITHIN, || {
            left = Some(self.left());
            left == Some(Ok((0, 0)))
        });
        match left {
            Some(Ok((keys, waiters))) if !is_empty => Err(format!(
                "something is left at the server: {keys} locks and {waiters} waiters"
            )),
            Some(Err(error)) => Err(error),
            _ => Ok(()),
        }
    }

    /// How many wait.
    pub fn waiters(&self) -> Result<i64, String> {
        Ok(self.left()?.1)
    }

    /// How many locks and waiters there are.
    fn left(&self) -> Result<(i64, i64), String> {
        let mut connection = Connection::open(self.primary()?)?;
        let Value::Int(keys) = connection.call(&["DBSIZE"])? else {
            return Err("the server does not count its keys".into());
        };
        Ok((keys, connection.info("lock_waiters")?))
    }

    fn primary(&self) -> Result<SocketAddr, String> {
        match &self.place {
            Place::One(server, _) => Ok(server.addr()),
            Place::Fleet(fleet) => {
                let agreed = fleet.guide().agreed();
                let primary = agreed.ok_or("the witnesses don't agree on a primary")?;
                Ok(fleet.nodes[primary].server.addr())
            }
        }
    }
}
