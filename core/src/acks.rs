//! What waits for replicas: replies and messages that are withheld (`outbox.rs`) until enough
//! replicas have acknowledged what they tell of, and leases of sessions.
//!
//! A grant or a renewal is written at once; other commands see it, and its lease runs.
//! Only the client hears of it later, if that is still true. If the replicas take too long,
//! it is told that its hold is not known to be safe, and what the request added is given
//! back.
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
//! when its offset becomes known and when that is reached.

use std::collections::{BTreeMap, BTreeSet};

#[cfg(test)]
use crate::explore::form::Form;
#[cfg(feature = "planted-faults")]
use crate::planted::Fault;
use crate::queue::WaiterId;
use crate::request::ClientId;
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

    /// Has this reply wait. Returns its serial number.
    pub(crate) fn withhold(&mut self, id: WaiterId) -> u64 {
        self.push(Waits::Reply(id))
    }

    /// A reply waits no more.
    pub(crate) fn forget(&mut self, serial: u64) {
        self.pending.remove(&serial);
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
    }

    /// How much stands in line.
    pub(crate) fn in_line(&self) -> usize {
        self.pending.len()
    }

    /// Writes down what decides what will happen.
    pub(crate) fn take_down(&self, form: &mut Form<'_>) {
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
