//! What is told only when replicas have acknowledged it.

use super::due::CLOSED_BEFORE_MS;
use super::transition::Transition;
use super::{Answer, LockTable, Settings};
use crate::acks::{Pending, reached_by};
use crate::error::LockError;
use crate::keys::KeyBuf;
use crate::lock::{Lock, Now};
use crate::outbox::Out;
#[cfg(feature = "planted-faults")]
use crate::planted::Fault;
use crate::queue::{Addressee, WaiterId};
use crate::request::{ClientId, Lease, Owner};
use crate::sessions::{Binding, HoldId};
use crate::token::FencingToken;

impl Settings {
    /// Whether anything may be granted or handed on to waiters.
    pub(super) fn grants(&self) -> bool {
        let are_enough = self.acks.is_none_or(|acks| acks.connected >= acks.replicas);
        self.may_grant && are_enough
    }
}

impl Transition<'_> {
    /// Fails if a grant or a renewal of this request could never be told.
    pub(super) fn can_be_told(&self) -> Result<(), LockError> {
        match self.table.settings.acks {
            Some(acks) if acks.connected < acks.replicas => Err(LockError::NoReplicas),
            Some(acks) if acks.client.is_none() => Err(LockError::CannotAwaitReplicas),
            _ => Ok(()),
        }
    }

    /// The client of this request, if what is granted to it is withheld.
    pub(super) fn withholds(&self) -> Option<ClientId> {
        #[cfg(feature = "planted-faults")]
        if Fault::AcknowledgementNotAwaited.planted() {
            return None;
        }
        self.table.settings.acks?.client
    }

    /// The client of this request, if its renewal is withheld.
    pub(super) fn withholds_renewals(&self) -> Option<ClientId> {
        #[cfg(feature = "planted-faults")]
        if Fault::RenewalNotCovered.planted() {
            return None;
        }
        self.withholds()
    }

    /// Whether what is handed to a waiter is withheld.
    pub(super) fn withholds_hand_offs(&self) -> bool {
        #[cfg(feature = "planted-faults")]
        if Fault::HandOffNotCovered.planted() || Fault::AcknowledgementNotAwaited.planted() {
            return false;
        }
        self.table.settings.acks.is_some()
    }

    /// Withholds a reply until replicas have acknowledged what it tells of.
    pub(super) fn withhold(&mut self, mut out: Out) {
        let timeout_ms = self.table.settings.acks.map_or(0, |acks| acks.timeout_ms);
        let (id, until_ms) = (out.to.id(), self.now.steady_ms.saturating_add(timeout_ms));
        self.table.time_outs.insert((until_ms, id));
        let serial = self.table.acks.withhold(Pending::Reply(id));
        out.withheld = Some((until_ms, serial));
        self.table.outbox.send(out);
        self.step.stream_goes_on = true;
    }

    pub(super) fn withhold_renewal(
        &mut self,
        client: ClientId,
        owner: &Owner,
        token: FencingToken,
    ) {
        let id = self.table.queues.new_id();
        let (to, holds) = (Addressee::Blocked(id, client), self.holds_of(owner));
        self.withhold(Out {
            to,
            hold: self.hold_of(owner),
            token,
            holds,
            before: None,
            session: None,
            is_said: false,
            withheld: None,
        });
        self.step.withheld = Some(id);
    }

    /// Has the lease of holds that are bound to a connection count as it is stored: at once,
    /// or, if it ends later than before and replicas are needed, once they acknowledge it. If a
    /// new lease is `set`, those still waiting for replicas are void, since they may end later.
    pub(super) fn lease_counts(&mut self, owner: &Owner, token: FencingToken, set: Option<Lease>) {
        let table = &mut *self.table;
        if table.sessions.is_empty() {
            return;
        }
        let waits = table.settings.acks.is_some();
        #[cfg(feature = "planted-faults")]
        let waits = waits && !Fault::RenewalNotCovered.planted();
        let (hold, now_ms) = (HoldId::new(self.key, owner), self.now.ms());
        let end_ms = self.lock.holder(owner).and_then(|held| held.lease_end_ms);
        let (next_serial, mut later_ms) = (table.acks.next_serial(), None);
        table.sessions.change(&hold, Some(token), |bound| {
            let before_ms = bound.kept_until_ms;
            bound.kept_until_ms = end_ms.unwrap_or(before_ms);
            if let Some(lease) = set {
                bound.set_lease(lease, now_ms);
                bound.counts_from = next_serial;
            }
            if waits && bound.kept_until_ms > before_ms {
                later_ms = Some(bound.kept_until_ms);
                bound.kept_until_ms = before_ms;
            }
        });
        if let Some(later_ms) = later_ms {
            let lease = Pending::Lease(hold.clone(), token, later_ms);
            table.acks.withhold(lease);
            self.step.stream_goes_on = true;
        }
        if waits {
            table.look_before_it_ends(&hold, token, now_ms);
        }
    }
}

