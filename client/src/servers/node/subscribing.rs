//! By which connection a node tells the ends of places in its queues.

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::{Either, join_all, select};
use futures_util::poll;
use redis::Cmd;
use tokio::time::{Instant, sleep};

use super::addresses::Address;
use super::{Node, Reply, Shared};
use crate::backoff::Backoff;
use crate::clock::Moment;
use crate::commands;
use crate::error::Error;
use crate::mutex::locked;
use crate::servers::connection::{Connection, Interruptions};
use crate::servers::places::Place;

/// How often to ask whether the connections by which places are told still answer:
/// one that falls silent says nothing by itself. A task that is not polled from one time
/// to the next, when its turn has come, misses it.
const PING_EVERY: Duration = Duration::from_secs(2);

/// What a wait is told by.
pub(crate) struct Subscription {
    pub(crate) channel: Vec<u8>,
    pub(crate) connection: Arc<Connection>,
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
#[derive(Clone, Default)]
pub(super) struct Subscriber {
    pub(super) connection: Option<Arc<Connection>>,
    /// When the last try to open it failed, and why.
    failed: Option<(Instant, Error)>,
}

impl Subscriber {
    fn open(&self) -> Option<&Arc<Connection>> {
        self.connection.as_ref().filter(|it| !it.is_closed())
    }
}

impl Node {
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
        let shared = locked(&self.shared);
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
            let forbid = connection.subscriptions_forbid_blocking(within).await;
            let forbid = forbid.inspect_err(|error| self.give_up_by(&connection, b"", error));
            if !forbid.map_err(|error| self.explain(error))? {
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
        let _turn = self.opening.lock().await;
        let is_shared = |shared: &Shared| {
            let shared = shared.connection.as_ref();
            shared.is_some_and(|shared| shared.serial() == connection.serial())
        };
        let mut subscriber = {
            let shared = locked(&self.shared);
            if !is_shared(&shared) {
                return Ok(None);
            }
            shared.subscriber.clone()
        };
        let opened = self.open_subscriber(&mut subscriber, Address::default(), asked_at);
        let opened = opened.await;
        {
            let mut shared = locked(&self.shared);
            if !is_shared(&shared) {
                return Ok(None);
            }
            shared.subscriber = subscriber;
        }
        let subscriber = opened.map_err(|error| self.explain(error))?;
        if let (Some(one), Some(other)) = (connection.name(), subscriber.name())
            && !one.has_same_server_as(other)
        {
            // Another server is the primary now.
            self.give_up(connection.serial());
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

    /// Has places be told by a new connection.
    pub(crate) async fn give_up_subscriber(&self, subscriber: &Connection) {
        if self.is_cluster() {
            subscriber.interrupt();
            self.look_up_again();
            return;
        }
        let is_it = |other: &mut Arc<Connection>| other.serial() == subscriber.serial();
        let mut shared = locked(&self.shared);
        let beside = shared.subscriber.connection.take_if(is_it);
        drop(shared);
        match beside {
            Some(subscriber) => subscriber.interrupt(),
            None => drop(self.give_up(subscriber.serial())),
        }
    }

    /// Finds out which connections by which places are told give no answer any more.
    async fn ping(self: &Arc<Self>) {
        if self.places.is_empty() {
            return;
        }
        self.seek_primary();
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
        let shared = locked(&self.shared);
        let both = [&shared.connection, &shared.subscriber.connection];
        both.into_iter().flatten().cloned().collect()
    }

    /// Sends a release, and right behind it the request of the next one here that waits
    /// for the lock, so that it need not be told first.
    pub(super) async fn release(self: &Arc<Self>, key: &[u8], cmd: &Cmd) -> Result<Reply, Error> {
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
