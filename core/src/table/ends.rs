//! The ends of holds: leases that are over, sessions, grants that nobody heard of.
//!
//! # The end of a crowd
//! To end one hold takes a write and several look-ups, and many holds may end together:
//! with their connection, or by their leases. A command ends [`ends_a_step`] of them one
//! by one. The others stay in the stored lock for now, and the command finds out of them
//! only what it needs:
//! - All are over: one effect empties the lock.
//! - Enough are left to keep out who asks: it is kept out. No search for deadlocks takes
//!   those that are over for holders.
//! - At most [`left_at_once`] are left, and who asks may come in beside them: the lock is
//!   written anew with these alone.
//! - `LOCK.BREAK` takes the lock from all, and is told whether anybody held it.
//!
//! Where holds are over by their leases alone, the command looks only at those that are
//! not. Where connections have ended as well, it goes through two lists in the order of
//! tokens, side by side: the holders, and the holds of these connections. That is a short
//! step for each holder, without a look at any map. Whatever else is known of such holds
//! is given up later, bit by bit.
//!
//! One case takes longer: more are left, and the limit of who asks has room beside them
//! all the same. Then those that are over are ended one by one. So are grants that are
//! withheld from places that have ended.

use std::iter;

use super::LockEvent;
use super::transition::Transition;
use crate::bounds::{PASSED_A_STEP, ends_a_step, left_at_once};
use crate::deadlock::Certain;
use crate::ended::{Ended, EndedBy};
use crate::holder::Holder;
use crate::holders::Holders;
#[cfg(feature = "planted-faults")]
use crate::planted::Fault;
use crate::request::{Limit, Owner};
use crate::sessions::HoldId;
use crate::token::FencingToken;

/// What is over among many holders of a lock, and is still stored.
#[derive(Debug, Default)]
struct Over {
    /// How many leases are over.
    leases: usize,
    /// The tokens of the others whose connections have ended.
    sessions: Vec<FencingToken>,
    /// How many holders are left, as far as they were counted.
    live: usize,
    /// The tokens of these.
    left: Vec<FencingToken>,
}

/// What a request has found out about those that keep it out.
#[derive(Debug, Default)]
pub(super) struct KeptOut {
    /// Whether enough of them are not over, once they were counted.
    by_enough: Option<bool>,
    /// Whether they were looked at for few that are not over.
    was_crowd_looked_at: bool,
}

impl Over {
    fn count(&self) -> usize {
        self.leases + self.sessions.len()
    }
}

