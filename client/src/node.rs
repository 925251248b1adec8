//! One server, or what is asked as one: a primary behind sentinels, a cluster.
//!
//! Commands that don't wait share one connection. When a connection is given
//! up with something unanswered on it, the next one begins by closing it from
//! the server's side, so that a command that still lingers on the way can't
//! take effect after what is sent later. A user who may not `CLIENT KILL` does
//! without; then the lease bounds what a lingering command can do.
//!
//! All connections are opened by tasks of the runtime in which the client was
//! connected, because they end with the runtime that opened them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex as SyncMutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use redis::{Cmd, Value};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, timeout};

use crate::clock::Moment;
use crate::commands::{self, text};
use crate::connection::{Connection, ConnectionName};
use crate::error::Error;
use crate::mutex::locked;
use crate::target::Target;

/// How long after a failure no other connection is tried.
const FAILURE_STANDS: Duration = Duration::from_millis(50);

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// To open a connection.
    pub(crate) connect: Duration,
    /// To answer a command that does not wait.
    pub(crate) response: Duration,
}

/// A reply, and when the command that it answers was sent.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) value: Value,
    pub(crate) sent_at: Moment,
    /// Whether an earlier try may have been carried out.
    pub(crate) resent: bool,
}

/// What a hold asks of the server where it is.
pub(crate) trait Ask: Send + Sync {
    /// Sends a command that does not wait and that is safe to send again.
    fn ask<'a>(&'a self, key: &'a [u8], cmd: &'a Cmd) -> BoxFuture<'a, Result<Reply, Error>>;

    /// Closes connections of this client from the server's side.
    fn close<'a>(
        &'a self,
        key: &'a [u8],
        names: &'a [ConnectionName],
    ) -> BoxFuture<'a, Result<(), Error>>;
}

/// A server and the connection that all commands share that don't wait.
pub(crate) struct Node {
    target: Target,
    timeouts: Timeouts,
    runtime: Handle,
    shared: Mutex<Shared>,
    /// Told when the shared connection was closed.
    disconnected: Arc<Notify>,
    /// What tells this server from the others of a Redlock.
    identity: Option<Identity>,
    epoch: AtomicU64,
    #[cfg(feature = "cluster")]
    slots: crate::slots::Slots,
}

#[derive(Default)]
struct Shared {
    connection: Option<Connection>,
    /// When the last try to open it failed, and why.
    failed: Option<(Instant, Error)>,
    given_up: Option<ConnectionName>,
    /// Whether the last one was given up, and holds have to be asked after.
    was_given_up: bool,
}

/// Which run of which server each node of a Redlock was found to be.
#[derive(Clone, Default)]
pub(crate) struct Identities(Arc<SyncMutex<Vec<Option<String>>>>);

/// A node's place among them.
struct Identity {
    all: Identities,
    nth: usize,
}

impl Identities {
    /// Notes it. Returns false if it is the same as that of another node.
    fn note(&self, nth: usize, run_id: &str) -> bool {
        let mut all = locked(&self.0);
        let missing = (nth + 1).saturating_sub(all.len());
        all.extend(std::iter::repeat_n(None, missing));
        let mut others = (0..).zip(&*all).filter(|(other, _)| *other != nth);
        if others.any(|(_, other)| other.as_deref() == Some(run_id)) {
            return false;
        }
        if let Some(own) = all.get_mut(nth) {
            *own = Some(run_id.into());
        }
        true
    }
}

impl Node {
    /// The server that is asked alone.
    pub(crate) fn new(
        target: Target,
        timeouts: Timeouts,
        runtime: Handle,
        disconnected: Arc<Notify>,
    ) -> Self {
        Self {
            target,
            timeouts,
            runtime,
            shared: Mutex::default(),
            disconnected,
            identity: None,
            epoch: AtomicU64::new(0),
            #[cfg(feature = "cluster")]
            slots: crate::slots::Slots::default(),
        }
    }

    /// One of several servers, which have to be different ones.
    pub(crate) fn one_of_many(mut self, all: &Identities, nth: usize) -> Self {
        self.identity = Some(Identity {
            all: all.clone(),
            nth,
        });
        self
    }

    /// How long things may take.
    pub(crate) fn timeouts(&self) -> Timeouts {
        self.timeouts
    }

    /// The runtime of the client's tasks.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// What an error of this server means.
    pub(crate) fn explain(&self, error: Error) -> Error {
        self.target.explain(error)
    }

