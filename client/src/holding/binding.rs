//! The connection to which the holds of a session are bound.
//!
//! The server renews such holds and ends them when the connection closes. The
//! client renews them all the same, over that very connection: each answer
//! shows that both are still there, and a hold is relied upon from it for no
//! longer than a lease, as any other.
//!
//! A session is one thing: when its connection closes, all its holds are lost
//! at once. In a cluster it has a connection to each node whose locks it takes,
//! and the end of one is the end of all.
//!
//! A connection that falls silent shows by its holds, which are not renewed. For
//! want of holds it shows by what else is asked.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;
use redis::{Cmd, Value};
use tokio::sync::{OwnedSemaphorePermit, oneshot, watch};

use crate::backoff::Backoff;
use crate::clock::Moment;
use crate::error::Error;
use crate::mutex::locked;
use crate::process::Process;
use crate::servers::connection::{Connection, ConnectionName};
use crate::servers::node::{Address, Ask, Node, Reply};
use crate::validity::{Lost, Validity};

/// How long to wait at most until a server is asked again to close a connection.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A session's connections, while it lives.
pub(crate) struct Binding {
    node: Arc<Node>,
    connections: Mutex<HashMap<Address, Arc<Connection>>>,
    /// In a cluster, which node was asked for which lock that is in use.
    asked_at: Mutex<HashMap<Vec<u8>, AskedAt>>,
    opening: tokio::sync::Mutex<()>,
    /// Which of them give no answer, since when.
    silent: Mutex<HashMap<Address, Moment>>,
    /// How long one may be silent while there are no holds.
    silence_max: Duration,
    holds: Mutex<Holds>,
    /// Why it ended, once it has.
    ended: watch::Sender<Option<Lost>>,
    process: Process,
    /// That there is one session more, until it ends.
    permit: Mutex<Option<OwnedSemaphorePermit>>,
}

/// What is bound to a session.
#[derive(Default)]
struct Holds {
    all: Vec<watch::Receiver<Validity>>,
    /// Beyond this many, those that are gone are forgotten.
    sweep_at: usize,
}

/// The node that was asked for a lock, and by how many it is in use.
#[derive(Default)]
struct AskedAt {
    node: Option<Address>,
    users: usize,
}

/// One that asks for a lock in a session, or holds it. As long as there is one, another
/// node must not have the lock.
pub(crate) struct InUse {
    session: Arc<Binding>,
    key: Vec<u8>,
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut asked_at = locked(&self.session.asked_at);
        if let Some(lock) = asked_at.get_mut(&self.key) {
            lock.users -= 1;
            if lock.users == 0 {
                asked_at.remove(&self.key);
            }
        }
    }
}

impl Binding {
    /// Opens the connection; in a cluster, those that are needed, when they are.
    /// Without holds, one that gives no answer for this long is the end of it.
    pub(crate) async fn open(
        node: Arc<Node>,
        permit: OwnedSemaphorePermit,
        silence_max: Duration,
    ) -> Result<Arc<Self>, Error> {
        let binding = Arc::new(Self {
            node,
            connections: Mutex::default(),
            asked_at: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
            silent: Mutex::default(),
            silence_max,
            holds: Mutex::default(),
            ended: watch::Sender::new(None),
            process: Process::this(),
            permit: Mutex::new(Some(permit)),
        });
        if !binding.node.is_cluster() {
            binding.connection(Address::default()).await?;
        }
        Ok(binding)
    }

    /// Why the session ended, once it has.
    pub(crate) fn ended(&self) -> Option<Lost> {
        *self.ended.borrow()
    }

