//! Who is there, and what may happen.

use std::rc::Rc;

use super::KEY;
use crate::explore::form::{GENERATIONS, Names, orders_of};
use crate::explore::nodes::scope::Scope;
use crate::keys::KeyBuf;
use crate::request::{ClientId, Owner};

/// Something that a client, a node or time may do. A tick is a millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::explore::nodes) enum Action {
    /// `LOCK.ACQUIRE key owner HOLD 1`: a client, a node, a lease.
    Acquire(u8, u8, u8),
    /// The same with `QUEUE`.
    Queue(u8, u8, u8),
    /// `LOCK.RENEW`: a client, a node, a lease.
    Renew(u8, u8, u8),
    /// `LOCK.RELEASE key owner ALL`: a client, a node.
    Release(u8, u8),
    /// A client's time is up: it waits no more, or is told `NOREPLICAS`.
    GiveUp(u8),
    /// A replica gets the next write.
    Apply(u8),
    /// A replica gets the whole data set.
    Resync(u8),
    /// A node becomes a replica of another one.
    Follow(u8, u8),
    /// A replica becomes a primary.
    Promote(u8),
    /// A replica restarts, and has lost its data.
    Restart(u8),
    /// The timer of a primary wakes the module.
    Wake(u8),
    /// A primary finds that the key has expired.
    Expire(u8),
    /// A tick passes.
    Pass,
    /// Nobody hears what is published any more, or all do again.
    Ears,
}

/// Who is there.
#[derive(Debug)]
pub(super) struct Cast {
    pub(super) scope: Scope,
    pub(super) owners: Vec<Owner>,
    pub(super) keys: Vec<KeyBuf>,
    pub(super) orders: Vec<Order>,
}

/// One way to order the names.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) names: Names,
    pub(super) owners: Vec<usize>,
    pub(super) nodes: Vec<usize>,
}

impl Cast {
    pub(super) fn new(scope: Scope) -> Rc<Self> {
        let names = [b"a", b"b", b"c"].into_iter().take(scope.owners);
        let owners: Vec<Owner> = names.map(|name| Owner::new(name).unwrap()).collect();
        let keys: Vec<KeyBuf> = vec![KEY.into()];
        let mut orders = Vec::new();
        let all_nodes: Vec<usize> = (0..scope.clocks.len()).collect();
        for nodes in orders_of(&all_nodes) {
            let clocks = nodes.iter().map(|&at| scope.clocks[at]);
            if !clocks.eq(scope.clocks.iter().copied()) {
                continue;
            }
            for of_owners in orders_of(&(0..owners.len()).collect::<Vec<_>>()) {
                let names = Names {
                    owners: of_owners.iter().map(|&at| owners[at].clone()).collect(),
                    keys: keys.clone(),
                    connections: of_owners.iter().map(|&at| client_id(at).0).collect(),
                };
                orders.push(Order {
                    names,
                    owners: of_owners,
                    nodes: nodes.clone(),
                });
            }
        }
        Rc::new(Self {
            scope,
            owners,
            keys,
            orders,
        })
    }
}

pub(super) fn client_id(client: usize) -> ClientId {
    ClientId((client as u64 + 1) * GENERATIONS)
}

pub(super) fn owner_name(client: usize) -> &'static str {
    ["a", "b", "c"][client]
}
