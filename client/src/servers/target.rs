//! Opens connections to what a [`Server`] names.

use std::sync::Arc;
#[cfg(feature = "sentinel")]
use std::sync::Mutex;
use std::time::Duration;

use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, ProtocolVersion};
use tokio::time::timeout;

use crate::error::Error;
#[cfg(feature = "sentinel")]
use crate::mutex::locked;
use crate::servers::connection::{Connection, Interrupt, Wire};
use crate::servers::ear::Ear;
use crate::servers::server::{Kind, Server};

/// How many commands may wait to be sent on a connection. Each takes room only while it
/// waits. With few, the futures of a task that polls none of them for a while could take
/// all of it, and keep the others of the client from sending anything.
const QUEUED_COMMANDS: usize = 1 << 20;

/// With it the redis crate tells at once when a connection closes.
const PROTOCOL: ProtocolVersion = ProtocolVersion::RESP3;

/// A connection that is silent for this long is probed, and closed if nobody is
/// there. It is how a wait hears that the server's machine is gone.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;

/// The certificates to be used, if the build has TLS.
#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
pub(crate) type Certificates = Option<crate::servers::server::Tls>;
#[cfg(not(any(feature = "tls-rustls", feature = "tls-native-tls")))]
pub(crate) type Certificates = Option<std::convert::Infallible>;

/// To open a cluster's connection, the redis crate connects to the nodes that it was given,
/// and then to those that they know, all at once. A node that stands still takes all the
/// time of both, and must leave some of it for what the others are asked.
#[cfg(feature = "cluster")]
const CLUSTER_STAGES: u32 = 3;

/// Where connections lead.
pub(crate) enum Target {
    One(Box<ConnectionInfo>),
    #[cfg(feature = "sentinel")]
    Primary(Box<Primary>),
    #[cfg(feature = "cluster")]
    Cluster {
        client: Box<redis::cluster::ClusterClient>,
        /// What all nodes have in common.
        node: Box<ConnectionInfo>,
    },
}

/// The primary that sentinels name. One look-up is for all who ask meanwhile,
/// and for all later connections until one of them fails.
#[cfg(feature = "sentinel")]
pub(crate) struct Primary {
    sentinels: tokio::sync::Mutex<redis::sentinel::SentinelClient>,
    sentinels_count: u32,
    db: i64,
    known: Mutex<Option<ConnectionInfo>>,
}

impl Target {
    pub(crate) fn new(
        server: Server,
        certificates: &Certificates,
        connect: Duration,
    ) -> Result<Self, Error> {
        #[cfg(not(feature = "cluster"))]
        let _ = connect;
        match server.kind {
            Kind::One(info) => Ok(Self::One(Box::new(prepared(info, certificates)?))),
            #[cfg(feature = "sentinel")]
            Kind::Primary {
                sentinels,
                name,
                primary,
            } => Primary::new(sentinels, &name, primary, certificates)
                .map(|primary| Self::Primary(Box::new(primary))),
            #[cfg(feature = "cluster")]
            Kind::Cluster(nodes) => {
                let nodes = nodes.into_iter().map(|info| prepared(info, certificates));
                let nodes: Vec<_> = nodes.collect::<Result<_, _>>()?;
                let client = cluster(&nodes, certificates, connect)?;
                let node = nodes.into_iter().next();
                let node = node.ok_or(Error::Invalid("a cluster has nodes"))?;
                Ok(Self::Cluster {
                    client: Box::new(client),
                    node: Box::new(node),
                })
            }
        }
    }

    /// Opens a connection for commands that don't wait, within this time, and leads
    /// messages on it to those who wait for them.
    pub(crate) async fn open<E: Ear>(
        &self,
        within: Duration,
        ear: &Arc<E>,
    ) -> Result<Arc<Connection>, Error> {
        match self {
            Self::One(info) => open(info, within, ear).await,
            #[cfg(feature = "sentinel")]
            Self::Primary(primary) => primary.open(within, ear).await,
            #[cfg(feature = "cluster")]
            Self::Cluster { client, .. } => {
                let interrupt = Interrupt::new();
                let listener = interrupt.0.listener(ear);
                let config = redis::cluster::ClusterConfig::new().set_push_sender(listener);
                let opened = client.get_async_connection_with_config(config);
                let opened = timeout(within, opened)
                    .await
                    .map_err(|_| Error::timed_out())?
                    .map_err(Error::from_redis)?;
                Connection::new(Wire::Cluster(opened), String::new(), interrupt, within).await
            }
        }
    }

