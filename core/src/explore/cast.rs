//! Who is there, and by which names.

use std::rc::Rc;

use super::form::{Names, orders_of};
use crate::keys::{KeyBuf, KeyRef};
use crate::request::Owner;

const OWNERS: [&str; 3] = ["a", "b", "c"];

/// Who is there.
#[derive(Debug)]
pub(super) struct Cast<S> {
    pub(super) scope: S,
    pub(super) owners: Vec<Owner>,
    pub(super) keys: Vec<KeyBuf>,
    /// Whose each connection is.
    pub(super) owner_of: Vec<usize>,
    pub(super) orders: Vec<Order>,
}

/// One way to order the names.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) names: Names,
    pub(super) owners: Vec<usize>,
    pub(super) keys: Vec<usize>,
    pub(super) connections: Vec<usize>,
    pub(super) nodes: Vec<usize>,
}

impl<S> Cast<S> {
    /// So many connections of each owner, keys, and nodes with these clocks.
    pub(super) fn new(scope: S, connections: &[usize], keys: i32, clocks: &[i64]) -> Rc<Self> {
        let owners = OWNERS.iter().take(connections.len());
        let owners = owners.map(|name| Owner::new(name.as_bytes()).unwrap());
        let keys = (0..keys).map(|db| KeyRef { db, name: b"k" }.into());
        let connections = connections.iter().enumerate();
        let owner_of = connections.flat_map(|(owner, &count)| std::iter::repeat_n(owner, count));
        let mut cast = Self {
            scope,
            owners: owners.collect(),
            keys: keys.collect(),
            owner_of: owner_of.collect(),
            orders: Vec::new(),
        };
        for nodes in orders_of(clocks.len()) {
            if !nodes.iter().map(|&at| &clocks[at]).eq(clocks) {
                continue;
            }
            for connections in orders_of(cast.owner_of.len()) {
                for keys in orders_of(cast.keys.len()) {
                    let order = cast.order(connections.clone(), keys, nodes.clone());
                    cast.orders.extend(order);
                }
            }
        }
        Rc::new(cast)
    }

    /// This order, if the connections of each owner stay together.
    fn order(&self, connections: Vec<usize>, keys: Vec<usize>, nodes: Vec<usize>) -> Option<Order> {
        let mut owners: Vec<usize> = connections.iter().map(|&at| self.owner_of[at]).collect();
        owners.dedup();
        let mut pairs = connections.iter().zip(&self.owner_of);
        pairs
            .all(|(&at, &owner)| owners.get(owner) == Some(&self.owner_of[at]))
            .then(|| Order {
                names: Names {
                    owners: owners.iter().map(|&at| self.owners[at].clone()).collect(),
                    keys: keys.iter().map(|&at| self.keys[at].clone()).collect(),
                    connections: connections.clone(),
                },
                owners,
                keys,
                connections,
                nodes,
            })
    }

    pub(super) fn key(&self, key: usize) -> KeyRef<'_> {
        self.keys[key].as_ref()
    }

    pub(super) fn number(&self, key: KeyRef<'_>) -> usize {
        let at = self.keys.iter().position(|one| one.as_ref() == key);
        at.expect("a key of the cast")
    }

    /// What a trace calls this connection: its owner, and which of its connections.
    pub(super) fn client_name(&self, at: usize) -> String {
        let owner = self.owner_of[at];
        let of_owner = |upto: &[usize]| upto.iter().filter(|&&one| one == owner).count();
        match of_owner(&self.owner_of) {
            1 => OWNERS[owner].to_owned(),
            _ => format!("{}{}", OWNERS[owner], of_owner(&self.owner_of[..=at])),
        }
    }
}

pub(super) fn owner_name(owner: usize) -> &'static str {
    OWNERS[owner]
}

pub(super) fn key_name(key: usize) -> &'static str {
    ["k", "l"][key]
}
