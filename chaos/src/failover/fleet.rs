//! A primary, its two replicas and three sentinels, and the ways between them.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use redis::Value;
use redis_lock_testing::{Connection, Fate, Proxy, Server, Setup, local, reply_text, sentinel};

use crate::failover::protection::Protection;

/// How many nodes there are.
pub const NODES: usize = 3;

/// How many groups of clients there are, each with ways of its own.
pub const SIDES: usize = 2;

/// After how long a silence a sentinel takes a node for dead.
pub const DOWN_AFTER_MS: u64 = 500;

/// How long a sentinel may take to promote a replica.
const FAILOVER_TIMEOUT_MS: u64 = 3000;

/// How long it may take until all is well after a fault.
const HEALING: Duration = Duration::from_secs(60);

/// How long anybody may take to answer who is not hurt.
const ANSWER: Duration = Duration::from_secs(5);

const LOOK_EVERY: Duration = Duration::from_millis(40);

/// How eager the sentinels are, in milliseconds. They would take ten seconds
/// to look at a replica, or to correct one that takes itself for the primary.
const EAGER: [(&str, u64); 5] = [
    ("info-period", 300),
    ("ping-period", 150),
    ("ask-period", 200),
    ("publish-period", 300),
    ("min-link-reconnect-period", 300),
];

/// A server and the ways to it.
pub struct Node {
    /// The server.
    pub server: Server,
    /// The way of its replicas and the sentinels.
    pub peers: Proxy,
    /// The ways of the clients.
    pub clients: [Proxy; SIDES],
    /// Where its own connections come from.
    pub source: IpAddr,
}

/// All nodes, and those who watch them.
pub struct Fleet {
    /// The nodes. The reader sees them counted from 1.
    pub nodes: Vec<Node>,
    sentinels: [Server; 3],
}

/// How a client finds the primary.
#[derive(Clone)]
pub struct Guide {
    /// Where the sentinels are.
    sentinels: [SocketAddr; 3],
    /// By which address each node is known, and the clients' ways to it.
    nodes: Vec<(SocketAddr, [SocketAddr; SIDES])>,
}

impl Guide {
    /// Which node this sentinel says is the primary.
    pub fn primary(&self, sentinel: usize) -> Option<usize> {
        let known = sentinel::primary(self.sentinels[sentinel])?;
        self.nodes.iter().position(|(addr, _)| *addr == known)
    }

    /// Which node all sentinels say is the primary.
    pub fn agreed(&self) -> Option<usize> {
        let first = self.primary(0)?;
        let agree = (1..self.sentinels.len()).all(|other| self.primary(other) == Some(first));
        agree.then_some(first)
    }

    /// How many sentinels there are.
    pub fn sentinels(&self) -> usize {
        self.sentinels.len()
    }

    /// The way of a client on this side to a node.
    pub fn way(&self, node: usize, side: usize) -> SocketAddr {
        self.nodes[node].1[side]
    }
}

