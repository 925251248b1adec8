//! The same for threads that block.
//!
//! ```no_run
//! use redis_lock_client::blocking::LockClient;
//!
//! # fn main() -> Result<(), redis_lock_client::Error> {
//! let client = LockClient::connect("redis://127.0.0.1")?;
//! let guard = client.lock("orders:42").acquire()?;
//! println!("token {}", guard.token());
//! guard.release()?;
//! # Ok(())
//! # }
//! ```
//!
//! Each client has one thread of its own, which renews leases and gives holds
//! back; calls run on the thread that makes them. As any call that blocks, they
//! don't belong into asynchronous code, and panic there.
//!
//! A process that was forked has the client but not its thread: every call
//! returns [`Error::Forked`] there, and its guards release nothing. Connect after
//! the fork.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::time::timeout;

use crate::client::ClientBuilder;
use crate::error::Error;
use crate::guard::HoldHandle;
use crate::inspect::{ContendedLock, Counters, LockInfo};
use crate::servers::server::Server;
use crate::shared::Shared;
use crate::validity::Lost;
use crate::{client, guard, lock, session};

/// How long the end of the last handle waits for what is still being given back.
const FAREWELL: Duration = Duration::from_secs(1);

/// The runtime of one client. It ends with the last handle.
struct Thread {
    runtime: Option<Runtime>,
    client: Arc<Shared>,
}

impl Thread {
    fn start<F>(connect: F) -> Result<Arc<Self>, Error>
    where
        F: Future<Output = Result<Arc<Shared>, Error>>,
    {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("redis-lock-client")
            .enable_all()
            .build()
            .map_err(|error| Error::unavailable(&error.to_string()))?;
        let client = match runtime.block_on(connect) {
            Ok(client) => client,
            Err(error) => {
                // A look-up of a name may take longer than anybody would wait.
                runtime.shutdown_background();
                return Err(error);
            }
        };
        Ok(Arc::new(Self {
            runtime: Some(runtime),
            client,
        }))
    }

    /// Runs a future to its end, unless this process was forked from the
    /// client's.
    fn run<T>(&self, future: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.client.check_process()?;
        self.runtime().block_on(future)
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("it ends in drop alone")
    }

    fn flush(&self) {
        // In a process that was forked there is nothing to wait for.
        let _ = self.run(async {
            self.client.flush().await;
            Ok(())
        });
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else {
            return;
        };
        if !self.client.tasks.process().is_this() {
            // Its thread is not there to be ended.
            std::mem::forget(runtime);
            return;
        }
        let is_its_own = Handle::try_current().is_ok_and(|here| here.id() == runtime.handle().id());
        if is_its_own {
            // It can't wait for itself.
            runtime.shutdown_background();
            return;
        }
        // Waiting for a message is possible everywhere, also on the threads of
        // another runtime.
        let (done, is_done) = mpsc::channel();
        let client = Arc::clone(&self.client);
        runtime.spawn(async move {
            client.flush().await;
            let _ = done.send(());
        });
        if is_done.recv_timeout(FAREWELL).is_err() {
            tracing::warn!("locks that were given back last may stay taken for their leases");
        }
        runtime.shutdown_background();
    }
}

/// As [`crate::LockClient`]. When the last handle, lock, session and guard of it
/// go, that waits up to a second until dropped guards have been given back.
#[derive(Clone)]
pub struct LockClient {
    thread: Arc<Thread>,
}

impl LockClient {
    /// As [`crate::LockClient::connect`].
    ///
    /// # Errors
    /// As [`crate::LockClient::connect`].
    pub fn connect(url: impl AsRef<str>) -> Result<Self, Error> {
        Self::connect_with(ClientBuilder::default(), url)
    }

    /// As [`ClientBuilder::connect`].
    ///
    /// # Errors
    /// As [`crate::LockClient::connect`].
    pub fn connect_with(builder: ClientBuilder, url: impl AsRef<str>) -> Result<Self, Error> {
        Self::connect_to(builder, Server::parse(url.as_ref())?)
    }

