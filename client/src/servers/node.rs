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
//! can do.
//!
//! All connections are opened by tasks of the runtime in which the client was
//! connected, because they end with the runtime that opened them.

#[cfg(feature = "cluster")]
use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as SyncMutex, Weak};
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, join_all, select};
use futures_util::poll;
use redis::{Cmd, Value};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, sleep, timeout};

use crate::backoff::Backoff;
use crate::clock::Moment;
use crate::commands::{self, text};
use crate::error::Error;
use crate::mutex::locked;
use crate::servers::connection::{Connection, ConnectionName, Interruptions};
use crate::servers::ear::Ear;
use crate::servers::places::{Place, Places};
use crate::servers::target::Target;

/// How long after a failure no other connection is tried.
const FAILURE_STANDS: Duration = Duration::from_millis(50);

/// How often to ask whether the connections by which places are told still answer:
/// one that falls silent says nothing by itself. A task that is not polled from one time
/// to the next, when its turn has come, misses it.
const PING_EVERY: Duration = Duration::from_secs(2);

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
    fn hand_on<'a>(&'a self, key: &'a [u8], cmd: &'a Cmd) -> BoxFuture<'a, Result<Reply, Error>> {
        self.ask(key, cmd)
    }

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
    shared: Mutex<Shared>,
    /// Told when the shared connection was closed.
    disconnected: Arc<Notify>,
    /// What tells this server from the others of a Redlock.
    identity: Option<Identity>,
    /// Who here waits to be told of a place, and by which channel. Nobody else knows
    /// its name.
    places: Arc<Places>,
    channel: String,
    is_looked_after: AtomicBool,
    #[cfg(feature = "cluster")]
    slots: crate::servers::slots::Slots,
    #[cfg(feature = "cluster")]
    subscribers: SyncMutex<HashMap<Address, Arc<Mutex<Subscriber>>>>,
}

/// What a wait is told by.
pub(crate) struct Subscription {
    pub(crate) channel: Vec<u8>,
    connection: Arc<Connection>,
    interruptions: Interruptions,
}

impl Subscription {
    fn new(channel: Vec<u8>, connection: Arc<Connection>) -> Self {
        Self {
            channel,
            interruptions: connection.interruptions(),
            connection,
        }
    }

    /// Completes when something may have been told that nobody here has heard.
    pub(crate) async fn interrupted(&mut self) {
        self.interruptions.next().await;
    }

    /// The server's module knows no places.
    pub(crate) fn is_useless(&self) {
        self.connection.knows_no_places();
    }
}

/// The connection by which places are told, where that is not the shared one.
#[derive(Default)]
struct Subscriber {
    connection: Option<Arc<Connection>>,
    /// When the last try to open it failed, and why.
    failed: Option<(Instant, Error)>,
}

impl Subscriber {
    fn open(&self) -> Option<&Arc<Connection>> {
        self.connection.as_ref().filter(|it| !it.is_closed())
    }
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
            places: Arc::default(),
            channel: format!("redislock:{:032x}", rand::random::<u128>()),
            is_looked_after: AtomicBool::new(false),
            #[cfg(feature = "cluster")]
            slots: crate::servers::slots::Slots::default(),
            #[cfg(feature = "cluster")]
            subscribers: SyncMutex::default(),
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

    async fn open_shared(self: Arc<Self>, asked_at: Instant) -> Result<Arc<Connection>, Error> {
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
        let is_shared = |shared: &mut Arc<Connection>| shared.serial() == serial;
        let Some(connection) = shared.connection.take_if(is_shared) else {
            return false;
        };
        if let Some(subscriber) = std::mem::take(&mut shared.subscriber).connection {
            subscriber.interrupt();
        }
        shared.was_given_up = true;
        shared.given_up = connection.name().cloned();
        connection.interrupt();
        self.look_up_again();
        true
    }

    /// Waits to be told of a place of this owner in this lock's queue.
    pub(crate) fn expect(self: &Arc<Self>, key: &[u8], owner: &[u8]) -> Place {
        if !self.is_looked_after.swap(true, Ordering::SeqCst) {
            self.runtime
                .spawn(look_again_and_again(Arc::downgrade(self)));
        }
        self.places.expect(key, owner)
    }

