//! One server, or what is asked as one: a primary behind sentinels, a cluster.
//!
//! All commands share one connection, and by it the server tells those who wait
//! how their places ended. In a cluster that is told by a connection of its own to
//! each node: when a slot moves away, the node says so by a message that the redis
//! crate takes for the reply to whatever was asked last, so nothing else may be
//! asked there.
//!
//! When a connection is given up with something unanswered on it, the next one
//! begins by closing it from the server's side, so that a command that still
//! lingers on the way can't take effect after what is sent later. A user who may
//! not `CLIENT KILL` does without; then the lease bounds what a lingering command
//! can do, and a lingering renewal bounds what is believed of the lease.
//!
//! All connections are opened by tasks of the runtime in which the client was
//! connected, because they end with the runtime that opened them.

mod addresses;
mod subscribing;

#[cfg(feature = "cluster")]
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as SyncMutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use redis::{Cmd, Value};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, timeout};

use crate::clock::Moment;
use crate::error::Error;
use crate::mutex::locked;
use crate::servers::connection::{Connection, ConnectionName};
use crate::servers::identities::{Found, Identities, Identity};
use crate::servers::places::Places;
use crate::servers::target::Target;
pub(crate) use addresses::Address;
use subscribing::Subscriber;
pub(crate) use subscribing::Subscription;

/// How long after a failure no other connection is tried.
const FAILURE_STANDS: Duration = Duration::from_millis(50);

/// How often it is asked at most whether another server is the primary by now: sentinels, or
/// other nodes of a cluster.
const SEEK_EVERY: Duration = Duration::from_secs(5);

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

    /// As [`Ask::ask`], of a release by which the lock goes to whoever is next.
    fn hand_off<'a>(&'a self, key: &'a [u8], cmd: &'a Cmd) -> BoxFuture<'a, Result<Reply, Error>> {
        self.ask(key, cmd)
    }

    /// Whether what was sent and is answered no more may yet be carried out, though
    /// another connection was opened since.
    fn may_linger(&self) -> bool;

    /// Closes a connection of this client from the server's side.
    fn close<'a>(
        &'a self,
        key: &'a [u8],
        name: &'a ConnectionName,
    ) -> BoxFuture<'a, Result<(), Error>>;
}

/// A server and the connection that all commands share.
pub(crate) struct Node {
    target: Target,
    timeouts: Timeouts,
    runtime: Handle,
    /// Held for moments only, so that no caller that is not polled any more keeps others
    /// from theirs.
    shared: SyncMutex<Shared>,
    /// The turn to open connections, which tasks of the runtime have alone.
    opening: Mutex<()>,
    /// Told when the shared connection was closed.
    disconnected: Arc<Notify>,
    /// What tells this server from the others of a Redlock.
    identity: Option<Identity>,
    /// Who here waits to be told of a place, and by which channel. Nobody else knows
    /// its name.
    places: Arc<Places>,
    channel: String,
    is_looked_after: AtomicBool,
    /// Whether a connection was given up that could not be closed from the server's side.
    is_left_open: AtomicBool,
    /// When it was asked last whether another server is the primary.
    sought_at: SyncMutex<Option<Instant>>,
    #[cfg(feature = "cluster")]
    slots: crate::servers::slots::Slots,
    #[cfg(feature = "cluster")]
    subscribers: SyncMutex<HashMap<Address, Arc<Mutex<Subscriber>>>>,
}

