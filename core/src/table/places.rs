//! Places in a queue: how they are kept, claimed and given up.

use super::transition::Transition;
use super::{Answer, LockTable, WaitEnd};
use crate::error::LockError;
use crate::keys::KeyRef;
use crate::lock::Now;
#[cfg(feature = "planted-faults")]
use crate::planted::Fault;
use crate::queue::{Addressee, Channel, Place, Wait, Waiter, WaiterId};
use crate::request::{AcquireRequest, Lease, Owner, ReleaseRequest};
use crate::sessions::HoldId;
use crate::token::FencingToken;

impl Transition<'_> {
    /// Looks for an earlier request of the asker that waits, and ends it if it is over.
    /// The new request takes over its position if it asks for the same mode.
    pub(super) fn find_earlier(&mut self, request: &AcquireRequest, wait: Option<&Wait>) {
        let (key, now_ms) = (self.key, self.now.ms());
        let channel = wait.and_then(|wait| wait.channel.as_ref());
        self.tell_of_places_of(&request.owner, channel);
        let Some(earlier) = self.table.queues.waiter_of(key, &request.owner) else {
            return;
        };
        let id = earlier.id;
        let steady_ms = self.now.steady_ms;
        if earlier.is_late(steady_ms) || self.table.is_over(earlier, steady_ms) {
            match earlier.is_place() && channel == earlier.wait.channel.as_ref() {
                true => {
                    let ended = self.table.take_out(id, now_ms);
                    self.replaced.extend(ended.map(|ended| ended.addressee()));
                }
                false => self.end_wait(id),
            }
            return;
        }
        let is_same = earlier.request.limit == request.limit;
        #[cfg(feature = "planted-faults")]
        let is_same = is_same && !Fault::PlaceNotKept.planted();
        self.earlier = Some((id, is_same));
    }

    /// Tells an owner that its places are gone, before the result of its later request.
    /// Places on that request's channel stay untold, unless the request is refused.
    fn tell_of_places_of(&mut self, owner: &Owner, channel: Option<&Channel>) {
        if self.table.untold.is_empty() {
            return;
        }
        let hold = HoldId::new(self.key, owner);
        let untold = &mut self.table.untold;
        let its = untold.range(WaiterId::all_behind(hold));
        let its: Vec<_> = its.map(|(name, _)| name.clone()).collect();
        for name in its {
            let Some(place) = self.table.untold.remove(&name) else {
                continue;
            };
            match Some(&place.channel) == channel {
                true => self.replaced.push(Addressee::Place(place)),
                false => self.tell_not_granted([Addressee::Place(place)]),
            }
        }
    }

    /// Tells these that they are not granted what they waited for.
    pub(super) fn tell_not_granted(&mut self, ended: impl IntoIterator<Item = Addressee>) {
        let told = ended.into_iter().map(|to| (to, Answer::NotGranted));
        self.step.answers.extend(told);
    }

    /// An owner holds nothing after a release. Its grant that is not told yet is not told
    /// any more; and if it held nothing before, its wait ends.
    pub(super) fn give_up(&mut self, request: &ReleaseRequest, held: bool) {
        if request.token.is_some() && !held {
            return;
        }
        self.tell_of_places_of(&request.owner, None);
        if let Some((id, _)) = self.untold_grant(&request.owner)
            && let Some(out) = self.table.take_out_of_box(id)
        {
            self.tell_not_granted([out.to]);
        }
        if held {
            return;
        }
        let waiter = self.table.queues.waiter_of(self.key, &request.owner);
        if let Some(id) = waiter.map(|waiter| waiter.id) {
            self.end_wait(id);
        }
    }

    /// A wait ends without a grant.
    pub(super) fn end_wait(&mut self, id: WaiterId) {
        let told = self.table.leave(id, self.why_it_ends(id), self.now.ms());
        self.step.answers.extend(told);
    }

    /// Why this wait ends: its time is up, or it is given up.
    pub(super) fn why_it_ends(&self, id: WaiterId) -> WaitEnd {
        let waiter = self.table.queues.waiter(id);
        match waiter.is_some_and(|waiter| waiter.is_late(self.now.steady_ms)) {
            true => WaitEnd::TimeUp,
            false => WaitEnd::Gone,
        }
    }

    /// Nobody listens to the channel of this place.
    pub(super) fn place_unheard(&mut self, id: WaiterId) {
        self.table.metrics.places_unheard += 1;
        self.table.take_out(id, self.now.ms());
    }

    /// Whether the first in line could have the lock now. Then it is a place: all others
    /// that could have it were served.
    pub(super) fn is_place_next(&self) -> bool {
        let table = &self.table;
        let is_possible = table.settings.acks.is_some() && table.settings.grants();
        let first = || table.queues.first(self.key);
        is_possible && first().is_some_and(|first| self.admits(first.request.limit))
    }

    /// The lease of a grant to a place, until it is claimed. The place asked for `asked`.
    pub(super) fn first_lease(&self, asked: Lease) -> Lease {
        let settings = &self.table.settings;
        let acks_ms = settings.acks.map_or(0, |acks| acks.timeout_ms);
        let claim_ms = settings.claim_timeout_ms.saturating_add(acks_ms);
        let unclaimed = Lease::from_ms(claim_ms).unwrap_or(Lease::LONGEST);
        asked.min(settings.max_lease).min(unclaimed)
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
        if self.unclaimed.remove(&token).is_some() {
            self.metrics.claims += 1;
            let (sessions, hold) = (&mut self.sessions, HoldId::new(key, owner));
            sessions.change(&hold, Some(token), |bound| bound.claim(now_ms));
        }
    }

    /// Ends waits and withheld replies whose time is over, takes ends of places that are
    /// still to be told, and forgets grants that nobody has claimed in time: at most
    /// `at_most` of each. Returns who is told what. Nothing has to be written for it now.
    pub fn give_up(&mut self, now: Now, at_most: usize) -> Vec<(Addressee, Answer)> {
        let mut answers = Vec::new();
        for _ in 0..at_most {
            let first = self.time_outs.first().copied();
            let Some((_, id)) = first.filter(|(until_ms, _)| *until_ms <= now.steady_ms) else {
                break;
            };
            self.time_outs.pop_first();
            answers.extend(self.leave(id, WaitEnd::TimeUp, now.ms()));
        }
        for _ in 0..at_most {
            let Some((_, place)) = self.untold.pop_first() else {
                break;
            };
            answers.push((Addressee::Place(place), Answer::NotGranted));
        }
        for _ in 0..at_most {
            let first = self.unclaimed.first_entry();
            let Some(over) = first.filter(|first| *first.get() <= now.ms()) else {
                break;
            };
            over.remove();
            self.metrics.grants_unclaimed += 1;
        }
        answers
    }

    /// This server has become a replica. Ends the places whose grants are withheld, all of
    /// them, and others up to `at_most` in sum, and has their owners told why. The server
    /// has ended the waits of blocked clients itself.
    pub fn forget_places(&mut self, why: &LockError, at_most: usize) -> Vec<(Addressee, Answer)> {
        let mut answers = Vec::new();
        for id in self.outbox.places() {
            if let Some(out) = self.take_out_of_box(id) {
                answers.push((out.to, Answer::Refused(why.clone())));
            }
        }
        while answers.len() < at_most
            && let Some(id) = self.queues.longest().map(|waiter| waiter.id)
        {
            self.metrics.waits_refused += 1;
            let refused = self.remove_waiter(id);
            let told = refused.map(|place| (place.addressee(), Answer::Refused(why.clone())));
            answers.extend(told);
        }
        answers
    }

    /// The first places for this lock, at most `at_most`.
    pub fn places_of(&self, key: KeyRef<'_>, at_most: usize) -> Vec<Place> {
        let places = self.queues.waiters(key).filter_map(Waiter::place);
        places.take(at_most).collect()
    }

    /// How many places there are.
    pub fn places(&self) -> usize {
        self.queues.counts().places
    }
}