    /// Completes when the session has ended.
    pub(crate) fn end_of(&self) -> impl Future<Output = Lost> + Send + 'static + use<> {
        let mut ended = self.ended.subscribe();
        async move {
            match ended.wait_for(Option::is_some).await {
                Ok(why) => (*why).unwrap_or(Lost::Disconnected),
                Err(_) => Lost::Disconnected,
            }
        }
    }

    /// Ends it: all holds are lost, and then the connections close.
    pub(crate) fn end(self: &Arc<Self>, why: Lost) {
        drop(self.end_everywhere(why));
    }

    /// Ends it, and waits until the servers have closed the connections or did
    /// not answer.
    pub(crate) async fn close(self: &Arc<Self>) {
        // Nothing is sent.
        let _ = self.end_everywhere(Lost::Disconnected).await;
    }

    /// Ends it here, and has the servers close the connections: a process that was
    /// forked from this one would keep them open, and a server that has not seen their
    /// end would keep up the holds. It is tried again until that is answered, as long
    /// as the client is there. What is returned ends with the first try.
    fn end_everywhere(&self, why: Lost) -> oneshot::Receiver<()> {
        let names = self.end_here(why);
        let (first, tried) = oneshot::channel();
        if names.is_empty() || !self.process.is_this() {
            return tried;
        }
        let mut node = Arc::clone(&self.node);
        self.node.runtime().spawn(async move {
            let mut first = Some(first);
            let mut backoff = Backoff::up_to(LONGEST_PAUSE);
            while let Err(error) = node.kill_everywhere(&names).await {
                if first.take().is_some() {
                    tracing::debug!(%error, "a session is not ended on its servers yet");
                }
                let weak = Arc::downgrade(&node);
                drop(node);
                backoff.pause_before(None).await;
                let Some(again) = weak.upgrade() else {
                    return;
                };
                node = again;
            }
        });
        tried
    }

    /// Returns what the servers call the connections.
    fn end_here(&self, why: Lost) -> Vec<ConnectionName> {
        self.ended.send_if_modified(|ended| {
            let is_first = ended.is_none();
            *ended = ended.or(Some(why));
            is_first
        });
        *locked(&self.permit) = None;
        let connections = std::mem::take(&mut *locked(&self.connections));
        let names = connections.values().map(|connection| connection.name());
        names.flatten().cloned().collect()
    }

    /// Somebody asks for this lock, in a cluster.
    pub(crate) fn in_use(self: &Arc<Self>, key: &[u8]) -> Option<InUse> {
        if !self.node.is_cluster() {
            return None;
        }
        let mut asked_at = locked(&self.asked_at);
        asked_at.entry(key.into()).or_default().users += 1;
        Some(InUse {
            session: Arc::clone(self),
            key: key.into(),
        })
    }

    /// A hold is bound to it, which is valid for as long as this says. As long as there is
    /// one, a silent connection shows by that.
    pub(crate) fn bind(&self, validity: watch::Receiver<Validity>) {
        let mut holds = locked(&self.holds);
        if holds.all.len() >= holds.sweep_at {
            // It is closed when the hold is gone.
            holds.all.retain(|hold| hold.has_changed().is_ok());
            holds.sweep_at = holds.all.len() * 2 + 64;
        }
        holds.all.push(validity);
    }

    fn has_holds(&self) -> bool {
        let (holds, now) = (locked(&self.holds), Moment::now());
        let mut present = holds.all.iter().filter(|hold| hold.has_changed().is_ok());
        present.any(|hold| hold.borrow().left(now).is_ok())
    }

    /// Sends a command that does not wait, over the session's connection to the
    /// server of this key.
    ///
    /// In a cluster a hold is bound to the connection to one node. If another node
    /// has the lock now, nobody ends it with the session any more, so the session is
    /// over.
    pub(crate) async fn ask(self: &Arc<Self>, key: &[u8], cmd: &Cmd) -> Result<Value, Error> {
        let address = self.node.address(key).await?;
        let known = locked(&self.asked_at)
            .get(key)
            .and_then(|lock| lock.node.clone());
        if known.is_some_and(|known| known != address) {
            return Err(self.end_for(Lost::Disconnected));
        }
        let connection = self.connection(address.clone()).await?;
        let within = self.node.timeouts().response;
        let sent_at = Moment::now();
        let answered = connection.ask_within(within, key, cmd).await;
        let is_silent = match &answered {
            Err(error @ Error::Unavailable { .. }) => !error.is_closed(),
            _ => false,
        };
        if self.is_silent_for_long(address.clone(), is_silent.then_some(sent_at)) {
            return Err(self.end_for(Lost::Expired));
        }
        match answered {
            Err(error) if error.is_closed() => Err(self.end_for(Lost::Disconnected)),
            Err(error) => {
                if error.code() == "MOVED" {
                    self.node.look_up_again();
                }
                Err(self.node.explain(error))
            }
            Ok(reply) => {
                if let Some(lock) = locked(&self.asked_at).get_mut(key) {
                    lock.node = Some(address);
                }
                Ok(reply)
            }
        }
    }

    /// As [`Binding::ask`], of a hold that is bound: where another node has its slot,
    /// or is about to, the session is over.
    pub(crate) async fn ask_of_hold(
        self: &Arc<Self>,
        key: &[u8],
        cmd: &Cmd,
    ) -> Result<Value, Error> {
        match self.ask(key, cmd).await {
            Err(error) if matches!(error.code(), "MOVED" | "ASK") && self.node.is_cluster() => {
                Err(self.end_for(Lost::Disconnected))
            }
            answered => answered,
        }
    }

    /// Returns whether this connection, which is older than the session's, leads to another
    /// server.
    pub(crate) async fn has_moved_on_from(
        self: &Arc<Self>,
        key: &[u8],
        other: &Connection,
    ) -> Result<bool, Error> {
        let address = self.node.address(key).await?;
        let own = self.connection(address).await?;
        let is_elsewhere = match (own.name(), other.name()) {
            (Some(own), Some(other)) => !own.has_same_server_as(other),
            _ => false,
        };
        Ok(is_elsewhere && other.serial() < own.serial())
    }

    /// Ends it, and returns the error that tells so.
    fn end_for(self: &Arc<Self>, why: Lost) -> Error {
        self.end(why);
        Error::Lost(why)
    }

    /// Notes that what was sent then was not answered, or else that a connection
    /// answers. Returns whether it has been silent for too long.
    fn is_silent_for_long(&self, address: Address, sent_at: Option<Moment>) -> bool {
        let mut silent = locked(&self.silent);
        let Some(sent_at) = sent_at else {
            silent.remove(&address);
            return false;
        };
        let since = *silent.entry(address).or_insert(sent_at);
        since.until(Moment::now()) >= self.silence_max && !self.has_holds()
    }

    async fn connection(self: &Arc<Self>, address: Address) -> Result<Arc<Connection>, Error> {
        if let Some(connection) = self.present(&address)? {
            return Ok(connection);
        }
        // A task of its own, so that no caller that is not polled any more keeps
        // others from theirs.
        let this = Arc::clone(self);
        let opening = async move { this.open_at(address).await };
        let opened = self.node.runtime().spawn(opening).await;
        opened.unwrap_or_else(|error| Err(Error::from_task(error)))
    }

    fn present(&self, address: &Address) -> Result<Option<Arc<Connection>>, Error> {
        let connections = locked(&self.connections);
        match self.ended() {
            Some(why) => Err(Error::Lost(why)),
            None => Ok(connections.get(address).cloned()),
        }
    }

    async fn open_at(self: Arc<Self>, address: Address) -> Result<Arc<Connection>, Error> {
        let _one_at_a_time = self.opening.lock().await;
        if let Some(connection) = self.present(&address)? {
            return Ok(connection);
        }
        let connection = self.node.open(address.clone()).await?;
        {
            let mut connections = locked(&self.connections);
            if let Some(why) = self.ended() {
                return Err(Error::Lost(why));
            }
            connections.insert(address, connection.clone());
        }
        let mut interruptions = connection.interruptions();
        let ending = Ending(Arc::downgrade(&self));
        self.node.runtime().spawn(async move {
            let _ = interruptions.next().await;
            drop(ending);
        });
        Ok(connection)
    }
}

/// Ends a session when it is dropped: with its connection, or with the runtime, which
/// closes that.
struct Ending(Weak<Binding>);

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(session) = self.0.upgrade() {
            session.end(Lost::Disconnected);
        }
    }
}

/// What an attempt gives back goes the way that its acquire went, or it could
/// arrive first.
impl Ask for Arc<Binding> {
    fn ask<'a>(&'a self, key: &'a [u8], cmd: &'a Cmd) -> BoxFuture<'a, Result<Reply, Error>> {
        Box::pin(async move {
            let sent_at = Moment::now();
            match Binding::ask(self, key, cmd).await {
                Ok(value) => Ok(Reply {
                    value,
                    sent_at,
                    resent: false,
                }),
                // The way is closed, so nothing comes by it any more.
                Err(Error::Lost(_)) => self.node.call(key, cmd).await,
                Err(error) => Err(error),
            }
        })
    }

    fn may_linger(&self) -> bool {
        self.node.may_linger()
    }

    fn close<'a>(
        &'a self,
        key: &'a [u8],
        name: &'a ConnectionName,
    ) -> BoxFuture<'a, Result<(), Error>> {
        self.node.close(key, name)
    }
}
