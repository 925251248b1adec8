//! What happens to locks, as the servers post it by keyspace notifications.
//!
//! Each server has a connection of its own, in a cluster replicas too: one that is
//! promoted posts from then on. Which servers there are is looked up again and again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::{PushKind, Value};
use tokio::sync::Notify;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{sleep, timeout};

use crate::backoff::Backoff;
use crate::commands;
use crate::error::Error;
use crate::servers::connection::Connection;
use crate::servers::ear::Ear;
use crate::servers::node::{Address, Node};

/// How many events wait for a slow reader. More are lost, and that is told.
const WAITING_MAX: usize = 1 << 16;

/// How often to look which servers there are, and whether they still answer.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// What happened to a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockEvent {
    /// An owner got it: its first hold.
    Acquired,
    /// An owner gave its last hold back, or its session ended.
    Released,
    /// An owner's lease was over while somebody waited or others held the lock.
    Expired,
    /// It was broken.
    Broken,
}

const EVENTS: [(&str, LockEvent); 4] = [
    ("lock.acquire", LockEvent::Acquired),
    ("lock.release", LockEvent::Released),
    ("lock.expire", LockEvent::Expired),
    ("lock.break", LockEvent::Broken),
];

/// What is heard of locks.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Heard {
    /// Something happened to a lock.
    #[non_exhaustive]
    Event {
        /// What.
        event: LockEvent,
        /// The lock's key, as the server has it.
        key: Vec<u8>,
        /// Which server posted it.
        server: String,
    },
    /// What this server posts is not heard any more.
    #[non_exhaustive]
    Gone {
        /// Which one.
        server: String,
        /// Why.
        why: Error,
    },
    /// What this server posts is heard from now on. What it posted before is lost.
    #[non_exhaustive]
    Back {
        /// Which one.
        server: String,
    },
}

/// What is heard of locks from [`LockClient::events`] on.
///
/// [`LockClient::events`]: crate::LockClient::events
#[derive(Debug)]
pub struct Events {
    heard: Receiver<Heard>,
    looking: JoinHandle<()>,
}

impl Events {
    /// Waits for the next one. What one server posts comes in its order.
    ///
    /// It can be cancelled without loss. None once the runtime in which the client was
    /// connected has ended.
    pub async fn next(&mut self) -> Option<Heard> {
        self.heard.recv().await
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.looking.abort();
    }
}

/// Begins to listen to all servers. None is missing at first.
pub(crate) async fn listen(node: &Arc<Node>, prefix: Vec<u8>) -> Result<Events, Error> {
    let (sender, heard) = channel(WAITING_MAX);
    let listener = Listener {
        node: Arc::clone(node),
        prefix: prefix.into(),
        sender,
    };
    let mut listening = Listening::default();
    for (server, address) in node.servers().await? {
        let subscribed = listener.subscribe(&server, &address).await?;
        listening.start(&listener, server, address, Some(subscribed));
    }
    let looking = node
        .runtime()
        .spawn(listener.look_again_and_again(listening));
    Ok(Events { heard, looking })
}

/// Has every server post what happens to locks, beside what it posts already.
pub(crate) async fn post(node: &Arc<Node>) -> Result<(), Error> {
    for (server, address) in node.servers().await? {
        let connection = node
            .open_to_hear(&server, &address, &Arc::new(Deaf))
            .await?;
        let within = node.timeouts().response;
        let flags = commands::flags_of_events(None);
        let flags = connection.ask_within(within, b"", &flags).await?;
        if let Some(wanted) = missing(flags) {
            let set = commands::flags_of_events(Some(&wanted));
            let set = connection.ask_within(within, b"", &set).await;
            set.map_err(|error| error.at(&server))?;
        }
    }
    Ok(())
}

/// What the server should be set to post, if it does not post what happens to locks.
fn missing(flags: Value) -> Option<String> {
    let flags: HashMap<String, String> = redis::from_redis_value(flags).unwrap_or_default();
    let flags = flags.into_values().next().unwrap_or_default();
    let is_posted = flags.contains(['A', 'd']);
    match (flags.contains('E'), is_posted) {
        (true, true) => None,
        (true, false) => Some(flags + "d"),
        (false, true) => Some(flags + "E"),
        (false, false) => Some(flags + "Ed"),
    }
}

/// Nothing is to be heard.
struct Deaf;

impl Ear for Deaf {
    fn hear(&self, _: &[u8], _: &[u8]) {}
}

/// Leads the events of one connection to the reader.
struct Hearing {
    server: String,
    prefix: Arc<[u8]>,
    sender: Sender<Heard>,
    is_full: AtomicBool,
    full: Notify,
}

impl Ear for Hearing {
    fn hear(&self, channel: &[u8], key: &[u8]) {
        let event = EVENTS
            .iter()
            .find(|(name, _)| channel.ends_with(name.as_bytes()));
        let Some((_, event)) = event.filter(|_| key.starts_with(&self.prefix)) else {
            return;
        };
        let heard = Heard::Event {
            event: *event,
            key: key.into(),
            server: self.server.clone(),
        };
        if self.is_full.load(Ordering::Relaxed) || self.sender.try_send(heard).is_err() {
            self.is_full.store(true, Ordering::Relaxed);
            self.full.notify_one();
        }
    }
}