    /// Sees to it that places in this lock's queue are told. None where that can't
    /// be.
    pub(crate) async fn subscribe(
        self: &Arc<Self>,
        key: &[u8],
    ) -> Result<Option<Subscription>, Error> {
        let channel = self.channel(key);
        if let Some(connection) = self.known_subscriber(key)
            && let Some(is_of_use) = connection.is_subscribed(&channel)
        {
            return Ok(is_of_use.then(|| Subscription::new(channel, connection)));
        }
        // A task of its own, so that no caller that is not polled any more keeps
        // others from theirs.
        let (this, key) = (Arc::clone(self), key.to_vec());
        let subscribing = async move { this.subscribe_now(&key, channel).await };
        let subscribed = self.runtime.spawn(subscribing).await;
        subscribed.unwrap_or_else(|error| Err(Error::from_task(error)))
    }

    async fn subscribe_now(
        self: Arc<Self>,
        key: &[u8],
        channel: Vec<u8>,
    ) -> Result<Option<Subscription>, Error> {
        let connection = self.subscriber(key).await?;
        let (within, is_sharded) = (self.timeouts.response, self.is_cluster());
        match connection.subscribe(within, &channel, is_sharded).await {
            Ok(is_of_use) => Ok(is_of_use.then(|| Subscription::new(channel, connection))),
            Err(error) => {
                if error.calls_for_new_connection() {
                    self.give_up_subscriber(&connection).await;
                } else if error.code() == "MOVED" {
                    self.look_up_again();
                }
                Err(self.explain(error))
            }
        }
    }

    fn channel(&self, key: &[u8]) -> Vec<u8> {
        #[cfg(feature = "cluster")]
        if self.is_cluster() {
            let tag = self.slots.tag_for(key);
            return format!("{}:{{{tag}}}", self.channel).into_bytes();
        }
        let _ = key;
        self.channel.clone().into_bytes()
    }

    /// The connection by which places in this lock's queue are told, if it is there.
    fn known_subscriber(&self, key: &[u8]) -> Option<Arc<Connection>> {
        #[cfg(feature = "cluster")]
        if self.is_cluster() {
            let address = Address(Some(self.slots.address_of(key)?));
            let subscriber = locked(&self.subscribers).get(&address).cloned()?;
            return subscriber.try_lock().ok()?.open().cloned();
        }
        let _ = key;
        let shared = self.shared.try_lock().ok()?;
        shared
            .subscriber
            .open()
            .or(shared.connection.as_ref())
            .cloned()
    }

    async fn subscriber(self: &Arc<Self>, key: &[u8]) -> Result<Arc<Connection>, Error> {
        #[cfg(feature = "cluster")]
        if self.is_cluster() {
            let (asked_at, address) = (Instant::now(), self.address(key).await?);
            let subscriber = {
                let mut subscribers = locked(&self.subscribers);
                Arc::clone(subscribers.entry(address.clone()).or_default())
            };
            let mut subscriber = subscriber.lock().await;
            return self
                .open_subscriber(&mut subscriber, address, asked_at)
                .await;
        }
        let _ = key;
        loop {
            let connection = self.connection().await?;
            let within = self.timeouts.response;
            if !connection.subscriptions_forbid_blocking(within).await? {
                return Ok(connection);
            }
            if let Some(subscriber) = self.subscriber_beside(&connection).await? {
                return Ok(subscriber);
            }
        }
    }

    /// A connection to the same server that may be subscribed. None where the shared one
    /// has been given up.
    async fn subscriber_beside(
        self: &Arc<Self>,
        connection: &Connection,
    ) -> Result<Option<Arc<Connection>>, Error> {
        let asked_at = Instant::now();
        let mut shared = self.shared.lock().await;
        let is_shared = |shared: &Arc<Connection>| shared.serial() == connection.serial();
        if !shared.connection.as_ref().is_some_and(is_shared) {
            return Ok(None);
        }
        let subscriber = &mut shared.subscriber;
        let opened = self.open_subscriber(subscriber, Address::default(), asked_at);
        let subscriber = opened.await.map_err(|error| self.explain(error))?;
        if let (Some(one), Some(other)) = (connection.name(), subscriber.name())
            && !one.has_same_server_as(other)
        {
            // Another server is the primary now.
            drop(shared);
            self.give_up(connection.serial()).await;
            return Ok(None);
        }
        Ok(Some(subscriber))
    }

