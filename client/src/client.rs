//! What a client has: servers, local queues, tasks.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::cluster::ClusterClientBuilder;
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::sentinel::SentinelClientBuilder;
use redis::{IntoConnectionInfo, ProtocolVersion};
use tokio::task::JoinSet;

use crate::background::Background;
use crate::error::Error;
use crate::guard::OwnerState;
use crate::keyed::KeyedMutex;
use crate::link::Target;
use crate::lock::Lock;
use crate::node::{Node, Patience};
use crate::renewal::Renewals;
use crate::votes::Votes;

const DEFAULT_LEASE: Duration = Duration::from_secs(30);
const CONNECT: Duration = Duration::from_secs(2);
const RESPONSE: Duration = Duration::from_secs(1);
/// Each server of a Redlock is asked for so long.
const REDLOCK_RESPONSE: Duration = Duration::from_millis(50);
const MAX_WAITS: usize = 1024;

/// With it the redis crate tells at once when a connection closes.
const PROTOCOL: ProtocolVersion = ProtocolVersion::RESP3;

/// A connection that is silent for so long is probed, and closed if nobody is
/// there. It is how a wait hears that the server's machine is gone.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;

/// Locks on one Redis or Valkey server, on a primary behind sentinels, or in a
/// cluster.
///
/// It is cheap to clone: all clones share their connections and tasks.
#[derive(Clone)]
pub struct LockClient {
    pub(crate) inner: Arc<Inner>,
}

/// Locks on the majority of several independent servers.
///
/// See [what it promises and what it does not](crate#redlock).
#[derive(Clone)]
pub struct Redlock {
    pub(crate) inner: Arc<Inner>,
}

/// How a client is to behave, before it connects.
#[derive(Clone, Debug, Default)]
pub struct ClientBuilder {
    default_lease: Option<Duration>,
    connect_timeout: Option<Duration>,
    response_timeout: Option<Duration>,
    max_waiting_connections: Option<usize>,
}

impl ClientBuilder {
    /// The lease of locks that are given none, which are renewed every third
    /// of it. 30 seconds if not set.
    #[must_use]
    pub fn default_lease(mut self, lease: Duration) -> Self {
        self.default_lease = Some(lease);
        self
    }

    /// How long it may take to open a connection. 2 seconds if not set.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// How long a server may take to answer a command that does not wait. 1
    /// second if not set, 50 milliseconds for each server of a [`Redlock`].
    #[must_use]
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.response_timeout = Some(timeout);
        self
    }

    /// For how many locks, or as how many owners with a name, this client may
    /// wait at the same time, with a connection for each. Further waits queue
    /// locally, where the server can't find a deadlock. Sessions keep the
    /// connection that waited, and it counts no more. 1024 if not set.
    #[must_use]
    pub fn max_waiting_connections(mut self, connections: usize) -> Self {
        self.max_waiting_connections = Some(connections.max(1));
        self
    }

    /// As [`LockClient::connect`].
    ///
    /// # Errors
    /// If the address is none, or the server does not answer.
    pub async fn connect(self, server: impl IntoConnectionInfo) -> Result<LockClient, Error> {
        let node = self.node(server_at(server)?, RESPONSE);
        self.client(node).await
    }

    /// As [`LockClient::connect_sentinel`].
    ///
    /// # Errors
    /// If no sentinel or no primary answers.
    pub async fn connect_sentinel(
        self,
        sentinels: SentinelClientBuilder,
    ) -> Result<LockClient, Error> {
        let sentinels = sentinels
            .set_client_to_redis_protocol(PROTOCOL)
            .set_client_to_redis_tcp_settings(tcp_settings());
        let target = Target::Sentinel(Box::new(sentinels.build()?.into()));
        let node = self.node(target, RESPONSE);
        self.client(node).await
    }

    /// As [`LockClient::connect_cluster`].
    ///
    /// # Errors
    /// If the settings are contradictory, or no node answers.
    pub async fn connect_cluster(self, cluster: ClusterClientBuilder) -> Result<LockClient, Error> {
        // A wait may be long, and whoever sends a command has a time-out for it.
        // Its own retries are few and soon, because the locks have theirs.
        let client = cluster
            .response_timeout(Duration::from_secs(u64::from(u32::MAX)))
            .overall_response_timeout(None)
            .connection_timeout(self.connect_timeout.unwrap_or(CONNECT))
            .use_protocol(PROTOCOL)
            .tcp_settings(tcp_settings())
            .retries(3)
            .min_retry_wait(10)
            .max_retry_wait(100)
            .build()?;
        let node = self.node(Target::Cluster(Box::new(client)), RESPONSE);
        self.client(node).await
    }

    /// As [`Redlock::connect`].
    ///
    /// # Errors
    /// If an address is none, or a majority of the servers does not answer.
    pub async fn connect_redlock<T: IntoConnectionInfo>(
        self,
        servers: impl IntoIterator<Item = T>,
    ) -> Result<Redlock, Error> {
        let mut nodes = Vec::new();
        for server in servers {
            nodes.push(self.node(server_at(server)?, REDLOCK_RESPONSE));
        }
        if nodes.is_empty() {
            return Err(Error::Invalid("a Redlock needs servers"));
        }
        let mut links = JoinSet::new();
        for node in &nodes {
            let node = Arc::clone(node);
            links.spawn(async move { node.link().await });
        }
        let mut votes = Votes::new(nodes.len());
        while let Some(link) = links.join_next().await {
            let link = link.unwrap_or_else(|_| Err(Error::timed_out()));
            votes.count(link.map(|_| true));
            if let Some(decided) = votes.decided() {
                decided?;
                break;
            }
        }
        links.detach_all();
        let inner = self.inner(nodes, true);
        Ok(Redlock { inner })
    }

    async fn client(self, node: Arc<Node>) -> Result<LockClient, Error> {
        node.link().await?;
        let inner = self.inner(vec![node], false);
        Ok(LockClient { inner })
    }

    fn node(&self, target: Target, response: Duration) -> Arc<Node> {
        let patience = Patience {
            connect: self.connect_timeout.unwrap_or(CONNECT),
            response: self.response_timeout.unwrap_or(response),
        };
        let max_waits = self.max_waiting_connections.unwrap_or(MAX_WAITS);
        Arc::new(Node::new(target, patience, max_waits))
    }

    fn inner(self, nodes: Vec<Arc<Node>>, redlock: bool) -> Arc<Inner> {
        Arc::new(Inner {
            nodes,
            redlock,
            default_lease: self.default_lease.unwrap_or(DEFAULT_LEASE),
            name: format!("{:032x}", rand::random::<u128>()),
            owners_made: AtomicU64::new(0),
            queues: KeyedMutex::default(),
            owners: KeyedMutex::default(),
            renewals: Renewals::default(),
            background: Background::here(),
        })
    }
}

