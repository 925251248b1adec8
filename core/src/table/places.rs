//! Places in a queue: how they are kept, claimed and given up.

use super::transition::Transition;
use super::{Answer, Leave, LockTable, give_back};
use crate::bounds::{OVER_LOOKED_AT, ends_a_step};
use crate::error::LockError;
use crate::keys::{KeyBuf, KeyRef};
use crate::lock::Now;
#[cfg(feature = "planted-faults")]
use crate::planted::Fault;
use crate::queue::{Addressee, Place, Wait, Waiter, WaiterId};
use crate::request::{AcquireRequest, Lease, Owner, ReleaseRequest};
use crate::token::FencingToken;

impl Transition<'_> {
    /// Looks for an earlier request of who asks that waits. It comes no sooner than this one,
    /// which has its position if it asks for the same mode.
    pub(super) fn find_earlier(&mut self, request: &AcquireRequest, wait: Option<&Wait>) {
        let (key, now_ms) = (self.key, self.now.ms());
        let Some(earlier) = self.table.queues.waiter_of(key, &request.owner) else {
            return;
        };
        let id = earlier.id;
        if self.table.queues.is_over(earlier, self.now.steady_ms) {
            // On its own channel the later one alone is told of.
            match wait.is_some_and(|wait| wait.channel == earlier.channel) {
                true => drop(self.table.take_out(key, id, now_ms)),
                false => self.end_wait(id),
            }
            return;
        }
        let is_same = earlier.request.limit == request.limit;
        #[cfg(feature = "planted-faults")]
        let is_same = is_same && !Fault::PlaceNotKept.planted();
        self.earlier = Some((id, is_same));
    }

    /// An owner that holds nothing after a release hears of no grant, and if it held nothing
    /// before it gives up its wait.
    pub(super) fn give_up(&mut self, request: &ReleaseRequest, held: bool) {
        if request.token.is_some() && !held {
            return;
        }
        if let Some((id, _)) = self.untold_grant(&request.owner)
            && let Some(out) = self.table.take_out_of_box(id)
        {
            self.step.answers.push((out.to, Answer::NotGranted));
        }
        if held {
            return;
        }
        let waiter = self.table.queues.waiter_of(self.key, &request.owner);
        if let Some(id) = waiter.map(|waiter| waiter.id) {
            self.end_wait(id);
        }
    }

    /// A wait ends without a grant, here or in another queue.
    pub(super) fn end_wait(&mut self, id: WaiterId) {
        let now_ms = self.now.ms();
        let time_is_up = |until_ms: i64| until_ms <= self.now.steady_ms;
        let key = self.table.queues.key_of(id).cloned();
        let key = key.as_ref().map_or(self.key, KeyBuf::as_ref);
        let waiter = self.table.queues.waiter(key, id);
        let leave = match waiter
            .and_then(|waiter| waiter.until_ms)
            .is_some_and(time_is_up)
        {
            true => Leave::TimeUp,
            false => Leave::Gone,
        };
        let told = self.table.leave(id, leave, now_ms);
        self.step.answers.extend(told);
    }

    /// Where there is no room for one more, ends places that are over. `leaves` leave before,
    /// `leaves_places` of them places.
    pub(super) fn make_room(&mut self, is_place: bool, leaves: usize, leaves_places: usize) {
        let (key, settings) = (self.key, &self.table.settings);
        let (max, max_places) = (settings.max_waiters, settings.max_places);
        for _ in 0..ends_a_step() {
            let queues = &self.table.queues;
            let over = if queues.length(key) - leaves >= max {
                self.place_over(|place| place.key.as_ref() == key)
            } else if is_place && queues.counts().places - leaves_places >= max_places {
                self.place_over(|_| true)
            } else {
                return;
            };
            let Some(over) = over else {
                return;
            };
            self.end_wait(over);
        }
    }

    /// Such a place that is over and has not been removed.
    fn place_over(&self, is_meant: impl Fn(&Waiter) -> bool) -> Option<WaiterId> {
        let (queues, now_ms) = (&self.table.queues, self.now.steady_ms);
        let late = self.table.time_outs.over(now_ms).take(OVER_LOOKED_AT);
        let ended = queues.ended_places().take(OVER_LOOKED_AT);
        let mut over = late.chain(ended).filter_map(|id| {
            let place = queues.waiter(queues.key_of(id)?.as_ref(), id)?;
            queues.is_over(place, now_ms).then_some(place)
        });
        over.find(|place| is_meant(place)).map(|place| place.id)
    }

    /// Nobody listens to the channel of this place.
    pub(super) fn place_unheard(&mut self, id: WaiterId) {
        self.table.metrics.places_unheard += 1;
        self.table.take_out(self.key, id, self.now.ms());
    }

    /// Whether the lock could go to a place now. Others can't be kept waiting for it:
    /// they were served.
    pub(super) fn is_place_next(&self) -> bool {
        let table = &self.table;
        let is_possible = table.settings.acks.is_some() && table.settings.grants();
        let first = || table.queues.first(self.key);
        is_possible && first().is_some_and(|first| self.admits(first.request.limit))
    }

    /// The lease of a grant to a place that asked for this one, until it is claimed.
    pub(super) fn first_lease(&self, asked: Lease) -> Lease {
        let settings = &self.table.settings;
        let acks_ms = settings.acks.map_or(0, |acks| acks.timeout_ms);
        let claim_ms = settings.claim_timeout_ms.saturating_add(acks_ms);
        let unclaimed = Lease::from_ms(claim_ms).unwrap_or(Lease::LONGEST);
        asked.min(settings.max_lease).min(unclaimed)
    }

    /// As [`LockTable::claim`], for this lock.
    pub(super) fn claim(&mut self, owner: &Owner, token: FencingToken) {
        self.table.claim(self.key, owner, token, self.now.ms());
    }
}

