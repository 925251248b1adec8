//! Servers that share the slots of a cluster.

use std::net::SocketAddr;
use std::process::{Command, Stdio};

use crc::{CRC_16_XMODEM, Crc};

use super::{Client, TestServer, eventually_within, status};
use crate::{Connection, Result, SOON, reply_text};

/// The slot of a key, by its tag if it has one.
pub fn slot(key: &str) -> u16 {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map_or(key, |(tag, _)| tag);
    Crc::<u16>::new(&CRC_16_XMODEM).checksum(tag.as_bytes()) % 16384
}

/// A tag whose slot satisfies `wanted`, different for each `nth`.
pub fn tag(wanted: impl Fn(u16) -> bool, nth: usize) -> String {
    (0..u32::MAX)
        .map(|n| n.to_string())
        .filter(|tag| wanted(slot(tag)))
        .nth(nth)
        .unwrap_or_default()
}

/// Runs `redis-cli` to its end, for a minute at most: it may wait for the nodes
/// of a cluster without end. Returns whether it succeeded, and what it wrote.
pub fn redis_cli(args: &[&str]) -> Result<(bool, String)> {
    let output = Command::new("timeout")
        .args(["60", "redis-cli"])
        .args(args)
        .stdin(Stdio::null())
        .output()?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    Ok((output.status.success(), said))
}

fn cluster_command(args: &[&str]) -> (bool, String) {
    redis_cli(&[&["--cluster"], args, &["--cluster-yes"]].concat()).unwrap()
}

/// What a node answers to a question about its cluster.
fn ask(node: SocketAddr, what: &str) -> Option<String> {
    let reply = Connection::open(node).and_then(|mut node| node.call(&["CLUSTER", what]));
    reply.ok().and_then(reply_text)
}

/// Three primaries with the module, a third of the slots each.
pub struct Cluster {
    /// The nodes, in the order of their slots.
    pub nodes: Vec<TestServer>,
    /// Their names in the cluster.
    pub ids: Vec<String>,
}

impl Cluster {
    /// Starts the nodes and waits until each serves its slots.
    #[track_caller]
    pub fn start() -> Self {
        let nodes: Vec<_> = (0..3).map(|_| Self::node()).collect();
        let addrs: Vec<String> = nodes.iter().map(|node| node.addr().to_string()).collect();
        let mut args = vec!["create"];
        args.extend(addrs.iter().map(String::as_str));
        let (is_created, said) = cluster_command(&args);
        assert!(is_created, "no cluster: {said}");
        let mut cluster = Self {
            nodes,
            ids: Vec::new(),
        };
        cluster.await_agreement();
        let ids = cluster.nodes.iter().map(|node| ask(node.addr(), "MYID"));
        cluster.ids = ids.map(Option::unwrap).collect();
        cluster
    }

    /// A node that is in no cluster yet.
    #[track_caller]
    pub fn node() -> TestServer {
        TestServer::launch(TestServer::setup().in_a_cluster())
    }

    /// A node that has all slots.
    #[track_caller]
    pub fn of_one_node() -> TestServer {
        let node = Self::node();
        let mut client = node.client();
        let all = "CLUSTER ADDSLOTSRANGE 0 16383";
        assert_eq!(client.call(all), status("OK"));
        super::eventually("the node serves all slots", || {
            client.bulk("CLUSTER INFO").contains("cluster_state:ok")
        });
        node
    }

    /// Waits until every node says that all is well.
    #[track_caller]
    pub fn await_agreement(&self) {
        let known = format!("cluster_known_nodes:{}", self.nodes.len());
        let first = self.nodes[0].addr().to_string();
        eventually_within(4 * SOON, "the nodes agree on the slots", || {
            let well = |info: String| info.contains("cluster_state:ok") && info.contains(&known);
            let mut infos = self.nodes.iter().map(|node| ask(node.addr(), "INFO"));
            infos.all(|info| info.is_some_and(well)) && cluster_command(&["check", &first]).0
        });
    }

    /// A connection to a node.
    pub fn client(&self, node: usize) -> Client {
        self.nodes[node].client()
    }

    /// Checks that no node has crashed.
    #[track_caller]
    pub fn assert_sound(&self) {
        self.nodes.iter().for_each(TestServer::assert_sound);
    }

    /// A new replica of a node, which that node knows.
    #[track_caller]
    pub fn add_replica(primary: &TestServer, id: &str) -> TestServer {
        let replica = Self::node();
        let addrs = [&replica, primary].map(|node| node.addr().to_string());
        let of_it = ["--cluster-slave", "--cluster-master-id", id];
        let command = [&["add-node", &addrs[0], &addrs[1]], &of_it[..]].concat();
        let (is_added, said) = cluster_command(&command);
        assert!(is_added, "no replica: {said}");
        replica.await_link().unwrap();
        let relation = format!("slave {id}");
        super::eventually("the primary knows the replica", || {
            primary.client().bulk("CLUSTER NODES").contains(&relation)
        });
        replica
    }

    /// Moves the lowest slots of one node to another, as an operator would.
    #[track_caller]
    pub fn reshard(&self, from: usize, to: usize, slots: usize) {
        let (node, slots) = (self.nodes[0].addr().to_string(), slots.to_string());
        let (from, to) = (self.ids[from].as_str(), self.ids[to].as_str());
        let ways = ["--cluster-from", from, "--cluster-to", to];
        let command = [&["reshard", &node, "--cluster-slots", &slots][..], &ways].concat();
        let (is_moved, said) = cluster_command(&command);
        assert!(is_moved, "no reshard: {said}");
    }
}

/// A slot of node 0 that moves to node 1.
pub struct MovingSlot {
    /// The nodes.
    pub cluster: Cluster,
    /// The slot.
    pub slot: u16,
    /// A lock in it.
    pub key: String,
}

impl MovingSlot {
    /// One that has not begun to move, of a new cluster.
    #[track_caller]
    pub fn start() -> Self {
        let tag = tag(|slot| slot < 5000, 0);
        Self {
            cluster: Cluster::start(),
            slot: slot(&tag),
            key: format!("lock:{{{tag}}}"),
        }
    }

    /// How many keys of the slot a node has.
    #[track_caller]
    pub fn keys_on(&self, node: usize) -> i64 {
        let count = format!("CLUSTER COUNTKEYSINSLOT {}", self.slot);
        self.cluster.client(node).int(&count)
    }

    /// Tells a node of the slot's state, as `CLUSTER SETSLOT` has it.
    #[track_caller]
    fn set(&self, node: usize, state: &str) {
        let command = format!("CLUSTER SETSLOT {} {state}", self.slot);
        assert_eq!(self.cluster.client(node).call(&command), status("OK"));
    }

    /// Begins the move: new keys go to node 1.
    #[track_caller]
    pub fn begin(&self) {
        self.set(1, &format!("IMPORTING {}", self.cluster.ids[0]));
        self.set(0, &format!("MIGRATING {}", self.cluster.ids[1]));
    }

    /// Moves one key.
    #[track_caller]
    pub fn migrate(&self, key: &str) {
        let port = self.cluster.nodes[1].addr().port();
        let command = format!("MIGRATE 127.0.0.1 {port} {key} 0 5000");
        assert_eq!(self.cluster.client(0).call(&command), status("OK"));
    }

    /// Node 1 serves the slot from now on.
    #[track_caller]
    pub fn finish(&self) {
        let state = format!("NODE {}", self.cluster.ids[1]);
        for node in [1, 0, 2] {
            self.set(node, &state);
        }
    }
}
