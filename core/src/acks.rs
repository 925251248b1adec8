//! Replies that are withheld until replicas have acknowledged what they tell of.
//!
//! A grant or a renewal is written at once; other commands see it, and its lease runs.
//! Only the client hears of it later: when enough replicas have acknowledged all that
//! was written up to it. Then it is told, if that is still true. If they take too long,
//! it is told that its hold is not known to be safe, and what the request added is
//! given back, as what was lost on its way to a client is
//! ([`deliveries`](crate::deliveries)).
//!
//! # One offset a turn
//! Replicas acknowledge offsets of the replication stream. All that was withheld since
//! the last look waits for one and the same, which the caller learns at the end of the
//! turn: what was written before is before it. Where a reply tells of what was written
//! long ago, something that changes nothing goes to the replicas first
//! ([`Step::stream_goes_on`](crate::table::Step::stream_goes_on)).
//!
//! # Leases of sessions
//! Nobody is told of a renewal that keeps a session up, but its client relies on it. So
//! such a lease counts only once it is acknowledged.
//!
//! # What it costs
//! Nothing while nothing is withheld. Each reply takes logarithmic time, and a step more
//! when its offset becomes known and when that is reached. The end of a connection takes
//! logarithmic time: the places of its session are set aside as a whole, and each is taken
//! from there when somebody sees its hold, or when its turn comes.

use std::collections::{BTreeMap, BTreeSet};

use crate::deliveries::Recipient;
#[cfg(test)]
use crate::explore::form::Form;
use crate::keys::KeyBuf;
#[cfg(feature = "planted-faults")]
use crate::planted::Fault;
use crate::queue::session_places::SessionPlaces;
use crate::queue::{Addressee, WaiterId};
use crate::request::{ClientId, Lease};
use crate::sessions::HoldId;
use crate::token::FencingToken;

/// What has to acknowledge a reply before it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledgement {
    /// How many replicas have to.
    pub replicas: usize,
    /// How many replicas are connected.
    pub connected: usize,
    /// How long they have, in milliseconds.
    pub timeout_ms: i64,
    /// The client that asks, if it can wait for them.
    pub client: Option<ClientId>,
}

/// What a withheld reply tells, with the token of the holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tells {
    Grant(FencingToken),
    Renewal(FencingToken),
}

/// A reply, or a message to a place, that is not told yet.
#[derive(Clone, Debug)]
pub(crate) struct Withheld {
    pub to: Addressee,
    /// The lock that the client named.
    pub key: KeyBuf,
    pub tells: Tells,
    /// What is to be kept up once it is told, if it asks for that.
    pub session: Option<SessionToBe>,
    /// When it is given up, by the steady clock.
    pub until_ms: i64,
}

/// Holds that are bound to a connection once their client is told of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionToBe {
    pub client: ClientId,
    /// The lease to be kept up.
    pub lease: Lease,
    /// When the one ends that is told of, in milliseconds since 1970.
    pub end_ms: i64,
    /// Whether the owner held the lock before.
    pub(crate) were_held: bool,
}

impl Withheld {
    /// To whom it is on its way.
    pub(crate) fn recipient(&self) -> Recipient {
        Recipient::from(&self.to)
    }

    /// The client with whose connection the place ends, if it is one and has a session.
    fn session_of_place(&self) -> Option<ClientId> {
        let session = self.session.filter(|_| self.to.is_place())?;
        Some(session.client)
    }
}

/// A lease that keeps up holds of a session as soon as it is acknowledged.
#[derive(Clone, Debug)]
pub(crate) struct UncountedLease {
    pub hold: HoldId,
    pub token: FencingToken,
    pub until_ms: i64,
}

#[derive(Clone, Debug)]
enum Waits {
    Reply(WaiterId),
    Lease(UncountedLease),
}

#[derive(Clone, Debug)]
struct Pending {
    /// What the replicas have to reach. None until the end of the turn.
    offset: Option<i64>,
    waits: Waits,
}

/// What enough replicas have acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Acknowledged {
    pub replies: Vec<WaiterId>,
    pub leases: Vec<UncountedLease>,
    /// Whether they have acknowledged more.
    pub is_more: bool,
}

/// How many leases are counted in the time that it takes to tell one reply.
const LEASES_WEIGH_ONE: usize = 8;

/// All that waits for replicas.
#[derive(Clone, Debug, Default)]
pub struct Acks {
    /// Each with its serial in `pending`.
    replies: BTreeMap<WaiterId, (u64, Withheld)>,
    /// Those to places that end with a connection.
    of_sessions: SessionPlaces,
    /// In the order in which it was written, by serial numbers.
    pending: BTreeMap<u64, Pending>,
    /// The serials of the leases among it, by their holds.
    leases: BTreeMap<HoldId, BTreeSet<u64>>,
    next_serial: u64,
    #[cfg(feature = "planted-faults")]
    last_offset: i64,
}

