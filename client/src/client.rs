//! Clients, and how they connect.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;

use crate::acquire::cohort::take_back_again_and_again;
use crate::commands;
use crate::error::Error;
use crate::holding::binding::Binding;
use crate::holding::renewal::Renewals;
use crate::inspect::{ContendedLock, Counters};
use crate::lock::Lock;
use crate::request::PassOn;
use crate::servers::events::{self, Events};
use crate::servers::identities::Identities;
use crate::servers::node::{Node, Timeouts};
use crate::servers::server::Server;
#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
use crate::servers::server::Tls;
use crate::servers::target::{Certificates, Target};
use crate::servers::waiting::Waits;
use crate::session::Session;
use crate::shared::{Servers, Shared};
use crate::tasks::Tasks;
use crate::votes::Votes;

const DEFAULT_LEASE: Duration = Duration::from_secs(30);
const CONNECT: Duration = Duration::from_secs(2);
/// More than the second for which a server withholds a reply that replicas have to
/// acknowledge, so that its own word comes first.
const RESPONSE: Duration = Duration::from_millis(1500);
/// How long each server of a Redlock is asked.
const REDLOCK_RESPONSE: Duration = Duration::from_millis(50);
const TIMEOUT_MIN: Duration = Duration::from_millis(1);
const TIMEOUT_MAX: Duration = Duration::from_secs(3600);
const WAITS_MAX: usize = 128;
/// The greatest count that every server takes.
const COUNT_MAX: u64 = 1 << 32;
const SESSIONS_MAX: usize = 64;

/// Locks on one Redis or Valkey server, on a primary behind sentinels, or in a
/// cluster.
///
/// It is cheap to clone: all clones share their connections and tasks. The
/// tasks, which renew and release, run in the runtime in which the client was
/// connected, so that has to live as long as the client.
#[derive(Clone)]
pub struct LockClient {
    pub(crate) shared: Arc<Shared>,
}

/// Locks on the majority of several independent servers.
///
/// See [what it promises and what it does not](crate#redlock).
#[derive(Clone)]
pub struct Redlock {
    pub(crate) shared: Arc<Shared>,
}

/// How a client is to behave.
#[derive(Clone, Debug, Default)]
pub struct ClientBuilder {
    default_lease: Option<Duration>,
    connect_timeout: Option<Duration>,
    response_timeout: Option<Duration>,
    max_waiting_connections: Option<usize>,
    max_sessions: Option<usize>,
    key_prefix: Vec<u8>,
    pass_on: Option<PassOn>,
    certificates: Certificates,
}

impl ClientBuilder {
    /// The lease of locks that are given none, 1 millisecond to ten years. 30
    /// seconds if not set. Any other is refused by each acquire ([`Error::Invalid`]).
    #[must_use]
    pub fn default_lease(mut self, lease: Duration) -> Self {
        self.default_lease = Some(lease);
        self
    }

