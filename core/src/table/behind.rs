//! Requests of which nothing can come but a wait.

use super::LockTable;
use crate::error::LockError;
use crate::keys::KeyRef;
use crate::lock::{Now, holds_after_acquire};
use crate::queue::{Wait, WaiterId};
use crate::request::AcquireRequest;

impl LockTable {
    /// Puts a request behind those that wait, without a look at what is stored. Returns
    /// nothing, and changes nothing, where the lock has to be looked at.
    ///
    /// It need not be where others come first: who holds it is known, nothing has happened
    /// to it since, and none of it is over; whoever asks holds nothing and waits for
    /// nothing, so it closes no cycle of waits. Should somebody have written to the lock
    /// unnoticed, this one waits for the next look as those before it do.
    pub fn wait_behind(
        &mut self,
        key: KeyRef<'_>,
        request: &AcquireRequest,
        wait: &Wait,
        now: Now,
    ) -> Option<WaiterId> {
        let can_only_wait = self.is_kept_out_by_known(key, now)
            && self.has_room_for(wait)
            && !self.remembered.is_holder(&request.owner)
            && !self.queues.waits(&request.owner)
            && holds_after_acquire(request, 0).is_ok();
        if !can_only_wait {
            return None;
        }
        // A full queue refuses it, and a look may end what is over there.
        let id = self.put_in_queue(key, request.clone(), wait.clone(), now);
        id.ok()
    }

    /// Whether the first who waits is kept out by holds of which all is known.
    fn is_kept_out_by_known(&self, key: KeyRef<'_>, now: Now) -> bool {
        let may_be_over =
            self.sessions.any_ended() || self.acks.any_ended() || !self.ended.is_empty();
        // A look plans when this wait is to be logged.
        let is_logged = self.settings.log_slow_wait_ms.is_some();
        if may_be_over || is_logged {
            return false;
        }
        let Some(first) = self.queues.first_at_rest(key) else {
            return false;
        };
        let Some(lock) = self.remembered.fresh(key) else {
            return false;
        };
        let lasts = lock
            .next_lease_end_ms()
            .is_some_and(|end_ms| now.ms() <= end_ms);
        lasts && !lock.admits(first.request.limit) && !self.queues.is_over(first, now.steady_ms)
    }

    fn has_room_for(&self, wait: &Wait) -> bool {
        !wait.is_for_place() || self.places() < self.settings.max_places
    }

    /// Puts a request at the end of the queue, and plans its end if that is to be here.
    pub(super) fn put_in_queue(
        &mut self,
        key: KeyRef<'_>,
        request: AcquireRequest,
        wait: Wait,
        now: Now,
    ) -> Result<WaiterId, LockError> {
        let ends_here = wait.is_for_place() || self.settings.acks.is_some();
        let until_ms = wait.until_ms.filter(|_| ends_here);
        let max_waiters = self.settings.max_waiters;
        let queues = &mut self.queues;
        let id = queues.push(key, request, wait, now.us, max_waiters)?;
        if let Some(until_ms) = until_ms {
            self.time_outs.insert(id, until_ms);
        }
        Ok(id)
    }
}
