//! Where a client connects: addresses, and the certificates for TLS.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
use redis::TlsCertificates;
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::connection::Timeouts;
use crate::error::Error;
use crate::slots;

/// There are none in a build without TLS.
#[cfg(not(any(feature = "tls-rustls", feature = "tls-native-tls")))]
type TlsCertificates = std::convert::Infallible;

/// With it the redis crate tells at once when a connection closes, and messages and
/// replies share a connection.
const PROTOCOL: ProtocolVersion = ProtocolVersion::RESP3;

/// A connection that is silent for this long is probed, and closed if nobody is there.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;

/// What locks are asked of: one server, the primary behind sentinels, or a cluster.
///
/// Made of a URL by `try_into`, or of an application's own [`redis::Client`] by `into`:
/// the same server, user and certificates, by connections of its own.
///
/// | URL | what it is |
/// |---|---|
/// | `redis://[user:password@]host[:6379][/database]` | a server |
/// | `unix:///path[?db=n&user=..&pass=..]` | a server, through a socket |
/// | `redis-sentinel://[user:password@]host[:26379],host,.../NAME[/database]` | the primary that these sentinels call `NAME` |
/// | `redis-cluster://[user:password@]host[:6379],host,...` | a cluster, by some of its nodes |
///
/// With `rediss` instead of `redis` it is TLS, by one of the features `tls-rustls` and
/// `tls-native-tls`. User and password are those of the locks' servers; those of the
/// sentinels are given by `?sentinel_user=..&sentinel_password=..`. Special characters
/// are written `%40`, as in any URL.
#[derive(Clone)]
pub struct Servers {
    kind: Kind,
}

#[derive(Clone)]
enum Kind {
    One(Box<ConnectionInfo>),
    /// The sentinels, and how many there are.
    Primary(Arc<Mutex<SentinelClient>>, u32),
    /// Some of its nodes.
    Cluster(Vec<ConnectionInfo>),
}

macro_rules! of_urls {
    ($($url:ty),*) => {$(
        impl TryFrom<$url> for Servers {
            type Error = Error;

            fn try_from(url: $url) -> Result<Self, Error> {
                Self::parse(url.as_ref(), None)
            }
        }
    )*};
}

of_urls!(&str, &String, String);

impl From<Client> for Servers {
    fn from(client: Client) -> Self {
        if matches!(
            client.get_connection_info().addr(),
            ConnectionAddr::TcpTls { .. }
        ) {
            let _ = choose_cryptography(None);
        }
        Self {
            kind: Kind::One(Box::new(as_all(client.get_connection_info().clone()))),
        }
    }
}

