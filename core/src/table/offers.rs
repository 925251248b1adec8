//! Grants to places: whether anybody listens decides.

use super::transition::{Suspended, Transition};
use super::{Acquired, LockTable, Progress};
use crate::error::LockError;
#[cfg(feature = "planted-faults")]
use crate::planted::Fault;
use crate::queue::{Addressee, Place, Wait, WaiterId};
use crate::request::{AcquireRequest, ClientId};
use crate::token::FencingToken;

/// A place that is about to be granted its lock. [`LockTable::offered`] takes the step
/// up again.
#[derive(Debug)]
pub struct Offer<T> {
    suspended: Suspended,
    place: Box<Place>,
    session: Option<ClientId>,
    token: FencingToken,
    after: After<T>,
}

impl<T> Offer<T> {
    /// The place. The message names its lock, its owner, its first lease and the token.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The client with whose connection the place ends.
    pub fn session(&self) -> Option<ClientId> {
        self.session
    }

    /// The token with which it will hold the lock.
    pub fn token(&self) -> FencingToken {
        self.token
    }
}

/// What a step goes on with when the lock has been handed off.
#[derive(Debug)]
pub(super) enum After<T> {
    /// Nothing.
    Finish(Result<T, LockError>),
    /// A request for the lock.
    Acquire(AcquireRequest, Option<Wait>, fn(Acquired) -> T),
    /// A search for deadlocks.
    CheckWait(WaiterId, T),
}

impl Transition<'_> {
    /// The token of the next grant.
    pub(super) fn next_token(&self) -> Option<FencingToken> {
        let mut tokens = self.table.tokens.clone();
        tokens.next(self.now.us, self.lock.last_token()).ok()
    }

    /// Has a message published to a place that may have the lock.
    pub(super) fn offer<T>(
        mut self,
        id: WaiterId,
        token: FencingToken,
        after: After<T>,
    ) -> Progress<T> {
        let waiter = self.table.queues.waiter(self.key, id);
        match waiter.map(|waiter| (waiter.addressee(), waiter.request.session)) {
            Some((Addressee::Place(mut place), session)) => {
                self.step.offers += 1;
                place.first_lease = self.first_lease(place.first_lease);
                Progress::Offers(Box::new(Offer {
                    suspended: self.suspend(),
                    place,
                    session,
                    token,
                    after,
                }))
            }
            _ => self.go_on(after),
        }
    }

    fn go_on<T>(self, after: After<T>) -> Progress<T> {
        match after {
            After::Finish(result) => self.hand_off_and_finish(result),
            After::Acquire(request, wait, acquired) => self.acquire(request, wait, acquired),
            After::CheckWait(id, result) => self.check_wait(id, result),
        }
    }
}

impl LockTable {
    /// Goes on with a step whose message was published. If nobody heard it, nothing is
    /// granted, and the place is gone. It took as long as `weight` messages do, at least
    /// one.
    pub fn offered<T>(&mut self, offer: Offer<T>, heard: bool, weight: usize) -> Progress<T> {
        let key = offer.suspended.key.clone();
        let (key, id) = (key.as_ref(), offer.place.id);
        #[cfg(feature = "planted-faults")]
        let heard = heard || Fault::GrantUnheard.planted();
        let mut transition: Transition<'_> = offer.suspended.with(self, key);
        transition.step.offers += weight.saturating_sub(1);
        if heard {
            transition.serve_first(id, true);
        } else {
            transition.unheard += weight.saturating_sub(1);
            transition.place_unheard(id);
        }
        transition.go_on(offer.after)
    }
}
