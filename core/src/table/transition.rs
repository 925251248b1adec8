//! One change of one lock, from what was read to what is to be done.

use smallvec::SmallVec;

use super::{
    Acquired, Answer, Done, LockEvent, LockTable, LogLine, Progress, Question, Step, Stored, Then,
    Unchecked,
};
use crate::bounds::{ends_a_step, few, grants_a_step, search_a_step};
use crate::deadlock::{Certain, Found, Graph, Search, WaitEdge, WaitFor};
use crate::deliveries::{Delivery, Told};
use crate::ended::{Ended, EndedBy};
use crate::error::LockError;
use crate::keys::KeyRef;
use crate::lock::{Holder, Lock, Now, Released};
#[cfg(feature = "planted-faults")]
use crate::planted::Fault;
use crate::queue::{Wait, Waiter, WaiterId};
use crate::request::{AcquireRequest, Owner, ReleaseRequest, RenewRequest};
use crate::sessions::HoldId;
use crate::token::FencingToken;

/// So many slow waits are logged in one step, each with so many holders.
const LOG_LINES_A_STEP: usize = 8;

/// One change of one lock.
pub(super) struct Transition<'t> {
    pub(super) table: &'t mut LockTable,
    pub(super) key: KeyRef<'t>,
    pub(super) now: Now,
    pub(super) lock: Lock,
    /// Owners that have begun to hold the lock, or that hold it no more.
    pub(super) changed: SmallVec<[Owner; 2]>,
    /// The lock was read, and so may have holders of which nothing was known.
    pub(super) is_read: bool,
    /// The next step has to read the lock as well.
    pub(super) is_to_be_read: bool,
    /// How many waiters were granted the lock and not told so yet.
    pub(super) withheld: usize,
    pub(super) step: Step,
    #[cfg(feature = "planted-faults")]
    pub(super) noted_before: Option<Lock>,
}

/// What a search for deadlocks says of a wait.
pub(super) enum Verdict {
    /// It closes no cycle.
    Free,
    /// It closes this one.
    Deadlock(Vec<WaitEdge>),
    /// It closes this one, if some locks are still what is remembered of them.
    Perhaps(Search, Vec<WaitEdge>),
    /// The search has begun, and takes long.
    Unfinished(Search),
}

impl<'t> Transition<'t> {
    /// Ends what is over. `asker` is the owner in question, if there is one.
    #[inline]
    pub(super) fn begin(
        table: &'t mut LockTable,
        key: KeyRef<'t>,
        stored: Stored,
        asker: Option<&Owner>,
        now: Now,
    ) -> Self {
        let before = table.remembered.take(key);
        let mut transition = Self {
            table,
            key,
            now,
            lock: Lock::default(),
            changed: SmallVec::new(),
            is_read: false,
            is_to_be_read: false,
            withheld: 0,
            step: Step::default(),
            #[cfg(feature = "planted-faults")]
            noted_before: before.as_ref().map(|(lock, _)| lock.clone()),
        };
        match stored {
            Stored::AsExpected => {
                transition.lock = before.map(|(lock, _)| lock).unwrap_or_default();
            }
            Stored::Read(lock) => {
                transition.lock = lock;
                transition.is_read = true;
                if let Some((before, was_touched)) = before {
                    transition.compare(&before, was_touched);
                }
            }
        }
        transition.expire_leases(asker);
        transition.end_what_is_over(asker);
        transition
    }

    /// Counts the holders that are gone since the last step, and sees to it that new
    /// ones that wait themselves are searched for deadlocks. Where somebody else wrote
    /// to the key, a holder of before may be one anew.
    fn compare(&mut self, before: &Lock, was_touched: bool) {
        for gone in before.holders() {
            if self.lock.holder(&gone.owner).is_some() {
                continue;
            }
            let is_contended = self.table.queues.contended(self.key);
            let is_over = |end_ms| end_ms <= self.now.ms();
            if is_contended && gone.lease_end_ms.is_some_and(is_over) {
                self.count_expired(gone.owner.clone());
            } else {
                self.changed.push(gone.owner.clone());
                self.table.metrics.releases_deleted += u64::from(is_contended);
            }
        }
        let new: SmallVec<[Owner; 2]> = self
            .lock
            .holders()
            .iter()
            .filter(|holder| was_touched || before.holder(&holder.owner).is_none())
            .map(|holder| holder.owner.clone())
            .collect();
        for owner in &new {
            self.table.check_waits_of(owner);
        }
        self.changed.extend(new);
    }