fn server_at(server: impl IntoConnectionInfo) -> Result<Target, Error> {
    let info = server.into_connection_info()?;
    let settings = info.redis_settings().clone().set_protocol(PROTOCOL);
    let info = info
        .set_redis_settings(settings)
        .set_tcp_settings(tcp_settings());
    Ok(Target::Server(Box::new(redis::Client::open(info)?)))
}

/// Commands are sent at once, and a connection notices when its server is gone.
fn tcp_settings() -> TcpSettings {
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE);
    #[cfg(any(target_os = "linux", target_os = "macos", target_os = "windows"))]
    let keepalive = keepalive
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_PROBES);
    let settings = TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive);
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    let settings = settings.set_user_timeout(KEEPALIVE + KEEPALIVE_INTERVAL * KEEPALIVE_PROBES);
    settings
}

impl LockClient {
    /// Connects to one server: `redis://[user:password@]host[:port][/database]`,
    /// `rediss://` for TLS, `unix:///path` for a socket.
    ///
    /// # Errors
    /// If the address is none, or the server does not answer.
    pub async fn connect(server: impl IntoConnectionInfo) -> Result<Self, Error> {
        Self::builder().connect(server).await
    }

    /// Connects to whoever the sentinels say is the primary, now and after
    /// each fail-over. The builder's TCP settings and protocol are replaced.
    ///
    /// # Errors
    /// If no sentinel or no primary answers.
    pub async fn connect_sentinel(sentinels: SentinelClientBuilder) -> Result<Self, Error> {
        Self::builder().connect_sentinel(sentinels).await
    }

    /// Connects to a cluster. Each lock is on the node that has its slot.
    ///
    /// The builder's TCP settings, protocol, retries and time-outs are replaced:
    /// waits are long, and every other command has the [response
    /// time-out](ClientBuilder::response_timeout).
    ///
    /// # Errors
    /// If the settings are contradictory, or no node answers.
    pub async fn connect_cluster(cluster: ClusterClientBuilder) -> Result<Self, Error> {
        Self::builder().connect_cluster(cluster).await
    }

    /// A client with other settings than the usual ones.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// A lock, by its key. Any bytes are a key.
    pub fn lock(&self, key: impl AsRef<[u8]>) -> Lock {
        Lock::new(Arc::clone(&self.inner), key.as_ref())
    }

    /// Waits until what guards gave back when they were dropped has been given
    /// back, or its lease is over. Call it before the program or the runtime
    /// ends, or such a lock stays taken for the rest of its lease; and put a
    /// time-out around it if a server may be gone.
    pub async fn flush(&self) {
        self.inner.background.idle().await;
    }
}

impl Redlock {
    /// Connects to independent servers: no replicas of each other, no nodes of
    /// one cluster. An odd number of them, five as a rule.
    ///
    /// # Errors
    /// If an address is none, or a majority of the servers does not answer.
    pub async fn connect<T: IntoConnectionInfo>(
        servers: impl IntoIterator<Item = T>,
    ) -> Result<Self, Error> {
        LockClient::builder().connect_redlock(servers).await
    }

    /// As [`LockClient::lock`].
    pub fn lock(&self, key: impl AsRef<[u8]>) -> Lock {
        Lock::new(Arc::clone(&self.inner), key.as_ref())
    }

    /// As [`LockClient::flush`].
    pub async fn flush(&self) {
        self.inner.background.idle().await;
    }
}

/// What all clones of a client share.
pub(crate) struct Inner {
    pub(crate) nodes: Vec<Arc<Node>>,
    /// Whether a majority of the nodes decides, or there is only one.
    pub(crate) redlock: bool,
    pub(crate) default_lease: Duration,
    /// Unique to this client.
    name: String,
    owners_made: AtomicU64,
    /// Who of this client waits for which lock.
    pub(crate) queues: KeyedMutex<Vec<u8>, ()>,
    /// The holds of owners with a name of their own, by lock and owner.
    pub(crate) owners: KeyedMutex<(Vec<u8>, Vec<u8>), OwnerState>,
    pub(crate) renewals: Renewals,
    pub(crate) background: Background,
}

impl Inner {
    /// An owner that nobody else is.
    pub(crate) fn new_owner(&self) -> Vec<u8> {
        let serial = self.owners_made.fetch_add(1, Ordering::Relaxed);
        format!("{}:{serial}", self.name).into_bytes()
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
