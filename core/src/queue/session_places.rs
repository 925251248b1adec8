//! Places that end with the connections by which they were asked for.
//!
//! The end of a connection takes logarithmic time: its places are set aside as a whole.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use super::WaiterId;
use crate::request::ClientId;

type Places = BTreeMap<ClientId, BTreeSet<WaiterId>>;

/// Places by the connections of their sessions.
#[derive(Clone, Debug, Default)]
pub(crate) struct SessionPlaces {
    living: Places,
    /// Those of connections that have ended.
    ended: Places,
}

impl SessionPlaces {
    pub(crate) fn insert(&mut self, client: ClientId, id: WaiterId) {
        self.living.entry(client).or_default().insert(id);
    }

    pub(crate) fn remove(&mut self, client: ClientId, id: WaiterId) {
        for places in [&mut self.living, &mut self.ended] {
            if let Entry::Occupied(mut of_client) = places.entry(client) {
                of_client.get_mut().remove(&id);
                if of_client.get().is_empty() {
                    of_client.remove();
                }
            }
        }
    }

    /// A connection has ended, and with it its places.
    pub(crate) fn connection_ended(&mut self, client: ClientId) {
        if let Some(mut places) = self.living.remove(&client) {
            self.ended.entry(client).or_default().append(&mut places);
        }
    }

    /// Whether this connection has ended, and a place of it is here.
    pub(crate) fn has_ended(&self, client: ClientId) -> bool {
        self.ended.contains_key(&client)
    }

    /// Whether any has.
    pub(crate) fn any_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// The places of connections that have ended.
    pub(crate) fn ended(&self) -> impl Iterator<Item = WaiterId> {
        self.ended.values().flatten().copied()
    }

    /// How many these are.
    pub(crate) fn count_ended(&self) -> usize {
        self.ended.values().map(BTreeSet::len).sum()
    }
}

#[cfg(test)]
impl SessionPlaces {
    /// How many places this connection has that has not ended.
    pub(crate) fn count_of(&self, client: ClientId) -> usize {
        self.living.get(&client).map_or(0, BTreeSet::len)
    }

    /// Whether these are exactly the places that are here.
    pub(crate) fn agree(&self, places: impl Iterator<Item = (ClientId, WaiterId)>) -> bool {
        let all = || self.living.iter().chain(&self.ended);
        let known = all().flat_map(|(client, ids)| ids.iter().map(|id| (*client, *id)));
        let known: Vec<_> = known.collect();
        let expected: BTreeSet<_> = places.collect();
        known.len() == expected.len()
            && known.into_iter().collect::<BTreeSet<_>>() == expected
            && all().all(|(_, ids)| !ids.is_empty())
    }
}
