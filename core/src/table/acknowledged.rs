//! What is told only when replicas have acknowledged it.

use super::due::CLOSED_BEFORE_MS;
use super::transition::Transition;
use super::{Answer, LockTable, Settings};
use crate::acks::{SessionToBe, Tells, UncountedLease, Withheld, reached_by};
use crate::deliveries::{Delivery, Recipient};
use crate::error::LockError;
use crate::holder::Holder;
use crate::keys::KeyBuf;
use crate::lock::{Lock, Now};
#[cfg(feature = "planted-faults")]
use crate::planted::Fault;
use crate::queue::{Addressee, WaiterId};
use crate::request::{AcquireRequest, ClientId, Owner};
use crate::sessions::{Binding, HoldId};
use crate::token::FencingToken;

impl Settings {
    /// Whether anything may be granted or handed on to somebody who waits.
    pub(super) fn grants(&self) -> bool {
        let are_enough = self.acks.is_none_or(|acks| acks.connected >= acks.replicas);
        self.may_grant && are_enough
    }
}

impl Transition<'_> {
    /// Whether what this request gets can ever be told.
    pub(super) fn can_be_told(&self) -> bool {
        let acks = self.table.settings.acks;
        acks.is_none_or(|acks| acks.client.is_some() && acks.connected >= acks.replicas)
    }

    /// Why not.
    pub(super) fn why_not_told(&self) -> LockError {
        let acks = self.table.settings.acks;
        match acks.is_some_and(|acks| acks.client.is_none() && acks.connected >= acks.replicas) {
            true => LockError::CannotAwaitReplicas,
            false => LockError::NoReplicas,
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

    /// Withholds the reply to a request that was granted. Until it is told, nothing of
    /// it is bound to its connection.
    pub(super) fn withhold_grant(
        &mut self,
        to: Addressee,
        request: &AcquireRequest,
        token: FencingToken,
        held_before: i64,
    ) {
        let delivery = Delivery {
            recipient: Recipient::from(&to),
            ties: false,
        };
        self.send(request, token, delivery, held_before);
        let (lease, now_ms) = (request.lease, self.now.ms());
        let session = request.session.map(|client| SessionToBe {
            client,
            lease,
            end_ms: lease.end_ms(now_ms),
            were_held: held_before > 0,
        });
        self.withhold(to, Tells::Grant(token), session);
    }

    fn withhold(&mut self, to: Addressee, tells: Tells, session: Option<SessionToBe>) {
        let timeout_ms = self.table.settings.acks.map_or(0, |acks| acks.timeout_ms);
        let until_ms = self.now.steady_ms.saturating_add(timeout_ms);
        self.table.time_outs.insert(to.id(), until_ms);
        let withheld = Withheld {
            to,
            key: self.key.into(),
            tells,
            session,
            until_ms,
        };
        self.table.acks.withhold(withheld);
        self.step.stream_goes_on = true;
    }

    pub(super) fn withhold_renewal(
        &mut self,
        client: ClientId,
        owner: &Owner,
        token: FencingToken,
    ) {
        let delivery = Delivery {
            recipient: client.into(),
            ties: false,
        };
        let (hold, holds) = (self.hold_of(owner), self.holds_of(owner));
        let deliveries = &mut self.table.deliveries;
        deliveries.send_renewal(hold, token, delivery, holds);
        let id = self.table.queues.new_id();
        let to = Addressee::Blocked(id, client);
        self.withhold(to, Tells::Renewal(token), None);
        self.step.withheld = Some(id);
    }

    /// What binds this owner's holds, if a new lease of theirs has to be acknowledged
    /// before it counts.
    pub(super) fn binding_to_count(&self, owner: &Owner) -> Option<Binding> {
        self.table.settings.acks?;
        #[cfg(feature = "planted-faults")]
        if Fault::RenewalNotCovered.planted() {
            return None;
        }
        self.table.sessions.binding_of(self.key, owner)
    }

    /// Has a lease that is longer than before count once it is acknowledged; a shorter
    /// one counts at once.
    pub(super) fn count_when_acknowledged(&mut self, owner: &Owner, before: Option<Binding>) {
        let Some(before) = before else { return };
        let (table, hold) = (&mut *self.table, HoldId::new(self.key, owner));
        let bound = table.sessions.binding_of(self.key, owner);
        let Some(bound) = bound.filter(|bound| bound.token == before.token) else {
            return;
        };
        if bound.lease < before.lease {
            table.acks.forget_leases(&hold);
        }
        if bound.kept_until_ms > before.kept_until_ms {
            table.sessions.count_until(&hold, before.kept_until_ms);
            table.acks.count_later(UncountedLease {
                hold: hold.clone(),
                token: bound.token,
                until_ms: bound.kept_until_ms,
            });
            self.step.stream_goes_on = true;
        }
        table.look_before_it_ends(&hold, self.now.ms());
    }
}

/// Replies that enough replicas have acknowledged.
#[derive(Debug, Default)]
pub struct ToTell {
    /// Each with its lock, which has to be read for [`LockTable::tell`].
    pub replies: Vec<(WaiterId, KeyBuf)>,
    /// Whether more has been acknowledged, which is to be asked for again soon.
    pub is_more: bool,
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
    /// needed. Returns at most `at_most` replies that may be told now.
    pub fn acknowledged(&mut self, replicas: usize, offsets: Vec<i64>, at_most: usize) -> ToTell {
        let Some(offset) = reached_by(replicas, offsets) else {
            return ToTell::default();
        };
        let acknowledged = self.acks.acknowledged(offset, at_most);
        for lease in acknowledged.leases {
            let (key, owner) = (lease.hold.key.as_ref(), &lease.hold.owner);
            let (token, until_ms) = (lease.token, lease.until_ms);
            self.sessions.last_until(key, owner, token, until_ms);
        }
        let replies = acknowledged.replies.into_iter();
        let with_key = |id| Some((id, self.acks.reply(id)?.key.clone()));
        ToTell {
            replies: replies.filter_map(with_key).collect(),
            is_more: acknowledged.is_more,
        }
    }

    /// The owner of whose holds a withheld reply tells.
    pub fn told_by(&self, id: WaiterId) -> Option<&Owner> {
        Some(&self.told_hold(id)?.owner)
    }

    /// The holds of which a withheld reply tells.
    fn told_hold(&self, id: WaiterId) -> Option<&HoldId> {
        let withheld = self.acks.reply(id)?;
        self.deliveries.hold_of(withheld.recipient())
    }

    /// What the client of a reply that was withheld is told at last: what it was to be,
    /// if that is still true of its lock as it is stored.
    pub fn tell(
        &mut self,
        id: WaiterId,
        stored: Result<Lock, LockError>,
        now: Now,
    ) -> Option<(Addressee, Answer)> {
        let hold = self.told_hold(id).cloned();
        if let Some(hold) = hold {
            self.end_withheld_of(&hold);
        }
        let withheld = self.take_withheld(id)?;
        let (Tells::Grant(token) | Tells::Renewal(token)) = withheld.tells;
        let hold = self.deliveries.hold_of(withheld.recipient()).cloned();
        let hold = hold.filter(|hold| hold.key == withheld.key);
        let held = hold.and_then(|hold| {
            let stored = stored.ok()?;
            let held = stored.holder(&hold.owner)?;
            self.standing(&withheld, &hold, token, held.clone(), now)
        });
        let stands = held.is_some();
        match held {
            None => self.grant_told(withheld.recipient(), false),
            Some(held) => self.bind_told(&withheld, &held, token, now),
        }
        let answer = match withheld.tells {
            Tells::Grant(token) if stands => Answer::Granted(token),
            Tells::Grant(_) => Answer::NotGranted,
            Tells::Renewal(_) => Answer::Renewed(stands),
        };
        Some((withheld.to, answer))
    }

    /// What is told of at last, if it still stands.
    fn standing(
        &self,
        withheld: &Withheld,
        hold: &HoldId,
        token: FencingToken,
        held: Holder,
        now: Now,
    ) -> Option<Holder> {
        // The others, of which there may be many, don't matter.
        let mut lock = Lock::held_by(held);
        self.end_in_view(hold.key.as_ref(), &mut lock, now);
        let held = lock.holder(&hold.owner)?;
        let (recipient, holds) = (withheld.recipient(), held.holds);
        let stands = held.token == Some(token) && self.deliveries.stands(recipient, token, holds);
        stands.then(|| held.clone())
    }

    /// Binds holds to the connection that is told of them now, if it asked for that. They
    /// last as long as the lease that is acknowledged.
    fn bind_told(&mut self, withheld: &Withheld, held: &Holder, token: FencingToken, now: Now) {
        let (key, owner) = (withheld.key.as_ref(), &held.owner);
        let hold = HoldId::new(key, owner);
        if let Some(session) = withheld.session {
            let SessionToBe {
                client,
                lease,
                end_ms,
                were_held,
            } = session;
            let before = self.sessions.binding_of(key, owner);
            let before = before.filter(|before| before.token == token);
            let sessions = &mut self.sessions;
            let ties = sessions.bind(hold.clone(), client, token, lease, now.ms(), were_held);
            let counted_ms = before.map_or(end_ms, |before| before.kept_until_ms.max(end_ms));
            let stored_ms = held.lease_end_ms.unwrap_or(i64::MAX);
            sessions.count_until(&hold, counted_ms.min(stored_ms));
            if self.claims.is_open(token) {
                self.sessions.leave_unclaimed(key, owner);
            }
            if withheld.to.is_place() {
                return;
            }
            if ties {
                self.deliveries.tie(client);
            }
        }
        if !withheld.to.is_place() {
            let client = Some(withheld.to.client());
            self.sessions.told_by(key, owner, Some(token), client);
        }
        if withheld.session.is_some() {
            self.look_before_it_ends(&hold, now.ms());
        }
    }

    /// Plans a look at holds before the last lease that counts is over. Where it is about
    /// to be, their connection is closed.
    fn look_before_it_ends(&mut self, hold: &HoldId, now_ms: i64) {
        let bound = self.sessions.binding_of(hold.key.as_ref(), &hold.owner);
        let Some(bound) = bound else { return };
        // A lease may be shorter than that.
        let last_ms = bound.kept_until_ms - CLOSED_BEFORE_MS.min(bound.lease.ms() / 3);
        if last_ms <= now_ms {
            self.to_close.extend(bound.clients);
        } else if last_ms < bound.renew_at_ms {
            self.sessions.renew_by(hold, last_ms);
        }
    }
}
