//! The servers of a campaign, those who know which of them is the primary, and the ways
//! between them. One server with its replica is a fleet, too.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use redis::Value;
use redis_lock_testing::{
    Clock, Connection, Fate, Proxy, Server, Setup, comes_true, local, reply_text,
};

use crate::protection::Protection;

mod cluster;
mod guide;
mod packets;
mod sentinels;

pub use guide::Guide;
use guide::Ways;

/// How many nodes there are in a watched fleet, beside the witnesses.
pub const NODES: usize = 3;

/// How many groups of clients there are, each with ways of its own.
pub const SIDES: usize = 3;

/// Within this time no silence is taken for a death.
pub const DOWN_AFTER_MS: u64 = 500;

/// How long it may take until all is well after a fault. A sentinel that stood still for two
/// seconds does nothing for the next thirty, and again after each further time.
const HEALING: Duration = Duration::from_secs(180);

/// How long anybody may take to answer who is not hurt.
const ANSWER: Duration = Duration::from_secs(5);

const LOOK_EVERY: Duration = Duration::from_millis(40);

/// How long what was given back may be at the servers: less than what is left of any lease.
const RELEASED_WITHIN: Duration = Duration::from_millis(150);

/// Where the locks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Topology {
    /// On one server, which has a replica.
    One,
    /// On a primary that sentinels name.
    Sentinel,
    /// In a cluster, in which two other primaries vote.
    Cluster,
    /// On this many servers that know nothing of each other.
    #[value(skip)]
    Several(usize),
}

impl Topology {
    /// Whether there are witnesses, who replace a primary that dies.
    pub fn is_watched(self) -> bool {
        matches!(self, Self::Sentinel | Self::Cluster)
    }
}

/// The fate of what goes through proxies, or whether packets are lost to a node, and from it.
pub type Cut = (Fate, [bool; 2]);

/// A server and the ways to it.
pub struct Node {
    pub server: Server,
    /// The way of its replicas, the sentinels, and clients that they send here.
    pub peers: Proxy,
    /// The way of the other nodes of a cluster.
    bus: Proxy,
    pub clients: [Proxy; SIDES],
    /// Where its own connections come from.
    pub source: IpAddr,
    /// Where the others reach it, and the other nodes of a cluster: by proxies, or at its
    /// source where packets are lost.
    pub addr: SocketAddr,
    bus_addr: SocketAddr,
    /// The one it goes by, if it is not the machine's.
    _clock: Option<Clock>,
}

/// All nodes, and those who watch them.
pub struct Fleet {
    /// The nodes. The reader sees them counted from 1.
    pub nodes: Vec<Node>,
    topology: Topology,
    /// These and the voters of a cluster know who is the primary. They are never hurt.
    sentinels: Vec<Server>,
    voters: Vec<Node>,
    /// The primary, where nobody watches.
    known: Arc<AtomicUsize>,
    /// Whether packets between the nodes are lost, and not what goes through a proxy.
    loses_packets: bool,
}

fn ask(addr: SocketAddr, words: &[&str]) -> Option<Value> {
    let deadline = Instant::now() + ANSWER;
    let mut connection = Connection::open(addr).ok()?;
    connection.call_while(words, || Instant::now() < deadline)
}

fn ask_text(addr: SocketAddr, words: &[&str]) -> Option<String> {
    ask(addr, words).and_then(reply_text)
}

