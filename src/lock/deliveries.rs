//! Grants on their way to clients that waited.
//!
//! A waiter is granted the lock when it comes free, and hears of it a moment
//! later. In between its client may go away. Then the hold is nobody's, and is
//! given back. Not so a hold that somebody else was told of, or is still to be
//! told of: the same owner may have sent the same request on another connection,
//! or have renewed its lease. So what is given back is what no reply speaks for.
//!
//! # What speaks for holds
//! - Those that the owner had before the first of these grants.
//! - A reply to `HOLD n` speaks for n holds, a reply without a number for one
//!   more, and the 1 of a renewal for one.
//! - A grant that is still on its way speaks as the reply that it will be.
//!
//! The end of a session takes all holds but those that grants on their way speak
//! for.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::lock::ended::{Ended, EndedBy};
use crate::lock::fence::Fence;
use crate::lock::request::{ClientId, HoldNumber, Lease, Owner};
use crate::lock::sessions::Place;
use crate::lock::waiters::{KeyBuf, KeyRef};

/// A grant on its way.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    /// The client that waited.
    pub(crate) client: ClientId,
    /// The hold that it asked for, where it said so.
    pub(crate) hold: Option<HoldNumber>,
    /// The lease to be kept up while its connection lives, if it asked for that.
    pub(crate) session: Option<Lease>,
}

/// What a reply says of the owner's holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// It has this many at least.
    AtLeast(i64),
    /// It has one more than before.
    OneMore,
}

impl Told {
    /// What the grant of a request says.
    pub(crate) fn by_grant(hold: Option<HoldNumber>) -> Self {
        hold.map_or(Self::OneMore, |hold| Self::AtLeast(hold.count_with()))
    }

    fn after(self, holds: i64) -> i64 {
        match self {
            Self::AtLeast(least) => holds.max(least),
            Self::OneMore => holds.saturating_add(1),
        }
    }
}

/// The grants of one owner on one lock that are on their way.
#[derive(Debug)]
struct UnderWay {
    fence: Fence,
    /// How many holds the replies speak for that were sent so far.
    told: i64,
    /// How many holds such grants have added.
    added: i64,
    /// Whether a grant was lost whose holds have not been given back yet.
    lost: bool,
    deliveries: SmallVec<[Delivery; 1]>,
}

impl UnderWay {
    const fn new(fence: Fence, told: i64) -> Self {
        Self {
            fence,
            told,
            added: 0,
            lost: false,
            deliveries: SmallVec::new_const(),
        }
    }

    /// How many holds are spoken for once these grants have arrived, where replies
    /// spoke for `told` before.
    fn speak_for(&self, told: i64) -> i64 {
        self.deliveries
            .iter()
            .fold(told, |holds, one| Told::by_grant(one.hold).after(holds))
    }
}

/// All grants of a server that are on their way.
#[derive(Debug, Default)]
pub(crate) struct Deliveries {
    by_place: BTreeMap<Place, UnderWay>,
    /// A client waits for one lock at a time.
    by_client: BTreeMap<ClientId, Place>,
}

