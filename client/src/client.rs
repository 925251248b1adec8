//! Clients, and how they connect.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::command::unique_owner;
use crate::connection::Timeouts;
use crate::error::Error;
use crate::job::Job;
use crate::lock::Lock;
use crate::register::Register;
use crate::router::Router;
use crate::servers::Servers;
use crate::session::Session;
use crate::shared::{OnFailure, Road, Shared};

/// Locks on one Redis or Valkey server, on a primary behind sentinels, or in a cluster.
///
/// It is cheap to clone: all clones share their connections, at most two to each server.
/// The tasks that renew and release run in the tokio runtime in which the client was
/// connected, so that has to live as long as the client.
#[derive(Clone)]
pub struct LockClient {
    shared: Arc<Shared>,
}

/// How a client is to behave.
#[derive(Clone)]
pub struct ClientBuilder {
    default_lease: Duration,
    timeouts: Timeouts,
    key_prefix: Vec<u8>,
    on_failure: Option<OnFailure>,
}

impl Default for ClientBuilder {
    fn default() -> Self {
        Self {
            default_lease: Duration::from_secs(30),
            timeouts: Timeouts {
                connect: Duration::from_secs(2),
                response: Duration::from_millis(1500),
            },
            key_prefix: Vec::new(),
            on_failure: None,
        }
    }
}

impl ClientBuilder {
    /// The lease of locks that are given none, 1 millisecond to ten years. 30 seconds if
    /// not set. Any other is refused by each acquire ([`Error::Invalid`]).
    #[must_use]
    pub fn default_lease(mut self, lease: Duration) -> Self {
        self.default_lease = lease;
        self
    }

    /// How long it may take to open a connection, 1 millisecond to one hour. 2 seconds if
    /// not set.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.timeouts.connect = bounded(timeout);
        self
    }

    /// How long a server may be silent before a connection to it is given up, 1
    /// millisecond to one hour. 1.5 seconds if not set; more than the server's
    /// `lock.replicas-timeout`, if grants are to be acknowledged by replicas.
    #[must_use]
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.timeouts.response = bounded(timeout);
        self
    }

    /// The prefix of every key.
    #[must_use]
    pub fn key_prefix(mut self, prefix: impl AsRef<[u8]>) -> Self {
        self.key_prefix = prefix.as_ref().to_vec();
        self
    }

    /// Called with each failure that no caller gets: of a renewal, of the release of a
    /// dropped guard, or one that an acquire waits through. It must not block.
    #[must_use]
    pub fn on_failure(mut self, tell: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        self.on_failure = Some(Arc::new(tell));
        self
    }

    /// Connects to what a URL names, or an application's own [`redis::Client`]: see
    /// [`Servers`].
    ///
    /// # Errors
    /// [`Error::NoModule`] if the lock module is not loaded there, [`Error::Unavailable`]
    /// if no server answers, [`Error::Address`] if the address is invalid.
    pub async fn connect(
        self,
        servers: impl TryInto<Servers, Error: Into<Error>>,
    ) -> Result<LockClient, Error> {
        let client = self.connect_lazy(servers)?;
        let mut ask = redis::cmd("COMMAND");
        ask.arg("INFO").arg("LOCK.ACQUIRE");
        match client.shared.ask(b"", &ask).await {
            Ok(answer) => match answer.value {
                Value::Array(told) if told.iter().all(|told| *told == Value::Nil) => {
                    Err(Error::NoModule)
                }
                _ => Ok(client),
            },
            // A user who may not ask may take locks all the same.
            Err(Error::NoPermission(_)) => Ok(client),
            Err(error) => Err(error),
        }
    }

    /// As [`connect`](Self::connect), but connects when it is first used: the server need
    /// not be there yet.
    ///
    /// # Errors
    /// [`Error::Address`] if the address is invalid.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn connect_lazy(
        self,
        servers: impl TryInto<Servers, Error: Into<Error>>,
    ) -> Result<LockClient, Error> {
        let servers = servers.try_into().map_err(Into::into)?;
        let (register, orphans) = Register::new();
        let router = Router::new(servers, self.timeouts, register);
        let (lease, prefix) = (self.default_lease, self.key_prefix);
        let shared = Shared::new(router, orphans, lease, prefix, self.on_failure);
        Ok(LockClient { shared })
    }
}

fn bounded(timeout: Duration) -> Duration {
    timeout.clamp(Duration::from_millis(1), Duration::from_secs(3600))
}

impl LockClient {
    /// Connects, with everything as it is if not set: see [`ClientBuilder::connect`].
    ///
    /// # Errors
    /// As [`ClientBuilder::connect`].
    pub async fn connect(
        servers: impl TryInto<Servers, Error: Into<Error>>,
    ) -> Result<Self, Error> {
        Self::builder().connect(servers).await
    }

    /// How a client is to behave.
    #[must_use]
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// The lock of this key.
    pub fn lock(&self, key: impl AsRef<[u8]>) -> Lock {
        Lock::new(Arc::clone(&self.shared), key.as_ref(), Road::Client, None)
    }

    /// One piece of work that takes several locks, or one lock twice.
    #[must_use]
    pub fn job(&self) -> Job {
        Job::new(Arc::clone(&self.shared), unique_owner())
    }

    /// Opens a [`Session`]: locks that end at once when this process does.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if no server answers.
    pub async fn session(&self) -> Result<Session, Error> {
        Session::open(Arc::clone(&self.shared)).await
    }

    #[cfg(feature = "blocking")]
    pub(crate) fn is_forked(&self) -> bool {
        self.shared.check_process().is_err()
    }

    /// Waits until all that was begun in the background is done: the releases of dropped
    /// guards, what dropped waits leave. Each ends with its lease
    /// at the latest, or with its place: after some minutes.
    pub async fn flush(&self) {
        self.shared.flush().await;
    }
}

impl fmt::Debug for LockClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockClient").finish_non_exhaustive()
    }
}
