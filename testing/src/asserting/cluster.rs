use super::{Client, TestServer};
use crate::cluster::{self, slot, tag};

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
        let addrs: Vec<_> = nodes.iter().map(|node| node.addr()).collect();
        let ids = cluster::create(&addrs).unwrap_or_else(|error| panic!("{error}"));
        Self { nodes, ids }
    }

    /// A node that is in no cluster yet.
    #[track_caller]
    pub fn node() -> TestServer {
        TestServer::launch(cluster::node(TestServer::setup()))
    }

    /// Waits until every node says that all is well.
    #[track_caller]
    pub fn await_agreement(&self) {
        let addrs: Vec<_> = self.nodes.iter().map(|node| node.addr()).collect();
        cluster::await_agreement(&addrs).unwrap_or_else(|error| panic!("{error}"));
    }

    /// A connection to a node.
    pub fn client(&self, node: usize) -> Client {
        self.nodes[node].client()
    }

    /// Moves the lowest slots of one node to another, as an operator would.
    #[track_caller]
    pub fn reshard(&self, from: usize, to: usize, slots: usize) {
        let (node, ids) = (self.nodes[0].addr(), &self.ids);
        cluster::reshard(node, &ids[from], &ids[to], slots)
            .unwrap_or_else(|error| panic!("{error}"));
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

    /// How node 0 sends clients away once the slot has moved.
    pub fn moved(&self) -> String {
        format!("MOVED {} {}", self.slot, self.cluster.nodes[1].addr())
    }

    /// How many keys of the slot a node has.
    #[track_caller]
    pub fn keys_on(&self, node: usize) -> i64 {
        let count = format!("CLUSTER COUNTKEYSINSLOT {}", self.slot);
        self.cluster.client(node).int(&count)
    }
}