    fn expire_leases(&mut self, asker: Option<&Owner>) {
        if self.lock.is_exclusive() {
            // Its key ends with its lease.
            return;
        }
        let mut ended = asker.map_or(0, |asker| usize::from(self.expire_lease_of(asker)));
        while ended < ends_a_step()
            && let Some(owner) = self.lock.end_lease(self.now, &mut self.step.effects)
        {
            self.count_expired(owner);
            ended += 1;
        }
    }

    /// Ends this owner's lease, if that is over. Returns whether it was.
    fn expire_lease_of(&mut self, owner: &Owner) -> bool {
        let effects = &mut self.step.effects;
        let is_over = self.lock.end_lease_of(owner, self.now, effects);
        if is_over {
            self.count_expired(owner.clone());
        }
        is_over
    }

    fn count_expired(&mut self, owner: Owner) {
        self.changed.push(owner);
        self.table.metrics.releases_expired += 1;
        self.step.events.push(LockEvent::Expired);
    }

    fn end_what_is_over(&mut self, asker: Option<&Owner>) {
        let table = &mut *self.table;
        if table.sessions.any_ended() {
            if let Some(asker) = asker {
                table.end_binding(&HoldId::new(self.key, asker));
            }
            let holders = self.lock.holders().iter().map(|holder| &holder.owner);
            let ended = table.sessions.ended_on(self.key, holders, ends_a_step());
            for hold in ended {
                table.end_binding(&hold);
            }
        }
        self.end_noted();
    }

    /// Ends what is noted as over.
    fn end_noted(&mut self) {
        if self.table.ended.is_empty() {
            return;
        }
        for ended in self.table.ended.take(self.key) {
            self.end(&ended);
        }
    }

    /// Ends more of what is over than one step has to. Returns whether there was any.
    pub(super) fn end_more(&mut self) -> bool {
        let holders = self.lock.holders().len();
        self.expire_leases(None);
        self.end_what_is_over(None);
        self.lock.holders().len() < holders
    }

    /// Whether all leases of a lock that several may hold are over.
    pub(super) fn is_all_overdue(&self) -> bool {
        let last_ms = self.lock.last_lease_end_ms();
        !self.lock.is_exclusive() && last_ms.is_some_and(|end_ms| end_ms < self.now.ms())
    }

    /// Whether nobody waits in front of a newcomer.
    pub(super) fn is_next_in_line(&self) -> bool {
        !self.table.queues.contended(self.key)
    }

    /// Ends this owner's holds, if they are over and were not among those that this
    /// step ended: nobody is told of a hold that is over.
    fn end_of(&mut self, owner: &Owner) {
        self.expire_lease_of(owner);
        if !self.table.sessions.any_ended() {
            return;
        }
        self.table.end_binding(&self.hold_of(owner));
        self.end_noted();
    }

    fn end(&mut self, ended: &Ended) {
        let hold = self.hold_of(&ended.owner);
        let held = self.lock.holder(&ended.owner).cloned();
        let held = held.filter(|held| {
            let is_it = held.token == Some(ended.token);
            #[cfg(feature = "planted-faults")]
            let is_it =
                is_it || ended.by == EndedBy::Undelivered && Fault::TokenNotCompared.planted();
            is_it
        });
        let holds = held.as_ref().map_or(0, |held| held.holds);
        let left = self.table.deliveries.end(&hold, ended, holds);
        #[cfg(feature = "planted-faults")]
        let left = match &held {
            Some(held) if held.token != Some(ended.token) => held.holds - 1,
            _ => left,
        };
        let Some(held) = held else {
            return;
        };
        self.lock.leave(&ended.owner, left, &mut self.step.effects);
        if left == 0 {
            self.count_release(&held, Some(ended.by));
        }
    }