impl Deliveries {
    /// Whether nothing is on its way.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_place.is_empty()
    }

    /// Notes that a waiter was granted the lock with this token. Before that its
    /// owner had `held_before` holds, and now it has `holds`.
    pub(crate) fn send(
        &mut self,
        place: Place,
        fence: Fence,
        delivery: Delivery,
        held_before: i64,
        holds: i64,
    ) {
        self.by_client.insert(delivery.client, place.clone());
        let new = UnderWay::new(fence, held_before);
        let under_way = self.by_place.entry(place).or_insert(new);
        if under_way.fence != fence {
            // The holds of the other token are over.
            *under_way = UnderWay::new(fence, held_before);
        }
        under_way.added += holds - held_before;
        under_way.deliveries.push(delivery);
    }

    /// Notes that a reply tells an owner of its holds.
    pub(crate) fn told(&mut self, place: impl FnOnce() -> Place, told: Told) {
        if self.by_place.is_empty() {
            return;
        }
        if let Some(under_way) = self.by_place.get_mut(&place()) {
            under_way.told = told.after(under_way.told);
        }
    }

    /// Notes that an owner gave one hold back and has `left`, of which the reply
    /// tells it.
    pub(crate) fn released(&mut self, place: impl FnOnce() -> Place, left: i64) {
        if self.by_place.is_empty() {
            return;
        }
        let place = place();
        if left == 0 {
            self.forget(&place);
        } else if let Some(under_way) = self.by_place.get_mut(&place) {
            under_way.told = (under_way.told - 1).clamp(1, left);
            under_way.added = under_way.added.min(left);
        }
    }

    /// The newest grant of these holds that is on its way to another client than
    /// this one, and is to be tied to its connection.
    pub(crate) fn other_session(
        &self,
        place: &Place,
        fence: Fence,
        client: ClientId,
    ) -> Option<(ClientId, Lease)> {
        let under_way = self.by_place.get(place)?;
        let others = under_way.deliveries.iter().rev();
        others
            .filter(|one| one.client != client && under_way.fence == fence)
            .find_map(|one| Some((one.client, one.session?)))
    }

    /// Notes that a client has heard of the grant that was on its way to it.
    pub(crate) fn delivered(&mut self, client: ClientId) {
        let Some((place, delivery)) = self.take(client) else {
            return;
        };
        if let Some(under_way) = self.by_place.get_mut(&place) {
            under_way.told = Told::by_grant(delivery.hold).after(under_way.told);
            if under_way.deliveries.is_empty() && !under_way.lost {
                self.by_place.remove(&place);
            }
        }
    }

    /// Notes that a client will not hear of the grant that was on its way to it.
    /// Returns the holds of which some may be over, and their token, if that is
    /// not known yet.
    pub(crate) fn lost(&mut self, client: ClientId) -> Option<(Place, Fence)> {
        let (place, _) = self.take(client)?;
        let under_way = self.by_place.get_mut(&place)?;
        let (known, fence) = (
            std::mem::replace(&mut under_way.lost, true),
            under_way.fence,
        );
        (!known).then_some((place, fence))
    }

    /// How many of its `holds` are left to an owner of whose holds some have
    /// ended.
    pub(crate) fn left(&self, place: &Place, ended: &Ended, holds: i64) -> i64 {
        let under_way = self.by_place.get(place);
        let under_way = under_way.filter(|under_way| under_way.fence == ended.fence);
        match (under_way, ended.by) {
            (Some(under_way), EndedBy::Session) => under_way.speak_for(0).min(holds),
            (Some(under_way), EndedBy::Undelivered) => {
                let surplus = holds - under_way.speak_for(under_way.told);
                holds - surplus.clamp(0, under_way.added)
            }
            (None, EndedBy::Session) => 0,
            (None, EndedBy::Undelivered) => holds,
        }
    }

    /// As [`Deliveries::left`], for a caller that ends the others now.
    pub(crate) fn end(&mut self, place: &Place, ended: &Ended, holds: i64) -> i64 {
        let left = self.left(place, ended, holds);
        if let Some(under_way) = self.by_place.get_mut(place)
            && under_way.fence == ended.fence
        {
            match ended.by {
                EndedBy::Session => (under_way.told, under_way.added) = (0, left),
                EndedBy::Undelivered => {
                    under_way.added -= holds - left;
                    under_way.lost = false;
                }
            }
            if under_way.deliveries.is_empty() && !under_way.lost {
                self.by_place.remove(place);
            }
        }
        left
    }

    /// Forgets what is on its way to holders of this lock.
    pub(crate) fn forget_lock(&mut self, key: KeyRef<'_>) {
        for place in self.places_of(key) {
            self.forget(&place);
        }
    }

    /// Lets what is on its way follow a lock to another key.
    pub(crate) fn follow(&mut self, from: KeyRef<'_>, to: KeyRef<'_>) {
        for place in self.places_of(from) {
            self.rename(&place, to.into());
        }
    }

    /// Lets what is on its way follow the locks of two databases that changed
    /// places.
    pub(crate) fn swap_databases(&mut self, one: i32, other: i32) {
        let by_place = std::mem::take(&mut self.by_place);
        for (Place { key, owner }, under_way) in by_place {
            let key = key.swapped(one, other);
            self.insert(Place { key, owner }, under_way);
        }
    }

    fn places_of(&self, key: KeyRef<'_>) -> Vec<Place> {
        if self.by_place.is_empty() {
            return Vec::new();
        }
        let first = Place {
            key: key.into(),
            owner: Owner::least(),
        };
        let from_first = self.by_place.range(first.clone()..);
        from_first
            .map(|(place, _)| place.clone())
            .take_while(|place| place.key == first.key)
            .collect()
    }

    fn rename(&mut self, place: &Place, key: KeyBuf) {
        if let Some(under_way) = self.by_place.remove(place) {
            let owner = place.owner.clone();
            self.insert(Place { key, owner }, under_way);
        }
    }

    fn insert(&mut self, place: Place, under_way: UnderWay) {
        for delivery in &under_way.deliveries {
            self.by_client.insert(delivery.client, place.clone());
        }
        self.by_place.insert(place, under_way);
    }

    fn take(&mut self, client: ClientId) -> Option<(Place, Delivery)> {
        let place = self.by_client.remove(&client)?;
        let deliveries = &mut self.by_place.get_mut(&place)?.deliveries;
        let at = deliveries.iter().rposition(|one| one.client == client)?;
        let delivery = deliveries.remove(at);
        Some((place, delivery))
    }

    fn forget(&mut self, place: &Place) {
        if let Some(under_way) = self.by_place.remove(place) {
            for delivery in under_way.deliveries {
                self.by_client.remove(&delivery.client);
            }
        }
    }
}

#[cfg(test)]
mod tests;
