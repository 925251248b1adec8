//! Replies on their way to clients: grants, and renewals that are withheld.
//!
//! A waiter is granted the lock when it comes free, and hears of it a moment later. A
//! reply that replicas have to acknowledge first ([`acks`](crate::acks)) is on its way
//! until they have, whether its client waited for the lock or not. Meanwhile the client
//! may go away, or the replicas may take too long. Then nobody knows of the hold, and it
//! is given back.
//!
//! But the same owner may have sent the same request on another connection, or have
//! renewed its lease. It keeps the holds that it has been told of, or is still to be told
//! of. Only the others are given back.
//!
//! # How many holds an owner has been told of
//! - It knows of those that it had before the first of the replies that are on their way.
//! - A reply to `HOLD n` tells of n holds. A reply to a request without a number tells of
//!   one more than before.
//! - The 1 of a renewal tells of one hold. The 0 of a release tells of one fewer than
//!   before, and of one at least.
//! - A reply that is on its way counts as if it had been read, in the order of the
//!   commands.
//! - The message to a place tells of one hold, once its owner holds the lock. While it is
//!   withheld until replicas have acknowledged the grant, it is on its way.
//!
//! # What it costs
//! Everything about one reply takes logarithmic time, and a step for each other reply
//! to the same owner on the same lock.

use std::collections::BTreeMap;
use std::collections::btree_map::{Entry, OccupiedEntry};

use smallvec::SmallVec;

use crate::ended::{Ended, EndedBy};
#[cfg(test)]
use crate::explore::form::Form;
use crate::keys::KeyRef;
use crate::queue::{Addressee, WaiterId};
use crate::request::{ClientId, HoldNumber, Owner, ReleaseExtent};
use crate::sessions::HoldId;
use crate::token::FencingToken;

/// Who is to hear of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Recipient {
    /// A client, by a reply.
    Client(ClientId),
    /// Who has this place in a queue, by a message.
    Place(WaiterId),
}

impl From<ClientId> for Recipient {
    fn from(client: ClientId) -> Self {
        Self::Client(client)
    }
}

impl From<&Addressee> for Recipient {
    fn from(to: &Addressee) -> Self {
        match to {
            Addressee::Blocked(_, client) => Self::Client(*client),
            Addressee::Place(place) => Self::Place(place.id),
        }
    }
}

/// A grant or a renewal on its way.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// Who is to hear of it.
    pub recipient: Recipient,
    /// Whether it is what ties the holds to the connection of its client.
    pub ties: bool,
}

/// What a reply says of the owner's holds: how many more there are than replies spoke
/// for before, and how many there are at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    more: i64,
    least: i64,
}

impl Told {
    /// It has this many at least.
    pub const fn at_least(least: i64) -> Self {
        Self { more: 0, least }
    }

    /// It has one more than before.
    pub const ONE_MORE: Self = Self { more: 1, least: 0 };

    /// What the grant of a request says.
    pub fn by_grant(hold: Option<HoldNumber>) -> Self {
        hold.map_or(Self::ONE_MORE, |hold| Self::at_least(hold.count_with()))
    }