    /// Counts that an owner's last hold is over, and why: for no reason but that it
    /// gave it back, or because of this.
    fn count_release(&mut self, held: &Holder, ended_by: Option<EndedBy>) {
        self.step.freed = true;
        self.step.events.push(LockEvent::Released);
        self.changed.push(held.owner.clone());
        #[cfg(feature = "planted-faults")]
        let is_bound_on = Fault::BindingKept.planted();
        #[cfg(not(feature = "planted-faults"))]
        let is_bound_on = false;
        if !is_bound_on {
            self.table.sessions.unbind(self.key, &held.owner);
        }
        let metrics = &mut self.table.metrics;
        match ended_by {
            None => metrics.releases += 1,
            Some(EndedBy::Session) => metrics.releases_session += 1,
            Some(EndedBy::Undelivered) => metrics.grants_undelivered += 1,
        }
        // A token is the wall clock of its grant, as long as that runs forward.
        if let Some(token) = held.token {
            metrics.holds.add(self.now.us - token.get());
        }
        self.forget_deliveries(&held.owner);
    }

    fn forget_deliveries(&mut self, owner: &Owner) {
        let (key, deliveries) = (self.key, &mut self.table.deliveries);
        deliveries.ended(|| HoldId::new(key, owner));
    }

    pub(super) fn release(&mut self, request: &ReleaseRequest) -> Result<Released, LockError> {
        let held = self.lock.holder(&request.owner).cloned();
        let released = self.lock.release(request, &mut self.step.effects);
        if let Some(held) = held {
            match released {
                Ok(Released::LastHold) => self.count_release(&held, None),
                Ok(Released::StillHeld) => {
                    let left = self.holds_of(&request.owner);
                    let (key, deliveries) = (self.key, &mut self.table.deliveries);
                    let told = Told::by_release(request.extent);
                    deliveries.released(|| HoldId::new(key, &request.owner), told, left);
                }
                Ok(Released::NotHeld) => self.table.metrics.tokens_refused += 1,
                Err(_) => {}
            }
        }
        released
    }

    pub(super) fn break_holds(&mut self, token: Option<FencingToken>) -> bool {
        let last_token = self.lock.last_token();
        let holders = self.lock.holders().iter();
        let owners: SmallVec<[Owner; 2]> = holders.map(|holder| holder.owner.clone()).collect();
        let mut bound = self.table.sessions.bound_on(self.key);
        bound.retain(|hold| self.lock.holder(&hold.owner).is_some());
        let broken = self.lock.break_holds(token, &mut self.step.effects);
        if broken {
            self.step.freed = true;
            self.step.events.push(LockEvent::Broken);
            for owner in &owners {
                self.table.metrics.releases_broken += 1;
                self.forget_deliveries(owner);
            }
            self.table.sessions.unbind_all(&bound);
            self.changed.extend(owners);
        } else if !owners.is_empty() && token.is_some() && token != last_token {
            self.table.metrics.tokens_refused += 1;
        }
        broken
    }

