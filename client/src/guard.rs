//! The guard of a held lock.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::error::Error;
use crate::holding::hold::Hold;
use crate::holding::owner::SharedHold;
use crate::holding::wishes::Wish;
use crate::validity::Lost;

/// The guard of a held lock.
///
/// The hold can end before the guard does: when its lease runs out and no
/// renewal reached the server, when somebody took it away, or when the
/// connection of its session was closed. [`LockGuard::lost`] tells that in time,
/// [`LockGuard::valid_for`] tells how long it can be relied upon at least. A
/// resource that checks [`LockGuard::token`] is safe in any case.
///
/// **Drop** releases the hold in the background, best effort: only a warning
/// tells whether that failed, and where the runtime ends first the lock stays
/// taken for the rest of its lease ([`LockClient::flush`] waits for it). Use
/// [`LockGuard::release`] where it matters, and [`LockGuard::forget`] to keep
/// the lock taken. [`std::mem::forget`] would keep it taken and renewed for as
/// long as the client lives.
///
/// [`LockClient::flush`]: crate::LockClient::flush
#[must_use = "the lock is released when the guard is dropped"]
pub struct LockGuard {
    shared: Arc<SharedHold>,
    wish: Wish,
    has_left: bool,
}

impl LockGuard {
    /// The guard of a hold that counts it already.
    pub(crate) fn new((shared, wish): (Arc<SharedHold>, Wish)) -> Self {
        Self {
            shared,
            wish,
            has_left: false,
        }
    }

    fn hold(&self) -> &Arc<Hold> {
        &self.shared.hold
    }

    /// The fencing token: hand it to what you write to, and let that refuse a
    /// token smaller than the greatest it has seen. Greater with every grant
    /// on a server, over all locks; the same for all guards of one hold.
    ///
    /// Of a [`Redlock`](crate::Redlock) it is the greatest of the majority's
    /// tokens, and **not** ordered.
    pub fn token(&self) -> u64 {
        self.hold().token
    }

    /// The lock's key, as the server has it.
    pub fn key(&self) -> &[u8] {
        &self.hold().key
    }

    /// The owner, as the server has it. Of a [`Redlock`](crate::Redlock) it is
    /// the owner's name, if it has one, and what tells this attempt from others.
    pub fn owner(&self) -> &[u8] {
        &self.hold().owner
    }

    /// How long the hold can be relied upon at least, if nobody takes it away;
    /// zero once it is lost. It counts from when the last acquire or renewal
    /// that succeeded was sent, and leaves a margin of 1 % of the lease and 10
    /// milliseconds (at most half of it) for clocks that run apart. On Linux and
    /// Android, time during which the machine was suspended counts as well.
    ///
    /// Of a [session](crate::Session) it is zero from the moment at which the
    /// connection is found closed. Where the server closed it, the hold ended
    /// there earlier, by the time that it took this machine to notice.
    ///
    /// In a process that was forked from the one that has the hold it is zero.
    pub fn valid_for(&self) -> Duration {
        valid_for(self.hold())
    }

    /// Completes the moment the hold can no longer be relied upon. Stop the
    /// work then:
    ///
    /// ```no_run
    /// # async fn work() {}
    /// # async fn example(guard: redis_lock_client::LockGuard) -> Result<(), redis_lock_client::Error> {
    /// tokio::select! {
    ///     () = work() => guard.release().await?,
    ///     why = guard.lost() => eprintln!("stopped: {why}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`Lock::run`](crate::Lock::run) does that by itself. The future does not
    /// borrow the guard, so a task of its own can wait for it. It completes with
    /// [`Lost::Released`] when the hold was given back.
    pub fn lost(&self) -> impl Future<Output = Lost> + Send + 'static + use<> {
        self.hold().lost()
    }

    /// What a task that works under the lock may know of it.
    pub fn handle(&self) -> HoldHandle {
        HoldHandle {
            hold: Arc::downgrade(&self.shared.hold),
            key: self.key().into(),
            owner: self.owner().into(),
            token: self.token(),
        }
    }

    /// Starts the lease anew. All guards of one owner share their hold, so it
    /// is the longest lease that one of them asked for.
    ///
    /// # Errors
    /// [`Error::Lost`] if the hold is over, for good. Any other error leaves
    /// the hold as it was, and [`LockGuard::valid_for`] tells for how long.
    pub async fn renew(&self) -> Result<(), Error> {
        self.hold().renew(self.hold().lease()).await
    }

    /// Gives the hold back, unless other guards of the same owner share it.
    /// The lock passes to the next waiter.
    ///
    /// It is given back even if this future is dropped; and where the server
    /// does not answer or refuses, that is tried again in the background until
    /// the lease is over.
    ///
    /// # Errors
    /// [`Error::Lost`] if the hold was over before, so that somebody else may
    /// have had the lock while it was relied upon. Any other error means that
    /// it is not known whether the lock is free yet.
    pub async fn release(mut self) -> Result<(), Error> {
        self.has_left = true;
        let released = self.shared.leave(self.wish);
        drop(self);
        released.await
    }

    /// Gives the guard up and leaves the lock taken until its lease is over,
    /// whatever becomes of other guards of its owner. Nobody renews it any more
    /// once none of them is left. Returns the token.
    ///
    /// An acquire by the same owner meets that hold. If it is dropped or fails before it is
    /// answered, it gives the hold back.
    ///
    /// A hold of a [session](crate::Session) ends with that all the same.
    pub fn forget(self) -> u64 {
        self.shared.forget();
        self.token()
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if !self.has_left {
            drop(self.shared.leave(self.wish));
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

/// What a task that works under a lock may know of it. It can be cloned and
/// sent anywhere, and does not keep the lock: that is the guard's.
#[derive(Clone)]
pub struct HoldHandle {
    hold: Weak<Hold>,
    key: Arc<[u8]>,
    owner: Arc<[u8]>,
    token: u64,
}

fn valid_for(hold: &Hold) -> Duration {
    match hold.check_process() {
        Ok(()) => hold.valid_for().unwrap_or_default(),
        Err(_) => Duration::ZERO,
    }
}

impl HoldHandle {
    /// As [`LockGuard::token`].
    pub fn token(&self) -> u64 {
        self.token
    }

    /// As [`LockGuard::key`].
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// As [`LockGuard::owner`].
    pub fn owner(&self) -> &[u8] {
        &self.owner
    }

    /// As [`LockGuard::valid_for`].
    pub fn valid_for(&self) -> Duration {
        let hold = self.hold.upgrade();
        hold.map(|hold| valid_for(&hold)).unwrap_or_default()
    }

    /// As [`LockGuard::lost`].
    pub fn lost(&self) -> impl Future<Output = Lost> + Send + 'static + use<> {
        let lost = self.hold.upgrade().map(|hold| hold.lost());
        async {
            match lost {
                Some(lost) => lost.await,
                None => Lost::Released,
            }
        }
    }

    /// As [`LockGuard::renew`].
    ///
    /// # Errors
    /// As [`LockGuard::renew`].
    pub async fn renew(&self) -> Result<(), Error> {
        match self.hold.upgrade() {
            Some(hold) => hold.renew(hold.lease()).await,
            None => Err(Error::Lost(Lost::Released)),
        }
    }
}

impl fmt::Debug for HoldHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HoldHandle")
            .field("key", &String::from_utf8_lossy(&self.key))
            .field("owner", &String::from_utf8_lossy(&self.owner))
            .field("token", &self.token)
            .field("valid_for", &self.valid_for())
            .finish()
    }
}