    /// What a release says that leaves the owner holds: how many, if it named the
    /// hold that it gave back, else one fewer than before.
    pub fn by_release(extent: ReleaseExtent) -> Self {
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
#[derive(Clone, Debug)]
struct Reply {
    told: Told,
    on_its_way: Option<Delivery>,
}

/// What is on its way to one owner about one lock.
#[derive(Clone, Debug)]
struct UnderWay {
    token: FencingToken,
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
    const fn new(token: FencingToken, known: i64) -> Self {
        Self {
            token,
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

    fn places(&self) -> impl Iterator<Item = WaiterId> {
        self.deliveries().filter_map(|one| match one.recipient {
            Recipient::Client(_) => None,
            Recipient::Place(id) => Some(id),
        })
    }

    fn is_over(&self) -> bool {
        !self.lost && self.deliveries().next().is_none()
    }

    /// How many holds are spoken for by all that the owner was and will be told.
    fn spoken_for(&self) -> i64 {
        let replies = self.replies.iter();
        replies.fold(self.known, |holds, reply| reply.told.after(holds))
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

/// All that is on its way to clients of a server.
#[derive(Clone, Debug, Default)]
pub struct Deliveries {
    by_hold: BTreeMap<HoldId, UnderWay>,
    /// A client is answered before its next command, and a place is in one queue.
    by_recipient: BTreeMap<Recipient, HoldId>,
}

impl Deliveries {
    /// Whether nothing is on its way.
    pub fn is_empty(&self) -> bool {
        self.by_hold.is_empty()
    }

    /// Notes that a grant of the lock with this token is on its way. Before that its
    /// owner had `held_before` holds, and now it has `holds`.
    pub fn send(
        &mut self,
        hold: HoldId,
        token: FencingToken,
        delivery: Delivery,
        told: Told,
        held_before: i64,
        holds: i64,
    ) {
        let under_way = self.under_way(hold, token, &delivery, held_before);
        under_way.added += holds - held_before;
        under_way.replies.push(Reply {
            told,
            on_its_way: Some(delivery),
        });
    }

    /// Notes that a renewal of `holds` with this token is on its way to its client.
    pub fn send_renewal(
        &mut self,
        hold: HoldId,
        token: FencingToken,
        delivery: Delivery,
        holds: i64,
    ) {
        let under_way = self.under_way(hold, token, &delivery, holds);
        under_way.replies.push(Reply {
            told: Told::at_least(1),
            on_its_way: Some(delivery),
        });
    }

    fn under_way(
        &mut self,
        hold: HoldId,
        token: FencingToken,
        delivery: &Delivery,
        held_before: i64,
    ) -> &mut UnderWay {
        self.by_recipient.insert(delivery.recipient, hold.clone());
        let new = UnderWay::new(token, held_before);
        let under_way = self.by_hold.entry(hold).or_insert(new);
        if under_way.token != token {
            // The holds of the other token are over.
            *under_way = UnderWay::new(token, held_before);
        }
        under_way
    }

    /// Notes that what is on its way to this client ties the holds to its connection.
    pub fn tie(&mut self, client: ClientId) {
        let recipient = Recipient::Client(client);
        if let Some(hold) = self.hold_of(recipient).cloned() {
            for delivery in self.deliveries_to(&hold, recipient) {
                delivery.ties = true;
            }
        }
    }

    /// The holds that what is on its way to this client ties to its connection.
    pub fn tied_by(&self, client: ClientId) -> Option<HoldId> {
        let hold = self.hold_of(client)?;
        let mut deliveries = self.by_hold.get(hold)?.deliveries();
        let is_it = |one: &Delivery| one.recipient == Recipient::Client(client) && one.ties;
        deliveries.any(is_it).then(|| hold.clone())
    }

    /// What is on its way to this recipient about these holds.
    fn deliveries_to(
        &mut self,
        hold: &HoldId,
        recipient: Recipient,
    ) -> impl Iterator<Item = &mut Delivery> {
        let under_way = self.by_hold.get_mut(hold).into_iter();
        let replies = under_way.flat_map(|one| &mut one.replies);
        let deliveries = replies.filter_map(|reply| reply.on_its_way.as_mut());
        deliveries.filter(move |one| one.recipient == recipient)
    }

    /// Whether what is on its way to this client is still true of an owner that has so
    /// many holds of this token.
    pub fn stands(&self, recipient: Recipient, token: FencingToken, holds: i64) -> bool {
        let under_way = self.hold_of(recipient);
        let under_way = under_way.and_then(|hold| self.by_hold.get(hold));
        under_way.is_some_and(|under_way| {
            let mut deliveries = under_way.deliveries();
            under_way.token == token
                && deliveries.any(|one| one.recipient == recipient)
                && under_way.spoken_for() <= holds
        })
    }

    /// Notes that a reply tells an owner of its holds.
    pub fn told(&mut self, hold: impl FnOnce() -> HoldId, told: Told) {
        if self.by_hold.is_empty() {
            return;
        }
        if let Some(under_way) = self.by_hold.get_mut(&hold()) {
            under_way.tell(told);
        }
    }

    /// Notes that an owner gave a hold back, and is told so. It has `left`.
    pub fn released(&mut self, hold: impl FnOnce() -> HoldId, told: Told, left: i64) {
        if self.by_hold.is_empty() {
            return;
        }
        if let Some(under_way) = self.by_hold.get_mut(&hold()) {
            under_way.tell(told);
            under_way.added = under_way.added.min(left);
        }
    }

    /// Notes that all holds of an owner are over.
    pub fn ended(&mut self, hold: impl FnOnce() -> HoldId) {
        if !self.by_hold.is_empty() {
            self.forget(&hold());
        }
    }

    /// The holds that somebody is to hear of.
    pub fn hold_of(&self, recipient: impl Into<Recipient>) -> Option<&HoldId> {
        self.by_recipient.get(&recipient.into())
    }

    /// The token of what is on its way to the owner of these holds.
    pub fn token_of(&self, hold: &HoldId) -> Option<FencingToken> {
        self.by_hold.get(hold).map(|under_way| under_way.token)
    }

    /// Notes that somebody has heard of what was on its way to it.
    pub fn delivered(&mut self, recipient: impl Into<Recipient>) {
        let Some((mut found, at)) = self.find(recipient.into()) else {
            return;
        };
        let under_way = found.get_mut();
        if let Some(reply) = under_way.replies.get_mut(at) {
            reply.on_its_way = None;
        }
        if under_way.is_over() {
            found.remove();
        }
    }

    /// Notes that somebody will not hear of what was on its way to it.
    /// Returns the holds of which some may be over, and their token, if that is
    /// not known yet.
    pub fn lost(&mut self, recipient: impl Into<Recipient>) -> Option<(HoldId, FencingToken)> {
        let (mut found, at) = self.find(recipient.into())?;
        let under_way = found.get_mut();
        under_way.replies.remove(at);
        let known = std::mem::replace(&mut under_way.lost, true);
        let token = under_way.token;
        (!known).then(|| (found.key().clone(), token))
    }

    /// What is on its way about this lock.
    fn on(&self, key: KeyRef<'_>) -> impl Iterator<Item = (&HoldId, &UnderWay)> {
        let first = HoldId {
            key: key.into(),
            owner: Owner::least(),
        };
        let from_first = self.by_hold.range(first.clone()..);
        from_first.take_while(move |(hold, _)| hold.key == first.key)
    }

    /// The places that are to hear of this lock.
    pub fn places_on(&self, key: KeyRef<'_>) -> impl Iterator<Item = WaiterId> {
        self.on(key).flat_map(|(_, under_way)| under_way.places())
    }

    /// The places that are to hear of these holds.
    pub fn places_of(&self, hold: &HoldId) -> impl Iterator<Item = WaiterId> {
        let under_way = self.by_hold.get(hold);
        under_way.into_iter().flat_map(UnderWay::places)
    }

    /// How many of its `holds` are left to an owner of whose holds some have
    /// ended.
    pub fn left(&self, hold: &HoldId, ended: &Ended, holds: i64) -> i64 {
        let under_way = self.by_hold.get(hold);
        let under_way = under_way.filter(|under_way| under_way.token == ended.token);
        match (ended.by, under_way) {
            (EndedBy::Session, _) => 0,
            (EndedBy::Undelivered, None) => holds,
            (EndedBy::Undelivered, Some(under_way)) => {
                let surplus = holds - under_way.spoken_for();
                holds - surplus.clamp(0, under_way.added)
            }
        }
    }

    /// As [`Deliveries::left`], for a caller that ends the others now.
    pub fn end(&mut self, hold: &HoldId, ended: &Ended, holds: i64) -> i64 {
        let left = self.left(hold, ended, holds);
        if let Some(under_way) = self.by_hold.get_mut(hold)
            && under_way.token == ended.token
        {
            under_way.added -= holds - left;
            under_way.lost = false;
            if ended.by == EndedBy::Session || under_way.is_over() {
                self.forget(hold);
            }
        }
        left
    }

    fn find(
        &mut self,
        recipient: Recipient,
    ) -> Option<(OccupiedEntry<'_, HoldId, UnderWay>, usize)> {
        let hold = self.by_recipient.remove(&recipient)?;
        let Entry::Occupied(found) = self.by_hold.entry(hold) else {
            return None;
        };
        let mut replies = found.get().replies.iter();
        let is_it = |one: &Delivery| one.recipient == recipient;
        let at = replies.rposition(|reply| reply.on_its_way.as_ref().is_some_and(is_it))?;
        Some((found, at))
    }

    fn forget(&mut self, hold: &HoldId) {
        if let Some(under_way) = self.by_hold.remove(hold) {
            for delivery in under_way.deliveries() {
                self.by_recipient.remove(&delivery.recipient);
            }
        }
    }
}

#[cfg(test)]
impl Deliveries {
    /// Writes down what decides what will happen.
    pub(crate) fn take_down(&self, form: &mut Form<'_>) {
        for key in form.keys() {
            for owner in form.owners() {
                let hold = HoldId::new(key.as_ref(), owner);
                let under_way = self.by_hold.get(&hold);
                form.flag(under_way.is_some());
                let Some(under_way) = under_way else { continue };
                form.token(Some(under_way.token));
                form.number(under_way.known);
                form.number(under_way.added);
                form.flag(under_way.lost);
                form.count(under_way.replies.len());
                for reply in &under_way.replies {
                    form.number(reply.told.more);
                    form.number(reply.told.least);
                    let delivery = reply.on_its_way.as_ref();
                    let client = |recipient| match recipient {
                        Recipient::Client(client) => Some(client),
                        Recipient::Place(_) => None,
                    };
                    form.client(delivery.and_then(|one| client(one.recipient)));
                    form.flag(delivery.is_some());
                    if let Some(delivery) = delivery {
                        form.flag(delivery.ties);
                    }
                }
            }
        }
        for &connection in form.connections() {
            let hold = self.hold_of(ClientId(connection));
            form.flag(hold.is_some());
            if let Some(hold) = hold {
                form.key(hold.key.as_ref());
                form.owner(&hold.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests;
