//! A waiter: who waits for what, and who is told of its end.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::rc::Rc;

use crate::keys::KeyBuf;
use crate::lock::{Now, left_ms};
#[cfg(feature = "planted-faults")]
use crate::planted::Fault;
use crate::request::{AcquireRequest, ClientId, Lease, Owner};

/// The channel on which the end of a place is published. Cheap to clone.
pub type Channel = Rc<[u8]>;

/// How a client waits, or would.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The client that waits, or that asked last for this place.
    pub client: ClientId,
    /// When it gives up by the steady clock, in milliseconds, if ever.
    pub until_ms: Option<i64>,
    /// Where its end is published, if it is a place: then no client is blocked.
    pub channel: Option<Channel>,
}

impl Wait {
    /// Whether it is for a place.
    pub fn is_for_place(&self) -> bool {
        self.channel.is_some()
    }
}

/// Names a waiter; later waiters have greater ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaiterId(pub(crate) u64);

impl WaiterId {
    /// All ids behind this, in a set or a map of such pairs.
    pub(crate) fn all_behind<T: Clone>(this: T) -> RangeInclusive<(T, Self)> {
        (this.clone(), Self(0))..=(this, Self(u64::MAX))
    }
}

/// A request in a queue.
#[derive(Clone, Debug)]
pub struct Waiter {
    /// Its name.
    pub id: WaiterId,
    /// The lock for which it waits.
    pub key: KeyBuf,
    /// What it asks for.
    pub request: AcquireRequest,
    /// Since when it has waited, in microseconds since 1970.
    pub since_us: i64,
    /// How it waits.
    pub wait: Wait,
}

impl Waiter {
    /// Whether its client does not block.
    pub fn is_place(&self) -> bool {
        self.wait.is_for_place()
    }

    /// The client that is blocked; none if it is a place.
    pub fn client(&self) -> Option<ClientId> {
        (!self.is_place()).then_some(self.wait.client)
    }

    /// How long it has waited.
    pub fn waited_ms(&self, now: Now) -> i64 {
        (now.us - self.since_us).max(0) / 1000
    }

    /// How long it will wait yet, -1 for ever.
    pub fn left_ms(&self, now: Now) -> i64 {
        left_ms(self.wait.until_ms, now.steady_ms)
    }

    /// Whether its time is over.
    pub fn is_late(&self, steady_ms: i64) -> bool {
        let until_ms = self.wait.until_ms;
        until_ms.is_some_and(|until_ms| until_ms <= steady_ms)
    }

    /// Whether it must not be granted anything any more: its time is over, or the connection
    /// of its session has `ended`. For a blocked client the server itself ends the wait.
    pub fn is_over(&self, steady_ms: i64, ended: &BTreeSet<ClientId>) -> bool {
        let has_ended = |client: ClientId| ended.contains(&client);
        let session = self.request.session;
        self.is_place() && (self.is_late(steady_ms) || session.is_some_and(has_ended))
    }

    /// The place as its messages name it, if it is one.
    pub fn place(&self) -> Option<Place> {
        Some(Place {
            id: self.id,
            key: self.key.clone(),
            owner: self.request.owner.clone(),
            channel: self.wait.channel.clone()?,
            client: self.wait.client,
            first_lease: self.request.lease,
        })
    }

    /// Who is told of its end.
    pub fn addressee(&self) -> Addressee {
        match self.place() {
            None => Addressee::Blocked(self.id, self.wait.client),
            Some(place) => Addressee::Place(Box::new(place)),
        }
    }
}

#[cfg(feature = "planted-faults")]
impl Waiter {
    /// The same, with what would be left of its lease if that had begun with the wait.
    pub(crate) fn with_lease_from_enqueue(mut self, now_ms: i64) -> Self {
        let lease = self.request.lease;
        let waited_ms = now_ms - self.since_us / 1000;
        self.request.lease = Fault::LeaseFromEnqueue.instead(lease, || {
            Lease::from_ms((lease.ms() - waited_ms).max(1)).unwrap_or(lease)
        });
        self
    }
}

/// Who is told of the end of a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addressee {
    /// This client, which is blocked.
    Blocked(WaiterId, ClientId),
    /// Whoever listens to the channel of this place.
    Place(Box<Place>),
}

impl Addressee {
    /// The name of the waiter.
    pub fn id(&self) -> WaiterId {
        match self {
            Self::Blocked(id, _) => *id,
            Self::Place(place) => place.id,
        }
    }

    /// The client that is blocked, or that asked last for the place.
    pub fn client(&self) -> ClientId {
        match self {
            Self::Blocked(_, client) => *client,
            Self::Place(place) => place.client,
        }
    }

    /// Whether it is told by a message.
    pub fn is_place(&self) -> bool {
        matches!(self, Self::Place(_))
    }
}

/// A place in a queue, as its messages name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its name.
    pub id: WaiterId,
    /// The lock.
    pub key: KeyBuf,
    /// Who has the place.
    pub owner: Owner,
    /// Where its end is published.
    pub channel: Channel,
    /// The client that asked last.
    pub client: ClientId,
    /// The lease with which its grant begins.
    pub first_lease: Lease,
}