impl Acks {
    /// Whether nothing waits for replicas.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// How many replies are withheld.
    pub fn len(&self) -> usize {
        self.replies.len() - self.of_sessions.count_ended()
    }

    pub(crate) fn withhold(&mut self, withheld: Withheld) {
        let id = withheld.to.id();
        let serial = self.push(Waits::Reply(id));
        if let Some(client) = withheld.session_of_place() {
            let has_ended = self.of_sessions.has_ended(client);
            self.of_sessions.insert(client, id);
            if has_ended {
                self.of_sessions.connection_ended(client);
            }
        }
        self.replies.insert(id, (serial, withheld));
    }

    pub(crate) fn count_later(&mut self, lease: UncountedLease) {
        let hold = lease.hold.clone();
        let serial = self.push(Waits::Lease(lease));
        self.leases.entry(hold).or_default().insert(serial);
    }

    fn push(&mut self, waits: Waits) -> u64 {
        let (serial, offset) = (self.next_serial, None);
        self.next_serial += 1;
        self.pending.insert(serial, Pending { offset, waits });
        serial
    }

    /// Earlier leases of these holds are over, and count no more.
    pub(crate) fn forget_leases(&mut self, hold: &HoldId) {
        for serial in self.leases.remove(hold).unwrap_or_default() {
            self.pending.remove(&serial);
        }
    }

    /// A connection has ended, and with it the places of its session.
    pub(crate) fn connection_ended(&mut self, client: ClientId) {
        self.of_sessions.connection_ended(client);
    }

    /// Whether any messages to places are withheld that have ended with a connection.
    pub(crate) fn any_ended(&self) -> bool {
        self.of_sessions.any_ended()
    }

    /// Whether this is one of them.
    pub(crate) fn has_ended(&self, id: WaiterId) -> bool {
        let withheld = self.reply(id).filter(|_| self.any_ended());
        let session = withheld.and_then(Withheld::session_of_place);
        session.is_some_and(|session| self.of_sessions.has_ended(session))
    }

    /// One of them.
    pub(crate) fn next_ended(&self) -> Option<WaiterId> {
        self.of_sessions.ended().next()
    }

    /// The messages to places that are withheld.
    pub(crate) fn places(&self) -> Vec<WaiterId> {
        let replies = self.replies.iter();
        let places = replies.filter(|(_, (_, one))| one.to.is_place());
        places.map(|(id, _)| *id).collect()
    }

    pub(crate) fn reply(&self, id: WaiterId) -> Option<&Withheld> {
        self.replies.get(&id).map(|(_, withheld)| withheld)
    }

    /// Takes a reply, which is told now or never.
    pub(crate) fn take(&mut self, id: WaiterId) -> Option<Withheld> {
        let (serial, withheld) = self.replies.remove(&id)?;
        self.pending.remove(&serial);
        if let Some(client) = withheld.session_of_place() {
            self.of_sessions.remove(client, id);
        }
        Some(withheld)
    }

    /// All that was written up to now ends at this offset. Returns whether anything
    /// waits for it.
    pub(crate) fn offset_known(&mut self, offset: i64) -> bool {
        #[cfg(feature = "planted-faults")]
        let offset = {
            let last = std::mem::replace(&mut self.last_offset, offset);
            Fault::OffsetTooEarly.instead(offset, || last)
        };
        let mut any = false;
        let new = self.pending.values_mut().rev();
        for pending in new.take_while(|pending| pending.offset.is_none()) {
            pending.offset = Some(offset);
            any = true;
        }
        any
    }

    /// Takes what waits for nothing beyond this offset: at most `at_most` replies, or as
    /// much else as that.
    pub(crate) fn acknowledged(&mut self, offset: i64, at_most: usize) -> Acknowledged {
        let mut acknowledged = Acknowledged::default();
        while let Some(first) = self.pending.first_entry()
            && first.get().offset.is_some_and(|waits| waits <= offset)
        {
            let leases = acknowledged.leases.len() / LEASES_WEIGH_ONE;
            if acknowledged.replies.len() + leases >= at_most {
                acknowledged.is_more = true;
                break;
            }
            let (serial, pending) = first.remove_entry();
            match pending.waits {
                Waits::Reply(id) => acknowledged.replies.push(id),
                Waits::Lease(lease) => {
                    self.forget_lease(&lease.hold, serial);
                    acknowledged.leases.push(lease);
                }
            }
        }
        acknowledged
    }

    fn forget_lease(&mut self, hold: &HoldId, serial: u64) {
        if let Some(serials) = self.leases.get_mut(hold) {
            serials.remove(&serial);
            if serials.is_empty() {
                self.leases.remove(hold);
            }
        }
    }
}