impl Servers {
    /// The servers of a URL, with these certificates for TLS instead of those that the
    /// system trusts.
    ///
    /// # Errors
    /// [`Error::Address`] if the URL is invalid or not one of TLS; with `tls-native-tls`,
    /// also for sentinels: have the environment variable `SSL_CERT_FILE` name the
    /// authorities instead.
    #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
    #[cfg_attr(
        docsrs,
        doc(cfg(any(feature = "tls-rustls", feature = "tls-native-tls")))
    )]
    pub fn with_certificates(url: &str, certificates: TlsCertificates) -> Result<Self, Error> {
        Self::parse(url, Some(&certificates))
    }

    fn parse(url: &str, certificates: Option<&TlsCertificates>) -> Result<Self, Error> {
        let address = Address::read(url)?;
        if certificates.is_some() && !address.is_tls() {
            return Err(Error::Address(
                "certificates are for TLS: the address has to begin with `rediss`".into(),
            ));
        }
        if address.is_tls() {
            choose_cryptography(certificates)?;
        }
        let kind = match address.kind {
            "sentinel" => {
                let count = u32::try_from(address.hosts.len()).unwrap_or(u32::MAX);
                let sentinels = sentinels(&address, certificates)?;
                Kind::Primary(Arc::new(Mutex::new(sentinels)), count)
            }
            "cluster" => {
                let nodes = address.hosts.iter();
                let nodes =
                    nodes.map(|host| node(&address.at(host, 6379, address.path), certificates));
                Kind::Cluster(nodes.collect::<Result<_, _>>()?)
            }
            _ if address.hosts.len() > 1 => {
                return Err(invalid(
                    "several hosts are those of redis-sentinel:// or redis-cluster://",
                ));
            }
            _ => Kind::One(Box::new(node(url, certificates)?)),
        };
        Ok(Self { kind })
    }

    /// A client for each server that takes locks now: the one server, the primary that
    /// the sentinels name, or each primary of the cluster.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if none of the given servers answers within this time.
    pub async fn primaries(&self, within: Duration) -> Result<Vec<Client>, Error> {
        let seeds = match &self.kind {
            Kind::One(_) | Kind::Primary(..) => {
                return Ok(vec![Client::open(self.primary(within).await?)?]);
            }
            Kind::Cluster(seeds) => seeds,
        };
        let timeouts = Timeouts {
            connect: within,
            response: within,
        };
        let map = slots::ask(seeds.iter().cloned(), timeouts).await?;
        let nodes = map.primaries().into_iter();
        let nodes = nodes.filter_map(|(host, port)| Some(beside(seeds.first()?, &host, port)));
        Ok(nodes.map(Client::open).collect::<Result<_, _>>()?)
    }

    /// The one server, or the one that the sentinels name now.
    pub(crate) async fn primary(&self, within: Duration) -> Result<ConnectionInfo, Error> {
        match &self.kind {
            Kind::One(info) => Ok(ConnectionInfo::clone(info)),
            Kind::Primary(sentinels, count) => {
                let mut sentinels = sentinels.lock().await;
                // Each of them may be silent, and so may the one that they name.
                let within = within * count.saturating_add(1);
                let found = timeout(within, sentinels.async_get_client()).await;
                let found = found.map_err(|_| Error::timed_out())??;
                Ok(as_all(found.get_connection_info().clone()))
            }
            Kind::Cluster(seeds) => seeds
                .first()
                .cloned()
                .ok_or(Error::Invalid("no node is given")),
        }
    }

    /// The nodes of the cluster that were given; none where it is no cluster.
    pub(crate) fn seeds(&self) -> &[ConnectionInfo] {
        match &self.kind {
            Kind::Cluster(seeds) => seeds,
            _ => &[],
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.kind, Kind::Cluster(_))
    }

    /// Returns whether another server may come to be the primary.
    pub(crate) fn is_behind_sentinels(&self) -> bool {
        matches!(self.kind, Kind::Primary(..))
    }

    /// What an error of this server means. A server that was given by its own address
    /// can't be replaced by another one, so what elsewhere passes is there to stay.
    pub(crate) fn explain(&self, error: Error) -> Error {
        match (&self.kind, error.code()) {
            (Kind::One(_), "MOVED") => Error::WrongServer(
                "this server is a node of a cluster: connect to redis-cluster://HOST[:PORT]",
            ),
            (Kind::One(_), "READONLY") => Error::WrongServer(
                "this server is a replica, which grants no locks: connect to its primary, or by \
                 redis-sentinel://HOST[:PORT]/NAME to whichever is the primary",
            ),
            _ => error,
        }
    }
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.kind {
            Kind::One(_) => "Servers(one)",
            Kind::Primary(..) => "Servers(sentinels)",
            Kind::Cluster(_) => "Servers(cluster)",
        })
    }
}

/// Another node of the same cluster.
pub(crate) fn beside(seed: &ConnectionInfo, host: &str, port: u16) -> ConnectionInfo {
    let (host, addr) = (host.to_string(), seed.addr().clone());
    #[allow(clippy::wildcard_enum_match_arm, reason = "there are two kinds")]
    let addr = match addr {
        ConnectionAddr::TcpTls {
            insecure,
            tls_params,
            ..
        } => ConnectionAddr::TcpTls {
            host,
            port,
            insecure,
            tls_params,
        },
        _ => ConnectionAddr::Tcp(host, port),
    };
    seed.clone().set_addr(addr)
}