    /// Opens a connection to one node of a cluster.
    #[cfg(feature = "cluster")]
    pub(crate) async fn open_at<E: Ear>(
        &self,
        host: &str,
        port: u16,
        within: Duration,
        ear: &Arc<E>,
    ) -> Result<Arc<Connection>, Error> {
        match self {
            Self::Cluster { node, .. } => {
                let addr = match node.addr().clone() {
                    #[allow(clippy::wildcard_enum_match_arm, reason = "there are two kinds")]
                    ConnectionAddr::TcpTls {
                        insecure,
                        tls_params,
                        ..
                    } => ConnectionAddr::TcpTls {
                        host: host.into(),
                        port,
                        insecure,
                        tls_params,
                    },
                    _ => ConnectionAddr::Tcp(host.into(), port),
                };
                open(&ConnectionInfo::clone(node).set_addr(addr), within, ear).await
            }
            _ => self.open(within, ear).await,
        }
    }

    /// The host to which a client of a cluster was led: nodes that name none of their own
    /// are all there.
    #[cfg(feature = "cluster")]
    pub(crate) fn host(&self) -> &str {
        match self {
            Self::Cluster { node, .. } => match node.addr() {
                ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host,
                _ => "",
            },
            _ => "",
        }
    }

    /// Returns whether keys are on several nodes.
    pub(crate) fn is_cluster(&self) -> bool {
        #[cfg(feature = "cluster")]
        if let Self::Cluster { .. } = self {
            return true;
        }
        false
    }

    /// Returns whether it may come to lead to another server.
    pub(crate) fn is_behind_sentinels(&self) -> bool {
        #[cfg(feature = "sentinel")]
        if let Self::Primary(_) = self {
            return true;
        }
        false
    }

    /// Has the next connection ask the sentinels again: the last one failed.
    pub(crate) fn look_up_again(&self) {
        #[cfg(feature = "sentinel")]
        if let Self::Primary(primary) = self {
            primary.forget();
        }
    }

    /// As [`Target::open`], to the server of this name alone: another one may be the
    /// primary by now.
    pub(crate) async fn open_to<E: Ear>(
        &self,
        name: &str,
        within: Duration,
        ear: &Arc<E>,
    ) -> Result<Arc<Connection>, Error> {
        #[cfg(feature = "sentinel")]
        if let Self::Primary(primary) = self {
            let info = primary.look_up(within).await?;
            return match info.addr().to_string() == name {
                true => open(&info, within, ear).await,
                false => Err(Error::unavailable("another server is the primary now")),
            };
        }
        let _ = name;
        self.open(within, ear).await
    }

    /// Where a single server is, or the one that is the primary now. None of a cluster.
    pub(crate) async fn address(&self, within: Duration) -> Result<Option<String>, Error> {
        let _ = within;
        match self {
            Self::One(info) => Ok(Some(info.addr().to_string())),
            #[cfg(feature = "sentinel")]
            Self::Primary(primary) => {
                let info = primary.ask(within, false).await?;
                Ok(Some(info.addr().to_string()))
            }
            #[cfg(feature = "cluster")]
            Self::Cluster { .. } => Ok(None),
        }
    }

    /// The number of the database.
    pub(crate) fn db(&self) -> i64 {
        match self {
            Self::One(info) => info.redis_settings().db(),
            #[cfg(feature = "sentinel")]
            Self::Primary(primary) => primary.db,
            #[cfg(feature = "cluster")]
            Self::Cluster { node, .. } => node.redis_settings().db(),
        }
    }

    /// What an error of this server means. A server that was given by its own
    /// address can't be replaced by another one, so what elsewhere passes by
    /// is there to stay.
    pub(crate) fn explain(&self, error: Error) -> Error {
        let message = match (self, error.code()) {
            (Self::One(_), "MOVED") => {
                "this server is a node of a cluster: connect to redis-cluster://HOST[:PORT]"
            }
            (Self::One(_), "READONLY") => {
                "this server is a replica, which grants no locks: connect to its primary, or by \
                 redis-sentinel://HOST[:PORT]/NAME to whichever is the primary"
            }
            _ => return error,
        };
        Error::WrongServer {
            message: message.into(),
        }
    }
}