    async fn open_subscriber(
        self: &Arc<Self>,
        subscriber: &mut Subscriber,
        address: Address,
        asked_at: Instant,
    ) -> Result<Arc<Connection>, Error> {
        if let Some(connection) = subscriber.open() {
            return Ok(connection.clone());
        }
        // One try is for all who wait for it.
        if let Some((failed_at, error)) = &subscriber.failed
            && *failed_at >= asked_at
        {
            return Err(error.clone());
        }
        let opened = self.open(address).await;
        subscriber.connection = opened.as_ref().ok().cloned();
        subscriber.failed = opened.clone().err().map(|error| (Instant::now(), error));
        opened
    }

    async fn give_up_subscriber(&self, subscriber: &Connection) {
        if self.is_cluster() {
            subscriber.interrupt();
            self.look_up_again();
            return;
        }
        let is_it = |other: &mut Arc<Connection>| other.serial() == subscriber.serial();
        let mut shared = self.shared.lock().await;
        let beside = shared.subscriber.connection.take_if(is_it);
        drop(shared);
        match beside {
            Some(subscriber) => subscriber.interrupt(),
            None => drop(self.give_up(subscriber.serial()).await),
        }
    }

    /// Finds out which connections by which places are told give no answer any more.
    async fn ping(&self) {
        if self.places.is_empty() {
            return;
        }
        let ping = commands::ping();
        let pings = self
            .subscribers()
            .await
            .into_iter()
            .map(async |subscriber| {
                let answered = subscriber.ask_within(self.timeouts.response, b"", &ping);
                if let Err(Error::Unavailable { .. }) = answered.await {
                    self.give_up_subscriber(&subscriber).await;
                }
            });
        join_all(pings).await;
    }

    async fn subscribers(&self) -> Vec<Arc<Connection>> {
        #[cfg(feature = "cluster")]
        if self.is_cluster() {
            let subscribers = locked(&self.subscribers);
            // One that is being opened answers.
            let known = subscribers.values().filter_map(|it| it.try_lock().ok());
            return known.filter_map(|it| it.open().cloned()).collect();
        }
        let shared = self.shared.lock().await;
        let both = [&shared.connection, &shared.subscriber.connection];
        both.into_iter().flatten().cloned().collect()
    }

    /// Sends a command that does not wait and that is safe to send again. It is
    /// sent once more where the connection turns out to be closed, or leads to
    /// a server that is no primary any more.
    pub(crate) async fn call(self: &Arc<Self>, key: &[u8], cmd: &Cmd) -> Result<Reply, Error> {
        let (mut resent, mut redirected) = (false, false);
        loop {
            let connection = self.connection().await?;
            let sent_at = Moment::now();
            let error = match self.send(&connection, key, cmd).await {
                Ok(value) => {
                    return Ok(Reply {
                        value,
                        sent_at,
                        resent,
                    });
                }
                Err(error) => error,
            };
            if error.is_closed() && !resent {
                resent = true;
            } else if error.code() == "READONLY" && !redirected {
                redirected = true;
            } else {
                return Err(self.explain(error));
            }
        }
    }

    /// Sends a release, and right behind it the request of the next one here that waits
    /// for the lock, so that it need not be told first.
    async fn release(self: &Arc<Self>, key: &[u8], cmd: &Cmd) -> Result<Reply, Error> {
        let Some(next) = self.places.ask_for_next(key) else {
            return self.call(key, cmd).await;
        };
        let (this, its_key) = (Arc::clone(self), key.to_vec());
        let asked = Box::pin(async move {
            let sent_at = Moment::now();
            let reply = async {
                let connection = this.connection().await?;
                this.send(&connection, &its_key, &next.request).await
            };
            let token = reply
                .await
                .and_then(|reply| commands::token_or_place(&reply));
            next.answer(token, sent_at);
        });
        match select(pin!(self.call(key, cmd)), asked).await {
            Either::Left((reply, mut asked)) => {
                // Replicas may have to acknowledge it first, which is not for the
                // release to wait for.
                if poll!(&mut asked).is_pending() {
                    self.runtime.spawn(asked);
                }
                reply
            }
            Either::Right(((), released)) => released.await,
        }
    }

    /// Releases what was granted to those that are not polled any more.
    fn take_back(self: &Arc<Self>) {
        for (missed, lease) in self.places.take_back() {
            let (this, lease_ends) = (Arc::clone(self), Moment::now() + lease);
            self.runtime.spawn(async move {
                let mut backoff = Backoff::default();
                // One that is unanswered could still end what is asked for next.
                while this.call(&missed.key, &missed.request).await.is_err()
                    && backoff.pause_within(lease_ends).await
                {}
            });
        }
    }

