//! One change of one lock, from what was read to what is to be done.

use std::collections::BTreeSet;

use super::{LockTable, LogLine, Step, World};
use crate::error::LockError;
use crate::holder::Holder;
use crate::keys::KeyRef;
use crate::lock::{Lock, Now, Released};
#[cfg(feature = "planted-faults")]
use crate::planted::Fault;
use crate::queue::{Addressee, WaiterId};
use crate::request::{Owner, ReleaseRequest, RenewRequest};
use crate::sessions::HoldId;
use crate::token::FencingToken;

/// How many slow waits are logged in one step, and how many holders with each.
const LOG_LINES_A_STEP: usize = 8;

/// One change of one lock, while it is made.
pub struct Transition<'t> {
    pub(super) table: &'t mut LockTable,
    pub(super) key: KeyRef<'t>,
    /// When it is made.
    pub now: Now,
    pub(super) world: &'t mut dyn World,
    pub(super) lock: &'t mut Lock,
    /// How many waiters this step granted the lock without an answer: withheld, or told before.
    pub(super) withheld: usize,
    /// How many grants nobody heard of.
    pub(super) unheard: usize,
    /// How many places in front were ended because they are over.
    pub(super) passed: usize,
    /// The asker's earlier request that waits, and whether this one takes over its position.
    pub(super) earlier: Option<(WaiterId, bool)>,
    /// The asker's ended places on this request's channel: told so only if it is refused.
    pub(super) replaced: Vec<Addressee>,
    /// Whether the asker waits from now on.
    pub(super) has_queued: bool,
    pub(super) step: &'t mut Step,
    #[cfg(feature = "planted-faults")]
    pub(super) noted_before: Option<Lock>,
}