async fn open<E: Ear>(
    info: &ConnectionInfo,
    within: Duration,
    ear: &Arc<E>,
) -> Result<Arc<Connection>, Error> {
    let opened = async {
        let interrupt = Interrupt::new();
        let listener = interrupt.0.listener(ear);
        // Whoever sends a command decides how long it may take.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(within))
            .set_response_timeout(None)
            .set_pipeline_buffer_size(QUEUED_COMMANDS)
            .set_push_sender(listener);
        let client = redis::Client::open(info.clone()).map_err(Error::from_redis)?;
        let opened = client.get_multiplexed_async_connection_with_config(&config);
        let opened = opened.await.map_err(Error::from_redis)?;
        Connection::new(
            Wire::Node(opened),
            info.addr().to_string(),
            interrupt,
            within,
        )
        .await
    };
    let opened = timeout(within, opened).await;
    let opened = opened.unwrap_or_else(|_| Err(Error::timed_out()));
    opened.map_err(|error| error.at(&info.addr().to_string()))
}

/// An address with all that every connection has.
fn prepared(info: ConnectionInfo, certificates: &Certificates) -> Result<ConnectionInfo, Error> {
    let settings = info.redis_settings().clone().set_protocol(PROTOCOL);
    let info = info
        .set_redis_settings(settings)
        .set_tcp_settings(tcp_settings());
    let is_tls = matches!(info.addr(), ConnectionAddr::TcpTls { .. });
    if is_tls {
        prepare_tls(certificates)?;
    }
    #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
    if let Some(tls) = certificates {
        if !is_tls {
            return Err(needless_certificates());
        }
        let client = redis::Client::build_with_tls(info, tls.certificates());
        let client = client.map_err(|error| Error::Address(error.to_string()))?;
        return Ok(client.get_connection_info().clone());
    }
    #[cfg(not(any(feature = "tls-rustls", feature = "tls-native-tls")))]
    let _ = certificates;
    Ok(info)
}

#[cfg(any(
    feature = "sentinel",
    feature = "tls-rustls",
    feature = "tls-native-tls"
))]
fn needless_certificates() -> Error {
    Error::Address("certificates are for TLS: the address has to begin with `rediss`".into())
}

/// Rustls needs a provider of cryptography for the process. An application that
/// has chosen one keeps it.
fn prepare_tls(certificates: &Certificates) -> Result<(), Error> {
    #[cfg(feature = "tls-rustls")]
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // It fails only where somebody else was faster.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    // With both the redis crate uses rustls and leaves out the system's certificates.
    #[cfg(all(feature = "tls-rustls", feature = "tls-native-tls"))]
    if !certificates
        .as_ref()
        .is_some_and(crate::servers::server::Tls::names_authorities)
    {
        return Err(Error::Address(
            "this build has both `tls-rustls` and `tls-native-tls` and so trusts nobody: leave \
             one of these features out, or name the authorities to be trusted"
                .into(),
        ));
    }
    #[cfg(not(all(feature = "tls-rustls", feature = "tls-native-tls")))]
    let _ = certificates;
    Ok(())
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

#[cfg(feature = "cluster")]
fn cluster(
    nodes: &[ConnectionInfo],
    certificates: &Certificates,
    connect: Duration,
) -> Result<redis::cluster::ClusterClient, Error> {
    // Its own retries are few and soon, because the locks have theirs, and
    // whoever sends a command has a time-out for it.
    let builder = redis::cluster::ClusterClient::builder(nodes.to_vec())
        .response_timeout(Duration::from_secs(u64::from(u32::MAX)))
        .overall_response_timeout(None)
        .connection_timeout(connect / CLUSTER_STAGES)
        .use_protocol(PROTOCOL)
        .tcp_settings(tcp_settings())
        .retries(3)
        .min_retry_wait(10)
        .max_retry_wait(100);
    #[cfg(feature = "tls-rustls")]
    let builder = match certificates {
        Some(tls) => builder.certs(tls.certificates()),
        None => builder,
    };
    #[cfg(not(feature = "tls-rustls"))]
    refuse_certificates(certificates)?;
    builder.build().map_err(Error::from_redis)
}

/// Only with rustls can the redis crate be given certificates for those.
#[cfg(all(
    any(feature = "sentinel", feature = "cluster"),
    not(feature = "tls-rustls")
))]
fn refuse_certificates(certificates: &Certificates) -> Result<(), Error> {
    match certificates {
        Some(_) => Err(Error::Address(
            "certificates for sentinels and clusters need the feature `tls-rustls`; the \
             environment variable SSL_CERT_FILE does without"
                .into(),
        )),
        None => Ok(()),
    }
}

