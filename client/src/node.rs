//! One server, or whatever is asked as one: a primary behind sentinels, a
//! cluster.
//!
//! Commands that don't wait share one connection. A wait has a connection of
//! its own, from a pool. When a connection is given up with something
//! unanswered on it, the next one begins by closing it from the server's side,
//! so that a command that still lingers on the way can't take effect after
//! what is sent later. A user who may not `CLIENT KILL` does without; then the
//! lease bounds what a lingering command can do.

use std::sync::Arc;
use std::time::Duration;

use deadpool::managed::{self, Metrics, Object, Pool, RecycleResult};
use redis::{Cmd, Value};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use crate::error::Error;
use crate::link::{Link, ServerSideName, Target};

/// A pooled connection that nobody used for so long is closed.
const IDLE: Duration = Duration::from_secs(60);

/// One that nobody used for so long is tried out before it is used.
const FRESH: Duration = Duration::from_secs(1);

/// So many given-up connections are remembered, to be closed when the server
/// is back.
const GIVEN_UP_MAX: usize = 16;

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// To open a connection.
    pub(crate) connect: Duration,
    /// To answer a command that does not wait.
    pub(crate) response: Duration,
}

/// A server and the connections to it.
pub(crate) struct Node {
    opener: Opener,
    shared: Mutex<Shared>,
    waits: Pool<Opener>,
}

#[derive(Default)]
struct Shared {
    link: Option<Link>,
    /// When the last try to open it failed, and why.
    failed: Option<(Instant, Error)>,
    given_up: Vec<ServerSideName>,
}

/// A reply, and when the command that it answers was sent.
pub(crate) struct Reply {
    pub(crate) value: Value,
    pub(crate) sent_at: Instant,
    /// Whether an earlier try may have been carried out.
    pub(crate) resent: bool,
}

/// A connection for one wait. It goes back to the pool by `drop`; after an
/// unclear end it has to be [closed](Object::take).
pub(crate) type WaitLink = Object<Opener>;

impl Node {
    pub(crate) fn new(target: Target, patience: Patience, max_waits: usize) -> Self {
        let opener = Opener {
            target: Arc::new(target),
            patience,
        };
        let waits = Pool::builder(opener.clone())
            .max_size(max_waits)
            .build()
            .expect("a pool without time-outs needs no runtime");
        Self {
            opener,
            shared: Mutex::default(),
            waits,
        }
    }

    /// How long things may take.
    pub(crate) fn patience(&self) -> Patience {
        self.opener.patience
    }

    /// The connection that all commands share that don't wait.
    pub(crate) async fn link(self: &Arc<Self>) -> Result<Link, Error> {
        let asked_at = Instant::now();
        if let Some(link) = &self.shared.lock().await.link {
            return Ok(link.clone());
        }
        // Opened by a task of its own, so that it gets done even if those who
        // asked for it are less patient.
        let this = Arc::clone(self);
        tokio::spawn(async move { this.open_shared(asked_at).await })
            .await
            .unwrap_or_else(|_| Err(Error::timed_out()))
    }

    async fn open_shared(&self, asked_at: Instant) -> Result<Link, Error> {
        let mut shared = self.shared.lock().await;
        if let Some(link) = &shared.link {
            return Ok(link.clone());
        }
        // One try is for all who wait for it.
        if let Some((failed_at, error)) = &shared.failed
            && *failed_at >= asked_at
        {
            return Err(error.clone());
        }
        let opened = self.open_instead_of(&shared.given_up).await;
        match &opened {
            Ok(link) => {
                shared.given_up.clear();
                shared.failed = None;
                shared.link = Some(link.clone());
            }
            Err(error) => shared.failed = Some((Instant::now(), error.clone())),
        }
        opened
    }

    async fn open_instead_of(&self, given_up: &[ServerSideName]) -> Result<Link, Error> {
        let link = self.opener.open().await?;
        for name in given_up {
            self.close(&link, b"", name).await?;
        }
        Ok(link)
    }

    /// Closes a connection from the server's side, through another one.
    async fn close(&self, link: &Link, key: &[u8], name: &ServerSideName) -> Result<(), Error> {
        let within = self.patience().response;
        match link.ask_within(within, key, &name.kill()).await {
            // It is gone already, or the user may not kill.
            Ok(_) | Err(Error::Server { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Has the next command open a new connection.
    async fn give_up(&self, link: &Link) {
        let mut shared = self.shared.lock().await;
        if shared.link.as_ref().is_some_and(|shared| shared.is(link)) {
            shared.link = None;
            if let Some(name) = link.name()
                && shared.given_up.len() < GIVEN_UP_MAX
            {
                shared.given_up.push(name.clone());
            }
        }
    }

    /// Sends a command that does not wait and that is safe to send again. If
    /// the connection turns out to be closed, it is sent once more on a new one.
    pub(crate) async fn call(self: &Arc<Self>, key: &[u8], cmd: &Cmd) -> Result<Reply, Error> {
        let mut resent = false;
        loop {
            let link = self.link().await?;
            let sent_at = Instant::now();
            let reply = link.ask_within(self.patience().response, key, cmd).await;
            let error = match reply {
                Ok(value) => {
                    return Ok(Reply {
                        value,
                        sent_at,
                        resent,
                    });
                }
                Err(error) => error,
            };
            if error.calls_for_new_connection() {
                self.give_up(&link).await;
            }
            match &error {
                Error::Unavailable(cause) if cause.is_connection_dropped() && !resent => {
                    resent = true;
                }
                _ => return Err(error),
            }
        }
    }

    /// A connection for one wait.
    pub(crate) async fn wait_link(&self) -> Result<WaitLink, Error> {
        drop(self.waits.retain(|_, metrics| metrics.last_used() < IDLE));
        self.waits.get().await.map_err(|error| match error {
            managed::PoolError::Backend(error) => error,
            // The pool has no time-outs and no hooks, and is never closed.
            _ => Error::timed_out(),
        })
    }

    /// Closes connections that may still bring a hold, from the server's side.
    pub(crate) async fn close_all(
        self: &Arc<Self>,
        key: &[u8],
        names: &[ServerSideName],
    ) -> Result<(), Error> {
        for name in names {
            let link = self.link().await?;
            if let Err(error) = self.close(&link, key, name).await {
                self.give_up(&link).await;
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Opens connections, for the pool as well.
#[derive(Clone)]
pub(crate) struct Opener {
    target: Arc<Target>,
    patience: Patience,
}

impl Opener {
    async fn open(&self) -> Result<Link, Error> {
        self.target.connect(self.patience.connect).await
    }
}

impl managed::Manager for Opener {
    type Type = Link;
    type Error = Error;

    async fn create(&self) -> Result<Link, Error> {
        self.open().await
    }

    /// A connection that was closed meanwhile shows at the next command, which
    /// is then sent again. One that has fallen silent would not show.
    async fn recycle(&self, link: &mut Link, metrics: &Metrics) -> RecycleResult<Error> {
        if metrics.last_used() < FRESH {
            return Ok(());
        }
        let ping = redis::cmd("PING");
        match link.ask_within(self.patience.response, b"", &ping).await {
            Ok(_) | Err(Error::Server { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Waits for something, at most until `deadline`. None if that comes first.
pub(crate) async fn by<T>(deadline: Option<Instant>, future: impl Future<Output = T>) -> Option<T> {
    match deadline {
        None => Some(future.await),
        Some(deadline) => timeout(deadline.saturating_duration_since(Instant::now()), future)
            .await
            .ok(),
    }
}
