//! What the server tells of connections and keys.

use std::ops::Bound;

use super::due::OVERDUE_MS;
use super::{Answer, LockTable};
use crate::bounds::{ENDS_A_STEP, bound};
use crate::ended::EndedBy;
use crate::error::LockError;
use crate::keys::{KeyBuf, KeyRef};
use crate::lock::{Lock, Now};
use crate::outbox::Out;
#[cfg(feature = "planted-faults")]
use crate::planted::Fault;
use crate::queue::{Addressee, Wait, Waiter, WaiterId};
use crate::request::{ClientId, Owner};
use crate::sessions::{Binding, HoldId};
use crate::token::FencingToken;

/// Why a client does not wait any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitEnd {
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
    pub fn everything_touched(&mut self) {
        self.queues.recheck_all();
    }

    /// This token came with the data of another server, or of this one before it was
    /// started.
    pub fn token_received(&mut self, token: FencingToken, now: Now) {
        self.tokens.received(token, now.us);
    }

    /// The newest of the connections to which an owner's holds on a lock are bound.
    pub fn bound_client(&self, key: KeyRef<'_>, owner: &Owner) -> Option<ClientId> {
        let binding = self.sessions.binding_of(key, owner)?;
        binding.clients.last().copied()
    }

    /// A connection has ended, and with it its session's places and holds, and the replies that
    /// are on their way to its client. Each later step first ends what is over of its own lock.
    pub fn connection_ended(&mut self, client: ClientId) {
        self.gone.insert(client);
        while self.ended_at_once < bound(ENDS_A_STEP) && self.end_one_of(client) {
            self.ended_at_once += 1;
        }
    }

    /// Ends something of a client whose connection has ended, or forgets the client. Returns
    /// whether there was anything.
    fn end_one_of(&mut self, client: ClientId) -> bool {
        if let Some(id) = self.outbox.any_of(client) {
            self.lose_gone(id);
        } else if let Some(id) = self.queues.any_of(client) {
            self.leave_untold(id, WaitEnd::Gone, OVERDUE_MS);
        } else if let Some(hold) = self.sessions.any_of(client).cloned() {
            self.end_gone(&hold);
        } else {
            return !self.gone.remove(&client);
        }
        true
    }

    /// Ends at most `at_most` things that are left of connections that have ended, of each
    /// connection in turn.
    pub fn end_some_gone(&mut self, at_most: usize) {
        self.ended_at_once = 0;
        for _ in 0..at_most {
            let behind = (Bound::Excluded(self.last_gone), Bound::Unbounded);
            let next = self.gone.range(behind).next().or(self.gone.first());
            let Some(&client) = next else { return };
            self.last_gone = client;
            self.end_one_of(client);
        }
    }

    /// Takes a waiter from its queue. If it is a place, its owner is told so later.
    pub(super) fn leave_untold(&mut self, id: WaiterId, end: WaitEnd, now_ms: i64) {
        if let Some((to, _)) = self.leave(id, end, now_ms) {
            self.tell_later(to);
        }
    }

    fn tell_later(&mut self, to: Addressee) {
        if let Addressee::Place(place) = to {
            let hold = HoldId::new(place.key.as_ref(), &place.owner);
            self.untold.insert((hold, place.id), place);
        }
    }

    /// Ends what is over of these holds because connections have ended.
    pub(super) fn end_gone(&mut self, hold: &HoldId) {
        if self.gone.is_empty() {
            return;
        }
        let out = self.outbox.grant_of(hold);
        let is_gone = |client: ClientId| self.gone.contains(&client);
        let out = out.filter(|out| out.ends_with().is_some_and(is_gone));
        if let Some(id) = out.map(|out| out.to.id()) {
            self.lose_gone(id);
        }
        let untied = self.sessions.untie(hold, &self.gone);
        if let Some(binding) = untied.filter(|binding| !binding.told_elsewhere)
            // If a grant is still to be told, the owner keeps its holds unless the grant is lost.
            && !self.outbox.session_ended(hold, binding.token)
        {
            let by = EndedBy::Session;
            self.ended.push(hold.clone(), binding.token, 0, by);
        }
    }

    /// The same for all holders of this lock.
    pub fn end_holds_of_gone(&mut self, key: KeyRef<'_>, lock: &Lock) {
        if !self.gone.is_empty() {
            let key = KeyBuf::from(key);
            for holder in lock.holders().iter().rev() {
                self.end_gone(&HoldId::new(key.clone(), &holder.owner));
            }
        }
    }

    /// This reply is lost with a connection that has ended. A place is told so later.
    fn lose_gone(&mut self, id: WaiterId) {
        let Some(out) = self.lose(id) else { return };
        match out.to.is_place() {
            true => self.tell_later(out.to),
            false => self.metrics.replies_unacknowledged += u64::from(out.withheld.is_some()),
        }
    }

    /// Whether this waiter must not be granted anything any more.
    pub(super) fn is_over(&self, waiter: &Waiter, steady_ms: i64) -> bool {
        waiter.is_over(steady_ms, &self.gone)
    }

    /// A grant is in the output buffer of its client, and an error may yet take its place.
    pub fn grant_said(&mut self, id: WaiterId) {
        if let Some(out) = self.outbox.get_mut(id) {
            out.is_said = true;
        }
    }

    /// The waiter has `heard` of the grant that was on its way to it, or never will. There
    /// may be no such grant.
    pub fn grant_told(&mut self, id: WaiterId, heard: bool, now_ms: i64) {
        if let Some(hold) = self.outbox.get(id).map(|out| out.hold.clone()) {
            self.end_gone(&hold);
        }
        if !heard {
            self.lose(id);
        } else if let Some(out) = self.take_out_of_box(id) {
            self.told(out, now_ms);
        }
    }

    /// The owner is told of its holds now. If it asked for a session, they are bound to
    /// its connection: their lease counts from the grant.
    pub(super) fn told(&mut self, out: Out, now_ms: i64) {
        let (hold, token, is_place) = (out.hold, out.token, out.to.is_place());
        let (key, owner) = (hold.key.as_ref(), &hold.owner);
        if !is_place {
            self.claim(key, owner, token, now_ms);
        }
        let Some(session) = out.session else {
            let client = Some(out.to.client());
            let sessions = &mut self.sessions;
            return sessions.change(&hold, Some(token), |bound| bound.told_by(client));
        };
        let sessions = &mut self.sessions;
        sessions.bind(hold.clone(), session, token, out.before > Some(0));
        if self.unclaimed.contains_key(&token) {
            sessions.change(&hold, Some(token), Binding::leave_unclaimed);
        } else if self.settings.acks.is_some() {
            self.look_before_it_ends(&hold, token, now_ms);
        }
    }

    /// Nobody will hear of this reply. If it is a grant, its owner keeps as many holds as before.
    pub(super) fn lose(&mut self, id: WaiterId) -> Option<Out> {
        let out = self.take_out_of_box(id)?;
        if let Some(before) = out.before {
            #[cfg(feature = "planted-faults")]
            let before = Fault::GivenBackTooLittle.instead(before, || before + 1);
            #[cfg(feature = "planted-faults")]
            let before = Fault::GivenBackTooMuch.instead(before, || 0);
            let by = EndedBy::Undelivered;
            self.ended.push(out.hold.clone(), out.token, before, by);
        }
        Some(out)
    }

    /// Takes a reply that is told now, or never will be.
    pub(super) fn take_out_of_box(&mut self, id: WaiterId) -> Option<Out> {
        let out = self.outbox.take(id)?;
        if let Some((until_ms, serial)) = out.withheld {
            self.time_outs.remove(&(until_ms, id));
            self.acks.forget(serial);
        }
        Some(out)
    }

    /// Plans the end of a wait that the server does not end by itself.
    pub(super) fn end_here(&mut self, id: WaiterId, wait: &Wait) {
        let ends_here = wait.is_for_place() || self.settings.acks.is_some();
        if let Some(until_ms) = wait.until_ms.filter(|_| ends_here) {
            self.time_outs.insert((until_ms, id));
        }
    }

    /// A client does not wait any more, for a reason that is not the table's. Returns
    /// what it is to be told, if it is anything but that it was not granted the lock.
    pub fn waiter_left(&mut self, id: WaiterId, leave: WaitEnd, now_ms: i64) -> Option<Answer> {
        let (_, answer) = self.leave(id, leave, now_ms)?;
        (answer != Answer::NotGranted).then_some(answer)
    }

    /// Has a waiter leave. Returns what it is to be told, if it was one.
    pub(super) fn leave(
        &mut self,
        id: WaiterId,
        leave: WaitEnd,
        now_ms: i64,
    ) -> Option<(Addressee, Answer)> {
        if let Some(out) = self.lose(id) {
            self.metrics.replies_unacknowledged += 1;
            return Some((out.to, Answer::Refused(LockError::NoReplicas)));
        }
        #[cfg(feature = "planted-faults")]
        if leave == WaitEnd::TimeUp && Fault::WaiterKept.planted() {
            return None;
        }
        let waiter = self.take_out(id, now_ms)?;
        match leave {
            WaitEnd::TimeUp => self.metrics.wait_timeouts += 1,
            WaitEnd::Gone => self.metrics.waits_abandoned += 1,
        }
        Some((waiter.addressee(), Answer::NotGranted))
    }

    /// Takes a waiter from its queue, and its time-out with it.
    pub(super) fn remove_waiter(&mut self, id: WaiterId) -> Option<Waiter> {
        let waiter = self.queues.remove(id)?;
        self.forget_time_out(&waiter);
        Some(waiter)
    }

    pub(super) fn forget_time_out(&mut self, waiter: &Waiter) {
        if let Some(until_ms) = waiter.wait.until_ms {
            self.time_outs.remove(&(until_ms, waiter.id));
        }
    }

    /// Removes a waiter that will not be served.
    pub(super) fn take_out(&mut self, id: WaiterId, now_ms: i64) -> Option<Waiter> {
        let waiter = self.remove_waiter(id)?;
        let key = waiter.key.as_ref();
        // The one behind a writer may be a reader among readers.
        if self.queues.first(key).is_some_and(|next| id < next.id) {
            self.queues.recheck_by(key, now_ms);
        }
        Some(waiter)
    }

    /// This key is no lock at the moment, or another node serves it. So what has ended of
    /// it need not or can't be written, and is forgotten.
    pub fn forget_ended(&mut self, key: KeyRef<'_>) {
        self.ended.take(key);
    }
}