impl Node {
    fn start(setup: &Setup, number: usize, clock: Option<Clock>, loses: bool) -> Result<Self> {
        let source = format!("127.0.0.{}", 10 + number);
        let mut setup = setup.clone().options(&["--bind-source-addr", &source]);
        setup = setup.options(&["--bind", "127.0.0.1", &source]);
        setup.dir = setup.dir.map(|dir| dir.join(format!("node-{number}")));
        let variables = clock.iter().flat_map(|clock| clock.environment.clone());
        setup.environment.extend(variables);
        let mut server = setup.start()?;
        let (peers, bus) = (
            Proxy::to(server.addr())?,
            Proxy::to(local(server.bus_port))?,
        );
        let source = source.parse()?;
        let [addr, bus_addr] = match loses {
            true => [server.port, server.bus_port].map(|port| SocketAddr::new(source, port)),
            false => [peers.addr(), bus.addr()],
        };
        let [ip, port] = [addr.ip().to_string(), addr.port().to_string()];
        let bus_port = bus_addr.port().to_string();
        let mut known = vec![
            ("replica-announce-ip", &ip),
            ("replica-announce-port", &port),
        ];
        if server.setup.options.contains(&"--cluster-enabled".into()) {
            known.push(("cluster-announce-ip", &ip));
            known.push(("cluster-announce-port", &port));
            known.push(("cluster-announce-bus-port", &bus_port));
        }
        for (name, value) in known {
            let option = format!("--{name}");
            server.setup = server.setup.clone().options(&[&option, value]);
            server.connect()?.call_ok(&["CONFIG", "SET", name, value])?;
        }
        let way = || Proxy::to(server.addr());
        Ok(Self {
            clients: [way()?, way()?, way()?],
            server,
            peers,
            bus,
            source,
            addr,
            bus_addr,
            _clock: clock,
        })
    }

    pub fn replication(&self) -> Option<String> {
        ask_text(self.server.addr(), &["INFO", "replication"])
    }

    pub fn follow(&self, primary: &Self) -> Result<()> {
        let addr = primary.addr;
        let [host, port] = [addr.ip().to_string(), addr.port().to_string()];
        let mut connection = self.server.connect()?;
        connection.call_ok(&["REPLICAOF", &host, &port])?;
        Ok(())
    }

    fn has_two_replicas(&self) -> bool {
        self.replication().is_some_and(|info| {
            info.contains("role:master") && info.matches("state=online").count() == NODES - 1
        })
    }

    /// Whether it is in step with this primary.
    pub fn follows(&self, primary: &Self) -> bool {
        let port = format!("master_port:{}\r", primary.addr.port());
        self.replication()
            .is_some_and(|info| info.contains("master_link_status:up") && info.contains(&port))
    }
}

impl Fleet {
    /// Starts them, with these settings, and waits until all is well.
    pub fn start(
        setup: &Setup,
        dir: &Path,
        topology: Topology,
        protection: &Protection,
        loses_packets: bool,
    ) -> Result<Self> {
        if loses_packets {
            packets::set_up()?;
        }
        let mut setup = setup.clone();
        for (name, value) in protection.settings() {
            setup = setup.options(&[&format!("--{name}"), &value]);
        }
        let count = match topology {
            Topology::One => 2,
            Topology::Sentinel | Topology::Cluster => NODES,
            Topology::Several(count) => count,
        };
        setup = match topology {
            Topology::One => setup.options(&["--appendonly", "yes"]),
            Topology::Cluster => {
                let settings: Vec<&str> = cluster::SETTINGS.split(' ').collect();
                setup.in_a_cluster().options(&settings)
            }
            _ => setup,
        };
        setup.dir = Some(dir.to_owned());
        let start = |number| Node::start(&setup, number, protection.clock(number), loses_packets);
        let nodes: Vec<Node> = (1..=count).map(start).collect::<Result<_, _>>()?;
        if matches!(topology, Topology::One | Topology::Sentinel) {
            for node in &nodes[1..] {
                node.follow(&nodes[0])?;
                node.server.await_link()?;
            }
        }
        let (mut sentinels, mut voters) = (Vec::new(), Vec::new());
        if topology == Topology::Sentinel {
            sentinels = sentinels::start(&setup.binary, dir, nodes[0].addr)?;
        }
        if topology == Topology::Cluster {
            let numbers = NODES + 1..=NODES + 2;
            voters = numbers.map(start).collect::<Result<_, _>>()?;
            cluster::form(&nodes, &voters)?;
        }
        let fleet = Self {
            nodes,
            topology,
            sentinels,
            voters,
            known: Arc::default(),
            loses_packets,
        };
        fleet.await_well()?;
        Ok(fleet)
    }

    /// Has the sentinels promote nobody, however slow the machine is.
    pub fn stay_calm(&self) -> Result<()> {
        sentinels::set(&self.sentinels, "down-after-milliseconds", 600_000)
    }

