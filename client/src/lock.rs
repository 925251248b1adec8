//! What is asked for.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;
use tracing::Instrument;

use crate::acquire;
use crate::client::Inner;
use crate::error::Error;
use crate::guard::LockGuard;
use crate::hold::whole_ms;
use crate::mode::Mode;

/// The longest lease: ten years.
const LEASE_MS_MAX: u64 = 315_360_000_000;

const OWNER_MAX_BYTES: usize = 1024;

/// A lock, and how to take it. It can be used any number of times.
///
/// ```no_run
/// # async fn example(client: redis_lock_client::LockClient) -> Result<(), redis_lock_client::Error> {
/// use std::time::Duration;
///
/// let lock = client.lock("orders:42").wait(Duration::from_secs(5));
/// if let Some(guard) = lock.acquire().await? {
///     println!("token {}", guard.token());
///     guard.release().await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a lock is taken by `acquire` or `try_acquire`"]
pub struct Lock {
    pub(crate) inner: Arc<Inner>,
    pub(crate) key: Vec<u8>,
    pub(crate) owner: Option<Vec<u8>>,
    lease: Option<Duration>,
    wait: Option<Duration>,
    pub(crate) mode: Mode,
    pub(crate) session: bool,
    max_renewals: Option<u32>,
    pub(crate) replicas: Option<Replicas>,
}

/// How many replicas have to have a grant, and how soon.
#[derive(Clone, Copy)]
pub(crate) struct Replicas {
    pub(crate) wanted: usize,
    pub(crate) within: Duration,
}

/// How long to wait for a lock.
#[derive(Clone, Copy)]
pub(crate) enum Wait {
    /// Not at all.
    No,
    /// Until then, or without end.
    Until(Option<Instant>),
}

impl Lock {
    pub(crate) fn new(inner: Arc<Inner>, key: &[u8]) -> Self {
        Self {
            inner,
            key: key.to_vec(),
            owner: None,
            lease: None,
            wait: None,
            mode: Mode::Exclusive,
            session: false,
            max_renewals: None,
            replicas: None,
        }
    }

    /// Ends the hold by itself this long after the last renewal, and leaves
    /// renewals to you ([`LockGuard::renew`]). Whole milliseconds, at least
    /// one, at most ten years.
    ///
    /// Without it the lease is that of the client (30 seconds if not changed),
    /// and a task renews it every third of that for as long as a guard is there.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Waits at most so long for the lock. Zero is [`Lock::try_acquire`].
    /// Without it, waits without end.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Takes the lock for this owner: 1 to 1024 bytes that don't begin with
    /// `@`. Guards of one owner share one hold, which ends with the last of
    /// them. Without it, every guard excludes every other.
    ///
    /// Only among owners with a name are deadlocks found ([`Error::Deadlock`]): any
    /// other guard is an owner of its own, which has one lock and waits for none.
    ///
    /// An owner's name belongs to one client. Two clients that use the same
    /// one don't exclude each other, and a client that was started anew takes
    /// over what its predecessor held by that name.
    pub fn owner(mut self, owner: impl AsRef<[u8]>) -> Self {
        self.owner = Some(owner.as_ref().to_vec());
        self
    }

    /// Holds the lock together with any number of others that share it, as
    /// readers do; a writer asks without this. Who asks first comes first, so a
    /// stream of readers does not keep a writer out.
    ///
    /// Guards of one owner share its hold in the mode in which it was taken. Who
    /// asks for a looser mode than that has the stricter one; who asks for a
    /// stricter one gets [`Error::Upgrade`].
    pub fn shared(mut self) -> Self {
        self.mode = Mode::Shared;
        self
    }

    /// Holds the lock together with at most `limit` - 1 others: one of so many
    /// permits, each with a lease and a token of its own. Where several ask with
    /// different limits, the least of those who hold it and of who wants in
    /// counts. Of this and [`Lock::shared`] the last one called counts.
    ///
    /// A [`Redlock`](crate::Redlock) has no permits: each of its majorities would
    /// count for itself.
    pub fn limit(mut self, limit: u64) -> Self {
        self.mode = Mode::Limited(limit);
        self
    }

    /// Ends the hold when this process does: it is tied to a connection of its
    /// own, which lives as long as its guards, and the server ends the hold the
    /// moment that connection closes. The server keeps the lease renewed until
    /// then; it bounds how long the lock stays taken where the server can't see
    /// that, after its own crash or while the network swallows everything.
    ///
    /// [`LockGuard::lost`] completes when the connection is closed, and when it
    /// gave no sign of life for a lease: it is asked every third of one. Together
    /// with [`Lock::lease`] that is the length of the lease, no end.
    /// [`Lock::max_renewals`] has no effect.
    ///
    /// All guards of an owner share one hold, so a session can't be had while
    /// that owner holds the lock without one. A [`Redlock`](crate::Redlock) has no
    /// sessions.
    pub fn session(mut self) -> Self {
        self.session = true;
        self
    }

