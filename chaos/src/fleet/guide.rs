//! How clients find the primary, and their ways to it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use redis_lock_testing::sentinel;

use super::{SIDES, Topology, cluster};

/// How a client finds the primary.
#[derive(Clone)]
pub struct Guide {
    pub(super) topology: Topology,
    /// The primary, where nobody watches.
    pub(super) known: Arc<AtomicUsize>,
    /// Where the witnesses are.
    pub(super) witnesses: Vec<SocketAddr>,
    pub(super) nodes: Vec<Ways>,
}

/// The ways to a node.
#[derive(Clone)]
pub(super) struct Ways {
    pub(super) server: SocketAddr,
    pub(super) peers: SocketAddr,
    pub(super) clients: [SocketAddr; SIDES],
}

impl Guide {
    pub fn is_watched(&self) -> bool {
        self.topology.is_watched()
    }

    /// Which node this witness says is the primary.
    pub fn primary(&self, witness: usize) -> Option<usize> {
        let known = match self.topology {
            Topology::Sentinel => sentinel::primary(self.witnesses[witness])?.port(),
            Topology::Cluster => cluster::primary_port(self.witnesses[witness])?,
            _ => return Some(self.known.load(Ordering::SeqCst)),
        };
        self.nodes
            .iter()
            .position(|ways| ways.peers.port() == known)
    }

    /// Which node all witnesses say is the primary.
    pub fn agreed(&self) -> Option<usize> {
        let first = self.primary(0)?;
        let agree = (1..self.witnesses()).all(|other| self.primary(other) == Some(first));
        agree.then_some(first)
    }

    /// How many there are to be asked.
    pub fn witnesses(&self) -> usize {
        self.witnesses.len().max(1)
    }

    /// The way of a client to a node: its own, or that of its side.
    pub fn way(&self, node: usize, side: Option<usize>) -> SocketAddr {
        match side {
            None => self.nodes[node].server,
            Some(side) if self.is_watched() => self.nodes[node].clients[side],
            // It leads to whoever is the primary.
            Some(side) => self.nodes[0].clients[side],
        }
    }
}
