//! What the server tells of connections and keys.

use smallvec::SmallVec;

use super::{Answer, LockTable};
use crate::acks::Withheld;
use crate::deliveries::Recipient;
use crate::ended::EndedBy;
use crate::error::LockError;
use crate::keys::KeyRef;
use crate::lock::Now;
use crate::queue::{Addressee, Waiter, WaiterId};
use crate::request::{ClientId, Owner};
use crate::sessions::HoldId;
use crate::token::FencingToken;

/// Why a client does not wait any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// Its time was up, or `CLIENT UNBLOCK` had it be.
    TimeUp,
    /// It went away, or was sent away with an error.
    Gone,
}

impl LockTable {
    /// Somebody did something to this key.
    pub fn key_touched(&mut self, key: KeyRef<'_>, now_ms: i64) {
        self.queues.recheck_by(key, now_ms);
    }

    /// Any key may have changed. As [`LockTable::key_touched`], for all of them.
    pub fn everything_touched(&mut self, now_ms: i64) {
        self.touch_all(None, now_ms);
    }

    /// Any key of this database may have changed.
    pub fn database_touched(&mut self, db: i32, now_ms: i64) {
        self.touch_all(Some(&[db]), now_ms);
    }

    /// Any key of these databases, or of all, may have changed.
    fn touch_all(&mut self, databases: Option<&[i32]>, now_ms: i64) {
        let is_contended = |db: &i32| self.queues.contended_keys(*db).next().is_some();
        let any_waits = !self.queues.is_empty();
        if databases.map_or(any_waits, |some| some.iter().any(is_contended)) {
            self.queues.recheck_all_by(now_ms);
        }
    }

    /// This token came with the data of another server, or of this one before it was
    /// started.
    pub fn token_received(&mut self, token: FencingToken, now: Now) {
        self.tokens.received(token, now.us);
    }

    /// Two databases have changed places. Their locks are plain holds where they are now.
    pub fn databases_swapped(&mut self, one: i32, other: i32, now_ms: i64) {
        self.touch_all(Some(&[one, other]), now_ms);
    }

    /// The newest of the connections to which an owner's holds on a lock are bound.
    pub fn bound_client(&self, key: KeyRef<'_>, owner: &Owner) -> Option<ClientId> {
        let binding = self.sessions.binding_of(key, owner)?;
        self.sessions.newest_of(&binding)
    }

    /// A connection has ended, and with it all holds that were bound to it. What was stored
    /// is ended by whoever sees the lock next.
    pub fn connection_ended(&mut self, client: ClientId) {
        self.queues.connection_ended(client);
        self.acks.connection_ended(client);
        self.sessions.end_client(client);
        self.grant_lost(client);
    }

    /// A place that has ended with its connection does not hear of the grant that is
    /// withheld from it. It is told so later.
    pub(super) fn end_withheld(&mut self, id: WaiterId) {
        if let Some(withheld) = self.forget_withheld(id) {
            let told = (withheld.to, Answer::NotGranted);
            self.untold.push_back(told);
        }
    }

    /// Ends such grants of these holds.
    pub(super) fn end_withheld_of(&mut self, hold: &HoldId) -> bool {
        let any_ended = self.acks.any_ended();
        any_ended && self.end_all_withheld(self.deliveries.places_of(hold).collect())
    }

    /// Ends such grants of this lock.
    pub fn end_withheld_on(&mut self, key: KeyRef<'_>) -> bool {
        self.acks.any_ended() && self.end_all_withheld(self.deliveries.places_on(key).collect())
    }

    fn end_all_withheld(&mut self, mut places: SmallVec<[WaiterId; 1]>) -> bool {
        places.retain(|id| self.acks.has_ended(*id));
        for id in &places {
            self.end_withheld(*id);
        }
        !places.is_empty()
    }

    /// Unties these holds from connections that have ended. With the last one they are over,
    /// unless their owner was told of them elsewhere.
    pub(super) fn end_binding(&mut self, hold: &HoldId) {
        if let Some(binding) = self.sessions.take_ended(hold)
            && !binding.told_elsewhere
        {
            self.ended
                .push(hold.clone(), binding.token, EndedBy::Session);
        }
    }

    /// Somebody has heard of the grant that was on its way to it, if one was, or never
    /// will.
    pub fn grant_told(&mut self, recipient: impl Into<Recipient>, heard: bool) {
        let recipient = recipient.into();
        if heard {
            if let Recipient::Client(_) = recipient {
                self.claim_told(recipient);
            }
            self.deliveries.delivered(recipient);
            return;
        }
        let tied = match recipient {
            Recipient::Client(client) => self.deliveries.tied_by(client).zip(Some(client)),
            Recipient::Place(_) => None,
        };
        self.grant_lost(recipient);
        if let Some((hold, client)) = tied
            && let Some(token) = self.sessions.untie(&hold, client)
        {
            self.ended.push(hold, token, EndedBy::Session);
        }
    }