    /// The connection that all commands share that don't wait.
    pub(crate) async fn connection(self: &Arc<Self>) -> Result<Connection, Error> {
        let asked_at = Instant::now();
        if let Some(connection) = &self.shared.lock().await.connection {
            return Ok(connection.clone());
        }
        // A task of its own, so that it gets done even if those who asked for
        // it are less patient.
        let this = Arc::clone(self);
        self.runtime
            .spawn(async move { this.open_shared(asked_at).await })
            .await
            .unwrap_or_else(|error| Err(Error::from_task(error)))
    }

    async fn open_shared(self: Arc<Self>, asked_at: Instant) -> Result<Connection, Error> {
        let mut shared = self.shared.lock().await;
        if let Some(connection) = &shared.connection {
            return Ok(connection.clone());
        }
        // One try is for all who wait for it, and for those that come soon after.
        if let Some((failed_at, error)) = &shared.failed
            && (*failed_at >= asked_at || failed_at.elapsed() < FAILURE_STANDS)
        {
            return Err(error.clone());
        }
        let opened = self.open_instead_of(shared.given_up.as_ref()).await;
        match &opened {
            Ok(connection) => {
                // One of several servers that is slow is no reason to ask all of
                // them again and again.
                if shared.was_given_up && self.identity.is_none() {
                    self.disconnected.notify_one();
                }
                shared.was_given_up = false;
                shared.given_up = None;
                shared.failed = None;
                shared.connection = Some(connection.clone());
                self.watch(connection);
            }
            Err(error) => shared.failed = Some((Instant::now(), error.clone())),
        }
        opened
    }

    async fn open_instead_of(
        &self,
        given_up: Option<&ConnectionName>,
    ) -> Result<Connection, Error> {
        let connection = self.target.open(self.timeouts.connect).await?;
        self.identify(&connection).await?;
        if let Some(name) = given_up {
            self.kill(&connection, b"", name).await?;
        }
        Ok(connection)
    }

