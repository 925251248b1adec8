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
//!   more, the 1 of a renewal for one, and the 0 of a release for one fewer, but
//!   one at least.
//! - A grant that is still on its way speaks as the reply that it will be, in the
//!   order of the commands.
//!
//! The end of a session takes all holds but those that grants on their way speak
//! for.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::lock::ended::{Ended, EndedBy};
use crate::lock::fence::Fence;
use crate::lock::request::{ClientId, HoldNumber, Lease, Owner, ReleaseExtent};
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
    /// The client that the holds were tied to before.
    pub(crate) tied_before: Option<ClientId>,
}

/// What a reply says of the owner's holds: so many more than replies spoke for
/// before, and so many at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    more: i64,
    least: i64,
}

impl Told {
    /// It has this many at least.
    pub(crate) const fn at_least(least: i64) -> Self {
        Self { more: 0, least }
    }

    /// It has one more than before.
    pub(crate) const ONE_MORE: Self = Self { more: 1, least: 0 };

    /// What the grant of a request says.
    pub(crate) fn by_grant(hold: Option<HoldNumber>) -> Self {
        hold.map_or(Self::ONE_MORE, |hold| Self::at_least(hold.count_with()))
    }

    /// What a release says that leaves the owner holds: how many, if it named the
    /// hold that it gave back, else one fewer than before.
    pub(crate) fn by_release(extent: ReleaseExtent) -> Self {
        match extent {
            ReleaseExtent::Hold(hold) => Self {
                more: NONE_BEFORE,
                least: hold.count_without(),
            },
            ReleaseExtent::One | ReleaseExtent::All => Self { more: -1, least: 1 },
        }
    }

    fn after(self, holds: i64) -> i64 {
        holds.saturating_add(self.more).max(self.least)
    }

    /// What this reply says together with a later one.
    fn and(self, later: Self) -> Self {
        Self {
            more: self.more.saturating_add(later.more),
            least: later.after(self.least),
        }
    }
}

/// Added to any count it leaves nothing that counts.
const NONE_BEFORE: i64 = i64::MIN / 2;

/// What one reply or more in a row say, or one that is on its way will.
#[derive(Debug)]
struct Reply {
    told: Told,
    on_its_way: Option<Delivery>,
}

/// The grants of one owner on one lock that are on their way.
#[derive(Debug)]
struct UnderWay {
    fence: Fence,
    /// How many holds the owner knew of before the first of the replies.
    known: i64,
    /// What it was told since, or will be, in the order of the commands.
    replies: SmallVec<[Reply; 1]>,
    /// How many holds such grants have added.
    added: i64,
    /// Whether a grant was lost whose holds have not been given back yet.
    lost: bool,
}

impl UnderWay {
    const fn new(fence: Fence, known: i64) -> Self {
        Self {
            fence,
            known,
            replies: SmallVec::new_const(),
            added: 0,
            lost: false,
        }
    }

    fn deliveries(&self) -> impl DoubleEndedIterator<Item = &Delivery> {
        self.replies
            .iter()
            .filter_map(|reply| reply.on_its_way.as_ref())
    }

    fn is_over(&self) -> bool {
        !self.lost && self.deliveries().next().is_none()
    }

    /// How many holds are spoken for by all that the owner was and will be told.
    fn spoken_for(&self) -> i64 {
        let replies = self.replies.iter();
        replies.fold(self.known, |holds, reply| reply.told.after(holds))
    }

    /// How many the grants that are on their way speak for by themselves.
    fn promised(&self) -> i64 {
        let promises = self.replies.iter().filter(|one| one.on_its_way.is_some());
        promises.fold(0, |holds, reply| reply.told.after(holds))
    }

    fn tell(&mut self, told: Told) {
        match self.replies.last_mut() {
            Some(last) if last.on_its_way.is_none() => last.told = last.told.and(told),
            _ => self.replies.push(Reply {
                told,
                on_its_way: None,
            }),
        }
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
        under_way.replies.push(Reply {
            told: Told::by_grant(delivery.hold),
            on_its_way: Some(delivery),
        });
    }