    /// As [`ClientBuilder::connect_to`].
    ///
    /// # Errors
    /// As [`crate::LockClient::connect`].
    pub fn connect_to(builder: ClientBuilder, server: Server) -> Result<Self, Error> {
        let thread = Thread::start(async { Ok(builder.connect_to(server).await?.shared) })?;
        Ok(Self { thread })
    }

    /// As [`ClientBuilder::connect_lazy_to`].
    ///
    /// # Errors
    /// [`Error::Address`] if this build can't connect to it.
    pub fn connect_lazy_to(builder: ClientBuilder, server: Server) -> Result<Self, Error> {
        let thread = Thread::start(async { Ok(builder.connect_lazy_to(server)?.shared) })?;
        Ok(Self { thread })
    }

    fn client(&self) -> client::LockClient {
        client::LockClient {
            shared: Arc::clone(&self.thread.client),
        }
    }

    /// As [`crate::LockClient::lock`].
    pub fn lock(&self, key: impl AsRef<[u8]>) -> Lock {
        Lock {
            lock: self.client().lock(key),
            thread: Arc::clone(&self.thread),
        }
    }

    /// As [`crate::LockClient::session`].
    ///
    /// # Errors
    /// As [`crate::LockClient::session`].
    pub fn session(&self) -> Result<Session, Error> {
        let session = self.thread.run(self.client().session())?;
        Ok(Session {
            session,
            thread: Arc::clone(&self.thread),
        })
    }

    /// As [`crate::LockClient::list`].
    ///
    /// # Errors
    /// As [`crate::LockClient::list`].
    pub fn list(&self, count: u64) -> Result<Vec<ContendedLock>, Error> {
        self.thread.run(self.client().list(count))
    }