    /// Who was told by a reply has claimed what its owner got by a place.
    fn claim_told(&mut self, recipient: Recipient) {
        if self.claims.is_empty() {
            return;
        }
        let hold = self.deliveries.hold_of(recipient).cloned();
        let token = hold
            .as_ref()
            .and_then(|hold| self.deliveries.token_of(hold));
        if let (Some(hold), Some(token)) = (hold, token)
            && self.claims.close(token)
        {
            self.metrics.claims += 1;
            // It is kept up at once.
            self.sessions.claim(hold.key.as_ref(), &hold.owner, 0);
        }
    }

    fn grant_lost(&mut self, recipient: impl Into<Recipient>) {
        if let Some((hold, token)) = self.deliveries.lost(recipient) {
            self.ended.push(hold, token, EndedBy::Undelivered);
        }
    }

    /// A client does not wait any more, for a reason that is not the table's. Returns
    /// what it is to be told, if it is anything but that it was not granted the lock.
    pub fn waiter_left(&mut self, id: WaiterId, leave: Leave, now_ms: i64) -> Option<Answer> {
        let (_, answer) = self.leave(id, leave, now_ms)?;
        (answer != Answer::NotGranted).then_some(answer)
    }

    /// Has a waiter leave. Returns what it is to be told, if it was one.
    pub(super) fn leave(
        &mut self,
        id: WaiterId,
        leave: Leave,
        now_ms: i64,
    ) -> Option<(Addressee, Answer)> {
        self.end_wait(id, leave, now_ms)
    }

    /// As [`LockTable::leave`], also where a step has the lock.
    pub(super) fn end_wait(
        &mut self,
        id: WaiterId,
        leave: Leave,
        now_ms: i64,
    ) -> Option<(Addressee, Answer)> {
        let has_ended = self.acks.has_ended(id);
        if let Some(withheld) = self.forget_withheld(id) {
            self.metrics.replies_unacknowledged += u64::from(!has_ended);
            let answer = match has_ended {
                true => Answer::NotGranted,
                false => Answer::Refused(LockError::NoReplicas),
            };
            return Some((withheld.to, answer));
        }
        match leave {
            Leave::TimeUp => self.metrics.wait_timeouts += 1,
            Leave::Gone => self.metrics.waits_abandoned += 1,
        }
        #[cfg(feature = "planted-faults")]
        if leave == Leave::TimeUp && crate::planted::Fault::WaiterKept.planted() {
            return None;
        }
        let key = self.queues.key_of(id)?.clone();
        let waiter = self.take_out(key.as_ref(), id, now_ms)?;
        Some((waiter.addressee(), Answer::NotGranted))
    }

    /// What was withheld is never told.
    fn forget_withheld(&mut self, id: WaiterId) -> Option<Withheld> {
        let withheld = self.take_withheld(id)?;
        self.grant_told(withheld.recipient(), false);
        Some(withheld)
    }

    /// Takes a reply that was withheld, which is told now or never.
    pub(super) fn take_withheld(&mut self, id: WaiterId) -> Option<Withheld> {
        let withheld = self.acks.take(id)?;
        self.time_outs.remove(id, withheld.until_ms);
        Some(withheld)
    }

    /// Takes a waiter from its queue, and its time-out with it.
    pub(super) fn remove_waiter(&mut self, key: KeyRef<'_>, id: WaiterId) -> Option<Waiter> {
        let waiter = self.queues.remove(key, id)?;
        self.time_outs.forget(&waiter);
        Some(waiter)
    }

    /// Removes a waiter that will not be served.
    pub(super) fn take_out(
        &mut self,
        key: KeyRef<'_>,
        id: WaiterId,
        now_ms: i64,
    ) -> Option<Waiter> {
        let first = self.queues.first(key);
        let was_first = first.is_some_and(|first| first.id == id);
        let waiter = self.remove_waiter(key, id)?;
        // The one behind a writer may be a reader among readers.
        if was_first {
            self.queues.recheck_by(key, now_ms);
        }
        Some(waiter)
    }

    /// Nobody can or need write what has ended of this key, which is no lock at the moment.
    pub fn forget_ended(&mut self, key: KeyRef<'_>) {
        for ended in self.ended.take(key) {
            let hold = HoldId::new(key, &ended.owner);
            self.deliveries.end(&hold, &ended, 0);
        }
    }
}