#[derive(Default)]
struct Shared {
    connection: Option<Arc<Connection>>,
    /// Where this one must not be subscribed.
    subscriber: Subscriber,
    /// When the last try to open it failed, and why.
    failed: Option<(Instant, Error)>,
    given_up: Option<ConnectionName>,
    /// Whether the last one was given up, and holds have to be asked after.
    was_given_up: bool,
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
            shared: SyncMutex::default(),
            opening: Mutex::default(),
            disconnected,
            identity: None,
            places: Arc::default(),
            channel: format!("redislock:{:032x}", rand::random::<u128>()),
            is_looked_after: AtomicBool::new(false),
            is_left_open: AtomicBool::new(false),
            sought_at: SyncMutex::default(),
            #[cfg(feature = "cluster")]
            slots: crate::servers::slots::Slots::default(),
            #[cfg(feature = "cluster")]
            subscribers: SyncMutex::default(),
        }
    }

    /// One of several servers, which have to be different ones.
    pub(crate) fn one_of_many(mut self, all: &Identities, nth: usize) -> Self {
        self.identity = Some(all.of(nth));
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

    /// As [`Node::explain`], of an error that was told on another connection than the
    /// one that all commands share.
    pub(crate) fn explain_told(&self, error: Error) -> Error {
        if error.calls_for_new_connection() || error.code() == "MOVED" {
            self.look_up_again();
        }
        // Only what is true of a new connection as well is here to stay.
        match error.code() {
            "READONLY" => error,
            _ => self.explain(error),
        }
    }

    /// The connection that all commands share.
    pub(crate) async fn connection(self: &Arc<Self>) -> Result<Arc<Connection>, Error> {
        let asked_at = Instant::now();
        if let Some(connection) = self.open_connection() {
            return Ok(connection);
        }
        // A task of its own, so that it gets done even if those who asked for
        // it are less patient.
        let this = Arc::clone(self);
        self.runtime
            .spawn(async move { this.open_shared(asked_at).await })
            .await
            .unwrap_or_else(|error| Err(Error::from_task(error)))
    }

    fn open_connection(&self) -> Option<Arc<Connection>> {
        let connection = locked(&self.shared).connection.clone()?;
        if self.identity.as_ref().is_some_and(Identity::is_doubted) {
            self.give_up(connection.serial());
            return None;
        }
        Some(connection)
    }

    async fn open_shared(self: Arc<Self>, asked_at: Instant) -> Result<Arc<Connection>, Error> {
        let _turn = self.opening.lock().await;
        let given_up = {
            let shared = locked(&self.shared);
            if let Some(connection) = &shared.connection {
                return Ok(connection.clone());
            }
            // One try is for all who wait for it, and for those that come soon after.
            if let Some((failed_at, error)) = &shared.failed
                && (*failed_at >= asked_at || failed_at.elapsed() < FAILURE_STANDS)
            {
                return Err(error.clone());
            }
            shared.given_up.clone()
        };
        let opened = self.open_instead_of(given_up.as_ref()).await;
        let mut shared = locked(&self.shared);
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
    ) -> Result<Arc<Connection>, Error> {
        let connection = self
            .target
            .open(self.timeouts.connect, &self.places)
            .await?;
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
        let within = self.timeouts.response.max(self.timeouts.connect);
        let run_id = connection.ask_run_id(within).await?;
        match run_id.map(|run_id| identity.note(&run_id)) {
            None | Some(Found::Alone) => Ok(()),
            Some(Found::Doubtful) => Err(Error::unavailable(
                "another address of the Redlock has led to this server, and is asked again",
            )),
            Some(Found::Another) => Err(Error::Invalid(
                "two addresses of a Redlock lead to the same server, which would count twice",
            )),
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
                if this.target.is_cluster() || this.give_up(serial) {
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
        let own = connection.name();
        if own.is_some_and(|own| !own.is_of_the_same_run_as(name)) {
            return Ok(());
        }
        let within = self.timeouts.response;
        match connection.ask_within(within, key, &name.kill()).await {
            Ok(_) => Ok(()),
            // It is gone already, or the user may not kill.
            Err(error) if error.is_of_the_command() => {
                self.is_left_open.store(true, Ordering::SeqCst);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Finds out whether another server is the primary by now. One that is cut off from the
    /// sentinels does not know.
    fn seek_primary(self: &Arc<Self>) {
        if !self.target.is_behind_sentinels() {
            return;
        }
        if !begins(&self.sought_at, SEEK_EVERY) {
            return;
        }
        let this = Arc::clone(self);
        self.runtime.spawn(async move {
            let connection = locked(&this.shared).connection.clone();
            let primary = this.target.address(this.timeouts.connect).await;
            if let (Some(connection), Ok(Some(primary))) = (connection, primary)
                && connection.address() != primary
            {
                this.give_up(connection.serial());
            }
        });
    }

    /// Has the next command open a new connection. Returns false if there is one
    /// already.
    fn give_up(&self, serial: u64) -> bool {
        let mut shared = locked(&self.shared);
        let is_shared = |shared: &mut Arc<Connection>| shared.serial() == serial;
        let Some(connection) = shared.connection.take_if(is_shared) else {
            return false;
        };
        if let Some(subscriber) = std::mem::take(&mut shared.subscriber).connection {
            subscriber.interrupt();
        }
        shared.was_given_up = true;
        shared.given_up = connection.name().cloned();
        if shared.given_up.is_none() {
            self.is_left_open.store(true, Ordering::SeqCst);
        }
        connection.interrupt();
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
            // In a cluster, the redis crate sends it again by itself.
            let is_cluster = self.target.is_cluster();
            let interruptions = is_cluster.then(|| connection.interruptions_from_now());
            let sent_at = Moment::now();
            let error = match self.send(&connection, key, cmd).await {
                Ok(value) => {
                    let resent = resent || interruptions.is_some_and(|it| it.happened());
                    return Ok(Reply {
                        value,
                        sent_at,
                        resent,
                    });
                }
                Err(error) => error,
            };
            if error.code() == "NOREPLICAS" {
                self.seek_primary();
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

    /// Whether what was sent on a connection that was given up may yet be carried out.
    /// Those of a cluster come and go by themselves.
    fn may_linger(&self) -> bool {
        self.target.is_cluster() || self.is_left_open.load(Ordering::SeqCst)
    }

    /// Sends a command once.
    async fn send(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        key: &[u8],
        cmd: &Cmd,
    ) -> Result<Value, Error> {
        let within = self.timeouts.response;
        let answered = connection.ask_within(within, key, cmd).await;
        answered.inspect_err(|error| self.give_up_by(connection, key, error))
    }

    /// Gives the connection up, if what it answered calls for a new one.
    fn give_up_by(self: &Arc<Self>, connection: &Arc<Connection>, key: &[u8], error: &Error) {
        #[cfg(feature = "cluster")]
        if self.may_be_of_one_node(error) {
            self.seek_successor(connection, key);
            return;
        }
        let _ = key;
        if error.calls_for_new_connection() {
            self.give_up(connection.serial());
        }
    }

    /// Returns whether it may be that one node of a cluster alone gives no answer.
    fn may_be_of_one_node(&self, error: &Error) -> bool {
        self.is_cluster() && matches!(error, Error::Unavailable { closed: false, .. })
    }

    /// A node of a cluster gives no answer. While none takes its place, the connection is
    /// kept: a new one is of no use before the redis crate has waited for that node, for
    /// whatever node it is asked.
    #[cfg(feature = "cluster")]
    fn seek_successor(self: &Arc<Self>, connection: &Arc<Connection>, key: &[u8]) {
        if !begins(&self.sought_at, SEEK_EVERY) {
            return;
        }
        let (this, connection, key) = (Arc::clone(self), Arc::clone(connection), key.to_vec());
        self.runtime.spawn(async move {
            let learned = this.learn_slots(&connection).await;
            let address = learned.and_then(|()| this.known_address(&key));
            if let Ok(address) = address
                && this.open(address).await.is_ok()
            {
                this.give_up(connection.serial());
            }
        });
    }

    /// Sends a command to every primary, and returns all replies.
    pub(crate) async fn call_everywhere(self: &Arc<Self>, cmd: &Cmd) -> Result<Vec<Value>, Error> {
        let mut tried = false;
        loop {
            let connection = self.connection().await?;
            let asked = connection.ask_everywhere(self.timeouts.response, cmd).await;
            match asked {
                Err(error)
                    if error.calls_for_new_connection() && !self.may_be_of_one_node(&error) =>
                {
                    self.give_up(connection.serial());
                    if tried || !error.is_closed() {
                        return Err(error);
                    }
                    tried = true;
                }
                asked => return asked,
            }
        }
    }

    /// The number of the database.
    pub(crate) fn db(&self) -> i64 {
        self.target.db()
    }

    /// Closes connections from the server's side, wherever they lead.
    pub(crate) async fn kill_everywhere(
        self: &Arc<Self>,
        names: &[ConnectionName],
    ) -> Result<(), Error> {
        let mut outcome = Ok(());
        for name in names {
            let killed = match self.is_cluster() {
                true => self.call_everywhere(&name.kill()).await.map(drop),
                false => self.close_one(b"", name).await,
            };
            match killed {
                // The user may not kill.
                Err(error) if error.is_of_the_command() => {}
                killed => outcome = outcome.and(killed),
            }
        }
        outcome
    }

    async fn close_one(self: &Arc<Self>, key: &[u8], name: &ConnectionName) -> Result<(), Error> {
        let connection = self.connection().await?;
        let killed = self.kill(&connection, key, name).await;
        killed.inspect_err(|error| self.give_up_by(&connection, key, error))
    }
}

impl Ask for Arc<Node> {
    fn ask<'a>(&'a self, key: &'a [u8], cmd: &'a Cmd) -> BoxFuture<'a, Result<Reply, Error>> {
        Box::pin(self.call(key, cmd))
    }

    fn hand_off<'a>(&'a self, key: &'a [u8], cmd: &'a Cmd) -> BoxFuture<'a, Result<Reply, Error>> {
        Box::pin(self.release(key, cmd))
    }

    fn may_linger(&self) -> bool {
        Node::may_linger(self)
    }

    fn close<'a>(
        &'a self,
        key: &'a [u8],
        name: &'a ConnectionName,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(self.close_one(key, name))
    }
}

/// Returns whether something was done so long ago that it may be done again, which counts
/// from now then.
fn begins(last: &SyncMutex<Option<Instant>>, every: Duration) -> bool {
    let mut last = locked(last);
    let may_be = last.is_none_or(|at| at.elapsed() >= every);
    if may_be {
        *last = Some(Instant::now());
    }
    may_be
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
