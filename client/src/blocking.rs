//! The same for threads that block.
//!
//! ```no_run
//! use redis_lock_client::blocking::LockClient;
//!
//! # fn main() -> Result<(), redis_lock_client::Error> {
//! let client = LockClient::connect("redis://127.0.0.1")?;
//! if let Some(guard) = client.lock("orders:42").acquire()? {
//!     println!("token {}", guard.token());
//!     guard.release()?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Each client has one thread of its own, which renews leases and gives holds
//! back; calls run on the thread that makes them. As any call that blocks, they
//! don't belong into asynchronous code, and panic there.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::IntoConnectionInfo;
use redis::cluster::ClusterClientBuilder;
use redis::sentinel::SentinelClientBuilder;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::client::Inner;
use crate::error::Error;
use crate::hold::Lost;
use crate::{ClientBuilder, lock};

/// How long the end of the last handle waits for what is still being given back.
const FAREWELL: Duration = Duration::from_secs(1);

/// The runtime of one client. It ends with the last handle.
struct Thread {
    runtime: Option<Runtime>,
    client: Arc<Inner>,
}

impl Thread {
    fn start<F>(connect: F) -> Result<Arc<Self>, Error>
    where
        F: Future<Output = Result<Arc<Inner>, Error>>,
    {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("redis-lock-client")
            .enable_all()
            .build()
            .map_err(|error| Error::Unavailable(error.into()))?;
        let client = runtime.block_on(connect)?;
        Ok(Arc::new(Self {
            runtime: Some(runtime),
            client,
        }))
    }

    fn lock(self: &Arc<Self>, key: &[u8]) -> Lock {
        Lock {
            lock: lock::Lock::new(Arc::clone(&self.client), key),
            thread: Arc::clone(self),
        }
    }

    fn flush(&self) {
        self.block_on(self.client.background.idle());
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("it ends in drop alone")
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime().block_on(future)
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else {
            return;
        };
        // Asynchronous code must not block, not even here.
        if tokio::runtime::Handle::try_current().is_err() {
            let flushed =
                runtime.block_on(async { timeout(FAREWELL, self.client.background.idle()).await });
            if flushed.is_err() {
                tracing::warn!("locks that were given back last may stay taken for their leases");
            }
        }
        runtime.shutdown_background();
    }
}

/// As [`crate::LockClient`]. Where the last handle, lock and guard of it go,
/// that waits up to a second until dropped guards have been given back.
#[derive(Clone)]
pub struct LockClient {
    thread: Arc<Thread>,
}

impl LockClient {
    /// As [`crate::LockClient::connect`].
    ///
    /// # Errors
    /// If the address is none, or the server does not answer.
    pub fn connect(server: impl IntoConnectionInfo) -> Result<Self, Error> {
        Self::connect_with(ClientBuilder::default(), server)
    }

    /// As [`ClientBuilder::connect`].
    ///
    /// # Errors
    /// If the address is none, or the server does not answer.
    pub fn connect_with(
        builder: ClientBuilder,
        server: impl IntoConnectionInfo,
    ) -> Result<Self, Error> {
        Self::start(builder.connect(server))
    }

    /// As [`ClientBuilder::connect_sentinel`].
    ///
    /// # Errors
    /// If no sentinel or no primary answers.
    pub fn connect_sentinel(
        builder: ClientBuilder,
        sentinels: SentinelClientBuilder,
    ) -> Result<Self, Error> {
        Self::start(builder.connect_sentinel(sentinels))
    }

    /// As [`ClientBuilder::connect_cluster`].
    ///
    /// # Errors
    /// If the settings are contradictory, or no node answers.
    pub fn connect_cluster(
        builder: ClientBuilder,
        cluster: ClusterClientBuilder,
    ) -> Result<Self, Error> {
        Self::start(builder.connect_cluster(cluster))
    }

    fn start(
        connect: impl Future<Output = Result<crate::LockClient, Error>>,
    ) -> Result<Self, Error> {
        let thread = Thread::start(async { Ok(connect.await?.inner) })?;
        Ok(Self { thread })
    }

    /// As [`crate::LockClient::lock`].
    pub fn lock(&self, key: impl AsRef<[u8]>) -> Lock {
        self.thread.lock(key.as_ref())
    }

    /// As [`crate::LockClient::flush`].
    pub fn flush(&self) {
        self.thread.flush();
    }
}

/// As [`crate::Redlock`].
#[derive(Clone)]
pub struct Redlock {
    thread: Arc<Thread>,
}

impl Redlock {
    /// As [`crate::Redlock::connect`].
    ///
    /// # Errors
    /// If an address is none, or a majority of the servers does not answer.
    pub fn connect<T: IntoConnectionInfo>(
        servers: impl IntoIterator<Item = T>,
    ) -> Result<Self, Error> {
        Self::connect_with(ClientBuilder::default(), servers)
    }

    /// As [`ClientBuilder::connect_redlock`].
    ///
    /// # Errors
    /// If an address is none, or a majority of the servers does not answer.
    pub fn connect_with<T: IntoConnectionInfo>(
        builder: ClientBuilder,
        servers: impl IntoIterator<Item = T>,
    ) -> Result<Self, Error> {
        let connect = builder.connect_redlock(servers);
        let thread = Thread::start(async { Ok(connect.await?.inner) })?;
        Ok(Self { thread })
    }