impl Transition<'_> {
    /// Ends what is over.
    pub(super) fn begin(&mut self) {
        if let Some(before) = self.table.queues.seen_mut(self.key).map(std::mem::take) {
            self.compare(&before);
            #[cfg(feature = "planted-faults")]
            self.noted_before.replace(before);
        }
        self.end_what_is_over();
    }

    /// Counts the holders that are gone since the last step.
    fn compare(&mut self, before: &Lock) {
        let is_same = |(one, other): (&Holder, &Holder)| one.owner == other.owner;
        let mut both = before.holders().iter().zip(self.lock.holders());
        if before.holders().len() <= self.lock.holders().len() && both.all(is_same) {
            return;
        }
        let holders = self.lock.holders().iter();
        let owners: BTreeSet<&Owner> = holders.map(|holder| &holder.owner).collect();
        let before = before.holders().iter();
        let gone = before.filter(|holder| !owners.contains(&holder.owner));
        let now_ms = self.now.ms();
        let (expired, deleted): (Vec<_>, Vec<_>) = gone.partition(|gone| gone.ends_by(now_ms));
        self.table.metrics.releases_deleted += deleted.len() as u64;
        expired.iter().for_each(|_| self.count_expired());
    }

    /// Gives holds back.
    pub fn release(&mut self, request: &ReleaseRequest) -> Result<Released, LockError> {
        let held = self.lock.holder(&request.owner).cloned();
        let released = self.lock.release(request, &mut self.step.effects);
        if let Some(held) = &held {
            match released {
                Ok(Released::LastHold) => self.count_release(held, None),
                Ok(Released::StillHeld) => {
                    self.told(&request.owner);
                    let left = self.holds_of(&request.owner);
                    let outbox = &mut self.table.outbox;
                    outbox.released(self.key, &request.owner, left);
                }
                Ok(Released::NotHeld) => self.table.metrics.tokens_refused += 1,
                Err(_) => {}
            }
        }
        if released.is_ok() && self.lock.holder(&request.owner).is_none() {
            self.give_up(request, held.is_some());
        }
        released
    }

    /// Lets the lease end at now + lease exactly. Returns whether the owner holds the lock,
    /// with the token it named.
    pub fn renew(&mut self, request: &RenewRequest) -> Result<bool, LockError> {
        let (now, owner) = (self.now, &request.owner);
        let held = self.lock.holder(owner);
        let is_it = |held: &Holder| held.has_token(request.token);
        if held.is_some_and(is_it) {
            self.can_be_told()?;
        }
        let (tokens, effects) = (&mut self.table.tokens, &mut self.step.effects);
        let Some(token) = self.lock.renew(request, now, tokens, effects)? else {
            // A holder is refused only if it names another token.
            let is_holder = self.lock.holder(owner).is_some();
            self.table.metrics.tokens_refused += u64::from(is_holder);
            return Ok(false);
        };
        self.table.claim(self.key, owner, token, now.ms());
        self.lease_counts(owner, token, Some(request.lease));
        match self.withholds_renewals() {
            Some(client) => self.withhold_renewal(client, owner, token),
            None => {
                // It may write nothing, and its client may `WAIT` for replicas.
                self.step.stream_goes_on = true;
                self.told(owner);
                let holds = self.holds_of(owner);
                self.table.outbox.renewed(self.key, owner, holds);
            }
        }
        Ok(true)
    }

    /// The asker is told of this owner's holds, and did not ask for a session.
    pub(super) fn told(&mut self, owner: &Owner) {
        if !self.table.sessions.is_empty() {
            let token = self.lock.holder(owner).and_then(|holder| holder.token);
            let (sessions, asker) = (&mut self.table.sessions, self.world.asker());
            let hold = HoldId::new(self.key, owner);
            sessions.change(&hold, token, |bound| bound.told_by(asker));
        }
    }

    /// Returns whether the lock is held with this token.
    pub fn guard(&mut self, token: FencingToken) -> Result<bool, LockError> {
        let mut holders = self.lock.holders().iter();
        let is_held = holders.any(|holder| holder.token == Some(token));
        self.table.metrics.tokens_refused += u64::from(!is_held);
        Ok(is_held)
    }

    pub(super) fn holds_of(&self, owner: &Owner) -> i64 {
        self.lock.holder(owner).map_or(0, |holder| holder.holds)
    }

    pub(super) fn hold_of(&self, owner: &Owner) -> HoldId {
        HoldId::new(self.key, owner)
    }

    /// Plans the next look at this lock, and remembers the lock while somebody waits for it.
    #[inline]
    pub(super) fn finish(&mut self) {
        self.step.freed &= self.lock.is_free();
        self.step.stream_goes_on &= self.step.effects.is_empty();
        if self.table.queues.contended(self.key) {
            self.plan_recheck();
            #[cfg(feature = "planted-faults")]
            if let Some(before) = self
                .noted_before
                .take()
                .filter(|_| Fault::NotesKept.planted())
            {
                *self.lock = before;
            }
            if let Some(seen) = self.table.queues.seen_mut(self.key) {
                *seen = std::mem::take(self.lock);
            }
        }
    }

    fn plan_recheck(&mut self) {
        let regular_ms = self.table.regular_recheck_ms(self.now.ms());
        // The server takes a key for expired one millisecond after its time.
        let lease_end_ms = self.lock.next_lease_end_ms();
        let over_ms = lease_end_ms.map(|end_ms| end_ms.saturating_add(1));
        let mut at_ms = over_ms.map_or(regular_ms, |over_ms| over_ms.min(regular_ms));
        if let Some(slow_ms) = self.log_slow_waits() {
            at_ms = at_ms.min(slow_ms);
        }
        if self.has_done_enough() || self.is_place_next() {
            at_ms = self.now.ms();
        }
        #[cfg(feature = "planted-faults")]
        if Fault::RecheckNotPlanned.planted() {
            return;
        }
        self.table.queues.recheck_by(self.key, at_ms);
    }

    /// Logs waits that have become slow ones. Returns when the next one will be slow, in
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
            let holders = self.lock.holders().iter().map(|holder| &holder.owner);
            let named = holders.clone().take(LOG_LINES_A_STEP);
            let client_of = |owner| self.table.bound_client(self.key, owner);
            let line = LogLine::SlowWait {
                owner,
                client: waiter.wait.client,
                waited_ms,
                others: holders.len() - named.len(),
                holders: named.map(|it| (it.clone(), client_of(it))).collect(),
            };
            self.step.log.push(line);
            self.table.queues.note_slow(self.key, id);
        }
        None
    }
}
