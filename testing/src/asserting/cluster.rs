//! Servers that share the slots of a cluster.

use std::process::{Command, Stdio};

use anyhow::ensure;
use crc::{CRC_16_XMODEM, Crc};

use super::eventually_within;
use crate::{Okay, Result, SOON, Server, Setup};

/// The slot of a key, by its tag if it has one.
pub fn slot(key: &str) -> u16 {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'));
    let tag = tag.map_or(key, |(tag, _)| tag);
    Crc::<u16>::new(&CRC_16_XMODEM).checksum(tag.as_bytes()) % 16384
}

/// A tag whose slot satisfies `wanted`, different for each `nth`.
pub fn tag(wanted: impl Fn(u16) -> bool, nth: usize) -> String {
    let tags = (0..u32::MAX).map(|n| n.to_string());
    let mut wanted = tags.filter(|tag| wanted(slot(tag)));
    wanted.nth(nth).unwrap_or_default()
}

/// Runs `redis-cli` to its end, for a minute at most: it may wait for the nodes
/// of a cluster without end. Returns what it wrote, as an error if it failed.
pub fn redis_cli(args: &[&str]) -> Result<String> {
    let output = Command::new("timeout")
        .args(["60", "redis-cli"])
        .args(args)
        .stdin(Stdio::null())
        .output()?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    ensure!(output.status.success(), said);
    Ok(said)
}

fn cluster_command(args: &[&str]) -> Result<String> {
    redis_cli(&[&["--cluster"], args, &["--cluster-yes"]].concat())
}

/// Three primaries with the module, a third of the slots each.
pub struct Cluster {
    /// The nodes, in the order of their slots.
    pub nodes: Vec<Server>,
    /// Their names in the cluster.
    pub ids: Vec<String>,
}

impl Cluster {
    /// Starts the nodes and waits until each serves its slots.
    #[track_caller]
    pub fn start() -> Self {
        Self::of(&Setup::tested())
    }

    /// The same, of such nodes.
    #[track_caller]
    pub fn of(setup: &Setup) -> Self {
        let node = || setup.clone().in_a_cluster().start().unwrap();
        let nodes: Vec<_> = (0..3).map(|_| node()).collect();
        let addrs: Vec<String> = nodes.iter().map(|node| node.addr().to_string()).collect();
        let mut args = vec!["create"];
        args.extend(addrs.iter().map(String::as_str));
        cluster_command(&args).unwrap();
        let ids = nodes.iter().map(|node| node.client().bulk("CLUSTER MYID"));
        let ids = ids.collect();
        let cluster = Self { nodes, ids };
        cluster.await_agreement();
        cluster
    }

    /// A node that is in no cluster yet.
    #[track_caller]
    pub fn node() -> Server {
        Setup::tested().in_a_cluster().start().unwrap()
    }

    /// A node that has all slots.
    #[track_caller]
    pub fn of_one_node() -> Server {
        let node = Self::node();
        let mut client = node.client();
        let all = "CLUSTER ADDSLOTSRANGE 0 16383";
        assert_eq!(client.call(all), Okay);
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
            let is_well = |node: &Server| {
                let info = node.client().bulk("CLUSTER INFO");
                info.contains("cluster_state:ok") && info.contains(&known)
            };
            self.nodes.iter().all(is_well) && cluster_command(&["check", &first]).is_ok()
        });
    }

    /// A new replica of a node, which that node knows.
    #[track_caller]
    pub fn add_replica(primary: &Server, id: &str) -> Server {
        let replica = Self::node();
        let addrs = [&replica, primary].map(|node| node.addr().to_string());
        let of_it = ["--cluster-slave", "--cluster-master-id", id];
        let command = [&["add-node", &addrs[0], &addrs[1]], &of_it[..]].concat();
        cluster_command(&command).unwrap();
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
        cluster_command(&command).unwrap();
    }
}