    /// As [`crate::Redlock::lock`].
    pub fn lock(&self, key: impl AsRef<[u8]>) -> Lock {
        self.thread.lock(key.as_ref())
    }

    /// As [`crate::Redlock::flush`].
    pub fn flush(&self) {
        self.thread.flush();
    }
}

impl fmt::Debug for LockClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockClient").finish_non_exhaustive()
    }
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redlock").finish_non_exhaustive()
    }
}

/// As [`crate::Lock`].
#[derive(Clone)]
#[must_use = "a lock is taken by `acquire` or `try_acquire`"]
pub struct Lock {
    lock: lock::Lock,
    thread: Arc<Thread>,
}

impl Lock {
    fn map(self, change: impl FnOnce(lock::Lock) -> lock::Lock) -> Self {
        Self {
            lock: change(self.lock),
            thread: self.thread,
        }
    }

    /// As [`crate::Lock::lease`].
    pub fn lease(self, lease: Duration) -> Self {
        self.map(|lock| lock.lease(lease))
    }

    /// As [`crate::Lock::wait`].
    pub fn wait(self, wait: Duration) -> Self {
        self.map(|lock| lock.wait(wait))
    }

    /// As [`crate::Lock::owner`].
    pub fn owner(self, owner: impl AsRef<[u8]>) -> Self {
        self.map(|lock| lock.owner(owner))
    }

    /// As [`crate::Lock::shared`].
    pub fn shared(self) -> Self {
        self.map(lock::Lock::shared)
    }

    /// As [`crate::Lock::limit`].
    pub fn limit(self, limit: u64) -> Self {
        self.map(|lock| lock.limit(limit))
    }

    /// As [`crate::Lock::session`].
    pub fn session(self) -> Self {
        self.map(lock::Lock::session)
    }

    /// As [`crate::Lock::max_renewals`].
    pub fn max_renewals(self, renewals: u32) -> Self {
        self.map(|lock| lock.max_renewals(renewals))
    }

    /// As [`crate::Lock::replicas`].
    pub fn replicas(self, replicas: usize, timeout: Duration) -> Self {
        self.map(|lock| lock.replicas(replicas, timeout))
    }

    /// As [`crate::Lock::acquire`].
    ///
    /// # Errors
    /// What the server refused, or the last failure if no answer was to be had
    /// within the wait.
    pub fn acquire(&self) -> Result<Option<LockGuard>, Error> {
        let guard = self.thread.block_on(self.lock.acquire())?;
        Ok(guard.map(|guard| self.guard(guard)))
    }

    /// As [`crate::Lock::try_acquire`].
    ///
    /// # Errors
    /// What the server refused, or that it does not answer.
    pub fn try_acquire(&self) -> Result<Option<LockGuard>, Error> {
        let guard = self.thread.block_on(self.lock.try_acquire())?;
        Ok(guard.map(|guard| self.guard(guard)))
    }

    fn guard(&self, guard: crate::LockGuard) -> LockGuard {
        LockGuard {
            guard,
            thread: Arc::clone(&self.thread),
        }
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock.fmt(f)
    }
}

/// As [`crate::LockGuard`].
#[must_use = "the lock is released when the guard is dropped"]
pub struct LockGuard {
    // Dropped first: its release needs the thread.
    guard: crate::LockGuard,
    thread: Arc<Thread>,
}

impl LockGuard {
    /// As [`crate::LockGuard::token`].
    pub fn token(&self) -> u64 {
        self.guard.token()
    }

    /// As [`crate::LockGuard::key`].
    pub fn key(&self) -> &[u8] {
        self.guard.key()
    }

    /// As [`crate::LockGuard::owner`].
    pub fn owner(&self) -> &[u8] {
        self.guard.owner()
    }

    /// As [`crate::LockGuard::valid_for`]. Ask it before each step that must
    /// not happen without the lock.
    pub fn valid_for(&self) -> Duration {
        self.guard.valid_for()
    }

    /// Waits until the hold can no longer be relied upon, at most so long. None
    /// if it still can then.
    pub fn wait_lost(&self, at_most: Duration) -> Option<Lost> {
        let lost = self.guard.lost();
        self.thread
            .block_on(async { timeout(at_most, lost).await.ok() })
    }

    /// Calls this once the hold can no longer be relied upon, on the client's
    /// own thread: it must be quick and must not block.
    pub fn on_lost(&self, tell: impl FnOnce(Lost) + Send + 'static) {
        let lost = self.guard.lost();
        self.thread.runtime().spawn(async { tell(lost.await) });
    }

    /// As [`crate::LockGuard::renew`].
    ///
    /// # Errors
    /// [`Error::Lost`] if the hold is over, for good.
    pub fn renew(&self) -> Result<(), Error> {
        self.thread.block_on(self.guard.renew())
    }

    /// As [`crate::LockGuard::release`].
    ///
    /// # Errors
    /// [`Error::Lost`] if the hold was over before.
    pub fn release(self) -> Result<(), Error> {
        let Self { guard, thread } = self;
        thread.block_on(guard.release())
    }

    /// As [`crate::LockGuard::forget`].
    pub fn forget(self) -> u64 {
        self.guard.forget()
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guard.fmt(f)
    }
}
