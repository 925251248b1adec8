//! A primary, its two replicas and their witnesses, and the ways between them.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use redis::Value;
use redis_lock_testing::{Connection, Fate, Proxy, Server, Setup, local, reply_text, sentinel};

use crate::campaign::Topology;
use crate::failover::protection::Protection;

mod cluster;
mod sentinels;

/// How many nodes there are, beside the witnesses.
pub const NODES: usize = 3;

/// How many groups of clients there are, each with ways of its own.
pub const SIDES: usize = 2;

/// Within this time no silence is taken for a death.
pub const DOWN_AFTER_MS: u64 = 500;

/// How long it may take until all is well after a fault.
const HEALING: Duration = Duration::from_secs(60);

/// How long anybody may take to answer who is not hurt.
const ANSWER: Duration = Duration::from_secs(5);

const LOOK_EVERY: Duration = Duration::from_millis(40);

/// A server and the ways to it.
pub struct Node {
    /// The server.
    pub server: Server,
    /// The way of its replicas and the sentinels.
    pub peers: Proxy,
    /// The way of the other nodes of a cluster.
    bus: Proxy,
    /// The ways of the clients.
    pub clients: [Proxy; SIDES],
    /// Where its own connections come from.
    pub source: IpAddr,
}

/// Those who know who is the primary. They are never hurt.
enum Witnesses {
    Sentinels(Vec<Server>),
    Voters(Vec<Node>),
}

/// All nodes, and those who watch them.
pub struct Fleet {
    /// The nodes. The reader sees them counted from 1.
    pub nodes: Vec<Node>,
    witnesses: Witnesses,
}

/// How a client finds the primary.
#[derive(Clone)]
pub struct Guide {
    topology: Topology,
    /// Where the witnesses are.
    witnesses: Vec<SocketAddr>,
    /// By which address each node is known, and the clients' ways to it.
    nodes: Vec<(SocketAddr, [SocketAddr; SIDES])>,
}

impl Guide {
    /// Which node this witness says is the primary.
    pub fn primary(&self, witness: usize) -> Option<usize> {
        let witness = self.witnesses[witness];
        let known = match self.topology {
            Topology::Cluster => local(cluster::primary_port(witness)?),
            _ => sentinel::primary(witness)?,
        };
        self.nodes.iter().position(|(addr, _)| *addr == known)
    }

    /// Which node all witnesses say is the primary.
    pub fn agreed(&self) -> Option<usize> {
        let first = self.primary(0)?;
        let agree = (1..self.witnesses()).all(|other| self.primary(other) == Some(first));
        agree.then_some(first)
    }

    /// How many witnesses there are.
    pub fn witnesses(&self) -> usize {
        self.witnesses.len()
    }

    /// The way of a client on this side to a node.
    pub fn way(&self, node: usize, side: usize) -> SocketAddr {
        self.nodes[node].1[side]
    }
}

fn ask(addr: SocketAddr, words: &[&str]) -> Option<Value> {
    let deadline = Instant::now() + ANSWER;
    let mut connection = Connection::open(addr).ok()?;
    connection.call_while(words, || Instant::now() < deadline)
}

fn ask_text(addr: SocketAddr, words: &[&str]) -> Option<String> {
    ask(addr, words).and_then(reply_text)
}

/// All texts in a reply, in their order.
fn texts(value: Value) -> Vec<String> {
    match value {
        Value::Array(values) => values.into_iter().flat_map(texts).collect(),
        other => reply_text(other).into_iter().collect(),
    }
}

impl Node {
    fn start(setup: &Setup, dir: &Path, number: usize) -> Result<Self, String> {
        let source = format!("127.0.0.{}", 10 + number);
        let setup = setup.clone().options(&["--bind-source-addr", &source]);
        let dir = dir.join(format!("node-{number}"));
        let mut server = Server::start(setup.in_dir(dir))?;
        let (peers, bus) = (Proxy::to(server.addr())?, Proxy::to(server.bus_addr())?);
        let port = peers.addr().port().to_string();
        let bus_port = bus.addr().port().to_string();
        let mut known = vec![
            ("replica-announce-ip", "127.0.0.1"),
            ("replica-announce-port", &port),
        ];
        if server.setup.in_cluster {
            known.push(("cluster-announce-port", &port));
            known.push(("cluster-announce-bus-port", &bus_port));
        }
        for (name, value) in known {
            let option = format!("--{name}");
            server.setup = server.setup.clone().options(&[&option, value]);
            server.connect()?.call_ok(&["CONFIG", "SET", name, value])?;
        }
        Ok(Self {
            clients: [Proxy::to(server.addr())?, Proxy::to(server.addr())?],
            server,
            peers,
            bus,
            source: source.parse().map_err(|_| "no such address".to_owned())?,
        })
    }