/// An address with what all connections have: commands are sent at once, and a
/// connection notices when its server is gone.
fn as_all(info: ConnectionInfo) -> ConnectionInfo {
    let settings = info.redis_settings().clone().set_protocol(PROTOCOL);
    info.set_redis_settings(settings)
        .set_tcp_settings(tcp_settings())
}

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

/// One server of a URL.
fn node(url: &str, certificates: Option<&TlsCertificates>) -> Result<ConnectionInfo, Error> {
    let info = url.into_connection_info();
    let info = as_all(info.map_err(|error| invalid(&error.to_string()))?);
    #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
    if let Some(certificates) = certificates {
        let client = Client::build_with_tls(info, certificates.clone());
        let client = client.map_err(|error| Error::Address(error.to_string()))?;
        return Ok(client.get_connection_info().clone());
    }
    let _ = certificates;
    Ok(info)
}

fn sentinels(
    address: &Address<'_>,
    certificates: Option<&TlsCertificates>,
) -> Result<SentinelClient, Error> {
    let (name, database) = address.path.split_once('/').unwrap_or((address.path, ""));
    if name.is_empty() {
        return Err(invalid(
            "redis-sentinel://host,host/NAME is expected, with the name that the sentinels give \
             the primary",
        ));
    }
    let hosts = address.hosts.iter();
    let hosts = hosts.map(|host| Ok(node(&address.at(host, 26379, ""), None)?.addr().clone()));
    let hosts = hosts.collect::<Result<Vec<_>, Error>>()?;
    let primary = node(&address.at("primary", 6379, database), None)?;
    let mut builder = SentinelClientBuilder::new(hosts, name, SentinelServerType::Master)?
        .set_client_to_redis_protocol(PROTOCOL)
        .set_client_to_redis_tcp_settings(tcp_settings())
        .set_client_to_redis_db(primary.redis_settings().db());
    if let Some(user) = primary.redis_settings().username() {
        builder = builder.set_client_to_redis_username(user);
    }
    if let Some(password) = primary.redis_settings().password() {
        builder = builder.set_client_to_redis_password(password);
    }
    // The redis crate reads what is written %40.
    let query = node(
        &format!(
            "unix:///x?{}",
            address
                .query
                .replace("sentinel_user=", "user=")
                .replace("sentinel_password=", "pass=")
        ),
        None,
    )?;
    if let Some(user) = query.redis_settings().username() {
        builder = builder.set_client_to_sentinel_username(user);
    }
    if let Some(password) = query.redis_settings().password() {
        builder = builder.set_client_to_sentinel_password(password);
    }
    if address.is_tls() {
        builder = builder
            .set_client_to_redis_tls_mode(redis::TlsMode::Secure)
            .set_client_to_sentinel_tls_mode(redis::TlsMode::Secure);
    }
    #[cfg(feature = "tls-rustls")]
    if let Some(certificates) = certificates {
        builder = builder
            .set_client_to_redis_certificates(certificates.clone())
            .set_client_to_sentinel_certificates(certificates.clone());
    }
    #[cfg(not(feature = "tls-rustls"))]
    if certificates.is_some() {
        return Err(Error::Address(
            "certificates for sentinels need the feature `tls-rustls`; the environment variable \
             SSL_CERT_FILE does without"
                .into(),
        ));
    }
    Ok(builder.build()?)
}

/// Rustls needs a provider of cryptography for the process. An application that has
/// chosen one keeps it.
fn choose_cryptography(certificates: Option<&TlsCertificates>) -> Result<(), Error> {
    #[cfg(feature = "tls-rustls")]
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // It fails only where somebody else was faster.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    // With both the redis crate uses rustls and leaves out the system's certificates.
    #[cfg(all(feature = "tls-rustls", feature = "tls-native-tls"))]
    if certificates.is_none_or(|certificates| certificates.root_cert.is_none()) {
        return Err(Error::Address(
            "this build has both `tls-rustls` and `tls-native-tls` and so trusts nobody: leave \
             one of these features out, or name the authorities to be trusted"
                .into(),
        ));
    }
    let _ = certificates;
    Ok(())
}