    /// Notes that a reply tells an owner of its holds.
    pub(crate) fn told(&mut self, place: impl FnOnce() -> Place, told: Told) {
        if self.by_place.is_empty() {
            return;
        }
        if let Some(under_way) = self.by_place.get_mut(&place()) {
            under_way.tell(told);
        }
    }

    /// Notes that an owner gave a hold back, and is told so. It has `left`.
    pub(crate) fn released(&mut self, place: impl FnOnce() -> Place, told: Told, left: i64) {
        if self.by_place.is_empty() {
            return;
        }
        if let Some(under_way) = self.by_place.get_mut(&place()) {
            under_way.tell(told);
            under_way.added = under_way.added.min(left);
        }
    }

    /// Notes that all holds of an owner are over.
    pub(crate) fn ended(&mut self, place: impl FnOnce() -> Place) {
        if !self.by_place.is_empty() {
            self.forget(&place());
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
        let others = under_way.deliveries().rev();
        others
            .filter(|one| one.client != client && under_way.fence == fence)
            .find_map(|one| Some((one.client, one.session?)))
    }

    /// The client that these holds were tied to before the grant that is on its way
    /// to this one.
    pub(crate) fn tied_before(&self, place: &Place, client: ClientId) -> Option<ClientId> {
        let mut deliveries = self.by_place.get(place)?.deliveries();
        deliveries.find(|one| one.client == client)?.tied_before
    }

    /// The holds that a client is to hear of.
    pub(crate) fn place_of(&self, client: ClientId) -> Option<&Place> {
        self.by_client.get(&client)
    }

    /// Notes that a client has heard of the grant that was on its way to it.
    pub(crate) fn delivered(&mut self, client: ClientId) {
        let Some((place, at)) = self.find(client) else {
            return;
        };
        if let Some(under_way) = self.by_place.get_mut(&place) {
            if let Some(reply) = under_way.replies.get_mut(at) {
                reply.on_its_way = None;
            }
            if under_way.is_over() {
                self.by_place.remove(&place);
            }
        }
    }

    /// Notes that a client will not hear of the grant that was on its way to it.
    /// Returns the holds of which some may be over, and their token, if that is
    /// not known yet.
    pub(crate) fn lost(&mut self, client: ClientId) -> Option<(Place, Fence)> {
        let (place, at) = self.find(client)?;
        let under_way = self.by_place.get_mut(&place)?;
        under_way.replies.remove(at);
        let known = std::mem::replace(&mut under_way.lost, true);
        let fence = under_way.fence;
        (!known).then_some((place, fence))
    }

    /// How many of its `holds` are left to an owner of whose holds some have
    /// ended.
    pub(crate) fn left(&self, place: &Place, ended: &Ended, holds: i64) -> i64 {
        let under_way = self.by_place.get(place);
        let under_way = under_way.filter(|under_way| under_way.fence == ended.fence);
        match (under_way, ended.by) {
            (Some(under_way), EndedBy::Session) => under_way.promised().min(holds),
            (Some(under_way), EndedBy::Undelivered) => {
                let surplus = holds - under_way.spoken_for();
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
                EndedBy::Session => {
                    under_way.replies.retain(|reply| reply.on_its_way.is_some());
                    (under_way.known, under_way.added) = (0, left);
                }
                EndedBy::Undelivered => {
                    under_way.added -= holds - left;
                    under_way.lost = false;
                }
            }
            if under_way.is_over() {
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
        for delivery in under_way.deliveries() {
            self.by_client.insert(delivery.client, place.clone());
        }
        self.by_place.insert(place, under_way);
    }

    /// Where the grant is noted that is on its way to this client. It is not found
    /// a second time.
    fn find(&mut self, client: ClientId) -> Option<(Place, usize)> {
        let place = self.by_client.remove(&client)?;
        let mut replies = self.by_place.get(&place)?.replies.iter();
        let is_it = |one: &Delivery| one.client == client;
        let at = replies.rposition(|reply| reply.on_its_way.as_ref().is_some_and(is_it))?;
        Some((place, at))
    }

    fn forget(&mut self, place: &Place) {
        if let Some(under_way) = self.by_place.remove(place) {
            for delivery in under_way.deliveries() {
                self.by_client.remove(&delivery.client);
            }
        }
    }
}

#[cfg(test)]
mod tests;
