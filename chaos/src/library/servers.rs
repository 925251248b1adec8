//! The servers of the campaign, the ways to them, and what is done to both.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis::Value;
use redis_lock_testing::{Connection, Fate, Proxy, Server, Setup, comes_true};

use crate::campaign::{Tally, Topology};
use crate::clock;
use crate::failover::fleet::{Fleet, NODES};
use crate::failover::protection::{Mode, Protection};
use crate::history::Effect;
use crate::journal::Journal;
use crate::library::plan::{Open, Plan, Rules};
use crate::library::workers::LEASE_MS_MAX;

/// How long what was given back may be at the servers: less than what is left of any lease.
const RELEASED_WITHIN: Duration = Duration::from_millis(150);

/// How many clients there are, each with ways of its own.
pub const CLIENTS: usize = 3;

enum Place {
    /// A server, and a way to it for each client.
    One(Box<Server>, Vec<Proxy>),
    Fleet(Box<Fleet>),
    /// Those of a Redlock, and the URLs of each client.
    Several(Box<Plan>, Vec<Vec<String>>),
}

/// Servers with ways to them.
pub struct Servers {
    place: Place,
    rng: StdRng,
    /// What was done to them, and how often.
    pub counts: Tally,
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
        let place = match topology {
            Topology::One => {
                let server = Server::start(setup.clone().in_dir(dir.join("server")))?;
                let ways = (0..CLIENTS).map(|_| Proxy::to(server.addr()));
                let ways = ways.collect::<Result<_, _>>()?;
                Place::One(Box::new(server), ways)
            }
            Topology::Sentinel | Topology::Cluster => {
                let protection = Protection {
                    mode: Mode::MinReplicas,
                    replicas: NODES - 1,
                    lease_max_ms: LEASE_MS_MAX,
                    grace_ms: None,
                };
                let fleet = Fleet::start(setup, dir, topology, &protection)?;
                Place::Fleet(Box::new(fleet))
            }
        };
        Ok(Self {
            place,
            rng,
            counts: Tally::new(),
            prefix: topology.prefix(),
        })
    }

    /// Starts this many for a Redlock.
    pub fn several(
        count: usize,
        rules: Rules,
        setup: &Setup,
        dir: &Path,
        mut rng: StdRng,
    ) -> Result<Self, String> {
        let rng_of_plan = StdRng::seed_from_u64(rng.random());
        let mut plan = Plan::start(rng_of_plan, setup.clone(), dir, count, rules)?;
        let urls = (0..CLIENTS)
            .map(|_| plan.ways())
            .collect::<Result<_, _>>()?;
        Ok(Self {
            place: Place::Several(Box::new(plan), urls),
            rng,
            counts: Tally::new(),
            prefix: String::new(),
        })
    }

    /// What is asked of those of a Redlock.
    pub fn open(&self) -> Arc<Open> {
        match &self.place {
            Place::Several(plan, _) => Arc::clone(&plan.open),
            _ => Arc::default(),
        }
    }

    /// By which URLs a client reaches them: several, if a Redlock.
    pub fn urls(&self, client: usize) -> Vec<String> {
        match &self.place {
            Place::One(_, ways) => vec![format!("redis://{}", ways[client].addr())],
            Place::Fleet(fleet) => vec![fleet.url()],
            Place::Several(_, urls) => urls[client].clone(),
        }
    }

    /// Ends what still goes on.
    pub fn heal(&mut self) -> Result<(), String> {
        match &mut self.place {
            Place::Several(plan, _) => plan.end(),
            _ => Ok(()),
        }
    }

    /// Hurts something for a while, and heals it. Notes from when until when.
    pub fn hurt(&mut self, journal: &Journal) -> Result<(), String> {
        let mut from = clock::now();
        let what = if let Place::Several(plan, _) = &mut self.place {
            let Some((what, since)) = plan.step()? else {
                return Ok(());
            };
            from = since;
            what
        } else {
            self.hurt_somehow()?
        };
        *self.counts.entry(what.to_owned()).or_default() += 1;
        // It excuses no hold.
        journal.interfered(what, &[Effect::HoldsCommandsBack], None, from);
        Ok(())
    }

    fn hurt_somehow(&mut self) -> Result<&'static str, String> {
        self.sleep(5, 400);
        if matches!(self.place, Place::Fleet(_)) && self.rng.random_bool(0.3) {
            self.kill_primary()?;
            return Ok("primary killed");
        }
        let (what, fate) = self.any_fate();
        let clients = [(); CLIENTS].map(|()| self.rng.random_bool(0.5));
        let node = self.rng.random_range(0..NODES);
        self.set(&clients, node, fate);
        self.sleep(10, 1500);
        self.set(&[true; CLIENTS], node, Fate::Passes);
        match &mut self.place {
            Place::One(server, ways) => {
                if self.rng.random_bool(0.2) {
                    ways[self.rng.random_range(0..CLIENTS)].hang_up();
                }
                server.examine()?;
            }
            Place::Fleet(fleet) => fleet.examine()?,
            Place::Several(..) => {}
        }
        Ok(what)
    }

    fn set(&self, clients: &[bool], node: usize, fate: Fate) {
        match &self.place {
            Place::One(_, ways) => {
                let chosen = ways
                    .iter()
                    .zip(clients)
                    .filter(|(_, is_chosen)| **is_chosen);
                chosen.for_each(|(way, _)| way.set(fate));
            }
            Place::Fleet(fleet) => fleet.hurt_clients(node, fate),
            Place::Several(..) => {}
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
        let mut left = (0, 0);
        for addr in self.serving()? {
            let mut connection = Connection::open(addr)?;
            let Value::Int(keys) = connection.call(&["DBSIZE"])? else {
                return Err("the server does not count its keys".into());
            };
            left = (left.0 + keys, left.1 + connection.info("lock_waiters")?);
        }
        Ok(left)
    }

    fn serving(&self) -> Result<Vec<SocketAddr>, String> {
        match &self.place {
            Place::One(server, _) => Ok(vec![server.addr()]),
            Place::Fleet(fleet) => {
                let agreed = fleet.guide().agreed();
                let primary = agreed.ok_or("the witnesses don't agree on a primary")?;
                Ok(vec![fleet.nodes[primary].server.addr()])
            }
            Place::Several(plan, _) => Ok(plan.servers().map(Server::addr).collect()),
        }
    }
}
