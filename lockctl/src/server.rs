//! Which server, and what is asked of all its primaries.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::try_join_all;
use redis_lock_client::redis::aio::MultiplexedConnection;
use redis_lock_client::redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue};
use redis_lock_client::{Error, LockClient, Servers};

use crate::arguments::ServerOptions;
use crate::failure::Failure;

/// The variables that name the server. The first that is set does.
const VARIABLES: [&str; 2] = ["LOCKCTL_URL", "REDIS_URL"];

const DEFAULT: &str = "redis://127.0.0.1";

/// How long a server may take to answer.
pub const WITHIN: Duration = Duration::from_secs(3);

/// Which server.
pub struct Server {
    url: String,
    pub servers: Servers,
}

impl Server {
    /// By the options, else by the environment, else on this machine.
    pub fn read(options: &ServerOptions) -> Result<Self, Failure> {
        let url = match (&options.url, &options.url_file) {
            (Some(_), Some(_)) => return Err(Failure::Usage("give one of --url and --url-file")),
            (Some(url), None) => url.clone(),
            (None, Some(path)) => read_private(path)?,
            (None, None) => match VARIABLES.iter().find_map(std::env::var_os) {
                Some(url) => (url.into_string())
                    .map_err(|_| Failure::Usage("the server's URL is not text"))?,
                None => DEFAULT.into(),
            },
        };
        let servers = servers(&url, options)?;
        Ok(Self { url, servers })
    }

    /// Connects.
    pub async fn connect(&self) -> Result<LockClient, Failure> {
        Ok(LockClient::connect(self.servers.clone()).await?)
    }

    /// Connects to each server that takes locks.
    pub async fn primaries(&self) -> Result<Vec<(Client, MultiplexedConnection)>, Failure> {
        let clients = self.servers.primaries(WITHIN).await?.into_iter();
        let connected = clients.map(|client| async move {
            let connection = connect(&client).await?;
            Ok::<_, Error>((client, connection))
        });
        Ok(try_join_all(connected).await?)
    }

    /// What each server that takes locks replies.
    pub async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Result<Vec<T>, Failure> {
        let primaries = self.primaries().await?.into_iter();
        let asked = primaries.map(|(_, mut connection)| async move {
            Ok::<_, Error>(command.query_async(&mut connection).await?)
        });
        Ok(try_join_all(asked).await?)
    }

    /// Where it is, without user and password.
    pub fn address(&self) -> String {
        let (scheme, rest) = self.url.split_once("://").unwrap_or(("", &self.url));
        let rest = rest.split('?').next().unwrap_or_default();
        if scheme == "unix" {
            return rest.into();
        }
        let authority = rest.find('/').unwrap_or(rest.len());
        let host = rest[..authority].rfind('@').map_or(0, |at| at + 1);
        rest[host..].into()
    }
}

/// Connects to one server.
pub async fn connect(client: &Client) -> Result<MultiplexedConnection, Error> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(WITHIN))
        .set_response_timeout(Some(WITHIN));
    let connected = client.get_multiplexed_async_connection_with_config(&config);
    Ok(connected.await?)
}

/// Where a single server is.
pub fn address(client: &Client) -> String {
    client.get_connection_info().addr().to_string()
}

fn servers(url: &str, options: &ServerOptions) -> Result<Servers, Failure> {
    let read = |path: &PathBuf| {
        std::fs::read(path).map_err(|error| Failure::file("CERTIFICATE", path, &error))
    };
    let own = match (&options.cert, &options.key) {
        (None, None) => None,
        (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
        _ => return Err(Failure::Usage("--cert and --key go together")),
    };
    let authorities = options.cacert.as_ref().map(read).transpose()?;
    if authorities.is_none() && own.is_none() {
        return Ok(Servers::try_from(url)?);
    }
    if !url.starts_with("rediss") {
        return Err(Failure::Usage("certificates are for a URL with rediss://"));
    }
    #[cfg(not(any(feature = "tls-rustls", feature = "tls-native-tls")))]
    return Err(Failure::Usage("this lockctl was built without TLS"));
    #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
    {
        use redis_lock_client::redis::{ClientTlsConfig, TlsCertificates};
        let client_tls = own.map(|(client_cert, client_key)| ClientTlsConfig {
            client_cert,
            client_key,
        });
        let certificates = TlsCertificates {
            client_tls,
            root_cert: authorities,
        };
        Ok(Servers::with_certificates(url, certificates)?)
    }
}

/// The first line of a file that only its owner may read, as it may hold a
/// password.
fn read_private(path: &Path) -> Result<String, Failure> {
    let failed = |error: io::Error| Failure::file("URLFILE", path, &error);
    let mut file = File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.mode() & 0o777;
    if mode & 0o077 != 0 {
        let why = format!("others may read or change it (mode {mode:03o}): chmod 600");
        return Err(Failure::file("URLFILE", path, &why));
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(failed)?;
    match text.lines().next().map(str::trim) {
        Some(url) if !url.is_empty() => Ok(url.into()),
        _ => Err(Failure::file("URLFILE", path, &"its first line is empty")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_no_password() {
        for (url, address) in [
            ("redis://a", "a"),
            ("rediss://u:p@a:1/2", "a:1/2"),
            ("redis-sentinel://u:p@a,b/n?sentinel_password=s", "a,b/n"),
            ("unix:///a@b?pass=p", "/a@b"),
        ] {
            let servers = Servers::try_from("redis://a").unwrap();
            let url = url.into();
            assert_eq!(Server { url, servers }.address(), address);
        }
    }
}