impl LockTable {
    /// Somebody is told of this grant, or names it: if it was unclaimed, it is claimed.
    pub(super) fn claim(
        &mut self,
        key: KeyRef<'_>,
        owner: &Owner,
        token: FencingToken,
        now_ms: i64,
    ) {
        if !self.claims.is_empty() && self.claims.close(token) {
            self.metrics.claims += 1;
            self.sessions.claim(key, owner, now_ms);
        }
    }

    /// Ends the waits whose time is over, gives up what replicas have not acknowledged in
    /// time, and ends the places of connections that have ended: at most `at_most`
    /// of each. Returns who is told what. Nothing has to be written for it now.
    pub fn give_up(&mut self, now: Now, at_most: usize) -> Vec<(Addressee, Answer)> {
        let mut answers = Vec::new();
        for _ in 0..at_most {
            let Some(id) = self.time_outs.take(now.steady_ms) else {
                break;
            };
            answers.extend(self.leave(id, Leave::TimeUp, now.ms()));
        }
        for _ in 0..at_most {
            let Some(id) = self.outbox.next_ended() else {
                break;
            };
            self.end_untold(id);
        }
        let untold = at_most.min(self.untold.len());
        answers.extend(self.untold.drain(..untold));
        give_back(&mut self.untold);
        for _ in 0..at_most {
            let Some(id) = self.queues.next_ended_place() else {
                break;
            };
            answers.extend(self.leave(id, Leave::Gone, now.ms()));
        }
        for _ in 0..at_most {
            if !self.claims.take_end(now.ms()) {
                break;
            }
            self.metrics.grants_unclaimed += 1;
        }
        answers
    }

    /// Removes places that this server can't serve any more: at most `at_most`, and those
    /// to which a grant is withheld. Their owners are told why.
    pub fn forget_places(&mut self, why: &LockError, at_most: usize) -> Vec<(Addressee, Answer)> {
        let mut answers = Vec::new();
        for id in self.outbox.places() {
            if let Some(out) = self.take_out_of_box(id) {
                answers.push((out.to, Answer::Refused(why.clone())));
            }
        }
        while answers.len() < at_most
            && let Some(place) = self.queues.any_place()
        {
            let (id, key) = (place.id, place.key.clone());
            answers.extend(self.refuse_place(key.as_ref(), id, why));
        }
        answers
    }

    /// The first places for this lock, at most `at_most`.
    pub fn places_of(&self, key: KeyRef<'_>, at_most: usize) -> Vec<Place> {
        let addressees = self.queues.waiters(key).map(Waiter::addressee);
        let places = addressees.filter_map(|addressee| match addressee {
            Addressee::Place(place) => Some(*place),
            Addressee::Blocked(..) => None,
        });
        places.take(at_most).collect()
    }

    /// Removes a place to which nobody listens.
    pub fn leave_place(&mut self, place: &Place, now_ms: i64) {
        self.leave(place.id, Leave::Gone, now_ms);
    }

    fn refuse_place(
        &mut self,
        key: KeyRef<'_>,
        id: WaiterId,
        why: &LockError,
    ) -> Option<(Addressee, Answer)> {
        let place = self.remove_waiter(key, id)?;
        self.metrics.waits_refused += 1;
        Some((place.addressee(), Answer::Refused(why.clone())))
    }

    /// How many places there are.
    pub fn places(&self) -> usize {
        self.queues.counts().places
    }
}