    /// As [`crate::LockClient::counters`].
    ///
    /// # Errors
    /// As [`crate::LockClient::counters`].
    pub fn counters(&self) -> Result<Counters, Error> {
        self.thread.run(self.client().counters())
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
    /// As [`crate::Redlock::connect`].
    pub fn connect<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Result<Self, Error> {
        Self::connect_with(ClientBuilder::default(), urls)
    }

    /// As [`ClientBuilder::connect_redlock`].
    ///
    /// # Errors
    /// As [`crate::Redlock::connect`].
    pub fn connect_with<U: AsRef<str>>(
        builder: ClientBuilder,
        urls: impl IntoIterator<Item = U>,
    ) -> Result<Self, Error> {
        let connect = builder.connect_redlock(urls);
        let thread = Thread::start(async { Ok(connect.await?.shared) })?;
        Ok(Self { thread })
    }

    /// As [`crate::Redlock::lock`].
    pub fn lock(&self, key: impl AsRef<[u8]>) -> Lock {
        Lock {
            lock: lock::Lock::new(Arc::clone(&self.thread.client), key.as_ref()),
            thread: Arc::clone(&self.thread),
        }
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

/// As [`crate::Session`].
#[must_use = "the session's locks end when it is dropped"]
pub struct Session {
    // Dropped first: its end needs the thread.
    session: session::Session,
    thread: Arc<Thread>,
}

impl Session {
    /// As [`crate::Session::lock`].
    pub fn lock(&self, key: impl AsRef<[u8]>) -> Lock {
        Lock {
            lock: self.session.lock(key),
            thread: Arc::clone(&self.thread),
        }
    }

    /// As [`crate::Session::is_alive`].
    pub fn is_alive(&self) -> bool {
        self.session.is_alive()
    }

    /// As [`crate::Session::close`].
    pub fn close(self) {
        let Self { session, thread } = self;
        // In a process that was forked there is nothing to close.
        let _ = thread.run(async {
            session.close().await;
            Ok(())
        });
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.session.fmt(f)
    }
}

/// As [`crate::Lock`].
#[derive(Clone)]
#[must_use = "a lock is taken by `acquire`, `acquire_within`, `try_acquire` or `run`"]
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

    /// As [`crate::Lock::renew`].
    pub fn renew(self, renew: bool) -> Self {
        self.map(|lock| lock.renew(renew))
    }

    /// As [`crate::Lock::max_renewals`].
    pub fn max_renewals(self, renewals: u32) -> Self {
        self.map(|lock| lock.max_renewals(renewals))
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

    /// As [`crate::Lock::replicas`].
    pub fn replicas(self, replicas: usize, timeout: Duration) -> Self {
        self.map(|lock| lock.replicas(replicas, timeout))
    }

    /// As [`crate::Lock::acquire`].
    ///
    /// # Errors
    /// As [`crate::Lock::acquire`].
    pub fn acquire(&self) -> Result<LockGuard, Error> {
        let guard = self.thread.run(self.lock.acquire())?;
        Ok(self.guard(guard))
    }

    /// As [`crate::Lock::acquire_within`].
    ///
    /// # Errors
    /// As [`crate::Lock::acquire_within`].
    pub fn acquire_within(&self, wait: Duration) -> Result<Option<LockGuard>, Error> {
        let guard = self.thread.run(self.lock.acquire_within(wait))?;
        Ok(guard.map(|guard| self.guard(guard)))
    }

    /// As [`crate::Lock::try_acquire`].
    ///
    /// # Errors
    /// As [`crate::Lock::try_acquire`].
    pub fn try_acquire(&self) -> Result<Option<LockGuard>, Error> {
        let guard = self.thread.run(self.lock.try_acquire())?;
        Ok(guard.map(|guard| self.guard(guard)))
    }

    /// Takes the lock, does the work, and releases the lock. A thread can't be
    /// stopped from outside: ask [`HoldHandle::valid_for`] before each step that
    /// must not happen without the lock.
    ///
    /// # Errors
    /// As [`crate::Lock::run`]; [`Error::Lost`] comes after the work.
    pub fn run<T>(&self, work: impl FnOnce(HoldHandle) -> T) -> Result<T, Error> {
        let guard = self.acquire()?;
        let done = work(guard.handle());
        match guard.release() {
            Err(Error::Lost(why)) => Err(Error::Lost(why)),
            Ok(()) | Err(_) => Ok(done),
        }
    }

    /// As [`crate::Lock::info`].
    ///
    /// # Errors
    /// As [`crate::Lock::info`].
    pub fn info(&self) -> Result<LockInfo, Error> {
        self.thread.run(self.lock.info())
    }

    /// As [`crate::Lock::break_lock`].
    ///
    /// # Errors
    /// As [`crate::Lock::break_lock`].
    pub fn break_lock(&self, token: u64) -> Result<bool, Error> {
        self.thread.run(self.lock.break_lock(token))
    }

    /// As [`crate::Lock::break_any`].
    ///
    /// # Errors
    /// As [`crate::Lock::break_any`].
    pub fn break_any(&self) -> Result<bool, Error> {
        self.thread.run(self.lock.break_any())
    }

    fn guard(&self, guard: guard::LockGuard) -> LockGuard {
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
    guard: guard::LockGuard,
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

    /// As [`crate::LockGuard::handle`].
    pub fn handle(&self) -> HoldHandle {
        self.guard.handle()
    }

    /// As [`crate::LockGuard::valid_for`]. Ask it before each step that must
    /// not happen without the lock.
    pub fn valid_for(&self) -> Duration {
        self.guard.valid_for()
    }

    /// Waits until the hold can no longer be relied upon, at most for this long. None
    /// if it still can then, or if this process was forked from the client's.
    pub fn wait_lost(&self, at_most: Duration) -> Option<Lost> {
        let lost = self.guard.lost();
        let waited = async { Ok(timeout(at_most, lost).await.ok()) };
        self.thread.run(waited).unwrap_or_default()
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
    /// As [`crate::LockGuard::renew`].
    pub fn renew(&self) -> Result<(), Error> {
        self.thread.run(self.guard.renew())
    }

    /// As [`crate::LockGuard::release`].
    ///
    /// # Errors
    /// As [`crate::LockGuard::release`].
    pub fn release(self) -> Result<(), Error> {
        let Self { guard, thread } = self;
        thread.run(guard.release())
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