    /// Finds out whether it is the same server as another node. A user who may
    /// not know passes.
    async fn identify(&self, connection: &Connection) -> Result<(), Error> {
        let Some(identity) = &self.identity else {
            return Ok(());
        };
        let info = commands::server_info();
        let within = self.timeouts.response.max(self.timeouts.connect);
        let info = match connection.ask_within(within, b"", &info).await {
            Ok(reply) => text(reply).unwrap_or_default(),
            Err(Error::Server { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut lines = info.lines();
        let run_id = lines.find_map(|line| line.strip_prefix("run_id:"));
        match run_id {
            Some(run_id) if !identity.all.note(identity.nth, run_id) => Err(Error::Invalid(
                "two addresses of a Redlock lead to the same server, which would count twice",
            )),
            _ => Ok(()),
        }
    }

    /// Gives the connection up as soon as it is closed, and tells so.
    fn watch(self: &Arc<Self>, connection: &Connection) {
        let mut interruptions = connection.interruptions();
        let (this, serial) = (Arc::downgrade(self), connection.serial());
        self.runtime.spawn(async move {
            while interruptions.next().await {
                let Some(this) = this.upgrade() else {
                    return;
                };
                // The connections of a cluster come back by themselves.
                if this.target.is_cluster() || this.give_up(serial).await {
                    this.disconnected.notify_one();
                }
            }
        });
    }

    /// Closes a connection from the server's side, through another one.
    async fn kill(
        &self,
        connection: &Connection,
        key: &[u8],
        name: &ConnectionName,
    ) -> Result<(), Error> {
        let within = self.timeouts.response;
        match connection.ask_within(within, key, &name.kill()).await {
            Ok(_) | Err(Error::NoModule) => Ok(()),
            // It is gone already, or the user may not kill.
            Err(error) if matches!(error.code(), "ERR" | "NOPERM") => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Has the next command open a new connection. Returns false if there is one
    /// already.
    async fn give_up(&self, serial: u64) -> bool {
        let mut shared = self.shared.lock().await;
        let is_shared = |shared: &mut Connection| shared.serial() == serial;
        let Some(connection) = shared.connection.take_if(is_shared) else {
            return false;
        };
        shared.was_given_up = true;
        shared.given_up = connection.name().cloned();
        self.look_up_again();
        true
    }

    /// Sends a command that does not wait and that is safe to send again. It is
    /// sent once more where the connection turns out to be closed, or leads to
    /// a server that is no primary any more.
    pub(crate) async fn call(self: &Arc<Self>, key: &[u8], cmd: &Cmd) -> Result<Reply, Error> {
        let (mut resent, mut redirected) = (false, false);
        loop {
            let connection = self.connection().await?;
            let sent_at = Moment::now();
            let within = self.timeouts.response;
            let error = match connection.ask_within(within, key, cmd).await {
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
                self.give_up(connection.serial()).await;
            }
            if error.is_closed() && !resent {
                resent = true;
            } else if error.code() == "READONLY" && !redirected {
                redirected = true;
            } else {
                return Err(self.explain(error));
            }
        }
    }

    /// Sends a command to every primary, and returns all replies.
    pub(crate) async fn call_everywhere(self: &Arc<Self>, cmd: &Cmd) -> Result<Vec<Value>, Error> {
        let mut tried = false;
        loop {
            let connection = self.connection().await?;
            let asked = connection.ask_everywhere(self.timeouts.response, cmd).await;
            match asked {
                Err(error) if error.calls_for_new_connection() => {
                    self.give_up(connection.serial()).await;
                    if tried || !error.is_closed() {
                        return Err(error);
                    }
                    tried = true;
                }
                asked => return asked,
            }
        }
    }

    /// Where connections for this key lead: nowhere in particular but in a
    /// cluster.
    pub(crate) async fn address(self: &Arc<Self>, key: &[u8]) -> Result<Address, Error> {
        #[cfg(feature = "cluster")]
        if self.target.is_cluster() {
            return self.address_in_cluster(key).await;
        }
        let _ = key;
        Ok(Address::default())
    }

    #[cfg(feature = "cluster")]
    async fn address_in_cluster(self: &Arc<Self>, key: &[u8]) -> Result<Address, Error> {
        if let Some(known) = self.slots.address_of(key) {
            return Ok(Address(Some(known)));
        }
        let mut cmd = redis::cmd("CLUSTER");
        cmd.arg("SLOTS");
        self.slots.learn(self.call(key, &cmd).await?.value)?;
        match self.slots.address_of(key) {
            Some(found) => Ok(Address(Some(found))),
            None => Err(Error::unavailable(
                "the cluster names no node for the slot of this key",
            )),
        }
    }

    /// Opens a connection of its own to this address. If that fails, the next one
    /// looks anew for the server that has its key.
    pub(crate) async fn open(self: &Arc<Self>, address: Address) -> Result<Connection, Error> {
        let this = Arc::clone(self);
        let opened = self.runtime.spawn(async move {
            let within = this.timeouts.connect;
            #[cfg(feature = "cluster")]
            if let Some((host, port)) = &address.0 {
                return this.target.open_at(host, *port, within).await;
            }
            let _ = address;
            this.target.open(within).await
        });
        let opened = opened
            .await
            .unwrap_or_else(|error| Err(Error::from_task(error)));
        opened.inspect_err(|_| self.look_up_again())
    }

    /// Closes connections from the server's side, wherever they lead.
    pub(crate) async fn kill_everywhere(
        self: &Arc<Self>,
        names: &[ConnectionName],
    ) -> Result<(), Error> {
        for name in names {
            match self.call_everywhere(&name.kill()).await {
                Ok(_) | Err(Error::Server { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// How often a server was looked for anew. A connection of before may lead to
    /// one that is no primary any more.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// Returns whether keys are on several nodes.
    pub(crate) fn is_cluster(&self) -> bool {
        self.target.is_cluster()
    }

    /// Has the next connection look anew for the server that has its key.
    pub(crate) fn look_up_again(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
        self.target.look_up_again();
        #[cfg(feature = "cluster")]
        self.slots.forget();
    }

    async fn close_all(
        self: &Arc<Self>,
        key: &[u8],
        names: &[ConnectionName],
    ) -> Result<(), Error> {
        for name in names {
            let connection = self.connection().await?;
            if let Err(error) = self.kill(&connection, key, name).await {
                self.give_up(connection.serial()).await;
                return Err(error);
            }
        }
        Ok(())
    }
}

/// A node of a cluster by host and port; elsewhere the only server that there is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Address(Option<(String, u16)>);

impl Ask for Arc<Node> {
    fn ask<'a>(&'a self, key: &'a [u8], cmd: &'a Cmd) -> BoxFuture<'a, Result<Reply, Error>> {
        Box::pin(self.call(key, cmd))
    }

    fn close<'a>(
        &'a self,
        key: &'a [u8],
        names: &'a [ConnectionName],
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(self.close_all(key, names))
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

#[cfg(test)]
mod tests {
    use super::Identities;

    #[test]
    fn two_nodes_are_never_the_same_server() {
        let all = Identities::default();
        assert!(all.note(2, "a"));
        assert!(all.note(0, "b"));
        assert!(!all.note(1, "a"));
        assert!(all.note(2, "c"), "it was started anew");
        assert!(all.note(1, "a"));
    }
}
