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
use crate::request::{ClientId, Lease, Owner};
use crate::sessions::{Binding, HoldId};
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

    /// The connection to which an owner's holds on a lock are bound.
    pub fn bound_client(&self, key: KeyRef<'_>, owner: &Owner) -> Option<ClientId> {
        Some(self.sessions.binding_of(key, owner)?.client)
    }

    /// Whether anything may end with a connection.
    pub fn binds_connections(&self) -> bool {
        !self.sessions.is_empty() || self.places() > 0
    }

    /// The connection with which an owner's place in the queue of a lock ends.
    pub fn place_client(&self, key: KeyRef<'_>, owner: &Owner) -> Option<ClientId> {
        self.queues.place_of(key, owner)?.request.session
    }

    /// Another client than this one, to which the holds are bound of which this one is to
    /// hear.
    pub fn bound_beside(&self, client: ClientId) -> Option<ClientId> {
        if self.sessions.is_empty() {
            return None;
        }
        let hold = self.deliveries.hold_of(client)?;
        let bound = self.bound_client(hold.key.as_ref(), &hold.owner);
        bound.filter(|bound| *bound != client)
    }

    /// A connection has ended, and with it all holds that were bound to it. `heard`
    /// says whether a grant that was on its way had been sent before. What was stored
    /// is ended by whoever sees the lock next.
    pub fn connection_ended(&mut self, client: ClientId, heard: bool) {
        let heard = heard && !self.acks.withholds_from(client);
        self.queues.connection_ended(client);
        self.acks.connection_ended(client);
        self.deliveries.client_gone(client);
        self.end_before_told(client);
        self.sessions.end_client(client);
        // Only here is it known what these holds were bound to before.
        let bound = self.deliveries.hold_of(client).cloned().and_then(|hold| {
            let binding = self.sessions.take_ended(&hold)?;
            let heir = self.heir(&hold, binding, client);
            let was_unbound = self.deliveries.binds_first(&hold, client);
            Some((hold, binding, heir, was_unbound))
        });
        if heard {
            self.deliveries.delivered(client);
        } else {
            self.grant_lost(client);
        }
        if let Some((hold, binding, heir, was_unbound)) = bound {
            let ends = heard || heir.is_none() && !was_unbound;
            self.pass_on(hold, binding, heir, ends);
        }
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

    /// Ends what binds these holds to a connection that has ended, if that is so.
    pub(super) fn end_binding(&mut self, hold: &HoldId) {
        if let Some(binding) = self.sessions.take_ended(hold) {
            let heir = self.heir(hold, binding, binding.client);
            self.pass_on(hold.clone(), binding, heir, true);
        }
    }

    /// Ends what binds the holds of which this client is to hear to a connection that
    /// has ended: the grant that is on its way may say who keeps them up.
    fn end_before_told(&mut self, recipient: impl Into<Recipient>) {
        if self.sessions.any_ended()
            && let Some(hold) = self.deliveries.hold_of(recipient).cloned()
        {
            self.end_binding(&hold);
        }
    }

    /// Binds holds to who keeps them up from now on. Where they end with the connection,
    /// only those are left that somebody is still to hear of. A client that was not told
    /// of them yet leaves them as they were before.
    fn pass_on(
        &mut self,
        hold: HoldId,
        binding: Binding,
        heir: Option<(ClientId, Lease)>,
        ends: bool,
    ) {
        if ends {
            self.deliveries.session_ended(&hold, binding.token);
            self.ended
                .push(hold.clone(), binding.token, EndedBy::Session);
        }
        if let Some((heir, lease)) = heir {
            self.sessions.rebind(hold, binding, heir, lease);
        }
    }

    /// Somebody has heard of the grant that was on its way to it, if one was, or never
    /// will.
    pub fn grant_told(&mut self, recipient: impl Into<Recipient>, heard: bool) {
        let recipient = recipient.into();
        self.end_before_told(recipient);
        if heard {
            if let Recipient::Client(_) = recipient {
                self.claim_told(recipient);
            }
            self.deliveries.delivered(recipient);
            return;
        }
        if let Recipient::Client(client) = recipient {
            self.unbind_unheard(client);
        }
        self.grant_lost(recipient);
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

    /// Who keeps up holds that are bound to a client which will not hear of them: one
    /// that is still to hear of the same holds, or the one they were bound to before.
    pub(super) fn heir(
        &self,
        hold: &HoldId,
        binding: Binding,
        client: ClientId,
    ) -> Option<(ClientId, Lease)> {
        let other = self.deliveries.other_session(hold, binding.token, client);
        other.or_else(|| {
            let before = self.deliveries.bound_before(hold, client)?;
            Some((before, binding.lease))
        })
    }

    /// Unbinds what a client will not hear of, and lives on.
    fn unbind_unheard(&mut self, client: ClientId) {
        let Some(hold) = self.deliveries.hold_of(client).cloned() else {
            return;
        };
        let (key, owner) = (hold.key.as_ref(), &hold.owner);
        let Some(binding) = self.sessions.binding_of(key, owner) else {
            return;
        };
        if binding.client == client && self.deliveries.binds(client) {
            let heir = self.heir(&hold, binding, client);
            self.sessions.unbind(key, owner);
            if let Some((heir, lease)) = heir {
                self.sessions.rebind(hold, binding, heir, lease);
            }
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