    /// How long it may take to open a connection. What is less than 1 millisecond or more
    /// than one hour is taken for that. 2 seconds if not set.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout.clamp(TIMEOUT_MIN, TIMEOUT_MAX));
        self
    }

    /// How long a server may take to answer a command that does not wait. What is less
    /// than 1 millisecond or more than one hour is taken for that. 1.5 seconds if not set,
    /// 50 milliseconds for each server of a [`Redlock`].
    ///
    /// Where the server has `lock.min-replicas`, its `lock.replicas-timeout` should be
    /// shorter by what an answer takes. Else an answer that comes too late costs the
    /// connection and all that is under way on it. Only a connection that gives no
    /// answers at all for that long is given up.
    #[must_use]
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.response_timeout = Some(timeout.clamp(TIMEOUT_MIN, TIMEOUT_MAX));
        self
    }

    /// How many connections may be blocked at the same time, where waits have to block
    /// one each: the server's module is older and knows no places, or the user may not
    /// subscribe. 128 if not set, at least one. As many again may wait for replicas
    /// ([`Lock::replicas`]).
    ///
    /// A wait beyond that is in no queue and lets nobody find a deadlock: it
    /// asks for the lock now and then, until it gets it or a connection comes
    /// free.
    #[must_use]
    pub fn max_waiting_connections(mut self, connections: usize) -> Self {
        self.max_waiting_connections = Some(connections.max(1));
        self
    }

    /// How many [sessions](LockClient::session) this client may have at the same
    /// time, with a connection for each. 64 if not set.
    #[must_use]
    pub fn max_sessions(mut self, sessions: usize) -> Self {
        self.max_sessions = Some(sessions);
        self
    }

    /// Lets tasks of this client pass a lock on among themselves, without the server: at
    /// most `at_most` times, and only `within` this time (up to one hour) after the server
    /// granted it. Then it goes back to the server's queue. Not done if not set.
    ///
    /// It is for many tasks that want few locks: such a section costs no round trip, and
    /// all that wait for a lock cost the server one place. The field calls it lock
    /// cohorting. It applies to locks that are asked for alike: exclusive, with the same
    /// lease, renewed without end, without an owner's name, outside of sessions, and
    /// without [`Lock::replicas`]. All others wait in the server's queue, each for itself.
    /// A [`Redlock`] passes nothing on.
    ///
    /// - **One grant has one token**, for all sections that it is passed on to. A resource
    ///   that checks it still refuses whoever had an earlier grant, in this process and in
    ///   others. It can't tell a late write of one section from a write of the next. Both
    ///   are of this process, and the earlier one has given the lock back: so set this only
    ///   where nothing goes on writing after its guard has gone.
    /// - **Others wait longer, for a bounded time.** First come, first served holds among
    ///   the tasks, and for grants among processes: another one may have to let pass what
    ///   is left of this client's present grant and, if its place came first, one more.
    ///   Work within a section takes as long as it takes.
    /// - **A loss** is told to whoever has the lock then. It is renewed on, and not passed
    ///   on with less than half of its lease left. Who has it learns by the next renewal
    ///   that somebody broke it, and may have passed it on until then, `within` at most.
    /// - The server knows one owner and one waiter for all of them, by a name of this
    ///   client's making ([`LockGuard::owner`](crate::LockGuard::owner)).
    /// - A task that is not polled for 2 seconds when its turn has come misses it.
    #[must_use]
    pub fn pass_on(mut self, at_most: u32, within: Duration) -> Self {
        let within = within.min(TIMEOUT_MAX);
        self.pass_on = Some(PassOn { at_most, within });
        self
    }

    /// What the keys of all locks begin with on the server.
    #[must_use]
    pub fn key_prefix(mut self, prefix: impl AsRef<[u8]>) -> Self {
        self.key_prefix = prefix.as_ref().to_vec();
        self
    }

    /// The certificates for TLS, where those of the system don't do. With the
    /// feature `tls-native-tls` alone it is for single servers; sentinels and
    /// clusters need `tls-rustls`.
    #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
    #[cfg_attr(
        docsrs,
        doc(cfg(any(feature = "tls-rustls", feature = "tls-native-tls")))
    )]
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.certificates = Some(tls);
        self
    }

    /// As [`LockClient::connect`].
    ///
    /// # Errors
    /// As [`LockClient::connect`].
    pub async fn connect(self, url: impl AsRef<str>) -> Result<LockClient, Error> {
        self.connect_to(Server::parse(url.as_ref())?).await
    }

    /// As [`LockClient::connect`], to an address that was read before.
    ///
    /// # Errors
    /// As [`LockClient::connect`].
    pub async fn connect_to(self, server: Server) -> Result<LockClient, Error> {
        let client = self.connect_lazy_to(server)?;
        client.shared.node()?.connection().await?;
        Ok(client)
    }

    /// As [`LockClient::connect`], but the connection is opened when it is
    /// needed: a wait for a lock waits for the server as well.
    ///
    /// # Errors
    /// [`Error::Address`] if the address is invalid.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn connect_lazy(self, url: impl AsRef<str>) -> Result<LockClient, Error> {
        self.connect_lazy_to(Server::parse(url.as_ref())?)
    }

    /// As [`ClientBuilder::connect_lazy`], to an address that was read before.
    ///
    /// # Errors
    /// [`Error::Address`] if this build can't connect to it.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn connect_lazy_to(self, server: Server) -> Result<LockClient, Error> {
        let (runtime, disconnected) = (Handle::current(), Arc::new(Notify::new()));
        let node = self.node(server, RESPONSE, &runtime, &disconnected)?;
        let node = Arc::new(node);
        let waits_max = self.max_waiting_connections.unwrap_or(WAITS_MAX);
        let sessions_max = self.max_sessions.unwrap_or(SESSIONS_MAX);
        let servers = Servers::One {
            waits: Arc::new(Waits::new(Arc::clone(&node), waits_max)),
            node,
            sessions: Arc::new(Semaphore::new(sessions_max.min(Semaphore::MAX_PERMITS))),
        };
        let passes_on = self.pass_on.is_some();
        let shared = self.shared(servers, runtime, disconnected);
        if passes_on {
            let taking_back = take_back_again_and_again(Arc::downgrade(&shared.cohorts));
            shared.tasks.runtime().spawn(taking_back);
        }
        Ok(LockClient { shared })
    }

    /// As [`Redlock::connect`].
    ///
    /// # Errors
    /// As [`Redlock::connect`].
    pub async fn connect_redlock<U: AsRef<str>>(
        self,
        urls: impl IntoIterator<Item = U>,
    ) -> Result<Redlock, Error> {
        let (runtime, disconnected) = (Handle::current(), Arc::new(Notify::new()));
        let identities = Identities::default();
        let mut nodes = Vec::new();
        for (nth, url) in urls.into_iter().enumerate() {
            let server = Server::parse(url.as_ref())?;
            let node = self.node(server, REDLOCK_RESPONSE, &runtime, &disconnected)?;
            nodes.push(Arc::new(node.one_of_many(&identities, nth)));
        }
        if nodes.is_empty() {
            return Err(Error::Invalid("a Redlock needs servers"));
        }
        connect_majority(&nodes, &runtime).await?;
        let shared = self.shared(Servers::Many(nodes), runtime, disconnected);
        Ok(Redlock { shared })
    }

    fn node(
        &self,
        server: Server,
        response: Duration,
        runtime: &Handle,
        disconnected: &Arc<Notify>,
    ) -> Result<Node, Error> {
        let timeouts = Timeouts {
            connect: self.connect_timeout.unwrap_or(CONNECT),
            response: self.response_timeout.unwrap_or(response),
        };
        let target = Target::new(server, &self.certificates, timeouts.connect)?;
        Ok(Node::new(
            target,
            timeouts,
            runtime.clone(),
            Arc::clone(disconnected),
        ))
    }

    fn shared(self, servers: Servers, runtime: Handle, disconnected: Arc<Notify>) -> Arc<Shared> {
        let renewals = Renewals::start(&runtime, disconnected);
        let default_lease = self.default_lease.unwrap_or(DEFAULT_LEASE);
        let tasks = Tasks::new(runtime);
        let (key_prefix, pass_on) = (self.key_prefix, self.pass_on);
        Shared::new(servers, default_lease, key_prefix, pass_on, renewals, tasks)
    }
}

