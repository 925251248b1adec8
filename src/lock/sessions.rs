//! Holds that last as long as a connection.
//!
//! Such a hold is tied to a client. Its lease is renewed again and again while
//! the client is connected, and it ends when the client is gone. What is stored
//! is a lock like any other: a tie is lost with the server's process, and its
//! hold then ends with its lease. A tie follows its lock to another name or
//! another database.
//!
//! Whoever holds by a connection believes in its hold while the connection lives.
//! So where a lease could not be kept up, the connection has to be closed.

use std::collections::{BTreeMap, BTreeSet};

use crate::lock::fence::Fence;
#[cfg(feature = "planted-faults")]
use crate::lock::planted::Fault;
use crate::lock::request::{ClientId, Lease, Owner};
use crate::lock::waiters::{KeyBuf, KeyRef};

/// A lease is renewed when this part of it is over, so that one renewal may
/// come late without harm.
const RENEWALS_A_LEASE: i64 = 3;

/// An owner's holds on a lock.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// The lock.
    pub(crate) key: KeyBuf,
    /// Who holds it.
    pub(crate) owner: Owner,
}

/// What ties holds to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tie {
    /// The client.
    pub(crate) client: ClientId,
    /// The token of the holds.
    pub(crate) fence: Fence,
    /// How long they shall last at least, from any moment on.
    pub(crate) lease: Lease,
    /// Until when they last as far as they have been kept up, in milliseconds
    /// since 1970.
    pub(crate) kept_until_ms: i64,
    renew_at_ms: i64,
}

/// All ties of a server.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    ties: BTreeMap<Place, Tie>,
    by_client: BTreeMap<ClientId, BTreeSet<Place>>,
    renewals: BTreeSet<(i64, Place)>,
}

impl Sessions {
    /// Whether nothing is tied to any client.
    pub(crate) fn is_empty(&self) -> bool {
        self.ties.is_empty()
    }

    /// How many ties there are.
    pub(crate) fn len(&self) -> usize {
        self.ties.len()
    }

    /// The tie of an owner's holds on a lock.
    pub(crate) fn tie_of(&self, key: KeyRef<'_>, owner: &Owner) -> Option<Tie> {
        if self.is_empty() {
            return None;
        }
        self.ties.get(&place(key, owner)).copied()
    }

    /// Ties holds to a client, and to no other any more. Re-entry does not
    /// shorten the lease that is kept up.
    pub(crate) fn tie(
        &mut self,
        key: KeyRef<'_>,
        owner: &Owner,
        client: ClientId,
        fence: Fence,
        lease: Lease,
        now_ms: i64,
    ) {
        let place = place(key, owner);
        let kept_until_ms = lease.end_ms(now_ms);
        let tie = match self.untie_place(&place).filter(|old| old.fence == fence) {
            // The longer lease is kept up as was planned: re-entry by a shorter
            // one did not prolong it.
            Some(old) if old.lease > lease => Tie {
                client,
                kept_until_ms: old.kept_until_ms.max(kept_until_ms),
                ..old
            },
            _ => Tie {
                client,
                fence,
                lease,
                kept_until_ms,
                renew_at_ms: renew_at_ms(lease, now_ms),
            },
        };
        self.insert(place, tie);
    }

    /// Notes that a grant lets tied holds last until then at least.
    pub(crate) fn last_until(&mut self, key: KeyRef<'_>, owner: &Owner, fence: Fence, at_ms: i64) {
        if self.is_empty() {
            return;
        }
        if let Some(tie) = self.ties.get_mut(&place(key, owner))
            && tie.fence == fence
        {
            tie.kept_until_ms = tie.kept_until_ms.max(at_ms);
        }
    }

    /// Ties holds, whose tie has just been taken, to another client.
    pub(crate) fn retie(&mut self, place: Place, tie: Tie, client: ClientId, lease: Lease) {
        self.insert(
            place,
            Tie {
                client,
                lease,
                ..tie
            },
        );
    }

    /// Keeps up another lease from now on, if the holds of this token are tied.
    pub(crate) fn set_lease(
        &mut self,
        key: KeyRef<'_>,
        owner: &Owner,
        fence: Fence,
        lease: Lease,
        now_ms: i64,
    ) {
        let tied = self.tie_of(key, owner);
        if tied.is_none_or(|tie| tie.fence != fence) {
            return;
        }
        let place = place(key, owner);
        if let Some(tie) = self.untie_place(&place) {
            let renew_at_ms = renew_at_ms(lease, now_ms);
            self.insert(
                place,
                Tie {
                    lease,
                    kept_until_ms: lease.end_ms(now_ms),
                    renew_at_ms,
                    ..tie
                },
            );
        }
    }

