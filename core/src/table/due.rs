//! What the table does without being asked: it ends what is over because of what became of a
//! client, keeps up the leases of sessions, looks at contended locks when they are due, and
//! searches for deadlocks.

use super::transition::Transition;
use super::{Answer, LockTable, Step, World};
use crate::bounds::{GRANTS_A_STEP, bound};
use crate::error::LockError;
use crate::keys::{KeyBuf, KeyRef};
use crate::lock::{Lock, Now};
use crate::queue::WaiterId;
use crate::request::{ClientId, Owner};
use crate::sessions::HoldId;

/// How soon to try again while the server must not write.
pub const REFUSED_RETRY_MS: i64 = 10;

/// How long before the end of a session's lease its connection is closed, if the lease
/// could not be kept up, or replicas have not acknowledged it.
pub(super) const CLOSED_BEFORE_MS: i64 = 2 * REFUSED_RETRY_MS;

/// How many bound holds are looked at, and their connections closed, in a millisecond, at the
/// least.
const CLOSED_A_MS: usize = 20;

/// How soon to look again at a key that another node of the cluster serves. The
/// server does not tell when a slot stays or comes back.
const SLOT_RETRY_MS: i64 = 500;

/// The time of what is overdue, in milliseconds since 1970.
pub(super) const OVERDUE_MS: i64 = 0;

/// How often a contended lock is looked at for no other reason, if nothing else is set.
pub const RECHECK_INTERVAL_MS: i64 = 500;

/// How many locks a second are looked at, at most, for no other reason than that it has
/// been a while.
const REGULAR_RECHECKS_A_SECOND: usize = 20_000;

/// Regular rechecks are due at multiples of this, in milliseconds since 1970.
const REGULAR_RECHECKS_TOGETHER_MS: i64 = 50;

/// A lock that is due, and why.
#[derive(Clone, Debug)]
pub struct Due {
    /// The lock.
    pub key: KeyBuf,
    /// What is due.
    pub work: Work,
}

impl Due {
    const fn recheck(key: KeyBuf) -> Self {
        let work = Work::Recheck;
        Self { key, work }
    }
}

/// What is due.
#[derive(Clone, Debug)]
pub enum Work {
    /// Something has ended, or somebody may have it now.
    Recheck,
    /// The lease of this owner's holds, which are bound to a connection, is to be kept up.
    Keep(Owner),
    /// A wait is to be searched for deadlocks.
    CheckWait(WaiterId),
}

/// Why something that is due can't be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotNow {
    /// The server refuses writes.
    Refused,
    /// Another node of the cluster serves the key, or is about to.
    NotServedHere,
}

impl Transition<'_> {
    /// Keeps up the lease of holds that are bound to a connection.
    fn keep(&mut self, owner: &Owner) {
        let (key, now) = (self.key, self.now);
        let Some(binding) = self.table.sessions.binding_of(key, owner) else {
            return;
        };
        if !binding.is_claimed {
            // Its first lease is over.
            self.table.sessions.unbind(key, owner);
            return;
        }
        let (effects, token) = (&mut self.step.effects, binding.token);
        // The setting may have changed since the last renewal.
        let lease = binding.lease.min(self.table.settings.max_lease);
        let kept = self.lock.keep(owner, token, lease, now, effects);
        if kept {
            let is_set = lease < binding.lease;
            self.lease_counts(owner, token, is_set.then_some(lease));
        } else {
            // Before the hand-off, which may bind the owner's next holds.
            self.table.sessions.unbind(key, owner);
            if binding.kept_until_ms <= now.ms() {
                self.table.to_close.extend(binding.clients);
            }
        }
    }
}

impl LockTable {
    /// When there is something to do next by the wall clock, in milliseconds since 1970,
    /// if ever. What is overdue has a time in the past.
    pub fn wake_at_ms(&self, now: Now) -> Option<i64> {
        let is_settled = self.ended.is_empty()
            && self.unchecked.is_empty()
            && self.to_close.is_empty()
            && self.untold.is_empty()
            && self.gone.is_empty()
            && !self.queues.is_in_round();
        if !is_settled {
            return Some(OVERDUE_MS);
        }
        let time_outs = self.time_outs.first();
        let time_outs = time_outs.map(|(at_ms, _)| at_ms - now.steady_ms + now.ms());
        let unclaimed = self.unclaimed.values().next().copied();
        let rechecks = self.queues.next_recheck_ms();
        let renewals = self.sessions.next_renewal_ms();
        let all = [rechecks, renewals, time_outs, unclaimed];
        all.into_iter().flatten().min()
    }