    fn has_two_replicas(&self) -> bool {
        let info = ask_text(self.server.addr(), &["INFO", "replication"]);
        info.is_some_and(|info| {
            info.contains("role:master") && info.matches("state=online").count() == NODES - 1
        })
    }

    fn follows(&self, primary: &Self) -> bool {
        let info = ask_text(self.server.addr(), &["INFO", "replication"]);
        let port = format!("master_port:{}\r", primary.peers.addr().port());
        info.is_some_and(|info| info.contains("master_link_status:up") && info.contains(&port))
    }
}

impl Topology {
    /// What the names of all locks begin with.
    pub fn prefix(self) -> String {
        match self {
            Self::Cluster => cluster::prefix(),
            Self::One | Self::Sentinel => String::new(),
        }
    }
}

impl Fleet {
    /// Has the sentinels promote nobody, however slow the machine is.
    pub fn stay_calm(&self) -> Result<(), String> {
        match &self.witnesses {
            Witnesses::Sentinels(sentinels) => sentinels::stay_calm(sentinels),
            Witnesses::Voters(_) => Ok(()),
        }
    }

    /// Starts them, with these settings, and waits until all is well.
    pub fn start(
        setup: &Setup,
        dir: &Path,
        topology: Topology,
        protection: &Protection,
    ) -> Result<Self, String> {
        let mut setup = setup.clone();
        for (name, value) in protection.settings() {
            setup = setup.options(&[&format!("--{name}"), &value]);
        }
        if topology == Topology::Cluster {
            setup = setup.in_a_cluster().options(&cluster::SETTINGS);
        }
        let start = |number| Node::start(&setup, dir, number);
        let nodes: Vec<Node> = (1..=NODES).map(start).collect::<Result<_, _>>()?;
        let witnesses = match topology {
            Topology::One | Topology::Sentinel => {
                let primary = nodes[0].peers.addr();
                let [host, port] = [primary.ip().to_string(), primary.port().to_string()];
                for node in &nodes[1..] {
                    let follow = ["REPLICAOF", host.as_str(), port.as_str()];
                    node.server.connect()?.call_ok(&follow)?;
                    node.server.await_link()?;
                }
                Witnesses::Sentinels(sentinels::start(&setup.binary, primary)?)
            }
            Topology::Cluster => {
                let numbers = NODES + 1..=NODES + 2;
                let voters: Vec<Node> = numbers.map(start).collect::<Result<_, _>>()?;
                cluster::form(&nodes, &voters)?;
                Witnesses::Voters(voters)
            }
        };
        let fleet = Self { nodes, witnesses };
        fleet.await_well()?;
        Ok(fleet)
    }

    /// How clients find the primary.
    pub fn guide(&self) -> Guide {
        let ways = |node: &Node| [0, 1].map(|side: usize| node.clients[side].addr());
        let (topology, witnesses) = match &self.witnesses {
            Witnesses::Sentinels(sentinels) => (
                Topology::Sentinel,
                sentinels.iter().map(Server::addr).collect(),
            ),
            Witnesses::Voters(voters) => (
                Topology::Cluster,
                voters.iter().map(|voter| voter.server.addr()).collect(),
            ),
        };
        let nodes = self.nodes.iter();
        Guide {
            topology,
            witnesses,
            nodes: nodes.map(|node| (node.peers.addr(), ways(node))).collect(),
        }
    }

    /// The URL for a client that finds the primary by itself.
    pub fn url(&self) -> String {
        let (scheme, name, addrs): (_, _, Vec<_>) = match &self.witnesses {
            Witnesses::Sentinels(sentinels) => {
                let addrs = sentinels.iter().map(Server::addr);
                ("redis-sentinel", "/locks", addrs.collect())
            }
            Witnesses::Voters(_) => {
                let addrs = self.in_cluster().map(|node| node.peers.addr());
                ("redis-cluster", "", addrs.collect())
            }
        };
        let addrs: Vec<String> = addrs.iter().map(ToString::to_string).collect();
        format!("{scheme}://{}{name}", addrs.join(","))
    }

    /// What happens from now on between a node and such clients.
    pub fn hurt_clients(&self, node: usize, fate: Fate) {
        self.nodes[node].peers.set_from(local(0).ip(), fate);
    }

    /// The primary that all witnesses agree on, with both replicas in step.
    fn well(&self) -> Option<usize> {
        let primary = self.guide().agreed()?;
        let node = &self.nodes[primary];
        let follow = |other: &Node| other.source == node.source || other.follows(node);
        let seen = || match &self.witnesses {
            Witnesses::Sentinels(sentinels) => sentinels.iter().all(sentinels::sees_all),
            Witnesses::Voters(voters) => voters.iter().chain(&self.nodes).all(cluster::sees_all),
        };
        let is_well = node.has_two_replicas() && self.nodes.iter().all(follow) && seen();
        is_well.then_some(primary)
    }

