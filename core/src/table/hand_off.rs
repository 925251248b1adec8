//! Grants: to who asks, and to who waits.

use smallvec::SmallVec;

use super::transition::Transition;
use super::{Acquired, Answer, Done, LockEvent, Said};
use crate::bounds::{PASSED_A_STEP, few, grants_a_step, unheard_a_step};
use crate::deliveries::{Delivery, Told};
use crate::error::LockError;
use crate::lock::holds_after_acquire;
#[cfg(feature = "planted-faults")]
use crate::planted::Fault;
use crate::queue::{Addressee, Wait, Waiter, WaiterId};
use crate::request::{AcquireRequest, ClientId, Limit, Owner};
use crate::sessions::HoldId;
use crate::token::FencingToken;

impl Transition<'_> {
    /// Grants the lock to a newcomer, or one hold more of it to a holder, if that
    /// is possible now.
    pub(super) fn try_grant(
        &mut self,
        request: &AcquireRequest,
        waits: bool,
        in_turn: bool,
    ) -> Result<Option<FencingToken>, LockError> {
        let may_grant = self.table.settings.may_grant;
        #[cfg(feature = "planted-faults")]
        let may_grant = may_grant
            || Fault::ReentryInGrace.planted() && self.lock.holder(&request.owner).is_some();
        if !may_grant {
            return Ok(None);
        }
        if !self.can_be_told() {
            // A holder never waits, so nothing else could be told to it later.
            let is_holder = self.lock.holder(&request.owner).is_some();
            return match is_holder || !waits && in_turn && self.admits(request.limit) {
                true => Err(self.why_not_told()),
                false => Ok(None),
            };
        }
        let withheld_from = self.withholds();
        let Some((token, held_before)) = self.grant(request, in_turn, withheld_from.is_some())?
        else {
            return Ok(None);
        };
        if held_before == 0 {
            self.table.metrics.grants_immediate += 1;
        } else {
            self.table.metrics.reentries += 1;
            self.claim(&request.owner, token);
        }
        if let Some(client) = withheld_from {
            let id = self.table.queues.new_id();
            let to = Addressee::Blocked(id, client);
            self.withhold_grant(to, request, token, held_before);
            self.step.withheld = Some(id);
            return Ok(Some(token));
        }
        // A confirmation may write nothing, and its client may `WAIT` for replicas.
        self.step.stream_goes_on = true;
        if request.session.is_none() {
            self.told(&request.owner);
        }
        let (key, deliveries) = (self.key, &mut self.table.deliveries);
        let told = Told::by_grant(request.hold);
        deliveries.told(|| HoldId::new(key, &request.owner), told);
        Ok(Some(token))
    }

    /// Whether one holder more could have the lock.
    pub(super) fn admits(&self, limit: Limit) -> bool {
        self.has_room() && self.lock.admits(limit)
    }

    fn has_room(&self) -> bool {
        self.lock.holders().len() < self.table.settings.max_holders
    }

    /// Returns with the token how many holds the owner had before. What is withheld is
    /// bound to a connection when it is told.
    pub(super) fn grant(
        &mut self,
        request: &AcquireRequest,
        in_turn: bool,
        is_withheld: bool,
    ) -> Result<Option<(FencingToken, i64)>, LockError> {
        let held_before = self.holds_of(&request.owner);
        let in_turn = in_turn && self.has_room();
        let (tokens, effects) = (&mut self.table.tokens, &mut self.step.effects);
        let granted = self
            .lock
            .acquire(request, in_turn, self.now, tokens, effects)?;
        let Some(token) = granted else {
            return Ok(None);
        };
        if held_before == 0 {
            self.step.events.push(LockEvent::Acquired);
        }
        let (owner, lease, now_ms) = (&request.owner, request.lease, self.now.ms());
        let bound = self.binding_to_count(owner);
        let sessions = &mut self.table.sessions;
        if let Some(client) = request.session {
            let old = sessions.binding_of(self.key, owner);
            let is_other = old.as_ref().is_some_and(|old| old.token != token);
            // A lease of it ended before anybody noticed.
            let unnoticed =
                old.filter(|old| is_other && old.is_claimed && old.kept_until_ms <= now_ms);
            let clients = unnoticed.into_iter().flat_map(|old| old.clients);
            let clients = clients.filter(|other| *other != client);
            self.table.to_close.extend(clients);
            if is_other {
                sessions.unbind(self.key, owner);
            }
            if !is_withheld {
                let hold = HoldId::new(self.key, owner);
                sessions.bind(hold, client, token, lease, now_ms, held_before > 0);
            }
        }
        if request.session.is_none() || is_withheld {
            let sessions = &mut self.table.sessions;
            sessions.last_until(self.key, owner, token, lease.end_ms(now_ms));
        }
        self.count_when_acknowledged(owner, bound);
        Ok(Some((token, held_before)))
    }

    /// Notes that the grant of this request is on its way.
    pub(super) fn send(
        &mut self,
        request: &AcquireRequest,
        token: FencingToken,
        delivery: Delivery,
        held_before: i64,
    ) {
        let (hold, holds) = (self.hold_of(&request.owner), self.holds_of(&request.owner));
        let (deliveries, told) = (&mut self.table.deliveries, Told::by_grant(request.hold));
        deliveries.send(hold, token, delivery, told, held_before, holds);
    }

    /// Takes the lock for who asks, after all who come first, or a position behind them.
    pub(super) fn acquire(
        &mut self,
        mut request: AcquireRequest,
        wait: Option<Wait>,
    ) -> Result<Acquired, LockError> {
        let waits = wait.is_some();
        self.note_own_place(&request, wait.as_ref());
        // The lock may have come free a moment ago. Whoever queued comes first.
        let own_place = self.hand_off();
        let of_place = own_place.as_ref().and_then(|place| place.request.session);
        if self.withholds().is_some() {
            request.session = request.session.or(of_place);
        }
        let is_its_place = own_place.is_some();
        let in_turn = is_its_place || self.is_next_in_line();
        let granted = match self.try_grant(&request, waits, in_turn) {
            Ok(granted) => granted,
            Err(error) => {
                if let Some(place) = own_place {
                    let answer = Answer::Refused(error.clone());
                    self.step.answers.push((place.addressee(), answer));
                }
                return Err(error);
            }
        };
        if let Some(token) = granted {
            if let Some(place) = own_place {
                if !wait.is_some_and(|wait| wait.is_for_place()) {
                    self.tell_with_reply(place, &request, token);
                }
                if let Some(of_place) = of_place
                    && self.step.withheld.is_none()
                {
                    self.tie_place(of_place, &request, token);
                }
                self.serve_requests_of(&request.owner);
                self.hand_off();
            }
            return Ok(Acquired::Granted(token));
        }
        let Some(wait) = wait else {
            return Ok(Acquired::Busy);
        };
        // A place is for a first hold, also where nothing is granted yet.
        if wait.is_for_place() {
            holds_after_acquire(&request, self.holds_of(&request.owner))?;
        }
        self.enqueue(request, wait).map(Acquired::Queued)
    }

    /// Ties the holds of a request that its place has been granted to the session that the
    /// place asked for.
    fn tie_place(&mut self, of_place: ClientId, request: &AcquireRequest, token: FencingToken) {
        for client in [of_place].into_iter().chain(request.session) {
            let (hold, lease) = (self.hold_of(&request.owner), request.lease);
            let (sessions, now_ms) = (&mut self.table.sessions, self.now.ms());
            sessions.bind(hold, client, token, lease, now_ms, false);
        }
        if request.session.is_none() {
            self.told(&request.owner);
        }
    }

    /// Hands the lock off, and is done with this.
    pub(super) fn hand_off_and_finish<T>(mut self, result: Result<T, LockError>) -> Done<T> {
        self.hand_off();
        self.finish(result)
    }

    /// Serves everyone in the queue who may have the lock as it is now: whoever
    /// asked as one of its holders, and as many from the front as it admits. Returns the
    /// place of who asks, taken from the queue, if it comes first.
    pub(super) fn hand_off(&mut self) -> Option<Waiter> {
        let reentering = self.table.queues.reentering(self.key)?;
        if !self.table.settings.grants() {
            return None;
        }
        #[cfg(feature = "planted-faults")]
        if Fault::HandOffSkipped.planted() {
            return None;
        }
        let reentering = reentering.cloned();
        let mut are_served = true;
        for owner in reentering.into_iter().chain(self.unserved_holders()) {
            if self.has_done_enough() {
                // The next step looks for the others again.
                are_served = false;
                break;
            }
            self.serve_requests_of(&owner);
        }
        // All whom this step grants the lock have their requests served with it.
        self.are_holders_served |= are_served;
        while !self.has_done_enough()
            && let Some(first) = self.first_admitted()
        {
            let (id, owner) = (first.id, first.request.owner.clone());
            // Where its hold does not fit any more, it is told so and of no token.
            let is_place = first.is_place() && holds_after_acquire(&first.request, 0).is_ok();
            let is_said_first = is_place && self.table.settings.acks.is_none();
            self.end_of(&owner);
            if self.own_place == Some(id) && self.can_be_told() {
                self.own_place = None;
                return self.table.remove_waiter(self.key, id);
            }
            if is_said_first
                && self.lock.holder(&owner).is_none()
                && let Some(token) = self.next_token()
            {
                self.say_and_serve(id, token);
                continue;
            }
            self.serve_first(id, false);
            #[cfg(feature = "planted-faults")]
            if Fault::OneReaderOnly.planted() {
                break;
            }
        }
        self.end_places_in_front();
        None
    }

    /// The token of the next grant.
    fn next_token(&self) -> Option<FencingToken> {
        let mut tokens = self.table.tokens.clone();
        tokens.next(self.now.us, self.lock.last_token()).ok()
    }

    /// Has a place told that it is granted the lock. If nobody hears that, nothing is
    /// granted, and the place is gone.
    fn say_and_serve(&mut self, id: WaiterId, token: FencingToken) {
        let waiter = self.table.queues.waiter(self.key, id);
        let Some(Addressee::Place(mut place)) = waiter.map(Waiter::addressee) else {
            return;
        };
        place.first_lease = self.first_lease(place.first_lease);
        let Said { heard, weight } = self.world.say(&place, token);
        self.step.offers += weight;
        #[cfg(feature = "planted-faults")]
        let heard = heard || Fault::GrantUnheard.planted();
        if heard {
            self.serve_first(id, true);
        } else {
            self.unheard += weight;
            self.place_unheard(id);
        }
    }

    /// Serves the first in line, and other requests of its owner. It may have been told
    /// already.
    pub(super) fn serve_first(&mut self, id: WaiterId, is_told: bool) {
        if let Some(waiter) = self.table.remove_waiter(self.key, id) {
            let owner = waiter.request.owner.clone();
            self.serve(waiter, is_told);
            self.serve_requests_of(&owner);
        }
    }

    /// The first in line. Places that are over are passed over, as far as there is time.
    pub(super) fn first_in_line(&mut self) -> Option<&Waiter> {
        #[cfg(feature = "planted-faults")]
        if Fault::PlaceOutlived.planted() {
            return self.table.queues.first(self.key);
        }
        let at_most = PASSED_A_STEP.saturating_sub(self.step.passed);
        let queues = &mut self.table.queues;
        let (passed, first) = queues.pass_over(self.key, self.now.steady_ms, at_most);
        self.step.passed += passed;
        first
    }

    /// The first in line, if the lock has room for it.
    fn first_admitted(&mut self) -> Option<&Waiter> {
        // Where it has none for a reader, it has none for anybody.
        if !self.admits(Limit::SHARED) {
            return None;
        }
        let first = self.first_in_line()?;
        let (id, limit) = (first.id, first.request.limit);
        #[cfg(feature = "planted-faults")]
        let limit = Fault::NewcomersLimitIgnored.instead(limit, || Limit::SHARED);
        let is_admitted = self.admits(limit);
        is_admitted.then(|| self.table.queues.waiter(self.key, id))?
    }

    /// Ends places in front that are over, as far as there is time for it. Nobody waits
    /// for them.
    fn end_places_in_front(&mut self) {
        #[cfg(feature = "planted-faults")]
        if Fault::PlaceOutlived.planted() || Fault::WaiterKept.planted() {
            return;
        }
        while !self.has_done_enough()
            && let Some(first) = self.table.queues.first(self.key)
            && self.table.queues.is_over(first, self.now.steady_ms)
        {
            self.end_place(first.id);
        }
    }

    /// Whether others are to have their turn.
    pub(super) fn has_done_enough(&self) -> bool {
        self.step.answers.len() + self.withheld >= grants_a_step()
            || self.unheard >= unheard_a_step()
            || self.step.passed >= PASSED_A_STEP
    }

    /// Holders that may have requests in the queue. A step of this table leaves none,
    /// but the lock may have been taken by other means.
    pub(super) fn unserved_holders(&self) -> SmallVec<[Owner; 1]> {
        let holders = self.lock.holders();
        if self.are_holders_served {
            return SmallVec::new();
        }
        if holders.len() <= few() || holders.len() <= self.table.queues.length(self.key) {
            return holders.iter().map(|holder| holder.owner.clone()).collect();
        }
        let waiting = self.table.queues.owners(self.key);
        let is_holder = |owner: &&Owner| self.lock.holder(owner).is_some();
        waiting.filter(is_holder).cloned().collect()
    }

    /// Serves the waiting requests of an owner that may hold the lock.
    pub(super) fn serve_requests_of(&mut self, owner: &Owner) {
        self.end_of(owner);
        // The queue is asked first: it knows its owners, the lock looks for them.
        while let Some(id) = self.table.queues.first_id_of(self.key, owner)
            && self.lock.holder(owner).is_some()
        {
            if self.has_done_enough() {
                let owner = Some(owner.clone());
                self.table.queues.set_reentering(self.key, owner);
                return;
            }
            let waiter = self.table.queues.waiter(self.key, id);
            if waiter.is_some_and(|waiter| self.table.queues.is_over(waiter, self.now.steady_ms)) {
                self.end_place(id);
            } else if let Some(waiter) = self.table.remove_waiter(self.key, id) {
                self.serve(waiter, false);
            }
        }
        if self.table.queues.reentering(self.key) == Some(Some(owner)) {
            self.table.queues.set_reentering(self.key, None);
        }
    }

    fn serve(&mut self, mut waiter: Waiter, is_told: bool) {
        // It may have been set while this one waited.
        let max_lease = self.table.settings.max_lease;
        waiter.request.lease = waiter.request.lease.min(max_lease);
        #[cfg(feature = "planted-faults")]
        let mut waiter = waiter.with_lease_from_enqueue(self.now.ms());
        if waiter.is_place() {
            waiter.request = self.as_unclaimed(&waiter.request);
        }
        let request = &waiter.request;
        let is_withheld = self.withholds_hand_offs();
        let bound = self.table.sessions.binding_of(self.key, &request.owner);
        let answer = match self.grant(request, true, is_withheld) {
            Ok(Some((token, held_before))) => {
                let metrics = &mut self.table.metrics;
                metrics.grants_after_wait += 1;
                metrics.hand_offs += u64::from(held_before == 0);
                metrics.waits.add(self.now.us - waiter.since_us);
                if !waiter.is_place() && self.table.claims.is_open(token) {
                    // It is claimed as soon as this one is told.
                    self.table
                        .sessions
                        .leave_unclaimed(self.key, &request.owner);
                }
                if waiter.is_place() && held_before == 0 {
                    // It can be claimed until the server takes it for over.
                    let until_ms = request.lease.end_ms(self.now.ms());
                    let over_ms = until_ms.saturating_add(1);
                    self.table.claims.open(token, over_ms);
                    self.table
                        .sessions
                        .leave_unclaimed(self.key, &request.owner);
                }
                if request.session.is_none() && !is_withheld {
                    let (sessions, told) = (&mut self.table.sessions, Some(waiter.client));
                    sessions.told_by(self.key, &request.owner, Some(token), told);
                }
                if is_told {
                    self.withheld += 1;
                    return;
                }
                if is_withheld {
                    self.withhold_grant(waiter.addressee(), request, token, held_before);
                    self.withheld += 1;
                    return;
                }
                if waiter.is_place() {
                    // It speaks for a hold that another reply may fail to tell of.
                    let told = Told::at_least(1);
                    let (key, owner) = (self.key, &request.owner);
                    self.table.deliveries.told(|| HoldId::new(key, owner), told);
                } else {
                    let was_tied = bound.is_some_and(|bound| {
                        bound.token == token && bound.clients.contains(&waiter.client)
                    });
                    let delivery = Delivery {
                        recipient: waiter.client.into(),
                        ties: request.session.is_some() && !was_tied,
                    };
                    self.send(request, token, delivery, held_before);
                }
                Answer::Granted(token)
            }
            // Nothing keeps it from a grant but a planted fault.
            Ok(None) => Answer::NotGranted,
            Err(error) => {
                self.table.metrics.waits_refused += 1;
                Answer::Refused(error)
            }
        };
        self.step.answers.push((waiter.addressee(), answer));
    }
}
