use std::net::TcpListener;
use std::process::{Command, Stdio};

use super::{Client, SOON, TestServer, eventually_within};

/// A port that nobody listens on right now.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .and_then(|free| free.local_addr())
        .unwrap()
        .port()
}

/// The slot of a key, by its tag if it has one.
pub fn slot(key: &str) -> u16 {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map_or(key, |(tag, _)| tag);
    let crc = tag.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 }
        })
    });
    crc % 16384
}

/// A tag whose slot satisfies `wanted`, different for each `nth`.
pub fn tag(wanted: impl Fn(u16) -> bool, nth: usize) -> String {
    (0..)
        .map(|n: u32| n.to_string())
        .filter(|tag| wanted(slot(tag)))
        .nth(nth)
        .unwrap()
}

/// Runs `redis-cli` to its end, for a minute at most: it may wait for the nodes
/// of a cluster without end. Says whether it succeeded, and what it wrote.
pub fn redis_cli(args: &[&str]) -> (bool, String) {
    let output = Command::new("timeout")
        .args(["60", "redis-cli"])
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    (
        output.status.success(),
        String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr),
    )
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
    pub fn start() -> Self {
        let nodes: Vec<_> = (0..3).map(|_| Self::node()).collect();
        let addrs: Vec<_> = nodes.iter().map(|node| node.addr().to_string()).collect();
        let mut args = vec!["--cluster", "create"];
        args.extend(addrs.iter().map(String::as_str));
        args.push("--cluster-yes");
        let (created, said) = redis_cli(&args);
        assert!(created, "no cluster: {said}");
        let ids = nodes
            .iter()
            .map(|node| node.client().bulk("CLUSTER MYID"))
            .collect();
        let cluster = Self { nodes, ids };
        cluster.await_agreement();
        cluster
    }

    /// A node that is in no cluster yet.
    pub fn node() -> TestServer {
        // The bus would be ten thousand ports higher, which may not exist.
        TestServer::start_on_ports(|| {
            let bus = free_port().to_string();
            [
                ["--cluster-enabled", "yes"],
                ["--cluster-node-timeout", "10000"],
                ["--cluster-port", &bus],
            ]
            .concat()
            .iter()
            .map(ToString::to_string)
            .collect()
        })
    }

    /// Waits until every node says that all is well.
    pub fn await_agreement(&self) {
        eventually_within(4 * SOON, "the nodes agree on the slots", || {
            self.nodes.iter().all(|node| {
                let info = node.client().bulk("CLUSTER INFO");
                info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3")
            }) && redis_cli(&["--cluster", "check", &self.nodes[0].addr().to_string()]).0
        });
    }

    /// A connection to a node.
    pub fn client(&self, node: usize) -> Client {
        self.nodes[node].client()
    }

    /// Moves the lowest slots of one node to another, as an operator would.
    pub fn reshard(&self, from: usize, to: usize, slots: usize) {
        let (done, said) = redis_cli(&[
            "--cluster",
            "reshard",
            &self.nodes[0].addr().to_string(),
            "--cluster-from",
            &self.ids[from],
            "--cluster-to",
            &self.ids[to],
            "--cluster-slots",
            &slots.to_string(),
            "--cluster-yes",
        ]);
        assert!(done, "no reshard: {said}");
    }
}
