//! What the server tells of connections and keys.

use super::{Answer, LockTable};
use crate::ended::EndedBy;
use crate::error::LockError;
use crate::keys::KeyRef;
use crate::lock::Now;
use crate::outbox::{Out, SessionToBe, Tells};
#[cfg(feature = "planted-faults")]
use crate::planted::Fault;
use crate::queue::{Addressee, Wait, Waiter, WaiterId};
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
        self.outbox.connection_ended(client);
        self.sessions.end_client(client);
        if let Some(id) = self.outbox.of_client(client)
            && let Some(out) = self.lose(id)
        {
            self.metrics.replies_unacknowledged += u64::from(out.withheld.is_some());
        }
    }

    /// A place that has ended with its connection does not hear of its grant. It is told so
    /// later.
    pub(super) fn end_untold(&mut self, id: WaiterId) {
        if let Some(out) = self.lose(id) {
            self.untold.push_back((out.to, Answer::NotGranted));
        }
    }

    /// Ends such a grant of these holds.
    pub(super) fn end_untold_of(&mut self, hold: &HoldId) {
        let id = self.outbox.grant_of(hold).map(|out| out.to.id());
        if let Some(id) = id.filter(|id| self.outbox.has_ended(*id)) {
            self.end_untold(id);
        }
    }

    /// Ends such grants of this lock. Returns whether there were any.
    pub fn end_untold_on(&mut self, key: KeyRef<'_>) -> bool {
        let ended = self.outbox.ended_on(key);
        for id in &ended {
            self.end_untold(*id);
        }
        !ended.is_empty()
    }

    /// Unties these holds from connections that have ended. With the last one they are over,
    /// unless their owner was told of them elsewhere. If it is about to be told, they are over
    /// in case that is lost.
    pub(super) fn end_binding(&mut self, hold: &HoldId) {
        let binding = self.sessions.take_ended(hold);
        let Some(binding) = binding.filter(|binding| !binding.told_elsewhere) else {
            return;
        };
        if !self.outbox.session_ended(hold, binding.token) {
            let by = EndedBy::Session;
            self.ended.push(hold.clone(), binding.token, 0, by);
        }
    }

    /// A grant is in the output buffer of its client, and an error may yet take its place.
    pub fn grant_said(&mut self, id: WaiterId) {
        if let Some(out) = self.outbox.get_mut(id) {
            out.is_said = true;
        }
    }

    /// Somebody has heard of the grant that was on its way to it, if one was, or never
    /// will.
    pub fn grant_told(&mut self, id: WaiterId, heard: bool, now_ms: i64) {
        if !heard {
            self.lose(id);
        } else if let Some(out) = self.take_out_of_box(id) {
            self.told(out, now_ms);
        }
    }

    /// Binds holds to the connection that is told of them now, if it asked for that. They
    /// last as long as their lease, which counts from when it was granted.
    pub(super) fn told(&mut self, out: Out, now_ms: i64) {
        let (hold, token, is_place) = (out.hold, out.token, out.to.is_place());
        let (key, owner) = (hold.key.as_ref(), &hold.owner);
        if !is_place {
            self.claim(key, owner, token, now_ms);
        }
        let Some(session) = out.session else {
            let client = Some(out.to.client());
            return self.sessions.told_by(key, owner, Some(token), client);
        };
        let were_held = matches!(out.tells, Tells::Grant { before: 1.., .. });
        let SessionToBe {
            client,
            lease,
            end_ms,
        } = session;
        let sessions = &mut self.sessions;
        sessions.bind(hold.clone(), client, token, lease, end_ms, were_held);
        if self.claims.is_open(token) {
            sessions.leave_unclaimed(key, owner);
        } else if self.settings.acks.is_some() {
            self.look_before_it_ends(&hold, now_ms);
        }
    }

    /// Nobody will hear of this grant. Its owner is left with as many holds as it had before.
    pub(super) fn lose(&mut self, id: WaiterId) -> Option<Out> {
        let out = self.take_out_of_box(id)?;
        if let Tells::Grant { before, .. } = out.tells {
            #[cfg(feature = "planted-faults")]
            let before = Fault::GivenBackTooLittle.instead(before, || before + 1);
            #[cfg(feature = "planted-faults")]
            let before = Fault::GivenBackTooMuch.instead(before, || 0);
            let by = EndedBy::Undelivered;
            self.ended.push(out.hold.clone(), out.token, before, by);
        }
        Some(out)
    }

    /// Takes what is told now, or never.
    pub(super) fn take_out_of_box(&mut self, id: WaiterId) -> Option<Out> {
        let out = self.outbox.take(id)?;
        if let Some((until_ms, serial)) = out.withheld {
            self.time_outs.remove(id, until_ms);
            self.acks.forget(serial);
        }
        Some(out)
    }

    /// Has a wait end here, unless the server ends it.
    pub(super) fn end_here(&mut self, id: WaiterId, wait: &Wait) {
        let ends_here = wait.is_for_place() || self.settings.acks.is_some();
        if let Some(until_ms) = wait.until_ms.filter(|_| ends_here) {
            self.time_outs.insert(id, until_ms);
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
        let has_ended = self.outbox.has_ended(id);
        if let Some(out) = self.lose(id) {
            self.metrics.replies_unacknowledged += u64::from(!has_ended);
            let answer = match has_ended {
                true => Answer::NotGranted,
                false => Answer::Refused(LockError::NoReplicas),
            };
            return Some((out.to, answer));
        }
        #[cfg(feature = "planted-faults")]
        if leave == Leave::TimeUp && Fault::WaiterKept.planted() {
            return None;
        }
        let key = self.queues.key_of(id)?.clone();
        match leave {
            Leave::TimeUp => self.metrics.wait_timeouts += 1,
            Leave::Gone => self.metrics.waits_abandoned += 1,
        }
        let waiter = self.take_out(key.as_ref(), id, now_ms)?;
        Some((waiter.addressee(), Answer::NotGranted))
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
        self.ended.take(key);
    }
}
