//! The same locks for threads. Within an asynchronous runtime only in `spawn_blocking`.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::client::{self, ClientBuilder};
use crate::error::Error;
use crate::servers::Servers;
use crate::{guard, lock};

/// Locks for threads. All clones share one connection and one background thread.
#[derive(Clone, Debug)]
pub struct LockClient {
    worker: Arc<Worker>,
}

/// The runtime in which the asynchronous client works.
#[derive(Debug)]
struct Worker {
    client: client::LockClient,
    runtime: Option<Runtime>,
}

/// A lock, and how to take it: see [`crate::Lock`].
#[derive(Clone, Debug)]
#[must_use = "a lock is taken by `acquire`, `acquire_within`, `try_acquire` or `run`"]
pub struct Lock {
    worker: Arc<Worker>,
    lock: lock::Lock,
}

/// A lock that is held: see [`crate::LockGuard`].
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped"]
pub struct LockGuard {
    guard: guard::LockGuard,
    worker: Arc<Worker>,
}

impl LockClient {
    /// Connects: see [`ClientBuilder::connect`].
    ///
    /// # Errors
    /// As [`ClientBuilder::connect`].
    pub fn connect(servers: impl TryInto<Servers, Error: Into<Error>>) -> Result<Self, Error> {
        Self::connect_with(ClientBuilder::default(), servers)
    }

    /// As [`connect`](Self::connect), with settings.
    ///
    /// # Errors
    /// As [`ClientBuilder::connect`]; [`Error::Stopped`] if no thread can be started.
    pub fn connect_with(
        builder: ClientBuilder,
        servers: impl TryInto<Servers, Error: Into<Error>>,
    ) -> Result<Self, Error> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        let runtime = runtime.map_err(|_| Error::Stopped)?;
        let client = runtime.block_on(builder.connect(servers))?;
        let runtime = Some(runtime);
        let worker = Arc::new(Worker { client, runtime });
        Ok(Self { worker })
    }

    /// The lock of this key.
    pub fn lock(&self, key: impl AsRef<[u8]>) -> Lock {
        let worker = Arc::clone(&self.worker);
        let lock = worker.client.lock(key);
        Lock { worker, lock }
    }
}

impl Worker {
    fn block_on<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        match &self.runtime {
            Some(runtime) => runtime.block_on(work),
            None => Err(Error::Stopped),
        }
    }
}

impl Drop for Worker {
    /// Waits a moment for what is still to be released; on a thread of its own, since a
    /// runtime can't be waited for within another one.
    fn drop(&mut self) {
        let (runtime, client) = (self.runtime.take(), self.client.clone());
        if client.is_forked() {
            // Its threads are the parent's, so nobody can wait for them.
            return std::mem::forget(runtime);
        }
        let ending = std::thread::spawn(move || {
            if let Some(runtime) = runtime {
                let _ = runtime
                    .block_on(async { timeout(Duration::from_secs(1), client.flush()).await });
                runtime.shutdown_background();
            }
        });
        let _ = ending.join();
    }
}

impl Lock {
    /// Changes how it is taken: `lock.with(|lock| lock.shared())`.
    pub fn with(self, change: impl FnOnce(lock::Lock) -> lock::Lock) -> Self {
        let (worker, lock) = (self.worker, change(self.lock));
        Self { worker, lock }
    }

    /// See [`crate::Lock::acquire`].
    ///
    /// # Errors
    /// As there.
    pub fn acquire(&self) -> Result<LockGuard, Error> {
        let worker = Arc::clone(&self.worker);
        let guard = worker.block_on(self.lock.acquire())?;
        Ok(LockGuard { guard, worker })
    }

    /// See [`crate::Lock::acquire_within`].
    ///
    /// # Errors
    /// As there.
    pub fn acquire_within(&self, wait: Duration) -> Result<Option<LockGuard>, Error> {
        let worker = Arc::clone(&self.worker);
        let taken = worker.block_on(self.lock.acquire_within(wait))?;
        Ok(taken.map(|guard| LockGuard { guard, worker }))
    }

    /// See [`crate::Lock::try_acquire`].
    ///
    /// # Errors
    /// As there.
    pub fn try_acquire(&self) -> Result<Option<LockGuard>, Error> {
        self.acquire_within(Duration::ZERO)
    }

    /// Does the work while the lock is held. Work that has to notice a loss asks
    /// [`valid_for`](crate::LockGuard::valid_for).
    ///
    /// # Errors
    /// As [`crate::Lock::acquire`]; and [`Error::Lost`] if the lock was lost before the
    /// work was done.
    pub fn run<T>(&self, work: impl FnOnce(&LockGuard) -> T) -> Result<T, Error> {
        let guard = self.acquire()?;
        let done = work(&guard);
        match guard.release() {
            Err(lost @ Error::Lost(_)) => Err(lost),
            Ok(()) | Err(_) => Ok(done),
        }
    }
}

impl LockGuard {
    /// See [`crate::LockGuard::renew`].
    ///
    /// # Errors
    /// As there.
    pub fn renew(&self) -> Result<(), Error> {
        self.worker.block_on(self.guard.renew())
    }

    /// See [`crate::LockGuard::release`].
    ///
    /// # Errors
    /// As there.
    pub fn release(self) -> Result<(), Error> {
        self.worker.block_on(self.guard.release())
    }
}

/// For its token, its key, and how long it is valid.
impl std::ops::Deref for LockGuard {
    type Target = guard::LockGuard;

    fn deref(&self) -> &guard::LockGuard {
        &self.guard
    }
}