    /// Takes at most `at_most` clients whose connections have to be closed.
    pub fn take_clients_to_close(&mut self, at_most: usize) -> Vec<ClientId> {
        let taken = (0..at_most).map_while(|_| self.to_close.pop_first());
        taken.collect()
    }

    /// The lock that is due next, if one is. Nothing changes.
    pub fn next_due(&self, now_ms: i64) -> Option<KeyBuf> {
        let renewal = || Some(self.sessions.next_due(now_ms)?.key);
        let wait = || self.queues.waiter(*self.unchecked.first()?);
        let ended = self.ended.next_key().cloned();
        ended
            .or_else(renewal)
            .or_else(|| self.queues.next_due(now_ms).cloned())
            .or_else(|| self.queues.next_of_round().cloned())
            .or_else(|| Some(wait()?.key.clone()))
    }

    /// Takes something that is due, of each kind in turn. It is done by
    /// [`LockTable::do_due`], or put off by [`LockTable::put_off`].
    pub fn take_due(&mut self, now_ms: i64) -> Option<Due> {
        const KINDS: usize = 5;
        (0..KINDS).find_map(|_| {
            self.turn = (self.turn + 1) % KINDS;
            match self.turn {
                0 => self.ended.next_key().cloned().map(Due::recheck),
                1 => self.take_renewal(now_ms),
                2 => self.queues.take_due(now_ms).map(Due::recheck),
                3 => self.queues.take_next_of_round().map(Due::recheck),
                _ => self.take_unchecked(),
            }
        })
    }

    fn take_renewal(&mut self, now_ms: i64) -> Option<Due> {
        let hold = self.sessions.take_due(now_ms)?;
        self.end_gone(&hold);
        Some(Due {
            key: hold.key,
            work: Work::Keep(hold.owner),
        })
    }

    fn take_unchecked(&mut self) -> Option<Due> {
        while let Some(id) = self.unchecked.pop_first() {
            // A waiter that has left need not be checked.
            if let Some(waiter) = self.queues.waiter(id) {
                let (key, work) = (waiter.key.clone(), Work::CheckWait(id));
                return Some(Due { key, work });
            }
        }
        None
    }

    /// Does what is due.
    pub fn do_due(
        &mut self,
        due: Due,
        stored: Result<Lock, LockError>,
        now: Now,
        world: &mut dyn World,
        step: &mut Step,
    ) {
        let key = due.key.as_ref();
        let mut stored = match stored {
            Ok(stored) => stored,
            Err(error) => {
                self.forget_ended(key);
                if let Work::Keep(owner) = &due.work {
                    // The key is no lock at the moment, and may be one again.
                    self.not_kept(HoldId::new(key, owner), now.ms());
                }
                self.refuse_all(key, &error, now.ms(), step);
                return;
            }
        };
        let _: Result<(), LockError> = self.step(key, &mut stored, now, world, step, |step| {
            match &due.work {
                Work::Recheck => {}
                Work::Keep(owner) => step.keep(owner),
                Work::CheckWait(id) => step.check_wait(*id),
            }
            Ok(())
        });
    }

    /// A session's lease could not be kept up. That is tried again at shorter and shorter
    /// intervals. Before the lease is over, the connection is closed.
    fn not_kept(&mut self, hold: HoldId, now_ms: i64) {
        self.end_gone(&hold);
        let binding = self.sessions.binding(&hold).cloned();
        let Some(binding) = binding else { return };
        if !binding.is_claimed {
            self.sessions.unbind(hold.key.as_ref(), &hold.owner);
            return;
        }
        // The connections of others may have to be closed at the same time.
        let crowd_ms = i64::try_from(self.sessions.len() / CLOSED_A_MS).unwrap_or(i64::MAX);
        let closed_before_ms = CLOSED_BEFORE_MS + crowd_ms.min(binding.lease.ms() / 2);
        let left_ms = binding.kept_until_ms - now_ms - closed_before_ms;
        if left_ms <= 0 {
            self.to_close.extend(binding.clients);
        } else {
            let again_ms = now_ms + left_ms.min(REFUSED_RETRY_MS).max(left_ms / 2);
            let (sessions, token) = (&mut self.sessions, Some(binding.token));
            sessions.change(&hold, token, |bound| bound.renew_at_ms = again_ms);
        }
    }