    pub(super) fn renew(&mut self, request: &RenewRequest) -> Result<bool, LockError> {
        let (now, owner) = (self.now, &request.owner);
        let held = self.lock.holder(owner);
        let held = held.filter(|held| held.has_token(request.token));
        // A hold of Redisson's has no token by which it could be known again.
        let is_told = self.can_be_told()
            && held.is_none_or(|held| self.withholds().is_none() || held.token.is_some());
        if !is_told && held.is_some() {
            return Err(LockError::NoReplicas);
        }
        let renewed = self.lock.renew(request, now, &mut self.step.effects);
        let token = self.lock.holder(owner).map(|holder| holder.token);
        if !renewed {
            let names_another = request.token.is_some() && token.is_some();
            self.table.metrics.tokens_refused += u64::from(names_another);
            return Ok(false);
        }
        let token = token.flatten();
        let bound = self.binding_to_count(owner);
        if let Some(token) = token {
            let (sessions, lease) = (&mut self.table.sessions, request.lease);
            sessions.set_lease(self.key, owner, token, lease, now.ms());
        }
        self.count_when_acknowledged(owner, bound);
        match (self.withholds_renewals(), token) {
            (Some(client), Some(token)) => self.withhold_renewal(client, owner, token),
            _ => {
                let (key, deliveries) = (self.key, &mut self.table.deliveries);
                deliveries.told(|| HoldId::new(key, owner), Told::at_least(1));
            }
        }
        Ok(true)
    }

    /// Returns whether this owner holds the lock with this token.
    pub(super) fn guard(&mut self, owner: Option<&Owner>, token: FencingToken) -> bool {
        let held = owner.and_then(|owner| self.lock.holder(owner));
        let Some(held) = held.filter(|held| held.token == Some(token)) else {
            self.table.metrics.tokens_refused += 1;
            return false;
        };
        // Whoever names the token has been told of it.
        let (key, deliveries) = (self.key, &mut self.table.deliveries);
        deliveries.told(|| HoldId::new(key, &held.owner), Told::at_least(1));
        true
    }