    /// Forgets a tie, because the holds are over.
    pub(crate) fn untie(&mut self, key: KeyRef<'_>, owner: &Owner) {
        if !self.is_empty() {
            self.untie_place(&place(key, owner));
        }
    }

    /// Notes that holds were kept up, and last for their whole lease again.
    pub(crate) fn kept(&mut self, place: &Place, now_ms: i64) {
        if let Some(tie) = self.ties.get_mut(place) {
            tie.kept_until_ms = tie.lease.end_ms(now_ms);
        }
    }

    /// Plans the next renewal anew.
    pub(crate) fn renew_by(&mut self, place: &Place, at_ms: i64) {
        if let Some(tie) = self.ties.get_mut(place) {
            self.renewals.remove(&(tie.renew_at_ms, place.clone()));
            tie.renew_at_ms = at_ms;
            self.renewals.insert((at_ms, place.clone()));
        }
    }

    /// A client to which something is tied.
    pub(crate) fn any_client(&self) -> Option<ClientId> {
        self.by_client.keys().next().copied()
    }

    /// Lets the ties of one lock follow it to another key.
    pub(crate) fn follow(&mut self, from: KeyRef<'_>, to: KeyRef<'_>) {
        let from: KeyBuf = from.into();
        let first = Place {
            key: from.clone(),
            owner: Owner::least(),
        };
        let places: Vec<Place> = self
            .ties
            .range(first..)
            .map(|(place, _)| place.clone())
            .take_while(|place| place.key == from)
            .collect();
        for old in places {
            self.move_tie(&old, to.into());
        }
    }

    /// Lets the ties follow the locks of two databases that changed places.
    pub(crate) fn swap_databases(&mut self, one: i32, other: i32) {
        for (Place { key, owner }, tie) in std::mem::take(self).ties {
            let key = key.swapped(one, other);
            self.insert(Place { key, owner }, tie);
        }
    }

    fn move_tie(&mut self, from: &Place, key: KeyBuf) {
        if let Some(tie) = self.untie_place(from) {
            let owner = from.owner.clone();
            let to = Place { key, owner };
            // The lock that was there before has been overwritten.
            self.untie_place(&to);
            self.insert(to, tie);
        }
    }

    /// Forgets the ties of a client that is gone, and says which they were.
    pub(crate) fn take_client(&mut self, client: ClientId) -> Vec<(Place, Tie)> {
        #[cfg(feature = "planted-faults")]
        if Fault::SessionOutlived.planted() {
            return Vec::new();
        }
        let places = self.by_client.remove(&client).unwrap_or_default();
        places
            .into_iter()
            .filter_map(|place| {
                let tie = self.ties.remove(&place)?;
                self.renewals.remove(&(tie.renew_at_ms, place.clone()));
                Some((place, tie))
            })
            .collect()
    }

    /// When the next renewal is due.
    pub(crate) fn next_renewal_ms(&self) -> Option<i64> {
        self.renewals.first().map(|&(at_ms, _)| at_ms)
    }

    /// Holds whose renewal is due at `now_ms`.
    pub(crate) fn next_due(&self, now_ms: i64) -> Option<&Place> {
        let (at_ms, place) = self.renewals.first()?;
        (*at_ms <= now_ms).then_some(place)
    }

    /// Takes holds whose renewal is due at `now_ms`, and plans the one after it.
    /// Whoever finds that they are over unties them.
    pub(crate) fn take_due(&mut self, now_ms: i64) -> Option<(Place, Tie)> {
        if self.next_renewal_ms()? > now_ms {
            return None;
        }
        let (_, place) = self.renewals.pop_first()?;
        let tie = self.ties.get_mut(&place)?;
        tie.renew_at_ms = renew_at_ms(tie.lease, now_ms);
        self.renewals.insert((tie.renew_at_ms, place.clone()));
        Some((place, *tie))
    }

    fn insert(&mut self, place: Place, tie: Tie) {
        self.by_client
            .entry(tie.client)
            .or_default()
            .insert(place.clone());
        self.renewals.insert((tie.renew_at_ms, place.clone()));
        self.ties.insert(place, tie);
    }

    fn untie_place(&mut self, place: &Place) -> Option<Tie> {
        let (place, tie) = self.ties.remove_entry(place)?;
        if let Some(places) = self.by_client.get_mut(&tie.client) {
            places.remove(&place);
            if places.is_empty() {
                self.by_client.remove(&tie.client);
            }
        }
        self.renewals.remove(&(tie.renew_at_ms, place));
        Some(tie)
    }
}

fn place(key: KeyRef<'_>, owner: &Owner) -> Place {
    Place {
        key: key.into(),
        owner: owner.clone(),
    }
}

fn renew_at_ms(lease: Lease, now_ms: i64) -> i64 {
    now_ms.saturating_add((lease.ms() / RENEWALS_A_LEASE).max(1))
}

#[cfg(test)]
mod tests;