/// What the server at this address answers, if it does.
pub fn ask(addr: SocketAddr, words: &[&str]) -> Option<Value> {
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
        let peers = Proxy::to(server.addr())?;
        let known = [
            peers.addr().ip().to_string(),
            peers.addr().port().to_string(),
        ];
        for (name, value) in ["replica-announce-ip", "replica-announce-port"]
            .iter()
            .zip(&known)
        {
            let option = format!("--{name}");
            server.setup = server.setup.clone().options(&[&option, value]);
            server.connect()?.call_ok(&["CONFIG", "SET", name, value])?;
        }
        Ok(Self {
            clients: [Proxy::to(server.addr())?, Proxy::to(server.addr())?],
            server,
            peers,
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

    /// What happens from now on between it and everybody.
    pub fn set_all(&self, fate: Fate) {
        self.peers.set(fate);
        self.clients.iter().for_each(|way| way.set(fate));
    }
}

impl Fleet {
    /// Starts them, with these settings, and waits until all is well.
    pub fn start(setup: &Setup, dir: &Path, protection: &Protection) -> Result<Self, String> {
        let mut setup = setup.clone();
        for (name, value) in protection.settings() {
            setup = setup.options(&[&format!("--{name}"), &value]);
        }
        let nodes = (1..=NODES).map(|number| Node::start(&setup, dir, number));
        let nodes = nodes.collect::<Result<Vec<Node>, String>>()?;
        let primary = nodes[0].peers.addr();
        let [host, port] = [primary.ip().to_string(), primary.port().to_string()];
        for node in &nodes[1..] {
            let follow = ["REPLICAOF", host.as_str(), port.as_str()];
            node.server.connect()?.call_ok(&follow)?;
            node.server.await_link()?;
        }
        let sentinels = sentinel::watch(&setup.binary, primary)?;
        for sentinel in &sentinels {
            let mut connection = sentinel.connect()?;
            let [down_after, timeout] =
                [DOWN_AFTER_MS, FAILOVER_TIMEOUT_MS].map(|ms| ms.to_string());
            let set = ["SENTINEL", "SET", "locks"];
            for setting in [
                ["down-after-milliseconds", &down_after],
                ["failover-timeout", &timeout],
            ] {
                connection.call_ok(&[&set[..], &setting].concat())?;
            }
            for (name, ms) in EAGER {
                connection.call_ok(&["SENTINEL", "DEBUG", name, &ms.to_string()])?;
            }
        }
        let fleet = Self { nodes, sentinels };
        fleet.await_well()?;
        Ok(fleet)
    }

    /// How clients find the primary.
    pub fn guide(&self) -> Guide {
        let ways = |node: &Node| [0, 1].map(|side: usize| node.clients[side].addr());
        Guide {
            sentinels: [0, 1, 2].map(|nth: usize| self.sentinels[nth].addr()),
            nodes: self
                .nodes
                .iter()
                .map(|node| (node.peers.addr(), ways(node)))
                .collect(),
        }
    }

    /// The primary that all sentinels agree on, with both replicas in step.
    fn well(&self) -> Option<usize> {
        let primary = self.guide().agreed()?;
        let node = &self.nodes[primary];
        let follow = |other: &Node| other.source == node.source || other.follows(node);
        let seen = |sentinel: &Server| {
            let replicas = ask(sentinel.addr(), &["SENTINEL", "REPLICAS", "locks"]);
            let seen = replicas.map(texts).unwrap_or_default();
            let names = seen.iter().filter(|text| *text == "master-link-status");
            let is_ill = |text: &String| text.contains("s_down") || text == "err";
            names.count() == NODES - 1 && !seen.iter().any(is_ill)
        };
        let is_well = node.has_two_replicas()
            && self.nodes.iter().all(follow)
            && self.sentinels.iter().all(seen);
        is_well.then_some(primary)
    }

    /// Waits until all is well. Returns who is the primary.
    pub fn await_well(&self) -> Result<usize, String> {
        self.await_some(|| self.well())
            .ok_or_else(|| "the nodes don't find together again".to_owned())
    }

    /// Waits until all sentinels agree on another primary.
    pub fn await_other_than(&self, old: usize) -> Result<usize, String> {
        let guide = self.guide();
        self.await_some(|| guide.agreed().filter(|&new| new != old))
            .ok_or_else(|| "the sentinels promote nobody".to_owned())
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

    /// Sets how soon a node is promoted: the least first, of those above 0.
    pub fn set_priority(&self, node: usize, priority: &str) -> Result<(), String> {
        let set = ["CONFIG", "SET", "replica-priority", priority];
        self.nodes[node].server.connect()?.call_ok(&set)?;
        Ok(())
    }

    /// Has the sentinels promote this replica before the other one.
    pub fn prefer(&self, replica: usize) -> Result<(), String> {
        self.set_priority(replica, "1")?;
        let port = self.nodes[replica].peers.addr().port().to_string();
        let knows = |sentinel: &Server| {
            let replicas = ask(sentinel.addr(), &["SENTINEL", "REPLICAS", "locks"]);
            let Some(Value::Array(replicas)) = replicas else {
                return false;
            };
            replicas.into_iter().map(texts).any(|fields| {
                let has = |name: &str, value: &str| {
                    let mut pairs = fields.windows(2);
                    pairs.any(|two| two[0] == name && two[1] == value)
                };
                has("port", &port) && has("slave-priority", "1")
            })
        };
        let all = || self.sentinels.iter().all(knows).then_some(());
        self.await_some(all)
            .ok_or_else(|| "the sentinels don't hear of a priority".to_owned())
    }

    /// Orders a sentinel to promote a replica. Says whether it will.
    pub fn order_failover(&self, sentinel: usize) -> bool {
        let addr = self.sentinels[sentinel % self.sentinels.len()].addr();
        ask(addr, &["SENTINEL", "FAILOVER", "locks"]) == Some(Value::Okay)
    }

    /// Whether the servers are well.
    pub fn examine(&mut self) -> Result<(), String> {
        let nodes = self.nodes.iter_mut().map(|node| &mut node.server);
        let mut servers = nodes.chain(&mut self.sentinels);
        Ok(servers.try_for_each(Server::examine)?)
    }
}

/// Where sentinels and clients connect from.
pub fn elsewhere() -> IpAddr {
    local(0).ip()
}
