//! The guard of a held lock.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::{Error, Lost};
use crate::hold::Hold;

/// A lock that is held. Dropping the guard releases the lock, in the background.
///
/// The client renews the lease every third of it, until the guard is released or dropped.
/// A hold can end earlier all the same: no renewal got through, somebody broke the lock,
/// the server lost it. [`lost`](Self::lost) tells, before the lease is over at the server.
/// Work that must not be done by two hands the [`token`](Self::token) to what it changes,
/// or changes it by [`guarded`](Self::guarded).
///
/// At the end of `main`, [`release`](Self::release) rather than drop: the runtime may end
/// before the background does its work, and the lock stays taken for the rest of its lease.
#[must_use = "the lock is released when the guard is dropped"]
pub struct LockGuard {
    hold: Arc<Hold>,
    has_left: AtomicBool,
}

impl LockGuard {
    pub(crate) fn new(hold: Arc<Hold>) -> Self {
        let has_left = AtomicBool::new(false);
        Self { hold, has_left }
    }

    /// The lock's key, with the client's prefix.
    pub fn key(&self) -> &[u8] {
        &self.hold.request.key
    }

    /// What the server calls the holder.
    pub fn owner(&self) -> &[u8] {
        &self.hold.request.owner
    }

    /// The fencing token: greater than that of every earlier hold of the lock.
    pub fn token(&self) -> u64 {
        self.hold.token
    }

    /// How long the hold can be relied upon if no renewal succeeds; zero once it is lost.
    ///
    /// Just after a wait it may be short, at most `lock.claim-timeout` of the server (2
    /// seconds): the server grants whoever waited a short first lease, which the client
    /// makes a full one meanwhile. Work that needs more calls [`renew`](Self::renew)
    /// first.
    pub fn valid_for(&self) -> Duration {
        match self.hold.shared.check_process() {
            Ok(()) => self.hold.left().unwrap_or_default(),
            Err(_) => Duration::ZERO,
        }
    }

    /// Completes when the hold is over, and says why. It does so before the server could
    /// give the lock to another, unless somebody took it away there or blocks the client's runtime.
    pub fn lost(&self) -> impl Future<Output = Lost> + Send + 'static + use<> {
        self.hold.lost()
    }

    /// Renews the lease now.
    ///
    /// # Errors
    /// [`Error::Lost`] if the hold is over. After any other it stands: try again.
    pub async fn renew(&self) -> Result<(), Error> {
        let (hold, shared) = (Arc::clone(&self.hold), &self.hold.shared);
        shared.check_process()?;
        hold.left().map_err(Error::Lost)?;
        // It goes on if nobody polls this: the renewals by itself wait for it.
        let renewing = async move { hold.renew().await.map(|_| ()) };
        shared.router.spawned(renewing).await
    }

    /// Runs one Redis command only if the server still has this hold, as one step with
    /// that check (`LOCK.GUARD`). In a cluster the command's keys have to be in the lock's
    /// slot. The reply may be as large as the server lets a subscriber's be: 32 MB, unless
    /// its `client-output-buffer-limit pubsub` says otherwise.
    ///
    /// # Errors
    /// [`Error::NotHeld`] if it is over there: nothing was done. [`Error::Unavailable`]
    /// leaves open whether it was.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn guarded<T: redis::FromRedisValue>(
        &self,
        command: &redis::Cmd,
    ) -> Result<T, Error> {
        let reply = self.hold.guarded(command).await?;
        redis::from_redis_value(reply).map_err(|error| Error::Reply(error.to_string()))
    }

    /// Releases the lock, and waits until the server has.
    ///
    /// # Errors
    /// [`Error::Lost`] if the hold was over before: what it protected may have been
    /// another's for a while. With any other error the client goes on in the background
    /// until the lease is over.
    pub async fn release(self) -> Result<(), Error> {
        self.end().await
    }

    /// As [`release`](Self::release), of a guard that others may have, too.
    pub(crate) async fn end(&self) -> Result<(), Error> {
        self.hold.shared.check_process()?;
        self.has_left.store(true, Ordering::Relaxed);
        self.hold.leave().await.unwrap_or(Err(Error::Stopped))
    }

    /// Leaves the lock taken for the rest of its lease, and returns the token. After a wait,
    /// [`renew`](Self::renew) first: its lease may be a short one still. All of a job's guards end.
    pub fn forget(self) -> u64 {
        self.has_left.store(true, Ordering::Relaxed);
        self.hold.end(Lost::Released);
        self.token()
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if !self.has_left.load(Ordering::Relaxed) && self.hold.shared.check_process().is_ok() {
            drop(self.hold.leave());
        }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("key", &String::from_utf8_lossy(self.key()))
            .field("owner", &String::from_utf8_lossy(self.owner()))
            .field("token", &self.token())
            .field("valid_for", &self.valid_for())
            .finish()
    }
}