    /// Sends a command once.
    async fn send(&self, connection: &Connection, key: &[u8], cmd: &Cmd) -> Result<Value, Error> {
        let within = self.timeouts.response;
        let answered = connection.ask_within(within, key, cmd).await;
        if let Err(error) = &answered
            && error.calls_for_new_connection()
        {
            self.give_up(connection.serial()).await;
        }
        answered
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
        let slots = self.call(key, &commands::cluster_slots()).await?;
        self.slots.learn(slots.value)?;
        match self.slots.address_of(key) {
            Some(found) => Ok(Address(Some(found))),
            None => Err(Error::unavailable(
                "the cluster names no node for the slot of this key",
            )),
        }
    }

    /// Opens a connection of its own to this address. If that fails, the next one
    /// looks anew for the server that has its key.
    pub(crate) async fn open(self: &Arc<Self>, address: Address) -> Result<Arc<Connection>, Error> {
        let this = Arc::clone(self);
        let opened = self.runtime.spawn(async move {
            let within = this.timeouts.connect;
            #[cfg(feature = "cluster")]
            if let Some((host, port)) = &address.0 {
                return this.target.open_at(host, *port, within, &this.places).await;
            }
            let _ = address;
            this.target.open(within, &this.places).await
        });
        let opened = opened
            .await
            .unwrap_or_else(|error| Err(Error::from_task(error)));
        opened.inspect_err(|_| self.look_up_again())
    }

    /// All servers, replicas of a cluster too, by name.
    pub(crate) async fn servers(self: &Arc<Self>) -> Result<Vec<(String, Address)>, Error> {
        if let Some(address) = self.target.address(self.timeouts.connect).await? {
            return Ok(vec![(address, Address::default())]);
        }
        #[cfg(feature = "cluster")]
        {
            let nodes = self.call(b"", &commands::cluster_slots()).await?.value;
            let nodes = crate::servers::slots::nodes(nodes)?.into_iter();
            Ok(nodes
                .map(|(host, port)| (format!("{host}:{port}"), Address(Some((host, port)))))
                .collect())
        }
        #[cfg(not(feature = "cluster"))]
        Ok(Vec::new())
    }

    /// Opens a connection to one of [`Node::servers`] for messages alone.
    pub(crate) async fn open_to_hear<E: Ear>(
        &self,
        server: &str,
        address: &Address,
        ear: &Arc<E>,
    ) -> Result<Arc<Connection>, Error> {
        let within = self.timeouts.connect;
        #[cfg(feature = "cluster")]
        if let Some((host, port)) = &address.0 {
            return self.target.open_at(host, *port, within, ear).await;
        }
        let _ = address;
        self.target.open_to(server, within, ear).await
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
        for name in names {
            match self.call_everywhere(&name.kill()).await {
                Ok(_) | Err(Error::Server { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns whether keys are on several nodes.
    pub(crate) fn is_cluster(&self) -> bool {
        self.target.is_cluster()
    }

    /// Has the next connection look anew for the server that has its key.
    pub(crate) fn look_up_again(&self) {
        self.target.look_up_again();
        #[cfg(feature = "cluster")]
        self.slots.forget();
    }

    async fn close_one(self: &Arc<Self>, key: &[u8], name: &ConnectionName) -> Result<(), Error> {
        let connection = self.connection().await?;
        let killed = self.kill(&connection, key, name).await;
        if killed.is_err() {
            self.give_up(connection.serial()).await;
        }
        killed
    }
}

/// Looks after those who wait as long as the node is there.
async fn look_again_and_again(node: Weak<Node>) {
    loop {
        sleep(PING_EVERY).await;
        match node.upgrade() {
            Some(node) => {
                node.take_back();
                node.ping().await;
            }
            None => return,
        }
    }
}

/// A node of a cluster by host and port; elsewhere the only server that there is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Address(Option<(String, u16)>);

impl Ask for Arc<Node> {
    fn ask<'a>(&'a self, key: &'a [u8], cmd: &'a Cmd) -> BoxFuture<'a, Result<Reply, Error>> {
        Box::pin(self.call(key, cmd))
    }

    fn hand_on<'a>(&'a self, key: &'a [u8], cmd: &'a Cmd) -> BoxFuture<'a, Result<Reply, Error>> {
        Box::pin(self.release(key, cmd))
    }

    fn close<'a>(
        &'a self,
        key: &'a [u8],
        name: &'a ConnectionName,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(self.close_one(key, name))
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
