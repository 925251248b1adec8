//! Where a client connects: addresses, and the certificates for TLS.

use redis::{ConnectionInfo, IntoConnectionInfo};

use crate::error::Error;

/// What locks are asked of: one server, the primary behind sentinels, or a
/// cluster.
///
/// As a URL:
///
/// | URL | what it is |
/// |---|---|
/// | `redis://[user:password@]host[:6379][/database]` | a server |
/// | `unix:///path[?db=n&user=..&pass=..]` | a server, through a socket |
/// | `redis-sentinel://[user:password@]host[:26379],host,.../NAME[/database]` | the primary that these sentinels call `NAME` |
/// | `redis-cluster://[user:password@]host[:6379],host,...` | a cluster, by some of its nodes |
///
/// With `rediss` instead of `redis` it is TLS. User and password are those of
/// the locks' servers; those of the sentinels, if they have any, are given by
/// `?sentinel_user=..&sentinel_password=..`. Special characters are written
/// `%40`, as in any URL. Sentinels and clusters need the features `sentinel`
/// and `cluster`, TLS one of the features `tls-rustls` and `tls-native-tls`.
#[derive(Clone, Debug)]
pub struct Server {
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    One(ConnectionInfo),
    #[cfg(feature = "sentinel")]
    Primary {
        sentinels: Vec<ConnectionInfo>,
        name: String,
        /// The address in it is none; the rest is for whichever is the primary.
        primary: ConnectionInfo,
    },
    #[cfg(feature = "cluster")]
    Cluster(Vec<ConnectionInfo>),
}

impl Server {
    /// Reads a URL.
    ///
    /// # Errors
    /// [`Error::Address`] if it is invalid, or this build has not the feature
    /// that it needs.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let Some((scheme, rest)) = url.split_once("://") else {
            return Err(Error::Address(
                "the address is invalid: a URL such as redis://localhost:6379 is expected".into(),
            ));
        };
        let kind = match scheme {
            "redis-sentinel" | "rediss-sentinel" => sentinels(scheme, rest)?,
            "redis-cluster" | "rediss-cluster" => cluster(scheme, rest)?,
            _ => Kind::One(one(url)?),
        };
        Ok(Self { kind })
    }
}

/// An application's own client: the same server, user and certificates. The
/// lock client makes connections of its own.
impl From<redis::Client> for Server {
    fn from(client: redis::Client) -> Self {
        Self {
            kind: Kind::One(client.get_connection_info().clone()),
        }
    }
}

fn one(url: &str) -> Result<ConnectionInfo, Error> {
    let (_, rest) = url.split_once("://").unwrap_or(("", url));
    let authority = rest.split('/').next().unwrap_or(rest);
    let hosts = authority.rsplit('@').next().unwrap_or(authority);
    if hosts.contains(',') {
        return Err(Error::Address(
            "the address is invalid: several hosts are those of redis-sentinel:// or \
             redis-cluster://"
                .into(),
        ));
    }
    url.into_connection_info()
        .map_err(|error| Error::Address(format!("the address is invalid: {error}")))
}

/// The parts of `[user:password@]host,host/path?query`.
#[cfg(any(feature = "sentinel", feature = "cluster"))]
struct Parts<'url> {
    base: &'static str,
    credentials: &'url str,
    hosts: Vec<&'url str>,
    path: &'url str,
    query: &'url str,
}

#[cfg(any(feature = "sentinel", feature = "cluster"))]
impl<'url> Parts<'url> {
    fn read(scheme: &str, rest: &'url str) -> Self {
        let base = match scheme.starts_with("rediss") {
            true => "rediss",
            false => "redis",
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (credentials, hosts) = match authority.rfind('@') {
            Some(at) => authority.split_at(at + 1),
            None => ("", authority),
        };
        Self {
            base,
            credentials,
            hosts: hosts.split(',').collect(),
            path,
            query,
        }
    }

    /// The address of one of the hosts, with these credentials.
    fn at(
        &self,
        host: &str,
        credentials: &str,
        port: u16,
        database: &str,
    ) -> Result<ConnectionInfo, Error> {
        // An IPv6 address has colons of its own, within brackets.
        let after_address = host.rsplit(']').next().unwrap_or(host);
        let port = match after_address.contains(':') {
            true => String::new(),
            false => format!(":{port}"),
        };
        one(&format!(
            "{}://{credentials}{host}{port}/{database}",
            self.base
        ))
    }
}

#[cfg(feature = "sentinel")]
fn sentinels(scheme: &str, rest: &str) -> Result<Kind, Error> {
    let parts = Parts::read(scheme, rest);
    let (name, database) = parts.path.split_once('/').unwrap_or((parts.path, ""));
    if name.is_empty() {
        return Err(Error::Address(
            "the address is invalid: redis-sentinel://host,host/NAME is expected, with the name \
             that the sentinels give the primary"
                .into(),
        ));
    }
    let (mut user, mut password) = ("", "");
    for pair in parts.query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("sentinel_user", value)) => user = value,
            Some(("sentinel_password", value)) => password = value,
            _ => {
                return Err(Error::Address(
                    "the address is invalid: after ? only sentinel_user and sentinel_password \
                     are expected"
                        .into(),
                ));
            }
        }
    }
    let credentials = match (user, password) {
        ("", "") => String::new(),
        (user, password) => format!("{user}:{password}@"),
    };
    let sentinels = parts.hosts.iter();
    let sentinels = sentinels.map(|host| parts.at(host, &credentials, 26379, ""));
    Ok(Kind::Primary {
        sentinels: sentinels.collect::<Result<_, _>>()?,
        name: name.into(),
        primary: parts.at("primary", parts.credentials, 6379, database)?,
    })
}