    /// Renews at most so many times by itself, so that a task that hangs does
    /// not keep the lock for ever. It has no effect together with
    /// [`Lock::lease`] or [`Lock::session`].
    pub fn max_renewals(mut self, renewals: u32) -> Self {
        self.max_renewals = Some(renewals);
        self
    }

    /// Holds the lock only once so many replicas have it, too; else releases
    /// it and fails with [`Error::NotReplicated`]. It makes it unlikely that a
    /// fail-over forgets the lock. `timeout` is for the replicas alone; zero
    /// counts as a millisecond. It costs a connection while the lock is taken.
    pub fn replicas(mut self, replicas: usize, timeout: Duration) -> Self {
        self.replicas = Some(Replicas {
            wanted: replicas,
            within: timeout,
        });
        self
    }

    /// Takes the lock, waiting for it if another owner has it. None if the
    /// wait was over before.
    ///
    /// Waits are served first come, first served, by the server among clients
    /// and owners with a name, and by the client among its other tasks. A fail-over or a lost connection on
    /// the way is made good within the wait; who has to connect anew queues
    /// anew.
    ///
    /// If the future is dropped, neither a place in the queue nor a hold is
    /// left on the server: what may have been granted meanwhile is released in
    /// the background.
    ///
    /// # Errors
    /// What the server refused, or the last failure if no answer was to be had
    /// within the wait; [`Error::Deadlock`] where the wait would never end;
    /// [`Error::Lost`] where the lease was so short that it
    /// was over when the answer came.
    pub fn acquire(
        &self,
    ) -> impl Future<Output = Result<Option<LockGuard>, Error>> + Send + 'static + use<> {
        let wait = match self.wait {
            None => Wait::Until(None),
            Some(Duration::ZERO) => Wait::No,
            // What is too long to be a time is without end.
            Some(wait) => Wait::Until(Instant::now().checked_add(wait)),
        };
        self.clone().take(wait)
    }

    /// Takes the lock if it is free and nobody waits for it.
    ///
    /// # Errors
    /// What the server refused, or that it does not answer.
    pub fn try_acquire(
        &self,
    ) -> impl Future<Output = Result<Option<LockGuard>, Error>> + Send + 'static + use<> {
        self.clone().take(Wait::No)
    }

    /// Boxed, so that the compiler does not carry its depth into every future
    /// that awaits it.
    fn take(self, wait: Wait) -> BoxFuture<'static, Result<Option<LockGuard>, Error>> {
        let key = String::from_utf8_lossy(&self.key).into_owned();
        let span = tracing::debug_span!("acquire", key);
        let taken = async move {
            self.check()?;
            acquire::acquire(self, wait).await
        };
        Box::pin(taken.instrument(span))
    }

    /// The lease to ask for.
    pub(crate) fn lease_or_default(&self) -> Duration {
        Duration::from_millis(whole_ms(self.lease.unwrap_or(self.inner.default_lease)))
    }

    /// Whether this client renews the hold by itself.
    pub(crate) fn is_renewed(&self) -> bool {
        self.lease.is_none() || self.session
    }

    /// How often, if not for ever.
    pub(crate) fn renewals(&self) -> Option<u32> {
        self.max_renewals.filter(|_| !self.session)
    }

    /// Whether it has to be asked for on a connection of its own.
    pub(crate) fn is_asked_alone(&self) -> bool {
        self.replicas.is_some() || self.session
    }

    fn check(&self) -> Result<(), Error> {
        if !(1..=LEASE_MS_MAX).contains(&whole_ms(self.lease_or_default())) {
            return Err(Error::Invalid("a lease is 1 millisecond to 10 years"));
        }
        if let Some(owner) = &self.owner
            && (owner.is_empty() || owner.len() > OWNER_MAX_BYTES || owner.starts_with(b"@"))
        {
            return Err(Error::Invalid(
                "an owner is 1 to 1024 bytes and does not begin with @",
            ));
        }
        if let Mode::Limited(limit) = self.mode
            && !(1..=Mode::LIMIT_MAX).contains(&limit)
        {
            return Err(Error::Invalid("a limit is 1 to 2^53 - 1"));
        }
        if !self.inner.redlock {
            return Ok(());
        }
        if self.replicas.is_some() {
            return Err(Error::Invalid(
                "the servers of a Redlock are independent and have no replicas to ask",
            ));
        }
        if self.session {
            return Err(Error::Invalid(
                "a session is tied to one connection, and a Redlock has one for each server",
            ));
        }
        if matches!(self.mode, Mode::Limited(2..)) {
            return Err(Error::Invalid(
                "a Redlock has no permits: the servers would give out more of them together",
            ));
        }
        Ok(())
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("key", &String::from_utf8_lossy(&self.key))
            .field("owner", &self.owner.as_deref().map(String::from_utf8_lossy))
            .field("lease", &self.lease)
            .field("wait", &self.wait)
            .field("mode", &self.mode)
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}