    /// Waits until all is well. Returns who is the primary.
    pub fn await_well(&self) -> Result<usize, String> {
        self.await_some(|| self.well())
            .ok_or_else(|| "the nodes don't find together again".to_owned())
    }

    /// Waits until all witnesses agree on another primary.
    pub fn await_other_than(&self, old: usize) -> Result<usize, String> {
        let guide = self.guide();
        self.await_some(|| guide.agreed().filter(|&new| new != old))
            .ok_or_else(|| "nobody is promoted".to_owned())
    }

    fn await_some<T>(&self, look: impl Fn() -> Option<T>) -> Option<T> {
        let deadline = Instant::now() + HEALING;
        loop {
            let found = look();
            if found.is_some() || Instant::now() > deadline {
                return found;
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Cuts a node off from the others and the sentinels.
    pub fn cut_off_from_peers(&self, node: usize, fate: Fate) {
        self.nodes[node].peers.set(fate);
        self.cut_off_bus(node, fate);
    }

    /// Cuts a node off from the witnesses, but not from its replicas.
    pub fn cut_off_from_witnesses(&self, node: usize, fate: Fate) {
        self.nodes[node].peers.set_from(sentinels::SOURCE, fate);
        self.cut_off_bus(node, fate);
    }

    /// Both directions of the bus: what it hears, and what it tells.
    fn cut_off_bus(&self, node: usize, fate: Fate) {
        let node = &self.nodes[node];
        for other in self.in_cluster() {
            other.bus.set_from(node.source, fate);
        }
        node.bus.set(fate);
    }

    /// Lets everything pass again.
    pub fn reconnect(&self) {
        for node in self.in_cluster() {
            let ways = [&node.peers, &node.bus].into_iter().chain(&node.clients);
            ways.for_each(|way| way.set(Fate::Passes));
        }
    }

    fn in_cluster(&self) -> impl Iterator<Item = &Node> {
        let voters: &[Node] = match &self.witnesses {
            Witnesses::Sentinels(_) => &[],
            Witnesses::Voters(voters) => voters,
        };
        self.nodes.iter().chain(voters)
    }

    /// Has this replica promoted before the other one.
    pub fn prefer(&self, replica: usize) -> Result<(), String> {
        match &self.witnesses {
            Witnesses::Sentinels(sentinels) => {
                self.set(replica, "replica-priority", "1")?;
                let port = self.nodes[replica].peers.addr().port().to_string();
                let prefer = |sentinel| sentinels::prefers(sentinel, &port);
                self.await_some(|| sentinels.iter().all(prefer).then_some(()))
                    .ok_or_else(|| "the sentinels don't hear of a priority".to_owned())
            }
            Witnesses::Voters(_) => {
                let others = (0..NODES).filter(|&other| other != replica);
                let mut others = others.map(|other| (other, "cluster-replica-no-failover", "yes"));
                others.try_for_each(|(other, name, value)| self.set(other, name, value))
            }
        }
    }

    /// Prefers nobody any more.
    pub fn prefer_nobody(&self) -> Result<(), String> {
        let (name, value) = match &self.witnesses {
            Witnesses::Sentinels(_) => ("replica-priority", "100"),
            Witnesses::Voters(_) => ("cluster-replica-no-failover", "no"),
        };
        (0..NODES).try_for_each(|node| self.set(node, name, value))
    }

    fn set(&self, node: usize, name: &str, value: &str) -> Result<(), String> {
        let mut connection = self.nodes[node].server.connect()?;
        connection.call_ok(&["CONFIG", "SET", name, value])?;
        Ok(())
    }

    /// Orders a replica to be promoted, whatever the primary does meanwhile. Says
    /// whether it will.
    pub fn order_promotion(&self, replica: usize, how: usize) -> bool {
        match &self.witnesses {
            Witnesses::Sentinels(sentinels) => {
                sentinels::order_promotion(&sentinels[how % sentinels.len()])
            }
            Witnesses::Voters(_) => {
                cluster::order_promotion(&self.nodes[replica], how.is_multiple_of(2))
            }
        }
    }

    /// Whether the servers are well.
    pub fn examine(&mut self) -> Result<(), String> {
        let witnesses: Vec<&mut Server> = match &mut self.witnesses {
            Witnesses::Sentinels(sentinels) => sentinels.iter_mut().collect(),
            Witnesses::Voters(voters) => voters.iter_mut().map(|voter| &mut voter.server).collect(),
        };
        let nodes = self.nodes.iter_mut().map(|node| &mut node.server);
        Ok(nodes.chain(witnesses).try_for_each(Server::examine)?)
    }
}
