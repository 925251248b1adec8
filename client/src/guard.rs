//! What one has who has a lock.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::client::Inner;
use crate::error::Error;
use crate::hold::{Hold, Lost};
use crate::keyed::Content;

/// A hold on a lock.
///
/// It can end before the guard does: when its lease runs out and no renewal
/// reached the server, when somebody took it away, or when the connection of its
/// session was closed. [`LockGuard::lost`] tells that in time,
/// [`LockGuard::valid_for`] tells how long it can be relied upon at least. A
/// resource that checks [`LockGuard::token`] is safe in any case.
///
/// **Drop** releases the hold in the background, best effort: nobody hears
/// whether that succeeded, and where the runtime ends first the lock stays
/// taken for the rest of its lease ([`LockClient::flush`] waits for it). Use
/// [`LockGuard::release`] where it matters, and [`LockGuard::forget`] to keep
/// the lock taken. [`std::mem::forget`] would keep it taken and renewed for as
/// long as the client lives.
///
/// [`LockClient::flush`]: crate::LockClient::flush
#[must_use = "the lock is released when the guard is dropped"]
pub struct LockGuard {
    holding: Arc<Holding>,
}

impl LockGuard {
    pub(crate) fn new(holding: Arc<Holding>) -> Self {
        Self { holding }
    }

    /// The fencing token: hand it to what you write to, and let that refuse a
    /// token smaller than the greatest it has seen. Greater with every grant
    /// on a server, over all locks; the same for all guards of one hold.
    ///
    /// Of a [`Redlock`](crate::Redlock) it is the greatest of the majority's
    /// tokens, and **not** ordered.
    pub fn token(&self) -> u64 {
        self.holding.hold.token
    }

    /// The lock's key.
    pub fn key(&self) -> &[u8] {
        &self.holding.hold.key
    }

    /// Who holds it.
    pub fn owner(&self) -> &[u8] {
        &self.holding.hold.owner
    }

    /// How long the hold can be relied upon at least, if nobody takes it away;
    /// zero once it is lost. It counts from when the last acquire or renewal
    /// that succeeded was sent, and leaves a margin of 1 % of the lease and 10
    /// milliseconds (at most half of it) for clocks that run apart.
    ///
    /// Of a [session](crate::Lock::session) it is zero from the moment at which
    /// the connection is found closed. Where the server closed it, the hold ended
    /// there as much sooner as it took to hear of it.
    pub fn valid_for(&self) -> Duration {
        self.holding.hold.valid_for().unwrap_or_default()
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
    /// The future does not borrow the guard, so a task of its own can wait for
    /// it. It completes with [`Lost::Released`] when the hold was given back.
    pub fn lost(&self) -> impl Future<Output = Lost> + Send + 'static + use<> {
        self.holding.hold.lost()
    }

    /// Starts the lease anew. All guards of one owner share their hold, so it
    /// is the longest lease that one of them asked for.
    ///
    /// # Errors
    /// [`Error::Lost`] if the hold is over, for good. Any other error leaves
    /// the hold as it was, and [`LockGuard::valid_for`] says for how long.
    pub async fn renew(&self) -> Result<(), Error> {
        self.holding.hold.renew().await
    }

    /// Gives the hold back, unless other guards of the same owner share it.
    /// The lock passes to the next waiter.
    ///
    /// It is given back even if this future is dropped; and where the server
    /// does not answer, that is tried again in the background until the lease
    /// is over.
    ///
    /// # Errors
    /// [`Error::Lost`] if the hold was over before, so that somebody else may
    /// have had the lock while it was relied upon. Any other error says that
    /// it is not known whether the lock is free yet.
    pub async fn release(self) -> Result<(), Error> {
        match Arc::try_unwrap(self.holding) {
            Ok(holding) if !holding.done.load(Ordering::SeqCst) => {
                let released = holding.release();
                drop(holding);
                released.await
            }
            // Another guard of the hold was forgotten, so it is to stay.
            Ok(forgotten) => forgotten.hold.valid_for().map(drop).map_err(Error::Lost),
            Err(shared) => shared.hold.valid_for().map(drop).map_err(Error::Lost),
        }
    }

    /// Gives the guard up and leaves the lock taken until its lease is over,
    /// whatever becomes of other guards of its owner. Nobody renews it any more
    /// once none of them is left.
    ///
    /// A [session](crate::Lock::session) ends even so, with its connection.
    pub fn forget(self) -> u64 {
        self.holding.done.store(true, Ordering::SeqCst);
        self.token()
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

/// A hold that is released when its last guard goes.
pub(crate) struct Holding {
    pub(crate) hold: Arc<Hold>,
    inner: Arc<Inner>,
    /// Whether the owner has a name of its own.
    named: bool,
    /// Whether there is nothing left to release.
    done: AtomicBool,
}

impl Holding {
    pub(crate) fn new(hold: Arc<Hold>, inner: Arc<Inner>, named: bool) -> Self {
        Self {
            hold,
            inner,
            named,
            done: AtomicBool::new(false),
        }
    }

    /// Gives the hold back, whether or not somebody waits for the outcome.
    fn release(&self) -> impl Future<Output = Result<(), Error>> + Send + 'static + use<> {
        self.done.store(true, Ordering::SeqCst);
        let (settled, decided) = Arc::clone(&self.hold).release();
        let inner = Arc::clone(&self.inner);
        let id = self
            .named
            .then(|| (self.hold.key.clone(), self.hold.owner.clone()));
        self.inner.background.spawn(async move {
            settled.await;
            if let Some(id) = id {
                // Has the owner forgotten, unless it is busy with the lock again.
                drop(inner.owners.try_lock(&id));
            }
        });
        decided
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        if !self.done.load(Ordering::SeqCst) {
            drop(self.release());
        }
        self.hold.lose(Lost::Released);
    }
}

/// What is known of an owner with a name of its own, on one lock.
#[derive(Default)]
pub(crate) struct OwnerState {
    holding: Weak<Holding>,
    last: Weak<Hold>,
}

impl OwnerState {
    /// The hold that its guards share, if there are any.
    pub(crate) fn shared(&self) -> Option<Arc<Holding>> {
        self.holding.upgrade()
    }

    /// The last hold, if it may still be on a server.
    pub(crate) fn unreleased(&self) -> Option<Arc<Hold>> {
        self.last.upgrade()
    }

    pub(crate) fn set(&mut self, holding: &Arc<Holding>) {
        self.holding = Arc::downgrade(holding);
        self.last = Arc::downgrade(&holding.hold);
    }
}

impl Content for OwnerState {
    fn is_idle(&self) -> bool {
        self.holding.strong_count() == 0 && self.last.strong_count() == 0
    }
}
