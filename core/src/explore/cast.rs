//! Who is there, and by which names.

use std::rc::Rc;

use super::form::orders_of;
use super::scope::Scope;
use crate::keys::{KeyBuf, KeyRef};
use crate::request::Owner;

/// Who is there.
#[derive(Debug)]
pub(super) struct Cast {
    pub(super) scope: Scope,
    pub(super) owners: Vec<Owner>,
    pub(super) keys: Vec<KeyBuf>,
    /// Whose each connection is.
    pub(super) owner_of: Vec<usize>,
    pub(super) orders: Vec<Order>,
}

/// One way to order the names.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) owners: Vec<usize>,
    pub(super) keys: Vec<usize>,
    pub(super) connections: Vec<usize>,
}

impl Cast {
    pub(super) fn new(scope: Scope) -> Rc<Self> {
        let names = ["a", "b", "c"];
        let owners = names.iter().take(scope.connections.len());
        let owners = owners.map(|name| Owner::new(name.as_bytes()).unwrap());
        let keys = (0..scope.keys).map(|db| KeyRef { db, name: b"k" }.into());
        let connections = scope.connections.iter().enumerate();
        let owner_of = connections.flat_map(|(owner, &count)| std::iter::repeat_n(owner, count));
        let mut cast = Self {
            scope,
            owners: owners.collect(),
            keys: keys.collect(),
            owner_of: owner_of.collect(),
            orders: Vec::new(),
        };
        let all_keys = orders_of(&(0..cast.keys.len()).collect::<Vec<_>>());
        for owners in orders_of(&(0..cast.owners.len()).collect::<Vec<_>>()) {
            let is_alike = |(&to, count): (&usize, &usize)| scope.connections[to] == *count;
            if !owners.iter().zip(scope.connections).all(is_alike) {
                continue;
            }
            let mut connections: Vec<Vec<usize>> = vec![Vec::new()];
            for owner in &owners {
                let of_owner: Vec<usize> = (0..cast.owner_of.len())
                    .filter(|&at| cast.owner_of[at] == *owner)
                    .collect();
                connections = connections
                    .iter()
                    .flat_map(|before| {
                        let all = orders_of(&of_owner).into_iter();
                        all.map(|of_owner| [before.clone(), of_owner].concat())
                    })
                    .collect();
            }
            for connections in connections {
                for keys in &all_keys {
                    cast.orders.push(Order {
                        owners: owners.clone(),
                        keys: keys.clone(),
                        connections: connections.clone(),
                    });
                }
            }
        }
        Rc::new(cast)
    }

    pub(super) fn key(&self, key: usize) -> KeyRef<'_> {
        self.keys[key].as_ref()
    }

    /// What a trace calls this connection: its owner, and which of its connections.
    pub(super) fn client_name(&self, at: usize) -> String {
        let owner = self.owner_of[at];
        let before = self.owner_of.iter().take(at);
        let number = before.filter(|&&one| one == owner).count() + 1;
        match self.scope.connections[owner] {
            1 => self.owner_name(owner).to_owned(),
            _ => format!("{}{number}", self.owner_name(owner)),
        }
    }

    pub(super) fn owner_name(&self, owner: usize) -> &str {
        ["a", "b", "c"][owner]
    }

    pub(super) fn key_name(&self, key: usize) -> &str {
        ["k", "l"][key]
    }
}