fn invalid(why: &str) -> Error {
    Error::Address(format!("the address is invalid: {why}"))
}

/// The parts of `redis[s][-kind]://[user:password@]host,host/path?query`.
struct Address<'url> {
    kind: &'url str,
    scheme: &'url str,
    credentials: &'url str,
    hosts: Vec<&'url str>,
    path: &'url str,
    query: &'url str,
}

impl<'url> Address<'url> {
    fn read(url: &'url str) -> Result<Self, Error> {
        let (scheme, rest) = url
            .split_once("://")
            .ok_or_else(|| invalid("a URL such as redis://localhost:6379 is expected"))?;
        let (scheme, kind) = match scheme.split_once('-') {
            Some((base @ ("redis" | "rediss"), kind @ ("sentinel" | "cluster"))) => (base, kind),
            _ => (scheme, ""),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (credentials, hosts) = match authority.rfind('@') {
            Some(at) => authority.split_at(at + 1),
            None => ("", authority),
        };
        let is_known = |pair: &str| {
            kind == "sentinel"
                && (pair.starts_with("sentinel_user=") || pair.starts_with("sentinel_password="))
        };
        if !kind.is_empty() && !query.is_empty() && !query.split('&').all(is_known) {
            return Err(invalid(
                "after ? only sentinel_user and sentinel_password are expected, of sentinels",
            ));
        }
        Ok(Self {
            kind,
            scheme,
            credentials,
            hosts: hosts.split(',').collect(),
            path,
            query,
        })
    }

    fn is_tls(&self) -> bool {
        self.scheme == "rediss"
    }

    /// The URL of one of the hosts.
    fn at(&self, host: &str, port: u16, database: &str) -> String {
        // An IPv6 address has colons of its own, within brackets.
        let after_address = host.rsplit(']').next().unwrap_or(host);
        let port = match after_address.contains(':') {
            true => String::new(),
            false => format!(":{port}"),
        };
        let (scheme, credentials) = (self.scheme, self.credentials);
        format!("{scheme}://{credentials}{host}{port}/{database}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(url: &str) -> Result<Vec<String>, String> {
        let told =
            |info: &ConnectionInfo| format!("{} {}", info.addr(), info.redis_settings().db());
        match Servers::try_from(url).map(|servers| servers.kind) {
            Ok(Kind::One(info)) => Ok(vec![told(&info)]),
            Ok(Kind::Cluster(nodes)) => Ok(nodes.iter().map(told).collect()),
            Ok(Kind::Primary(..)) => Ok(vec![]),
            Err(error) => Err(error.code().into()),
        }
    }

    #[test]
    fn servers_are_named_by_their_url() {
        for (url, told) in [
            ("redis://a", vec!["a:6379 0"]),
            ("redis://u:p@a:1/2", vec!["a:1 2"]),
            ("redis://u:p,q@a:1", vec!["a:1 0"]),
            (
                "redis-cluster://a,b:7000,[::1]:2",
                vec!["a:6379 0", "b:7000 0", "::1:2 0"],
            ),
            (
                "redis-sentinel://u:p%40@a,b:1,[::1]/locks/3?sentinel_password=s%40",
                vec![],
            ),
        ] {
            assert_eq!(addresses(url).unwrap(), told, "{url}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for wrong in [
            "redis://a,b",
            "",
            "localhost:6379",
            "redis:/a",
            "http://a",
            "redis://",
            "redis-sentinel://a",
            "redis-sentinel://a/locks?what=1",
            "redis-cluster://a?x=1",
        ] {
            assert_eq!(addresses(wrong), Err("ADDRESS".into()), "{wrong}");
        }
    }

    #[test]
    fn a_password_is_not_in_the_error() {
        for url in ["redis://u:secret@a:nan", "redis-cluster://u:secret@a:nan"] {
            let error = Servers::try_from(url).unwrap_err();
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