impl LockTable {
    /// Whether anything waits for replicas.
    pub fn awaits_replicas(&self) -> bool {
        !self.acks.is_empty()
    }

    /// All that was written up to now ends at this offset of the replication stream.
    /// Returns whether anything new waits for it, and so the replicas have to be asked.
    pub fn offset_known(&mut self, offset: i64) -> bool {
        self.acks.offset_known(offset)
    }

    /// The connected replicas have acknowledged these offsets, and `replicas` of them are
    /// needed. Takes at most `at_most` of what waited for that. Returns the replies that may be
    /// told now, each with its lock, which has to be read for [`LockTable::tell`], and whether
    /// there may be more.
    pub fn acknowledged(
        &mut self,
        replicas: usize,
        offsets: Vec<i64>,
        at_most: usize,
    ) -> (Vec<(WaiterId, KeyBuf)>, bool) {
        let (mut replies, offset) = (Vec::new(), reached_by(replicas, offsets));
        for _ in 0..at_most {
            let next = offset.and_then(|offset| self.acks.take_acknowledged(offset));
            match next {
                None => return (replies, false),
                Some((_, Pending::Reply(id))) => {
                    let out = self.outbox.get(id);
                    replies.extend(out.map(|out| (id, out.hold.key.clone())));
                }
                Some((serial, Pending::Lease(hold, token, until_ms))) => {
                    self.sessions.change(&hold, Some(token), |bound| {
                        if serial >= bound.counts_from {
                            bound.last_until(until_ms);
                        }
                    });
                }
            }
        }
        (replies, true)
    }

    /// The owner whose holds a withheld reply tells of.
    pub fn told_by(&self, id: WaiterId) -> Option<&Owner> {
        Some(&self.outbox.get(id)?.hold.owner)
    }

    /// Ends the wait of a withheld reply. Its client is told what it was to be, if that is
    /// still true of the lock as it is stored.
    pub fn tell(
        &mut self,
        id: WaiterId,
        stored: Result<Lock, LockError>,
        now: Now,
    ) -> Option<(Addressee, Answer)> {
        let hold = self.outbox.get(id)?.hold.clone();
        self.end_gone(&hold);
        let out = self.outbox.get(id)?;
        let held = stored.ok().and_then(|stored| {
            // The other holders don't matter, and there may be many.
            let mut lock = Lock::held_by(stored.holder(&out.hold.owner)?.clone());
            self.end_in_view(out.hold.key.as_ref(), &mut lock, now);
            let held = lock.holder(&out.hold.owner)?;
            out.stands(held.token, held.holds).then(|| held.clone())
        });
        let is_grant = out.before.is_some();
        let Some(held) = held else {
            let answer = match is_grant {
                true => Answer::NotGranted,
                false => Answer::Renewed(false),
            };
            return Some((self.lose(id)?.to, answer));
        };
        let mut out = self.take_out_of_box(id)?;
        let (to, token) = (out.to.clone(), out.token);
        if !is_grant {
            let hold = &out.hold;
            self.outbox
                .renewed(hold.key.as_ref(), &hold.owner, out.holds);
            self.told(out, now.ms());
            return Some((to, Answer::Renewed(true)));
        }
        out.withheld = None;
        if let (Some(session), Some(end_ms)) = (&mut out.session, held.lease_end_ms) {
            session.end_ms = session.end_ms.min(end_ms);
        }
        self.outbox.send(out);
        Some((to, Answer::Granted(token)))
    }

    /// Plans a look at holds before the last lease that counts is over. If it is almost
    /// over, their connections are closed.
    pub(super) fn look_before_it_ends(&mut self, hold: &HoldId, token: FencingToken, now_ms: i64) {
        let bound = self.sessions.binding(hold);
        let Some(bound) = bound.filter(|bound| bound.token == token) else {
            return;
        };
        // A lease may be shorter than `CLOSED_BEFORE_MS`.
        let last_ms = bound.kept_until_ms - CLOSED_BEFORE_MS.min(bound.lease.ms() / 3);
        if last_ms <= now_ms {
            self.to_close.extend(bound.clients.iter().copied());
        } else if last_ms < bound.renew_at_ms {
            let plan = |bound: &mut Binding| bound.renew_at_ms = last_ms;
            self.sessions.change(hold, Some(token), plan);
        }
    }
}