#[cfg(feature = "sentinel")]
impl Primary {
    fn new(
        sentinels: Vec<ConnectionInfo>,
        name: &str,
        primary: ConnectionInfo,
        certificates: &Certificates,
    ) -> Result<Self, Error> {
        use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
        let is_tls = matches!(primary.addr(), ConnectionAddr::TcpTls { .. });
        if certificates.is_some() && !is_tls {
            return Err(needless_certificates());
        }
        let sentinels_count = u32::try_from(sentinels.len()).unwrap_or(u32::MAX);
        let credentials = sentinels.first().map(|info| info.redis_settings().clone());
        let addresses = sentinels.iter().map(|info| info.addr().clone());
        let builder = SentinelClientBuilder::new(addresses, name, SentinelServerType::Master);
        let mut builder = builder
            .map_err(Error::from_redis)?
            .set_client_to_redis_protocol(PROTOCOL)
            .set_client_to_redis_tcp_settings(tcp_settings())
            .set_client_to_redis_db(primary.redis_settings().db());
        if let Some(user) = primary.redis_settings().username() {
            builder = builder.set_client_to_redis_username(user);
        }
        if let Some(password) = primary.redis_settings().password() {
            builder = builder.set_client_to_redis_password(password);
        }
        if let Some(settings) = credentials {
            if let Some(user) = settings.username() {
                builder = builder.set_client_to_sentinel_username(user);
            }
            if let Some(password) = settings.password() {
                builder = builder.set_client_to_sentinel_password(password);
            }
        }
        if is_tls {
            prepare_tls(certificates)?;
            builder = builder
                .set_client_to_redis_tls_mode(redis::TlsMode::Secure)
                .set_client_to_sentinel_tls_mode(redis::TlsMode::Secure);
        }
        #[cfg(feature = "tls-rustls")]
        if let Some(tls) = certificates {
            builder = builder
                .set_client_to_redis_certificates(tls.certificates())
                .set_client_to_sentinel_certificates(tls.certificates());
        }
        #[cfg(not(feature = "tls-rustls"))]
        refuse_certificates(certificates)?;
        let sentinels = builder.build().map_err(Error::from_redis)?;
        Ok(Self {
            sentinels: sentinels.into(),
            sentinels_count,
            db: primary.redis_settings().db(),
            known: Mutex::new(None),
        })
    }

    async fn open<E: Ear>(&self, within: Duration, ear: &Arc<E>) -> Result<Arc<Connection>, Error> {
        let primary = self.look_up(within).await?;
        let opened = open(&primary, within, ear).await;
        if opened.is_err() {
            self.forget_if(&primary);
        }
        opened
    }

    async fn look_up(&self, within: Duration) -> Result<ConnectionInfo, Error> {
        match self.known() {
            Some(known) => Ok(known),
            None => self.ask(within, true).await,
        }
    }

    /// Asks the sentinels, unless it is enough that something is known when it is their
    /// turn.
    async fn ask(&self, within: Duration, is_enough: bool) -> Result<ConnectionInfo, Error> {
        // Each of the sentinels may be silent.
        let within = within * self.sentinels_count.saturating_add(1);
        let looked_up = async {
            let mut sentinels = self.sentinels.lock().await;
            if let Some(known) = self.known().filter(|_| is_enough) {
                return Ok(known);
            }
            let found = sentinels.async_get_client().await;
            let found = found.map_err(Error::from_redis)?;
            let found = found.get_connection_info().clone();
            *locked(&self.known) = Some(found.clone());
            Ok(found)
        };
        let looked_up = timeout(within, looked_up).await;
        looked_up.unwrap_or_else(|_| Err(Error::timed_out()))
    }

    fn known(&self) -> Option<ConnectionInfo> {
        let known = locked(&self.known);
        known.clone()
    }

    fn forget(&self) {
        *locked(&self.known) = None;
    }

    /// Forgets the primary, unless another one was found meanwhile.
    fn forget_if(&self, failed: &ConnectionInfo) {
        let mut known = locked(&self.known);
        if known
            .as_ref()
            .is_some_and(|known| known.addr() == failed.addr())
        {
            *known = None;
        }
    }
}