#[cfg(not(feature = "sentinel"))]
fn sentinels(_: &str, _: &str) -> Result<Kind, Error> {
    Err(Error::Address(
        "this build can't ask sentinels: the feature `sentinel` is missing".into(),
    ))
}

#[cfg(feature = "cluster")]
fn cluster(scheme: &str, rest: &str) -> Result<Kind, Error> {
    let parts = Parts::read(scheme, rest);
    if !parts.query.is_empty() {
        return Err(Error::Address(
            "the address is invalid: redis-cluster://host,host is expected".into(),
        ));
    }
    let nodes = parts.hosts.iter();
    let nodes = nodes.map(|host| parts.at(host, parts.credentials, 6379, parts.path));
    Ok(Kind::Cluster(nodes.collect::<Result<_, _>>()?))
}

#[cfg(not(feature = "cluster"))]
fn cluster(_: &str, _: &str) -> Result<Kind, Error> {
    Err(Error::Address(
        "this build can't ask clusters: the feature `cluster` is missing".into(),
    ))
}

/// Certificates for TLS, where those of the system don't do.
///
/// Without it, the certificates that the system trusts are trusted, or those in
/// the file that the environment variable `SSL_CERT_FILE` names.
#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
#[derive(Clone, Default)]
pub struct Tls {
    ca_pem: Option<Vec<u8>>,
    client: Option<redis::ClientTlsConfig>,
}

#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
impl Tls {
    /// No certificates yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts these certificate authorities, in PEM format; with the feature
    /// `tls-rustls` no others, else those of the system as well.
    #[must_use]
    pub fn ca_pem(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.ca_pem = Some(pem.into());
        self
    }

    /// Shows this certificate to a server that asks for one. Both are in PEM
    /// format.
    #[must_use]
    pub fn client_certificate(
        mut self,
        certificate_pem: impl Into<Vec<u8>>,
        key_pem: impl Into<Vec<u8>>,
    ) -> Self {
        self.client = Some(redis::ClientTlsConfig {
            client_cert: certificate_pem.into(),
            client_key: key_pem.into(),
        });
        self
    }

    /// Returns whether it says whom to trust.
    #[cfg(all(feature = "tls-rustls", feature = "tls-native-tls"))]
    pub(crate) fn names_authorities(&self) -> bool {
        self.ca_pem.is_some()
    }

    pub(crate) fn certificates(&self) -> redis::TlsCertificates {
        redis::TlsCertificates {
            client_tls: self.client.clone(),
            root_cert: self.ca_pem.clone(),
        }
    }
}

/// Without the client's key.
#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(url: &str) -> String {
        match Server::parse(url) {
            Ok(Server {
                kind: Kind::One(info),
            }) => format!("{} {}", info.addr(), info.redis_settings().db()),
            #[cfg(feature = "sentinel")]
            Ok(Server {
                kind:
                    Kind::Primary {
                        sentinels,
                        name,
                        primary,
                    },
            }) => {
                let sentinels = sentinels.iter().map(|info| {
                    let password = info.redis_settings().password().unwrap_or("-");
                    format!("{} {password}", info.addr())
                });
                let sentinels: Vec<_> = sentinels.collect();
                let settings = primary.redis_settings();
                let (user, password) = (settings.username(), settings.password());
                format!(
                    "{sentinels:?} {name} {user:?} {password:?} {}",
                    settings.db()
                )
            }
            #[cfg(feature = "cluster")]
            Ok(Server {
                kind: Kind::Cluster(nodes),
            }) => {
                let nodes = nodes.iter().map(|info| info.addr().to_string());
                format!("{:?}", nodes.collect::<Vec<_>>())
            }
            Err(error) => error.code().to_string(),
        }
    }

    #[test]
    fn a_server_is_named_by_its_url() {
        assert_eq!(address("redis://a"), "a:6379 0");
        assert_eq!(address("redis://u:p@a:1/2"), "a:1 2");
        assert_eq!(address("redis://u:p,q@a:1"), "a:1 0");
        for wrong in [
            "redis://a,b",
            "",
            "localhost:6379",
            "redis:/a",
            "http://a",
            "redis://",
        ] {
            assert_eq!(address(wrong), "ADDRESS", "{wrong}");
        }
    }

    #[cfg(feature = "sentinel")]
    #[test]
    fn sentinels_and_the_primarys_name_are_in_the_url() {
        assert_eq!(
            address("redis-sentinel://u:p%40@a,b:1,[::1]/locks/3?sentinel_password=s"),
            r#"["a:26379 s", "b:1 s", "::1:26379 s"] locks Some("u") Some("p@") 3"#
        );
        assert_eq!(address("redis-sentinel://a"), "ADDRESS");
        assert_eq!(address("redis-sentinel://a/locks?what=1"), "ADDRESS");
    }

    #[cfg(feature = "cluster")]
    #[test]
    fn a_cluster_is_named_by_some_of_its_nodes() {
        assert_eq!(
            address("redis-cluster://a,b:7000,[::1]:2"),
            r#"["a:6379", "b:7000", "::1:2"]"#
        );
        assert_eq!(address("redis-cluster://a?x=1"), "ADDRESS");
    }

    #[test]
    fn a_password_is_not_in_the_error() {
        for url in ["redis://u:secret@a:nan", "redis-cluster://u:secret@a:nan"] {
            let error = Server::parse(url).unwrap_err();
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
