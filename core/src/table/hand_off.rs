//! Grants: to the client that asks, and to waiters.

use smallvec::SmallVec;

use super::transition::Transition;
use super::{Acquired, Answer, LockEvent};
use crate::bounds::{GRANTS_A_STEP, PASSED_A_STEP, UNHEARD_A_STEP, bound};
use crate::error::LockError;
use crate::outbox::Out;
#[cfg(feature = "planted-faults")]
use crate::planted::Fault;
use crate::queue::{Addressee, Wait, Waiter, WaiterId};
use crate::request::{AcquireRequest, HoldNumber, Limit, Owner};
use crate::sessions::{HoldId, SessionToBe};
use crate::token::FencingToken;

/// A grant of this step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub(super) token: FencingToken,
    /// How many holds the owner had before and was told of.
    before: i64,
    /// Whether it held the lock before, told or not.
    was_held: bool,
}

impl Transition<'_> {
    /// Grants the lock to a newcomer, or one hold more of it to a holder, if that
    /// is possible now.
    pub(super) fn try_grant(
        &mut self,
        request: &AcquireRequest,
        wait: Option<&Wait>,
        in_turn: bool,
    ) -> Result<Option<FencingToken>, LockError> {
        let may_grant = self.table.settings.may_grant;
        #[cfg(feature = "planted-faults")]
        let may_grant = may_grant
            || Fault::ReentryInGrace.planted() && self.lock.holder(&request.owner).is_some();
        if !may_grant {
            return Ok(None);
        }
        if let Err(why) = self.can_be_told() {
            // A holder never waits, so nothing else could be told to it later.
            let is_holder = self.lock.holder(&request.owner).is_some();
            return match is_holder || wait.is_none() && in_turn && self.admits(request.limit) {
                true => Err(why),
                false => Ok(None),
            };
        }
        let earlier = self.untold_grant(&request.owner);
        let before = earlier.map(|(_, before)| before);
        let Some(grant) = self.grant(request, in_turn, before)? else {
            return Ok(None);
        };
        if let Some((id, _)) = earlier
            && let Some(out) = self.table.take_out_of_box(id)
        {
            self.supersede(out.to, wait);
        }
        let token = grant.token;
        if grant.was_held {
            self.table.metrics.reentries += 1;
            self.table
                .claim(self.key, &request.owner, token, self.now.ms());
        } else {
            self.table.metrics.grants_immediate += 1;
        }
        if let Some(client) = self.withholds() {
            let id = self.table.queues.new_id();
            let hold = self.hold_of(&request.owner);
            let out = self.out(Addressee::Blocked(id, client), hold, request, grant);
            self.withhold(out);
            self.step.withheld = Some(id);
            return Ok(Some(token));
        }
        // A confirmation may write nothing, and its client may `WAIT` for replicas.
        self.step.stream_goes_on = true;
        match self.session_of(request) {
            Some(session) => {
                let hold = self.hold_of(&request.owner);
                let sessions = &mut self.table.sessions;
                sessions.bind(hold, session, token, grant.before > 0);
            }
            None => self.told(&request.owner),
        }
        Ok(Some(token))
    }

    /// The owner's grant that is not told yet, and how many holds the owner had before. A
    /// grant that is in an output buffer counts as told.
    pub(super) fn untold_grant(&mut self, owner: &Owner) -> Option<(WaiterId, i64)> {
        if self.table.outbox.is_empty() {
            return None;
        }
        let out = self.table.outbox.grant_of(&self.hold_of(owner))?;
        let id = out.to.id();
        if out.is_said {
            self.table.grant_told(id, true, self.now.ms());
            return None;
        }
        let before = out.before?;
        let token = self.lock.holder(owner).and_then(|holder| holder.token);
        // With another token stored, or none, the hold of this grant is over.
        let before = match token == Some(out.token) {
            true => before,
            false => self.holds_of(owner),
        };
        Some((id, before))
    }

    /// A later request takes over this wait, or this grant that is not told yet. Its
    /// client or place is told so, but not a place on the later request's own channel.
    pub(super) fn supersede(&mut self, to: Addressee, later: Option<&Wait>) {
        let channel = later.and_then(|wait| wait.channel.as_ref());
        if let Addressee::Place(place) = &to
            && Some(&place.channel) == channel
        {
            return;
        }
        self.table.metrics.superseded += 1;
        let answer = Answer::Refused(LockError::Superseded);
        self.step.answers.push((to, answer));
    }

    /// Whether the lock has room for one more holder with this limit.
    pub(super) fn admits(&self, limit: Limit) -> bool {
        self.has_room() && self.lock.admits(limit)
    }

    fn has_room(&self) -> bool {
        self.lock.holders().len() < self.table.settings.max_holders
    }

    /// Grants the lock, or one hold more of it, if that is possible. `before` is the hold
    /// count that the owner knows of, where a grant to it is not told yet.
    fn grant(
        &mut self,
        request: &AcquireRequest,
        in_turn: bool,
        before: Option<i64>,
    ) -> Result<Option<Grant>, LockError> {
        let held = self.holds_of(&request.owner);
        let in_turn = in_turn && self.has_room();
        let (tokens, effects) = (&mut self.table.tokens, &mut self.step.effects);
        let lock = &mut *self.lock;
        let granted = lock.acquire(request, before, in_turn, self.now, tokens, effects)?;
        let Some(token) = granted else {
            return Ok(None);
        };
        if held == 0 {
            self.step.events.push(LockEvent::Acquired);
        }
        let (owner, asker, sessions) = (&request.owner, request.session, &mut self.table.sessions);
        for (hold, old) in sessions.of_lock(self.key) {
            let held = || self.lock.holder(&hold.owner)?.token;
            let is_over = old.is_claimed && old.kept_until_ms <= self.now.ms();
            if is_over && held() != Some(old.token) {
                // Its lease ended before anybody noticed. Its client is to hear of that first.
                let others = old.clients.iter().filter(|it| Some(**it) != asker);
                self.table.to_close.extend(others);
            }
        }
        let old = asker.and_then(|_| sessions.binding_of(self.key, owner));
        if old.is_some_and(|old| old.token != token) {
            sessions.unbind(self.key, owner);
        }
        self.lease_counts(owner, token, None);
        Ok(Some(Grant {
            token,
            before: before.unwrap_or(held),
            was_held: held > 0,
        }))
    }

    /// What is to be told of a grant.
    fn out(&self, to: Addressee, hold: HoldId, request: &AcquireRequest, grant: Grant) -> Out {
        Out {
            to,
            hold,
            token: grant.token,
            holds: self.holds_of(&request.owner),
            before: Some(grant.before),
            session: self.session_of(request),
            is_said: false,
            withheld: None,
        }
    }

    /// The session that begins with a grant, if the request asks for one.
    fn session_of(&self, request: &AcquireRequest) -> Option<SessionToBe> {
        let lease = request.lease;
        request.session.map(|client| SessionToBe {
            client,
            lease,
            end_ms: lease.end_ms(self.now.ms()),
        })
    }

    /// Serves the waiters that come first. Then grants the asker the lock, or one hold
    /// more of it, or else queues the request if it may wait.
    pub fn acquire(
        &mut self,
        request: AcquireRequest,
        wait: Option<Wait>,
    ) -> Result<Acquired, LockError> {
        self.find_earlier(&request, wait.as_ref());
        // The lock may have come free a moment ago. Waiters come first.
        let is_its_turn = self.hand_off();
        let in_turn = is_its_turn || self.is_next_in_line(&request.owner);
        #[cfg(feature = "planted-faults")]
        let in_turn = in_turn || self.earlier.is_some() && Fault::FrontPassed.planted();
        if let Some(token) = self.try_grant(&request, wait.as_ref(), in_turn)? {
            let earlier = self.earlier.take();
            #[cfg(feature = "planted-faults")]
            let earlier = earlier.filter(|_| !Fault::EarlierServed.planted());
            if let Some((id, _)) = earlier
                && let Some(earlier) = self.table.remove_waiter(id)
            {
                self.supersede(earlier.addressee(), wait.as_ref());
            }
            return Ok(Acquired::Granted(token));
        }
        let Some(wait) = wait else {
            return Ok(Acquired::Busy);
        };
        // A place is for a first hold, also where nothing is granted yet.
        if wait.is_for_place() {
            request.holds_after(self.holds_of(&request.owner))?;
        }
        let id = self.enqueue(request, wait)?;
        self.has_queued = true;
        Ok(Acquired::Queued(id))
    }

    /// Serves every waiter that may have the lock now: holders that wait as well, and as
    /// many from the front as the lock admits. Returns true if it stopped at the asker's
    /// earlier request, whose position the asker takes over: then it is the asker's turn.
    pub(super) fn hand_off(&mut self) -> bool {
        if !self.table.queues.contended(self.key) || !self.table.settings.grants() {
            return false;
        }
        #[cfg(feature = "planted-faults")]
        if Fault::HandOffSkipped.planted() {
            return false;
        }
        for owner in self.waiting_holders() {
            // The next step looks for the others again.
            if self.has_done_enough() {
                break;
            }
            self.serve_holder(&owner);
        }
        while !self.has_done_enough()
            && let Some(first) = self.first_admitted()
        {
            let (id, owner) = (first.id, first.request.owner.clone());
            // If its `HOLD` does not fit any more, it is told that error, and no token before.
            let is_place = first.is_place() && first.request.holds_after(0).is_ok();
            let is_said_first = is_place && self.table.settings.acks.is_none();
            if let Some((earlier, is_same)) = self.earlier
                && earlier == id
            {
                let is_decided_first = is_same || self.lock.holder(&owner).is_some();
                if is_decided_first && self.can_be_told().is_ok() {
                    return is_same;
                }
                self.earlier = None;
            }
            if is_said_first
                && self.lock.holder(&owner).is_none()
                && let Some(token) = self.next_token()
            {
                self.say_and_serve(id, token);
                continue;
            }
            self.serve_waiter(id, false);
            #[cfg(feature = "planted-faults")]
            if Fault::OneReaderOnly.planted() {
                break;
            }
        }
        self.end_places_in_front();
        false
    }

    /// The token of the next grant.
    fn next_token(&self) -> Option<FencingToken> {
        let mut tokens = self.table.tokens.clone();
        tokens.next(self.now.us, self.lock.last_token).ok()
    }

    /// Publishes to a place that it is granted the lock. If nobody hears that, nothing is
    /// granted, and the place is gone.
    fn say_and_serve(&mut self, id: WaiterId, token: FencingToken) {
        let waiter = self.table.queues.waiter(id);
        let Some(mut place) = waiter.and_then(Waiter::place) else {
            return;
        };
        place.first_lease = self.first_lease(place.first_lease);
        let heard = self.world.say(&place, token);
        #[cfg(feature = "planted-faults")]
        let heard = heard || Fault::GrantUnheard.planted();
        if heard {
            self.serve_waiter(id, true);
        } else {
            self.unheard += 1;
            self.place_unheard(id);
        }
    }

    /// Takes a waiter and serves it. `is_told` says whether it was told of the grant already.
    fn serve_waiter(&mut self, id: WaiterId, is_told: bool) {
        if let Some(waiter) = self.table.remove_waiter(id) {
            self.serve(waiter, is_told);
        }
    }

    /// The first in line.
    pub(super) fn first_in_line(&mut self) -> Option<&Waiter> {
        self.end_places_in_front();
        self.table.queues.first(self.key)
    }

    /// The first in line, if the lock has room for it.
    fn first_admitted(&mut self) -> Option<&Waiter> {
        // If there is no room for a reader, there is none for anybody.
        if !self.admits(Limit::SHARED) {
            return None;
        }
        let first = self.first_in_line()?;
        let (id, limit) = (first.id, first.request.limit);
        #[cfg(feature = "planted-faults")]
        let limit = Fault::NewcomersLimitIgnored.instead(limit, || Limit::SHARED);
        let is_admitted = !self.has_done_enough() && self.admits(limit);
        is_admitted.then(|| self.table.queues.waiter(id))?
    }

    /// Ends places in front that are over, as far as there is time for it. Their owners are
    /// told so later.
    fn end_places_in_front(&mut self) {
        #[cfg(feature = "planted-faults")]
        if Fault::PlaceOutlived.planted() || Fault::WaiterKept.planted() {
            return;
        }
        while self.passed < PASSED_A_STEP
            && let Some(first) = self.table.queues.first(self.key)
            && self.table.is_over(first, self.now.steady_ms)
        {
            let (id, end) = (first.id, self.why_it_ends(first.id));
            self.table.leave_untold(id, end, self.now.ms());
            self.passed += 1;
        }
    }

    /// Whether this step has done so much that other locks and clients have their turn.
    pub(super) fn has_done_enough(&self) -> bool {
        self.step.answers.len() + self.withheld >= bound(GRANTS_A_STEP)
            || self.unheard >= bound(UNHEARD_A_STEP)
            || self.passed >= PASSED_A_STEP
    }

    /// Holders that wait as well. A lock may be taken by other means than a step while its
    /// new holder waits, and a holder that asks again has to wait while nothing is granted.
    fn waiting_holders(&self) -> SmallVec<[Owner; 1]> {
        let holders = self.lock.holders();
        if holders.len() <= self.table.queues.length(self.key) {
            let owners = holders.iter().map(|holder| &holder.owner);
            let waits = |owner: &&Owner| self.table.queues.waiter_of(self.key, owner).is_some();
            return owners.filter(waits).cloned().collect();
        }
        let waiting = self.table.queues.waiters(self.key);
        let waiting = waiting.map(|waiter| &waiter.request.owner);
        let is_holder = |owner: &&Owner| self.lock.holder(owner).is_some();
        waiting.filter(is_holder).cloned().collect()
    }

    /// Serves the waiting request of an owner that may hold the lock.
    fn serve_holder(&mut self, owner: &Owner) {
        let Some(waiter) = self.table.queues.waiter_of(self.key, owner) else {
            return;
        };
        let id = waiter.id;
        let is_askers = self.earlier.is_some_and(|(earlier, _)| earlier == id);
        if is_askers || self.lock.holder(owner).is_none() {
            return;
        }
        if self.table.is_over(waiter, self.now.steady_ms) {
            self.end_wait(id);
        } else {
            self.serve_waiter(id, false);
        }
    }

    fn serve(&mut self, mut waiter: Waiter, is_told: bool) {
        // The setting may have changed while this one waited.
        let max_lease = self.table.settings.max_lease;
        waiter.request.lease = waiter.request.lease.min(max_lease);
        #[cfg(feature = "planted-faults")]
        let mut waiter = waiter.with_lease_from_enqueue(self.now.ms());
        let is_place = waiter.is_place();
        let held = self.holds_of(&waiter.request.owner);
        if held > 0 && (is_place || waiter.request.hold.is_none()) {
            // Its owner has got the lock by other means. This grant adds no hold.
            waiter.request.hold = HoldNumber::new(held).ok();
        }
        if is_place {
            waiter.request.lease = self.first_lease(waiter.request.lease);
        }
        let request = &waiter.request;
        let answer = match self.grant(request, true, None) {
            Ok(Some(grant)) => {
                let (token, metrics) = (grant.token, &mut self.table.metrics);
                metrics.grants_after_wait += 1;
                metrics.hand_offs += u64::from(!grant.was_held);
                metrics.waits.add(self.now.us - waiter.since_us);
                if is_place && !grant.was_held {
                    // A lease is over 1 ms after its end: it can be claimed until then.
                    let until_ms = request.lease.end_ms(self.now.ms());
                    let over_ms = until_ms.saturating_add(1);
                    self.table.unclaimed.insert(token, over_ms);
                }
                let hold = HoldId::new(waiter.key.clone(), &request.owner);
                let out = self.out(waiter.addressee(), hold, request, grant);
                if is_told {
                    self.withheld += 1;
                    self.table.told(out, self.now.ms());
                    return;
                }
                if self.withholds_hand_offs() {
                    self.withheld += 1;
                    self.withhold(out);
                    return;
                }
                self.table.outbox.send(out);
                Answer::Granted(token)
            }
            // Only a planted fault keeps a waiter in turn from its grant.
            Ok(None) => Answer::NotGranted,
            Err(error) => {
                self.table.metrics.waits_refused += 1;
                Answer::Refused(error)
            }
        };
        self.step.answers.push((waiter.addressee(), answer));
    }
}