#[cfg(test)]
impl Acks {
    /// Whether all that is kept twice is the same.
    pub(crate) fn agree(&self) -> bool {
        let pending = self.pending.iter();
        let leases = pending.filter_map(|(serial, pending)| match &pending.waits {
            Waits::Lease(lease) => Some((&lease.hold, *serial)),
            Waits::Reply(_) => None,
        });
        let by_hold = self.leases.iter();
        let by_hold =
            by_hold.flat_map(|(hold, serials)| serials.iter().map(move |one| (hold, *one)));
        leases.collect::<BTreeSet<_>>() == by_hold.collect()
            && self.leases.values().all(|serials| !serials.is_empty())
            && self.agree_on_ends()
    }

    fn agree_on_ends(&self) -> bool {
        let replies = self.replies.iter();
        let with_session =
            replies.filter_map(|(id, (_, reply))| Some((reply.session_of_place()?, *id)));
        self.of_sessions.agree(with_session)
    }

    /// How many replies end with the connection of this client.
    pub(crate) fn ending_with(&self, client: ClientId) -> usize {
        let mut replies = self.replies.values().map(|(_, reply)| &reply.to);
        let to_client = replies.any(|to| !to.is_place() && to.client() == client);
        usize::from(to_client) + self.of_sessions.count_of(client)
    }

    /// How much stands in line.
    pub(crate) fn in_line(&self) -> usize {
        self.pending.len()
    }

    /// Writes down what decides what will happen.
    pub(crate) fn take_down(&self, form: &mut Form<'_>) {
        for (&id, (_, reply)) in &self.replies {
            form.waiter(Some(id));
            form.client(Some(reply.to.client()));
            form.key(reply.key.as_ref());
            let (renews, token) = match reply.tells {
                Tells::Grant(token) => (false, token),
                Tells::Renewal(token) => (true, token),
            };
            form.flag(renews);
            form.token(Some(token));
            form.time(reply.session.map(|session| session.end_ms));
            form.client(reply.session.map(|session| session.client));
            form.flag(reply.to.is_place());
            form.flag(self.has_ended(id));
        }
        for pending in self.pending.values() {
            match &pending.waits {
                Waits::Reply(id) => form.waiter(Some(*id)),
                Waits::Lease(lease) => {
                    form.key(lease.hold.key.as_ref());
                    form.owner(&lease.hold.owner);
                    form.token(Some(lease.token));
                    form.time(Some(lease.until_ms));
                }
            }
            form.offset(pending.offset);
        }
    }
}

/// The offset that this many replicas have acknowledged, if as many are connected. All
/// is acknowledged where none is needed.
pub(crate) fn reached_by(replicas: usize, mut acknowledged: Vec<i64>) -> Option<i64> {
    let Some(last) = replicas.checked_sub(1) else {
        return Some(i64::MAX);
    };
    acknowledged.sort_unstable_by(|one, other| other.cmp(one));
    acknowledged.get(last).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::KeyRef;
    use crate::request::Owner;

    fn lease(name: &str, until_ms: i64) -> UncountedLease {
        let owner = Owner::new(name.as_bytes()).unwrap();
        let key = KeyRef { db: 0, name: b"k" };
        UncountedLease {
            hold: HoldId::new(key, &owner),
            token: FencingToken::LEAST,
            until_ms,
        }
    }

    #[test]
    fn the_leases_of_one_hold_are_forgotten_and_no_others() {
        let mut acks = Acks::default();
        acks.count_later(lease("a", 1));
        acks.offset_known(6);
        for (name, until_ms) in [("b", 2), ("a", 3), ("c", 4), ("a", 5)] {
            acks.count_later(lease(name, until_ms));
        }
        acks.offset_known(7);
        assert_eq!(acks.acknowledged(6, 9).leases.len(), 1);
        assert!(acks.agree());
        acks.forget_leases(&lease("a", 0).hold);
        acks.count_later(lease("a", 6));
        acks.offset_known(8);
        assert!(acks.agree());
        let left = acks.acknowledged(8, 9).leases.into_iter();
        let left: Vec<i64> = left.map(|lease| lease.until_ms).collect();
        assert_eq!(left, [2, 4, 6]);
        assert!(acks.is_empty() && acks.leases.is_empty());
    }

    #[test]
    fn of_many_leases_some_are_counted_and_that_there_are_more_is_told() {
        let mut acks = Acks::default();
        for until_ms in 0..20 {
            acks.count_later(lease("a", until_ms));
        }
        acks.offset_known(7);
        let mut take = || {
            let taken = acks.acknowledged(7, 1);
            (taken.leases.len(), taken.is_more)
        };
        assert_eq!([take(), take(), take()], [(8, true), (8, true), (4, false)]);
    }
}