    pub fn guide(&self) -> Guide {
        let ways = |node: &Node| Ways {
            server: node.server.addr(),
            peers: node.addr,
            clients: node.clients.each_ref().map(Proxy::addr),
        };
        Guide {
            topology: self.topology,
            known: Arc::clone(&self.known),
            witnesses: self.witnesses().map(Server::addr).collect(),
            nodes: self.nodes.iter().map(ways).collect(),
        }
    }

    /// Has clients go to another node from now on, where nobody watches.
    pub fn lead_to(&self, node: usize) {
        self.known.store(node, Ordering::SeqCst);
        let primary = self.nodes[node].server.addr();
        let ways = self.nodes[0].clients.iter();
        ways.for_each(|way| way.lead_to(primary));
    }

    /// What the names of all locks and channels begin with.
    pub fn prefix(&self) -> String {
        match self.topology {
            Topology::Cluster => cluster::prefix(),
            _ => String::new(),
        }
    }

    /// The URLs of a library on this side: several, if a Redlock. Behind witnesses it finds
    /// the primary by itself.
    pub fn urls(&self, side: usize) -> Vec<String> {
        let url = |node: &Node| format!("redis://{}", node.clients[side].addr());
        let list = |addrs: Vec<SocketAddr>| {
            let addrs = addrs.iter().map(ToString::to_string);
            addrs.collect::<Vec<_>>().join(",")
        };
        match self.topology {
            Topology::One => vec![url(&self.nodes[0])],
            Topology::Several(_) => self.nodes.iter().map(url).collect(),
            Topology::Sentinel => {
                let addrs = list(self.witnesses().map(Server::addr).collect());
                vec![format!("redis-sentinel://{addrs}/locks")]
            }
            Topology::Cluster => {
                let addrs = list(self.in_cluster().map(|node| node.addr).collect());
                vec![format!("redis-cluster://{addrs}")]
            }
        }
    }

    /// What happens from now on between a node and clients: those of these sides, or all
    /// that find their way by themselves.
    pub fn set(&self, node: usize, sides: [bool; SIDES], fate: Fate) {
        let node = &self.nodes[node];
        if self.topology.is_watched() {
            return node.peers.set_from(local(0).ip(), fate);
        }
        let ways = node.clients.iter().zip(sides);
        ways.filter(|(_, is_chosen)| *is_chosen)
            .for_each(|(way, _)| way.set(fate));
    }

    /// The primary that all witnesses agree on, with both replicas in step.
    fn well(&self) -> Option<usize> {
        let primary = self.guide().agreed()?;
        let node = &self.nodes[primary];
        let follow = |other: &Node| other.source == node.source || other.follows(node);
        let is_well = || {
            self.sentinels.iter().all(sentinels::sees_all)
                && (self.voters.is_empty() || self.in_cluster().all(cluster::sees_all))
                && node.has_two_replicas()
                && self.nodes.iter().all(follow)
        };
        (!self.topology.is_watched() || is_well()).then_some(primary)
    }

    /// Waits until all is well. Returns who is the primary.
    pub fn await_well(&self) -> Result<usize> {
        await_some(|| self.well(), "the nodes don't find together again")
    }

    /// Waits until all witnesses agree on another primary.
    pub fn await_other_than(&self, old: usize) -> Result<usize> {
        let guide = self.guide();
        let other = || guide.agreed().filter(|&new| new != old);
        await_some(other, "nobody is promoted")
    }

    /// Where the sentinels' and the voters' connections come from.
    pub fn watchers(&self) -> Vec<IpAddr> {
        let voters = self.voters.iter().map(|voter| voter.source);
        voters.chain([sentinels::SOURCE]).collect()
    }

    /// Where those of the other nodes and of the watchers come from.
    pub fn peers(&self, node: usize) -> Vec<IpAddr> {
        let nodes = self.nodes.iter().map(|other| other.source);
        let others = nodes.filter(|source| *source != self.nodes[node].source);
        others.chain(self.watchers()).collect()
    }

    /// Cuts a node off from others.
    pub fn cut_off(&self, node: usize, others: &[IpAddr], (fate, lost): Cut) -> Result<()> {
        let node = &self.nodes[node];
        if self.loses_packets {
            return packets::lose(node.source, others, lost);
        }
        for other in others {
            node.peers.set_from(*other, fate);
            node.bus.set_from(*other, fate);
        }
        let others = |other: &&Node| others.contains(&other.source);
        for other in self.in_cluster().filter(others) {
            other.peers.set_from(node.source, fate);
            other.bus.set_from(node.source, fate);
        }
        Ok(())
    }