impl Transition<'_> {
    /// Ends what is over: of many holders all at once, or as many as one step ends.
    #[inline]
    pub(super) fn end_first(&mut self, asker: Option<&Owner>) {
        if self.table.acks.any_ended() {
            self.table.end_withheld_on(self.key, ends_a_step());
            if let Some(asker) = asker {
                self.table.end_withheld_of(&self.hold_of(asker));
            }
        }
        if !self.lock.is_exclusive() && self.may_be_over() && !self.end_all_as_one() {
            self.expire_leases(asker);
        }
        self.end_what_is_over(asker);
    }

    /// Ends all that is over, unless many hold the lock.
    pub(super) fn end_all_of_few(&mut self) {
        self.end_withheld();
        while !self.has_many_holders() && self.end_more() {}
    }

    /// Whether more hold the lock than one step ends.
    pub(super) fn has_many_holders(&self) -> bool {
        self.lock.holders().len() > ends_a_step()
    }

    /// Whether anything may be over, of this lock or another.
    pub(super) fn may_be_over(&self) -> bool {
        let is_overdue = || self.lock.holders.overdue(self.now.ms()).is_some();
        self.table.sessions.any_ended() || is_overdue()
    }

    /// Whether somebody is known who holds the lock and is not over.
    fn is_one_left(&self) -> bool {
        let known = self.table.one_left;
        let held = known.and_then(|token| self.lock.hold_with(token));
        held.is_some_and(|held| !self.graph(&Certain::new()).is_over_in(self.key, held))
    }

    /// Looks which of many holders are over, until there are enough that are not. Where it
    /// is by their leases alone, those are not looked at that are over. Else it takes one
    /// short step for each: two lists in the order of tokens are gone through.
    fn over_among(&self, are_enough: impl Fn(usize) -> bool) -> Over {
        let (holders, mut over) = (&self.lock.holders, Over::default());
        let (now_ms, deliveries) = (self.now.ms(), &self.table.deliveries);
        let sessions = &self.table.sessions;
        let any_ended = sessions.any_ended() && sessions.bound_key(self.key).is_some();
        if !any_ended && let Some(left) = holders.not_overdue(now_ms) {
            for holder in left {
                over.live += 1;
                over.left.extend(holder.token);
                if are_enough(over.live) {
                    return over;
                }
            }
            over.leases = holders.len() - over.live;
            return over;
        }
        let any_on_its_way = deliveries.any_on(self.key);
        // Grants on their way speak for some holds of a session that has ended.
        let is_promised = |owner: &Owner, token| {
            any_on_its_way && deliveries.promised(&self.hold_of(owner), token) > 0
        };
        let mut ended = sessions.ended_by_token(self.key);
        let mut next = ended.next();
        let mut seen = 0;
        for holder in holders.by_token() {
            let Some(token) = holder.token else { continue };
            seen += 1;
            while next.is_some_and(|(other, _)| other < token) {
                next = ended.next();
            }
            let has_ended = next == Some((token, &holder.owner));
            if has_ended {
                next = ended.next();
            }
            if holder.is_overdue(now_ms) {
                over.leases += 1;
            } else if has_ended && !is_promised(&holder.owner, token) {
                over.sessions.push(token);
            } else {
                over.live += 1;
                over.left.push(token);
                if are_enough(over.live) {
                    return over;
                }
            }
        }
        // The others have no token.
        over.live += holders.len() - seen;
        over
    }

    /// Whether enough of many holders are not over to keep out, by themselves, who is next
    /// in line, and so everybody behind.
    fn are_enough_left(&mut self, newcomers: Limit) -> bool {
        if !self.has_many_holders() || !self.may_be_over() {
            return false;
        }
        let first = self.first_in_line().map(|first| first.request.limit);
        if first.is_none() && self.step.passed >= PASSED_A_STEP {
            // Nobody knows yet who is next.
            return true;
        }
        let limit = first.unwrap_or(newcomers);
        let are_enough = |live| !limit.has_room_beside(live);
        let count = || match limit == Limit::EXCLUSIVE && self.is_one_left() {
            true => 1,
            false => self.over_among(are_enough).live,
        };
        are_enough(self.lock.holders.len()) && are_enough(count())
    }

    /// Ends the holds of many holders as one, if all are over. Returns whether they were.
    /// What else is known of them is given up bit by bit.
    pub(super) fn end_all_as_one(&mut self) -> bool {
        if !self.has_many_holders() {
            return false;
        }
        self.end_noted();
        if self.is_one_left() {
            return false;
        }
        let over = self.over_among(|live| live > 0);
        self.table.one_left = over.left.first().copied();
        if over.live > 0 {
            return false;
        }
        self.end_all(over);
        true
    }

    /// Ends the holds of many holders as one. All are over.
    fn end_all(&mut self, over: Over) {
        self.end_all_but(Vec::new(), over);
    }

    /// Ends all holds that are over as one, if few of many holders are left. Returns
    /// whether that was so.
    fn end_all_but_few(&mut self) -> bool {
        if !self.has_many_holders() {
            return false;
        }
        let over = self.over_among(|live| live > left_at_once());
        if over.live > left_at_once() || over.count() == 0 {
            return false;
        }
        let left = over.left.iter();
        let left = left
            .filter_map(|token| self.lock.hold_with(*token))
            .cloned();
        let left: Vec<Holder> = left.collect();
        if left.len() < over.live {
            return false;
        }
        self.end_all_but(left, over);
        true
    }

    /// Leaves the lock to these, and ends all other holds as one.
    fn end_all_but(&mut self, left: Vec<Holder>, over: Over) {
        let bound = left.iter().map(|holder| self.hold_of(&holder.owner));
        let bound: Vec<HoldId> = bound.collect();
        let any_bound = !over.sessions.is_empty();
        let holders = self.lock.leave_to(left, &mut self.step.effects);
        self.count_over(over);
        if any_bound {
            self.step.freed = true;
            let sessions = &mut self.table.sessions;
            let bound = bound.into_iter();
            let bound = bound.filter_map(|hold| Some((sessions.take_binding(&hold)?, hold)));
            let bound: Vec<_> = bound.collect();
            self.forget_bound(&holders);
            for (binding, hold) in bound {
                let sessions = &mut self.table.sessions;
                sessions.rebind(hold, binding, binding.client, binding.lease);
            }
        }
        self.discard(holders);
    }

    /// Counts holds that are over and end as one.
    fn count_over(&mut self, over: Over) {
        let (leases, sessions) = (over.leases, over.sessions.len());
        let table = &mut *self.table;
        table.metrics.releases_expired += leases as u64;
        table.metrics.releases_session += sessions as u64;
        if !table.claims.is_empty() {
            for &token in &over.sessions {
                table.claims.close(token);
            }
        }
        if sessions > 0 {
            table.unmeasured.push((self.now.us, over.sessions));
        }
        let expired = iter::repeat_n(LockEvent::Expired, leases);
        let released = iter::repeat_n(LockEvent::Released, sessions);
        self.step.events.extend(expired.chain(released));
    }

    /// Forgets what is bound to holds that have ended as one, or is on its way.
    pub(super) fn forget_bound(&mut self, holders: &Holders) {
        let (key, table) = (self.key, &mut *self.table);
        let lock = &self.lock;
        let is_over = |owner: &Owner| holders.get(owner).is_some() && lock.holder(owner).is_none();
        table.deliveries.all_ended(key, is_over);
        table.unbind_all(key, holders, self.now.ms());
    }

    /// Forgets holders that hold the lock no more.
    pub(super) fn discard(&mut self, holders: Holders) {
        if !self.table.remembered.is_crowd(self.key) {
            let owners = holders.iter().map(|holder| holder.owner.clone());
            self.changed.extend(owners);
        }
        self.table.remembered.discard(holders);
    }

    pub(super) fn expire_leases(&mut self, asker: Option<&Owner>) {
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
    pub(super) fn expire_lease_of(&mut self, owner: &Owner) -> bool {
        let effects = &mut self.step.effects;
        let is_over = self.lock.end_lease_of(owner, self.now, effects);
        if is_over {
            self.count_expired(owner.clone());
        }
        is_over
    }

    pub(super) fn count_expired(&mut self, owner: Owner) {
        self.changed.push(owner);
        self.table.metrics.releases_expired += 1;
        self.step.events.push(LockEvent::Expired);
    }

    /// Returns whether any connection's end was noted of it.
    pub(super) fn end_what_is_over(&mut self, asker: Option<&Owner>) -> bool {
        let table = &mut *self.table;
        let mut any_ended = false;
        if table.sessions.any_ended() {
            if let Some(asker) = asker {
                table.end_binding(&HoldId::new(self.key, asker));
            }
            let holders = self.lock.holders().iter().map(|holder| &holder.owner);
            let ended = table.sessions.ended_on(self.key, holders, ends_a_step());
            any_ended = !ended.is_empty();
            for hold in ended {
                table.end_binding(&hold);
            }
        }
        self.end_noted();
        any_ended
    }

    /// Ends what is noted as over.
    pub(super) fn end_noted(&mut self) {
        if self.table.ended.is_empty() {
            return;
        }
        for ended in self.table.ended.take(self.key) {
            self.end(&ended);
        }
    }

    /// Ends all grants of this lock that are withheld from places that have ended. Returns
    /// whether there were any.
    pub(super) fn end_withheld(&mut self) -> bool {
        let any_ended = self.table.end_withheld_on(self.key, usize::MAX);
        self.end_noted();
        any_ended
    }

    /// Takes the lock from all who hold it, if its newest token is this one. Returns whether
    /// anybody held it.
    pub(super) fn break_holds(&mut self, token: Option<FencingToken>) -> bool {
        let over = match self.has_many_holders() && self.may_be_over() {
            true => self.over_among(|_| false),
            false => Over::default(),
        };
        if over.live == 0 && over.count() > 0 {
            self.end_all(over);
            return false;
        }
        let holders = self.lock.break_holds(token, &mut self.step.effects);
        let Some(broken) = holders else {
            // If anybody holds it, that was another token.
            self.table.metrics.tokens_refused += u64::from(!self.lock.is_free());
            return false;
        };
        self.step.freed = true;
        let live = broken.len() - over.count();
        self.count_over(over);
        self.step.events.push(LockEvent::Broken);
        let table = &mut *self.table;
        table.metrics.releases_broken += live as u64;
        if !table.claims.is_empty() {
            let tokens = broken.iter().filter_map(|holder| holder.token);
            for token in tokens {
                table.claims.close(token);
            }
        }
        self.forget_bound(&broken);
        self.discard(broken);
        true
    }

    /// Ends some of what is over, if who asks could be let in without it. Returns whether
    /// there was any.
    pub(super) fn end_what_keeps_out(&mut self, newcomers: Limit, kept_out: &mut KeptOut) -> bool {
        if self.end_withheld() {
            return true;
        }
        let count = || self.are_enough_left(newcomers);
        if *kept_out.by_enough.get_or_insert_with(count) {
            return false;
        }
        if !kept_out.was_crowd_looked_at {
            kept_out.was_crowd_looked_at = true;
            if self.end_all_but_few() {
                return true;
            }
        }
        self.end_more()
    }

    /// Ends more of what is over than one step has to. Returns whether there was any.
    pub(super) fn end_more(&mut self) -> bool {
        let holders = self.lock.holders().len();
        self.expire_leases(None);
        // It may have been that of others, before that of the holders.
        self.end_what_is_over(None) || self.lock.holders().len() < holders
    }

    /// Whether all leases of a lock that several may hold are over.
    pub(super) fn is_all_overdue(&self) -> bool {
        let last_ms = self.lock.last_lease_end_ms();
        !self.lock.is_exclusive() && last_ms.is_some_and(|end_ms| end_ms < self.now.ms())
    }

    /// Whether nobody waits in front of a newcomer.
    pub(super) fn is_next_in_line(&mut self) -> bool {
        let first = self.first_in_line();
        first.is_none() && self.step.passed < PASSED_A_STEP
    }

    /// Ends this owner's holds, if they are over and were not among those that this
    /// step ended: nobody is told of a hold that is over.
    pub(super) fn end_of(&mut self, owner: &Owner) {
        self.expire_lease_of(owner);
        let (any_withheld, any_bound) =
            (self.table.acks.any_ended(), self.table.sessions.any_ended());
        if !any_withheld && !any_bound {
            return;
        }
        let hold = self.hold_of(owner);
        self.table.end_withheld_of(&hold);
        self.table.end_binding(&hold);
        self.end_noted();
    }

    pub(super) fn end(&mut self, ended: &Ended) {
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
    pub(super) fn count_release(&mut self, held: &Holder, ended_by: Option<EndedBy>) {
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
            self.table.claims.close(token);
        }
        self.forget_deliveries(&held.owner);
    }

    pub(super) fn forget_deliveries(&mut self, owner: &Owner) {
        let (key, deliveries) = (self.key, &mut self.table.deliveries);
        deliveries.ended(|| HoldId::new(key, owner));
    }
}