    /// The key has become something else. Its waiters are told so.
    fn refuse_all(&mut self, key: KeyRef<'_>, error: &LockError, now_ms: i64, step: &mut Step) {
        while step.answers.len() < bound(GRANTS_A_STEP)
            && let Some(id) = self.queues.first(key).map(|first| first.id)
            && let Some(waiter) = self.remove_waiter(id)
        {
            self.metrics.waits_refused += 1;
            let answer = Answer::Refused(error.clone());
            step.answers.push((waiter.addressee(), answer));
        }
        self.queues.recheck_by(key, now_ms);
    }

    /// What was taken can't be done now. It will be due again.
    pub fn put_off(&mut self, due: Due, why: NotNow, now_ms: i64) {
        let key = due.key.as_ref();
        let again_ms = now_ms.saturating_add(match why {
            NotNow::Refused => REFUSED_RETRY_MS,
            NotNow::NotServedHere => SLOT_RETRY_MS,
        });
        if why == NotNow::NotServedHere {
            // The node that serves the key now knows of no connection here.
            self.forget_ended(key);
        }
        match due.work {
            Work::Keep(owner) => self.not_kept(HoldId::new(key, &owner), now_ms),
            // Where the wait is looked at again, it may be redirected by then.
            Work::CheckWait(id) if why == NotNow::Refused => {
                self.unchecked.insert(id);
            }
            Work::Recheck | Work::CheckWait(_) => {}
        }
        self.queues.recheck_by(key, again_ms);
    }

    /// The server refuses writes. Handles at most `at_most` of the sessions that are due,
    /// without a write. Returns when to go on, if anything is left to do or to try again.
    pub fn put_off_everything(&mut self, now: Now, at_most: usize) -> Option<i64> {
        let now_ms = now.ms();
        for _ in 0..at_most {
            match self.sessions.take_due(now_ms) {
                Some(hold) => self.not_kept(hold, now_ms),
                None => break,
            }
        }
        let is_session_due = self.sessions.next_due(now_ms).is_some();
        if is_session_due || !self.to_close.is_empty() {
            // No client may trust its session for longer than that is kept up.
            return Some(now_ms);
        }
        let again_ms = now_ms.saturating_add(REFUSED_RETRY_MS);
        self.wake_at_ms(now).map(|_| again_ms)
    }

    /// This server has become a replica, which keeps up no lease, and the new primary
    /// knows of no connection here. So each holder by `SESSION` has its connection closed:
    /// for at most `at_most` holds now, for the others in the next calls. Replies on their
    /// way, unclaimed grants and noted ends are all forgotten now.
    pub fn forget_connections(&mut self, at_most: usize) {
        for _ in 0..at_most {
            let Some(clients) = self.sessions.forget_any() else {
                break;
            };
            self.to_close.extend(clients);
        }
        self.outbox = Default::default();
        self.acks.forget_all();
        self.unclaimed = Default::default();
        self.ended = Default::default();
        self.unchecked = Default::default();
    }

    /// When a contended lock is looked at for no other reason.
    pub(super) fn regular_recheck_ms(&self, now_ms: i64) -> i64 {
        let contended = self.queues.counts().contended_keys;
        let all_once_ms = contended.saturating_mul(1000) / REGULAR_RECHECKS_A_SECOND;
        let all_once_ms = i64::try_from(all_once_ms).unwrap_or(i64::MAX);
        let interval_ms = self.settings.recheck_interval_ms.max(all_once_ms);
        let at_ms = now_ms.saturating_add(interval_ms);
        if interval_ms < 2 * REGULAR_RECHECKS_TOGETHER_MS {
            return at_ms;
        }
        // Many at once cost less than one at a time.
        at_ms - at_ms % REGULAR_RECHECKS_TOGETHER_MS
    }

    /// Whether this waiter is in a queue.
    #[cfg(test)]
    pub(crate) fn is_waiting(&self, id: WaiterId) -> bool {
        self.queues.waiter(id).is_some()
    }
}