    /// Lets everything pass again.
    pub fn reconnect(&self) -> Result<()> {
        for node in self.in_cluster() {
            let ways = [&node.peers, &node.bus].into_iter().chain(&node.clients);
            ways.for_each(|way| way.set(Fate::Passes));
        }
        if self.loses_packets {
            packets::pass()?;
        }
        Ok(())
    }

    fn in_cluster(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().chain(&self.voters)
    }

    fn witnesses(&self) -> impl Iterator<Item = &Server> {
        let voters = self.voters.iter().map(|voter| &voter.server);
        self.sentinels.iter().chain(voters)
    }

    /// Has this replica promoted before the other one, or prefers nobody any more.
    pub fn prefer(&self, replica: Option<usize>) -> Result<()> {
        for node in 0..NODES {
            let is_it = replica == Some(node);
            let (priority, refuses) = match replica {
                Some(_) if !is_it => ("100", "yes"),
                _ => (if is_it { "1" } else { "100" }, "no"),
            };
            self.configure(node, "replica-priority", priority)?;
            self.configure(node, "cluster-replica-no-failover", refuses)?;
        }
        let Some(replica) = replica else {
            return Ok(());
        };
        let port = self.nodes[replica].addr.port().to_string();
        let prefer = |sentinel| sentinels::prefers(sentinel, &port);
        let all_prefer = || self.sentinels.iter().all(prefer).then_some(());
        await_some(all_prefer, "the sentinels don't hear of a priority")
    }

    pub fn configure(&self, node: usize, name: &str, value: &str) -> Result<()> {
        let mut connection = self.nodes[node].server.connect()?;
        connection.call_ok(&["CONFIG", "SET", name, value])?;
        Ok(())
    }

    /// Orders a replica to be promoted, whatever the primary does meanwhile. Says
    /// whether it will.
    pub fn order_promotion(&self, replica: usize, how: usize) -> bool {
        match self.sentinels.get(how) {
            Some(sentinel) => sentinels::order_promotion(sentinel),
            None => cluster::order_promotion(&self.nodes[replica], how.is_multiple_of(2)),
        }
    }

    /// Whether the servers are well.
    pub fn examine(&mut self) -> Result<()> {
        let nodes = self.nodes.iter_mut().chain(&mut self.voters);
        let mut servers = nodes
            .map(|node| &mut node.server)
            .chain(&mut self.sentinels);
        servers.try_for_each(Server::examine)
    }

    /// Waits until nobody holds or waits for anything.
    pub fn await_empty(&self) -> Result<()> {
        // What a server of a Redlock hears late ends with its lease.
        let late =
            Duration::from_secs(2) * u32::from(matches!(self.topology, Topology::Several(_)));
        let mut left = Ok((0, 0));
        let is_empty = comes_true(RELEASED_WITHIN + late, || {
            left = self.left();
            matches!(left, Ok((0, 0)))
        });
        let (keys, waiters) = left?;
        ensure!(is_empty, "{keys} locks and {waiters} waiters are left");
        Ok(())
    }

    /// How many locks and waiters there are.
    pub fn left(&self) -> Result<(i64, i64)> {
        let agreed = self.guide().agreed();
        let serving = match (self.topology, agreed) {
            (Topology::Several(_), _) => &self.nodes[..],
            (_, Some(primary)) => &self.nodes[primary..=primary],
            (_, None) => bail!("the witnesses don't agree on a primary"),
        };
        let mut left = (0, 0);
        for node in serving {
            let mut connection = node.server.connect()?;
            let Value::Int(keys) = connection.call(&["DBSIZE"])? else {
                bail!("the server does not count its keys");
            };
            left = (left.0 + keys, left.1 + connection.info("lock_waiters")?);
        }
        Ok(left)
    }
}

fn await_some<T>(look: impl Fn() -> Option<T>, why: &str) -> Result<T> {
    let mut found = None;
    comes_true(HEALING, || {
        thread::sleep(LOOK_EVERY);
        found = look();
        found.is_some()
    });
    found.with_context(|| why.to_owned())
}