/// Opens connections until a majority has answered.
async fn connect_majority(nodes: &[Arc<Node>], runtime: &Handle) -> Result<(), Error> {
    let mut connecting = JoinSet::new();
    for node in nodes {
        let node = Arc::clone(node);
        connecting.spawn_on(async move { node.connection().await }, runtime);
    }
    let mut votes = Votes::new(nodes.len());
    while let Some(connected) = connecting.join_next().await {
        let connected = connected.unwrap_or_else(|error| Err(Error::from_task(error)));
        if let Err(error @ Error::Invalid(_)) = connected {
            return Err(error);
        }
        votes.count(connected.map(|_| true));
        if let Some(decided) = votes.decided() {
            decided?;
            break;
        }
    }
    connecting.detach_all();
    Ok(())
}

impl LockClient {
    /// Connects to what a URL names: `redis://[user:password@]host[:port][/database]`
    /// for a server, `unix:///path` for a socket; for sentinels, clusters and TLS
    /// see [`Server`].
    ///
    /// # Errors
    /// [`Error::Address`] if the address is invalid, or what keeps the server
    /// from answering.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn connect(url: impl AsRef<str>) -> Result<Self, Error> {
        Self::builder().connect(url).await
    }

    /// A client with other settings than the usual ones.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// A lock, by its key. Any bytes are a key.
    pub fn lock(&self, key: impl AsRef<[u8]>) -> Lock {
        Lock::new(Arc::clone(&self.shared), key.as_ref())
    }

    /// Begins a session: a connection, and locks that end with it.
    ///
    /// # Errors
    /// If the server does not answer, or there are as many sessions as
    /// [`ClientBuilder::max_sessions`] allows.
    pub async fn session(&self) -> Result<Session, Error> {
        self.shared.check_process()?;
        let Servers::One { node, sessions, .. } = &self.shared.servers else {
            return Err(Error::Invalid("a session is of one server"));
        };
        let permit = Arc::clone(sessions).try_acquire_owned();
        let permit = permit.map_err(|_| {
            Error::Invalid(
                "this client has as many sessions as max_sessions allows; one session can carry \
                 any number of locks",
            )
        })?;
        let silence_max = self.shared.default_lease;
        let binding = Binding::open(Arc::clone(node), permit, silence_max).await?;
        Ok(Session::new(Arc::clone(&self.shared), binding))
    }

    /// At most `count` of the locks for which somebody waits, and that this user
    /// may read, longest wait first; of a cluster, of all its primaries. With a
    /// [key prefix](ClientBuilder::key_prefix), only those that begin with it.
    ///
    /// # Errors
    /// What a server refused, or that it does not answer.
    pub async fn list(&self, count: u64) -> Result<Vec<ContendedLock>, Error> {
        self.shared.check_process()?;
        let node = self.shared.node()?;
        let mut locks = Vec::new();
        if count == 0 {
            return Ok(locks);
        }
        // The server counts before those with another prefix are left out.
        let asked = match self.shared.key_prefix.is_empty() {
            true => count.min(COUNT_MAX),
            false => COUNT_MAX,
        };
        for reply in node.call_everywhere(&commands::list(asked)).await? {
            locks.extend(ContendedLock::read_all(reply)?);
        }
        locks.retain(|lock| lock.key.starts_with(&self.shared.key_prefix));
        locks.sort_by_key(|lock| std::cmp::Reverse(lock.waited));
        locks.truncate(usize::try_from(count).unwrap_or(usize::MAX));
        Ok(locks)
    }

    /// What the server's module has counted since it was loaded, or counts now.
    ///
    /// # Errors
    /// What a server refused, or that it does not answer.
    pub async fn counters(&self) -> Result<Counters, Error> {
        self.shared.check_process()?;
        let node = self.shared.node()?;
        let replies = node.call_everywhere(&commands::counters()).await?;
        Ok(Counters::read(replies))
    }

    /// Listens to what happens to the locks of this database, from now on; in a cluster
    /// on all nodes. With a [key prefix](ClientBuilder::key_prefix), to those that begin
    /// with it.
    ///
    /// # Errors
    /// [`Error::NoEvents`] if a server is not set to post that; else what a server
    /// refused, or that it does not answer. A user who may not `CONFIG GET` gets no
    /// such error, and hears nothing from such a server.
    pub async fn events(&self) -> Result<Events, Error> {
        self.shared.check_process()?;
        events::listen(self.shared.node()?, self.shared.key_prefix.clone()).await
    }

    /// Has all servers post what happens to locks: adds `Ed` to their
    /// `notify-keyspace-events`, until they are started again.
    ///
    /// # Errors
    /// What a server refused, or that it does not answer.
    pub async fn post_events(&self) -> Result<(), Error> {
        self.shared.check_process()?;
        events::post(self.shared.node()?).await
    }

    /// Waits until what guards gave back when they were dropped has been given
    /// back, or its lease is over. Call it before the program or the runtime
    /// ends, or such a lock stays taken for the rest of its lease; and put a
    /// time-out around it if a server may be gone.
    pub async fn flush(&self) {
        self.shared.flush().await;
    }
}

impl Redlock {
    /// Connects to independent servers by their URLs: no replicas of each other,
    /// no nodes of one cluster. An odd number of them, five as a rule.
    ///
    /// # Errors
    /// [`Error::Address`] if an address is invalid, [`Error::Invalid`] if two
    /// lead to the same server, [`Error::NoMajority`] if a majority of the servers
    /// does not answer.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn connect<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Result<Self, Error> {
        LockClient::builder().connect_redlock(urls).await
    }

    /// As [`LockClient::lock`].
    pub fn lock(&self, key: impl AsRef<[u8]>) -> Lock {
        Lock::new(Arc::clone(&self.shared), key.as_ref())
    }

    /// As [`LockClient::flush`].
    pub async fn flush(&self) {
        self.shared.flush().await;
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
