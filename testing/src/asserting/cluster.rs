use super::{Client, TestServer, status};
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

    /// Checks that no node has crashed.
    #[track_caller]
    pub fn assert_sound(&self) {
        self.nodes.iter().for_each(TestServer::assert_sound);
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
    /// Tells a node of the slot's state, as `CLUSTER SETSLOT` has it.
    ///
    /// # Panics
    /// If the node refuses that.
    #[track_caller]
    pub fn set(&self, node: usize, state: &str) {
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
    ///
    /// # Panics
    /// If that fails.
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