/// What it takes to listen to a server.
#[derive(Clone)]
struct Listener {
    node: Arc<Node>,
    prefix: Arc<[u8]>,
    sender: Sender<Heard>,
}

/// The servers that are listened to, each by a task that ends with this.
#[derive(Default)]
struct Listening(HashMap<String, AbortHandle>);

impl Listening {
    fn start(
        &mut self,
        listener: &Listener,
        server: String,
        address: Address,
        subscribed: Option<Subscribed>,
    ) {
        let task = listener.clone().follow(server.clone(), address, subscribed);
        let task = listener.node.runtime().spawn(task);
        self.0.insert(server, task.abort_handle());
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.values().for_each(AbortHandle::abort);
    }
}

type Subscribed = (Arc<Connection>, Arc<Hearing>);

impl Listener {
    async fn subscribe(&self, server: &str, address: &Address) -> Result<Subscribed, Error> {
        let within = self.node.timeouts().response;
        let hearing = Arc::new(Hearing {
            server: server.into(),
            prefix: Arc::clone(&self.prefix),
            sender: self.sender.clone(),
            is_full: AtomicBool::new(false),
            full: Notify::new(),
        });
        let connection = self.node.open_to_hear(server, address, &hearing).await?;
        let flags = commands::flags_of_events(None);
        match connection.ask_within(within, b"", &flags).await {
            Ok(flags) => {
                if let Some(wanted) = missing(flags) {
                    let server = server.into();
                    return Err(Error::NoEvents { server, wanted });
                }
            }
            // Who may not ask takes what comes.
            Err(Error::Server { code, .. }) if code == "NOPERM" => {}
            Err(error) => return Err(error),
        }
        let db = self.node.db();
        for (name, _) in EVENTS {
            let channel = format!("__keyevent@{db}__:{name}");
            let subscribe = commands::subscribe(channel.as_bytes(), false);
            match connection.ask_within(within, b"", &subscribe).await? {
                Value::Push {
                    kind: PushKind::Subscribe,
                    ..
                } => {}
                other => return Err(Error::unexpected(&other)),
            }
        }
        Ok((connection, hearing))
    }

    /// Listens to a server, again and again.
    async fn follow(self, server: String, address: Address, subscribed: Option<Subscribed>) {
        let mut subscribed = subscribed;
        let (mut is_back_due, mut is_gone_due) = (subscribed.is_none(), true);
        let mut backoff = Backoff::default();
        loop {
            let now = match subscribed.take() {
                Some(subscribed) => Ok(subscribed),
                None => self.subscribe(&server, &address).await,
            };
            let why = match now {
                Ok((connection, hearing)) => {
                    if is_back_due && !self.tell(|server| Heard::Back { server }, &server).await {
                        return;
                    }
                    is_gone_due = true;
                    backoff = Backoff::default();
                    self.until_gone(&connection, &hearing).await
                }
                Err(error) => error,
            };
            is_back_due = true;
            let gone = |server| Heard::Gone { server, why };
            if std::mem::take(&mut is_gone_due) && !self.tell(gone, &server).await {
                return;
            }
            backoff.pause_before(None).await;
        }
    }

    /// Returns whether anybody is there to hear it.
    async fn tell(&self, heard: impl FnOnce(String) -> Heard, server: &str) -> bool {
        self.sender.send(heard(server.into())).await.is_ok()
    }

    /// Returns why nothing is heard any more.
    async fn until_gone(&self, connection: &Connection, hearing: &Hearing) -> Error {
        let within = self.node.timeouts().response;
        let mut interruptions = connection.interruptions();
        loop {
            tokio::select! {
                () = hearing.full.notified() => {
                    return Error::unavailable("events came faster than they were read");
                }
                _ = interruptions.next() => return Error::unavailable("the connection was closed"),
                () = sleep(LOOK_EVERY) => {}
            }
            if let Err(error) = connection.ask_within(within, b"", &commands::ping()).await {
                return error;
            }
        }
    }

    /// Listens to servers that are new, and no more to those that have left.
    async fn look_again_and_again(self, mut listening: Listening) {
        loop {
            sleep(LOOK_EVERY).await;
            let within = self.node.timeouts().connect;
            let Ok(Ok(servers)) = timeout(within, self.node.servers()).await else {
                continue;
            };
            let servers: HashMap<String, Address> = servers.into_iter().collect();
            listening.0.retain(|server, task| {
                let stays = servers.contains_key(server);
                if !stays {
                    task.abort();
                }
                stays
            });
            for (server, address) in servers {
                if !listening.0.contains_key(&server) {
                    listening.start(&self, server, address, None);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_posted_already_stays() {
        let flags = |flags: &str| {
            let text = |text: &str| Value::BulkString(text.into());
            missing(Value::Map(vec![(
                text("notify-keyspace-events"),
                text(flags),
            )]))
        };
        assert_eq!(flags("").as_deref(), Some("Ed"));
        assert_eq!(flags("xK").as_deref(), Some("xKEd"));
        assert_eq!(flags("xE").as_deref(), Some("xEd"));
        assert_eq!(flags("AK").as_deref(), Some("AKE"));
        assert_eq!(flags("dE"), None);
        assert_eq!(flags("AKE"), None);
    }
}
