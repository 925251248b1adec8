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
//! Nothing while nothing is withheld. Each reply or lease takes logarithmic time, and a step
//! more when its offset becomes known and when that is reached.

use std::collections::BTreeMap;

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

/// What waits for replicas.
#[derive(Clone, Debug)]
pub(crate) enum Pending {
    /// A reply that is withheld in the outbox.
    Reply(WaiterId),
    /// A lease of holds of a session: their token, and until when it lasts.
    Lease(HoldId, FencingToken, i64),
}

/// What is in line for replicas.
#[derive(Clone, Debug, Default)]
pub struct Acks {
    /// In the order in which it was written, by serial numbers. What the replicas have to
    /// reach is known at the end of the turn.
    pending: BTreeMap<u64, (Option<i64>, Pending)>,
    next_serial: u64,
    #[cfg(feature = "planted-faults")]
    last_offset: i64,
}

impl Acks {
    /// Whether nothing waits for replicas.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Has this wait. Returns its serial number.
    pub(crate) fn withhold(&mut self, pending: Pending) -> u64 {
        let serial = self.next_serial;
        self.next_serial += 1;
        self.pending.insert(serial, (None, pending));
        serial
    }

    /// The serial number of what waits next.
    pub(crate) fn next_serial(&self) -> u64 {
        self.next_serial
    }

    /// It waits no more.
    pub(crate) fn forget(&mut self, serial: u64) {
        self.pending.remove(&serial);
    }

    /// Nothing waits any more. Serial numbers go on, as sessions remember some.
    pub(crate) fn forget_all(&mut self) {
        self.pending.clear();
    }

    /// All that was written up to now ends at this offset. Returns whether anything
    /// waits for it.
    pub(crate) fn offset_known(&mut self, known: i64) -> bool {
        #[cfg(feature = "planted-faults")]
        let known = {
            let last = std::mem::replace(&mut self.last_offset, known);
            Fault::OffsetTooEarly.instead(known, || last)
        };
        let new = self.pending.values_mut().rev();
        let new = new.take_while(|(offset, _)| offset.is_none());
        new.map(|(offset, _)| *offset = Some(known)).count() > 0
    }

    /// Takes something that waits for nothing beyond this offset, with its serial number.
    pub(crate) fn take_acknowledged(&mut self, reached: i64) -> Option<(u64, Pending)> {
        let first = self.pending.first_entry()?;
        first.get().0.filter(|offset| *offset <= reached)?;
        let (serial, (_, pending)) = first.remove_entry();
        Some((serial, pending))
    }
}

#[cfg(test)]
impl Acks {
    /// Whether all replies that stand in line are withheld.
    pub(crate) fn agree(&self, is_withheld: impl Fn(WaiterId) -> bool) -> bool {
        self.pending.values().all(|(_, pending)| match pending {
            Pending::Reply(id) => is_withheld(*id),
            Pending::Lease(..) => true,
        })
    }

    /// How much stands in line.
    pub(crate) fn in_line(&self) -> usize {
        self.pending.len()
    }

    /// Adds to a form of the state all that can influence a later step, and of which leases a
    /// session keeps count.
    pub(crate) fn take_down(&self, form: &mut Form<'_>, counts: impl Fn(&HoldId, u64) -> bool) {
        form.count(self.pending.len());
        for (serial, (offset, pending)) in &self.pending {
            form.offset(*offset);
            match pending {
                Pending::Reply(id) => form.waiter(Some(*id)),
                Pending::Lease(hold, token, until_ms) => {
                    form.waiter(None);
                    form.key(hold.key.as_ref());
                    form.owner(&hold.owner);
                    form.token(Some(*token));
                    form.time(Some(*until_ms));
                    form.flag(counts(hold, *serial));
                }
            }
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