    /// Grants the lock to a newcomer, or one hold more of it to a holder, if that
    /// is possible now.
    pub(super) fn try_grant(
        &mut self,
        request: &AcquireRequest,
        waits: bool,
    ) -> Result<Option<FencingToken>, LockError> {
        let may_grant = self.table.settings.may_grant;
        #[cfg(feature = "planted-faults")]
        let may_grant = may_grant
            || Fault::ReentryInGrace.planted() && self.lock.holder(&request.owner).is_some();
        if !may_grant {
            return Ok(None);
        }
        let in_turn = self.is_next_in_line();
        if !self.can_be_told() {
            // A holder never waits, so nothing else could be told to it later.
            let is_holder = self.lock.holder(&request.owner).is_some();
            return match is_holder || !waits && in_turn && self.lock.admits(request.limit) {
                true => Err(LockError::NoReplicas),
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
        }
        if let Some(client) = withheld_from {
            let id = self.table.queues.new_id();
            self.withhold_grant(id, client, request, token, held_before);
            self.step.withheld = Some(id);
            return Ok(Some(token));
        }
        let (key, deliveries) = (self.key, &mut self.table.deliveries);
        let told = Told::by_grant(request.hold);
        deliveries.told(|| HoldId::new(key, &request.owner), told);
        Ok(Some(token))
    }

    /// Returns with the token how many holds the owner had before. What is withheld is
    /// bound to a connection when it is told.
    fn grant(
        &mut self,
        request: &AcquireRequest,
        in_turn: bool,
        is_withheld: bool,
    ) -> Result<Option<(FencingToken, i64)>, LockError> {
        let held_before = self.holds_of(&request.owner);
        let (tokens, effects) = (&mut self.table.tokens, &mut self.step.effects);
        let granted = self
            .lock
            .acquire(request, in_turn, self.now, tokens, effects)?;
        let Some(token) = granted else {
            return Ok(None);
        };
        if held_before == 0 {
            self.step.events.push(LockEvent::Acquired);
            self.changed.push(request.owner.clone());
        }
        let (owner, lease, now_ms) = (&request.owner, request.lease, self.now.ms());
        let bound = self.binding_to_count(owner);
        let sessions = &mut self.table.sessions;
        if let Some(client) = request.session {
            let old = sessions.binding_of(self.key, owner);
            // A lease of it ended before anybody noticed.
            let unnoticed = old.filter(|old| {
                old.client != client && old.token != token && old.kept_until_ms <= now_ms
            });
            if !is_withheld {
                sessions.bind(self.key, owner, client, token, lease, now_ms);
            } else if old.is_some_and(|old| old.token != token) {
                sessions.unbind(self.key, owner);
            }
            self.table
                .to_close
                .extend(unnoticed.map(|binding| binding.client));
        }
        if request.session.is_none() || is_withheld {
            let sessions = &mut self.table.sessions;
            sessions.last_until(self.key, owner, token, lease.end_ms(now_ms));
        }
        self.count_when_acknowledged(owner, bound);
        Ok(Some((token, held_before)))
    }

    /// Notes that a grant to this owner is on its way.
    pub(super) fn send(
        &mut self,
        owner: &Owner,
        token: FencingToken,
        delivery: Delivery,
        held_before: i64,
    ) {
        let (hold, holds) = (self.hold_of(owner), self.holds_of(owner));
        let deliveries = &mut self.table.deliveries;
        deliveries.send(hold, token, delivery, held_before, holds);
    }

    pub(super) fn holds_of(&self, owner: &Owner) -> i64 {
        self.lock.holder(owner).map_or(0, |holder| holder.holds)
    }

    pub(super) fn hold_of(&self, owner: &Owner) -> HoldId {
        HoldId::new(self.key, owner)
    }

    /// Serves everyone in the queue who may have the lock as it is now: whoever
    /// asked as one of its holders, and as many from the front as it admits.
    pub(super) fn hand_off(&mut self) {
        if !self.table.queues.contended(self.key) {
            return;
        }
        if !self.table.settings.grants() {
            return;
        }
        #[cfg(feature = "planted-faults")]
        if Fault::HandOffSkipped.planted() {
            return;
        }
        let reentering = self.table.queues.reentering(self.key).cloned();
        for owner in reentering.into_iter().chain(self.unserved_holders()) {
            if self.has_granted_enough() {
                // The next step looks for the others again.
                self.is_to_be_read = true;
                break;
            }
            self.serve_requests_of(&owner);
        }
        while !self.has_granted_enough()
            && let Some(waiter) = self.take_first_admitted()
        {
            let owner = waiter.request.owner.clone();
            self.end_of(&owner);
            self.serve(waiter);
            self.serve_requests_of(&owner);
            #[cfg(feature = "planted-faults")]
            if Fault::OneReaderOnly.planted() {
                break;
            }
        }
    }

    fn take_first_admitted(&mut self) -> Option<Waiter> {
        let (lock, queues) = (&self.lock, &mut self.table.queues);
        queues.take_first_if(self.key, |first| {
            let limit = first.request.limit;
            #[cfg(feature = "planted-faults")]
            let limit =
                Fault::NewcomersLimitIgnored.instead(limit, || crate::request::Limit::SHARED);
            lock.admits(limit)
        })
    }

    fn has_granted_enough(&self) -> bool {
        self.step.answers.len() + self.withheld >= grants_a_step()
    }

    /// Holders that may have requests in the queue. A step of this table leaves none,
    /// but the lock may have been taken by other means.
    fn unserved_holders(&self) -> SmallVec<[Owner; 1]> {
        let holders = self.lock.holders();
        if !self.is_read {
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
    fn serve_requests_of(&mut self, owner: &Owner) {
        self.end_of(owner);
        // The queue is asked first: it knows its owners, the lock looks for them.
        while self.table.queues.first_id_of(self.key, owner).is_some()
            && self.lock.holder(owner).is_some()
        {
            if self.has_granted_enough() {
                let owner = Some(owner.clone());
                self.table.queues.set_reentering(self.key, owner);
                return;
            }
            if let Some(waiter) = self.table.queues.take_first_of(self.key, owner) {
                self.serve(waiter);
            }
        }
        if self.table.queues.reentering(self.key) == Some(owner) {
            self.table.queues.set_reentering(self.key, None);
        }
    }

    fn serve(&mut self, waiter: Waiter) {
        #[cfg(feature = "planted-faults")]
        let waiter = waiter.with_lease_from_enqueue(self.now);
        self.table.acks.is_answered(&waiter);
        let request = &waiter.request;
        let is_withheld = self.withholds_hand_offs();
        let bound = self.table.sessions.binding_of(self.key, &request.owner);
        let answer = match self.grant(request, true, is_withheld) {
            Ok(Some((token, held_before))) => {
                let metrics = &mut self.table.metrics;
                metrics.grants_after_wait += 1;
                metrics.hand_offs += u64::from(held_before == 0);
                metrics.waits.add(self.now.us - waiter.since_us);
                if held_before == 0 {
                    // A search that has begun may have passed here before.
                    self.table.check_waits_beside(self.key, &request.owner);
                }
                if is_withheld {
                    let (id, client) = (waiter.id, waiter.client);
                    self.withhold_grant(id, client, request, token, held_before);
                    self.withheld += 1;
                    return;
                }
                let bound = bound.filter(|binding| binding.token == token);
                let delivery = Delivery {
                    client: waiter.client,
                    hold: request.hold,
                    session: request.session.map(|_| request.lease),
                    bound_before: bound.map(|binding| binding.client),
                };
                self.send(&request.owner, token, delivery, held_before);
                Answer::Granted(token)
            }
            // Nothing keeps it from a grant but a planted fault.
            Ok(None) => Answer::NotGranted,
            Err(error) => {
                self.table.metrics.waits_refused += 1;
                self.table.check_next_of(self.key, &request.owner);
                Answer::Refused(error)
            }
        };
        self.step.answers.push((waiter.id, answer));
    }

    /// Puts a request at the end of the queue, unless its wait could never end.
    pub(super) fn enqueue(
        mut self,
        request: AcquireRequest,
        wait: Wait,
        queued: fn(WaiterId) -> Acquired,
    ) -> Progress<Acquired> {
        let owner = &request.owner;
        let holds = self.lock.holder(owner).is_some() || self.table.remembered.is_holder(owner);
        if !holds && !self.table.queues.waits(owner) {
            // Nobody can wait for it, so its wait closes no cycle.
            let id = self.push(request, wait);
            return self.done(id.map(queued));
        }
        let search = Search::new(WaitFor {
            owner: request.owner.clone(),
            key: self.key.into(),
            limit: request.limit,
            position: None,
        });
        let certain = Certain::new();
        let verdict = self.search(search, &certain);
        self.settle(verdict, certain, Then::Enqueue(request, wait, queued))
    }

    fn push(&mut self, request: AcquireRequest, wait: Wait) -> Result<WaiterId, LockError> {
        let (now_us, max) = (self.now.us, self.table.settings.max_waiters);
        let queues = &mut self.table.queues;
        let id = queues.push(self.key, request, wait, now_us, max);
        if let (Ok(id), Some(until_ms), Some(_)) = (&id, wait.until_ms, self.table.settings.acks) {
            self.table.acks.ends_by(*id, until_ms);
        }
        self.table.metrics.queues_full += u64::from(id.is_err());
        id
    }

    /// Searches on for a deadlock, for a wait that stands in the queue already.
    pub(super) fn check_wait<T>(mut self, unchecked: Unchecked, result: T) -> Progress<T> {
        // Who can have the lock now waits for nobody.
        self.hand_off();
        let Some(waiter) = self.table.queues.waiter(self.key, unchecked.id) else {
            return self.done(Ok(result));
        };
        let wait = WaitFor {
            owner: waiter.request.owner.clone(),
            key: self.key.into(),
            limit: waiter.request.limit,
            position: Some(unchecked.id),
        };
        let search = unchecked
            .search
            .map_or_else(|| Search::new(wait), |begun| *begun);
        let certain = Certain::new();
        let verdict = self.search(search, &certain);
        self.settle(verdict, certain, Then::Stay(unchecked.id, result))
    }

    /// Checks a cycle that was found before other locks were looked at. If it is none
    /// any more, searches from the beginning.
    pub(super) fn check_again(
        &mut self,
        search: Search,
        cycle: Vec<WaitEdge>,
        certain: &Certain,
    ) -> Verdict {
        if search.still_closes(self.graph(certain), &cycle) {
            Verdict::Deadlock(cycle)
        } else {
            self.search(search.anew(), certain)
        }
    }

    /// Goes by what the search finds.
    pub(super) fn settle<T>(
        mut self,
        verdict: Verdict,
        certain: Certain,
        then: Then<T>,
    ) -> Progress<T> {
        let is_queued = matches!(then, Then::Stay(..));
        let begun = match verdict {
            Verdict::Free => None,
            Verdict::Deadlock(cycle) => return self.refuse(cycle, then),
            Verdict::Perhaps(search, cycle) => {
                if is_queued || self.table.settings.reads_other_keys {
                    return self.ask(search, cycle, certain, then);
                }
                Some(search.anew())
            }
            Verdict::Unfinished(search) => Some(search),
        };
        let (id, result) = match then {
            Then::Stay(id, result) => (Ok(id), Ok(result)),
            Then::Enqueue(request, wait, queued) => {
                let id = self.push(request, wait);
                (id.clone(), id.map(queued))
            }
        };
        match (id, begun) {
            (Ok(id), Some(search)) if is_queued && search.is_begun() => {
                let search = Some(Box::new(search));
                self.table.unchecked.push_front(Unchecked { id, search });
            }
            (Ok(id), Some(_)) => {
                let search = None;
                self.table.unchecked.push_back(Unchecked { id, search });
            }
            _ => {}
        }
        self.done(result)
    }

    fn search(&mut self, mut search: Search, certain: &Certain) -> Verdict {
        if self.table.queues.is_empty() || !self.table.settings.deadlock_detection {
            return Verdict::Free;
        }
        #[cfg(feature = "planted-faults")]
        if Fault::DeadlockMissed.planted() {
            return Verdict::Free;
        }
        let graph = self.graph(certain);
        match search.run(graph, &mut { search_a_step() }) {
            Found::NoCycle => Verdict::Free,
            Found::Unfinished => Verdict::Unfinished(search),
            Found::Cycle(cycle) if !search.still_closes(graph, &cycle) => {
                // It was begun in another step, and much has happened since.
                Verdict::Unfinished(search.anew())
            }
            Found::Cycle(cycle) => {
                // Who holds the other locks is known from the last look at them,
                // and may not be true any more.
                if cycle.iter().all(|edge| graph.is_certain(&edge.key)) {
                    Verdict::Deadlock(cycle)
                } else {
                    Verdict::Perhaps(search, cycle)
                }
            }
        }
    }

    fn graph<'g>(&'g self, certain: &'g Certain) -> Graph<'g> {
        Graph {
            queues: &self.table.queues,
            remembered: &self.table.remembered,
            certain,
            here: (self.key, &self.lock),
        }
    }

    fn ask<T>(
        mut self,
        search: Search,
        cycle: Vec<WaitEdge>,
        certain: Certain,
        then: Then<T>,
    ) -> Progress<T> {
        let keys = cycle.iter().map(|edge| &edge.key);
        let graph = self.graph(&certain);
        let mut asked: Vec<_> = keys.filter(|key| !graph.is_certain(key)).cloned().collect();
        asked.sort();
        asked.dedup();
        Progress::Asks(Box::new(Question {
            key: self.key.into(),
            now: self.now,
            lock: std::mem::take(&mut self.lock),
            changed: std::mem::take(&mut self.changed),
            is_read: self.is_read,
            is_to_be_read: self.is_to_be_read,
            withheld: self.withheld,
            step: std::mem::take(&mut self.step),
            search,
            cycle,
            certain,
            asked,
            then,
        }))
    }

    fn refuse<T>(mut self, cycle: Vec<WaitEdge>, then: Then<T>) -> Progress<T> {
        self.table.metrics.deadlocks_refused += 1;
        self.step.log.push(LogLine::DeadlockRefused(cycle.clone()));
        let error = LockError::Deadlock { cycle };
        match then {
            Then::Enqueue(..) => self.done(Err(error)),
            Then::Stay(id, result) => {
                if let Some(waiter) = self.table.queues.remove(self.key, id) {
                    self.table.acks.is_answered(&waiter);
                    self.table.check_next_of(self.key, &waiter.request.owner);
                }
                self.step.answers.push((id, Answer::Refused(error)));
                // Those behind it may be let in.
                self.hand_off();
                self.done(Ok(result))
            }
        }
    }

    #[inline]
    pub(super) fn done<T>(self, result: Result<T, LockError>) -> Progress<T> {
        Progress::Done(self.finish(result))
    }

    /// Plans the next look at this lock, and remembers what has to be.
    #[inline]
    pub(super) fn finish<T>(mut self, result: Result<T, LockError>) -> Done<T> {
        self.step.freed &= self.lock.is_free();
        self.step.stream_goes_on &= self.step.effects.is_empty();
        let contended = self.table.queues.key_buf(self.key).cloned();
        if contended.is_some() {
            self.plan_recheck();
        }
        let remembered = &mut self.table.remembered;
        let is_large = self.lock.holders().len() > few();
        #[cfg(feature = "planted-faults")]
        if let Some(before) = self.noted_before.filter(|_| Fault::NotesKept.planted()) {
            self.lock = before;
        }
        if contended.is_some() || is_large {
            let lock = std::mem::take(&mut self.lock);
            remembered.put(self.key, contended, lock, &self.changed);
            if self.is_to_be_read {
                remembered.touch(self.key);
            }
        } else if !remembered.is_empty() {
            let changed = &self.changed;
            let holders = self.lock.holders().iter().map(|holder| &holder.owner);
            let unchanged = holders.filter(|holder| !changed.contains(holder));
            remembered.forget(self.key, unchanged.chain(changed));
        }
        Done {
            result,
            step: self.step,
        }
    }

    fn plan_recheck(&mut self) {
        let regular_ms = self.table.regular_recheck_ms(self.now.ms());
        // The server takes a key for expired one millisecond after its time.
        let lease_end_ms = self.lock.next_lease_end_ms();
        let mut at_ms = lease_end_ms.map_or(regular_ms, |end_ms| {
            regular_ms.min(end_ms.saturating_add(1))
        });
        if let Some(slow_ms) = self.log_slow_waits() {
            at_ms = at_ms.min(slow_ms);
        }
        if self.has_granted_enough() {
            at_ms = self.now.ms();
        }
        #[cfg(feature = "planted-faults")]
        if Fault::RecheckNotPlanned.planted() {
            return;
        }
        self.table.queues.recheck_by(self.key, at_ms);
    }

    /// Logs waits that have become long ones. Returns when the next will have, in
    /// milliseconds since 1970.
    fn log_slow_waits(&mut self) -> Option<i64> {
        let slow_ms = self.table.settings.log_slow_wait_ms?;
        while let Some(waiter) = self.table.queues.next_not_slow(self.key) {
            let waited_ms = (self.now.us - waiter.since_us) / 1000;
            if waited_ms < slow_ms {
                return Some(self.now.ms() + slow_ms - waited_ms);
            }
            if self.step.log.len() >= LOG_LINES_A_STEP {
                return Some(self.now.ms());
            }
            let (id, owner) = (waiter.id, waiter.request.owner.clone());
            let holders = self.lock.holders();
            let named = holders.iter().take(LOG_LINES_A_STEP);
            let line = LogLine::SlowWait {
                owner,
                client: waiter.client,
                waited_ms,
                others: holders.len() - named.len(),
                holders: named
                    .map(|holder| {
                        let binding = self.table.sessions.binding_of(self.key, &holder.owner);
                        (holder.owner.clone(), binding.map(|binding| binding.client))
                    })
                    .collect(),
            };
            self.step.log.push(line);
            self.table.queues.note_slow(self.key, id);
        }
        None
    }
}
