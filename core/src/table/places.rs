//! Places in a queue: how they are kept, claimed and given up.

use super::transition::Transition;
use super::{Answer, Leave, LockTable, give_back};
use crate::bounds::{OVER_LOOKED_AT, ends_a_step};
use crate::error::LockError;
use crate::holder::Holder;
use crate::keys::{KeyBuf, KeyRef};
use crate::lock::Now;
#[cfg(feature = "planted-faults")]
use crate::planted::Fault;
use crate::queue::{Addressee, Place, Wait, Waiter, WaiterId};
use crate::request::{AcquireRequest, HoldNumber, Lease, Owner, ReleaseRequest};
use crate::token::FencingToken;

impl Transition<'_> {
    /// Looks for the place of who asks for the lock: if its turn has come, the request is
    /// granted in its stead. Who asks for a place again keeps the one it has, unless it
    /// asks in another mode.
    pub(super) fn note_own_place(&mut self, request: &AcquireRequest, wait: Option<&Wait>) {
        let (key, now_ms) = (self.key, self.now.ms());
        let Some(place) = self.table.queues.place_of(key, &request.owner) else {
            return;
        };
        let id = place.id;
        if self.table.queues.is_over(place, self.now.steady_ms) {
            match wait.is_some_and(Wait::is_for_place) {
                // It is told of the new one.
                true => drop(self.table.take_out(key, id, now_ms)),
                false => self.end_place(id),
            }
            return;
        }
        let is_first_hold = request.hold.is_none_or(|hold| hold == HoldNumber::FIRST);
        let is_kept = place.request.limit == request.limit && is_first_hold;
        #[cfg(feature = "planted-faults")]
        let is_kept = is_kept && !Fault::PlaceNotKept.planted();
        if !is_kept {
            return;
        }
        self.own_place = Some(id);
        let Some(wait) = wait.filter(|wait| wait.is_for_place()) else {
            return;
        };
        self.table.time_outs.forget(place);
        self.table.queues.ask_again(key, id, request, wait);
        if let Some(until_ms) = wait.until_ms {
            self.table.time_outs.insert(id, until_ms);
        }
    }

    /// A place is told that its owner was granted the lock by this request, and with its
    /// lease, no sooner than the reply is.
    pub(super) fn tell_with_reply(
        &mut self,
        mut place: Waiter,
        request: &AcquireRequest,
        token: FencingToken,
    ) {
        place.request.lease = request.lease;
        let to = place.addressee();
        if self.step.withheld.is_none() {
            self.step.answers.push((to, Answer::Granted(token)));
            return;
        }
        let confirms = AcquireRequest {
            hold: Some(HoldNumber::FIRST),
            session: None,
            ..request.clone()
        };
        let held = self.holds_of(&request.owner);
        self.withhold_grant(to, &confirms, token, held);
    }

    /// An owner that holds nothing gives its place up with a release.
    pub(super) fn give_place_up(&mut self, request: &ReleaseRequest) {
        if request.token.is_some() {
            return;
        }
        let place = self.table.queues.place_of(self.key, &request.owner);
        if let Some(id) = place.map(|place| place.id) {
            self.end_place(id);
        }
    }

    /// A place is gone without a grant, here or in another queue.
    pub(super) fn end_place(&mut self, id: WaiterId) {
        let now_ms = self.now.ms();
        let time_is_up = |until_ms: i64| until_ms <= self.now.steady_ms;
        let key = self.table.queues.key_of(id).cloned();
        let key = key.as_ref().map_or(self.key, KeyBuf::as_ref);
        let place = self.table.queues.waiter(key, id);
        let leave = match place
            .and_then(|place| place.until_ms)
            .is_some_and(time_is_up)
        {
            true => Leave::TimeUp,
            false => Leave::Gone,
        };
        let told = match key == self.key {
            true => self.table.end_wait(id, leave, now_ms),
            false => self.table.leave(id, leave, now_ms),
        };
        self.step.answers.extend(told);
    }

    /// Where there is no room for one more, ends places that are over. A place of the same
    /// owner goes before, if it has one.
    pub(super) fn make_room(&mut self, is_place: bool, leaves: usize) {
        let (key, settings) = (self.key, &self.table.settings);
        let (max, max_places) = (settings.max_waiters, settings.max_places);
        for _ in 0..ends_a_step() {
            let queues = &self.table.queues;
            let over = if queues.length(key) - leaves >= max {
                self.place_over(|place| place.key.as_ref() == key)
            } else if is_place && queues.counts().places - leaves >= max_places {
                self.place_over(|_| true)
            } else {
                return;
            };
            let Some(over) = over else {
                return;
            };
            self.end_place(over);
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

    /// A place asks for its owner's first hold, and a grant to it that is not claimed
    /// ends soon. An owner that holds the lock by now gets no further hold.
    pub(super) fn as_unclaimed(&self, request: &AcquireRequest) -> AcquireRequest {
        let holds = self
            .lock
            .holder(&request.owner)
            .map(|holder: &Holder| holder.holds);
        let held = holds.and_then(|holds| HoldNumber::new(holds).ok());
        AcquireRequest {
            lease: self.first_lease(request.lease),
            hold: held.or(request.hold),
            ..request.clone()
        }
    }

    /// The lease of a grant to a place that asked for this one, until it is claimed.
    pub(super) fn first_lease(&self, asked: Lease) -> Lease {
        let settings = &self.table.settings;
        let acks_ms = settings.acks.map_or(0, |acks| acks.timeout_ms);
        let claim_ms = settings.claim_timeout_ms.saturating_add(acks_ms);
        let unclaimed = Lease::from_ms(claim_ms).unwrap_or(Lease::LONGEST);
        asked.min(settings.max_lease).min(unclaimed)
    }

    /// Somebody is told of this grant, or names it: if it was unclaimed, it is claimed.
    pub(super) fn claim(&mut self, owner: &Owner, token: FencingToken) {
        let table = &mut *self.table;
        if !table.claims.is_empty() && table.claims.close(token) {
            table.metrics.claims += 1;
            table.sessions.claim(self.key, owner, self.now.ms());
        }
    }
}

impl LockTable {
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
            let Some(id) = self.acks.next_ended() else {
                break;
            };
            self.end_withheld(id);
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
        for id in self.acks.places() {
            if let Some(withheld) = self.take_withheld(id) {
                answers.push((withheld.to, Answer::Refused(why.clone())));
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
