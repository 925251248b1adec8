//! Which server, and who said so.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
use redis_lock_client::Tls;
use redis_lock_client::{ClientBuilder, LockClient};

use crate::arguments::ServerOptions;
use crate::failure::Failure;

/// The variable that names the server.
pub const REDIS_URL: &str = "REDIS_URL";

/// With the port that sentinels or servers have.
const DEFAULT: &str = "redis://127.0.0.1";

/// Which server.
pub struct WhichServer {
    pub url: String,
    /// Whether `REDIS_URL` says so.
    pub is_from_environment: bool,
    #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
    tls: Option<Tls>,
}

impl WhichServer {
    /// By the options, else by the environment, else on this machine.
    pub fn read(options: &ServerOptions) -> Result<Self, Failure> {
        let url = match (&options.url, &options.url_file) {
            (Some(_), Some(_)) => {
                return Err(Failure::Usage("give one of --url and --url-file"));
            }
            (Some(url), None) => Some(url.clone()),
            (None, Some(path)) => Some(read_private(path)?),
            (None, None) => None,
        };
        let (url, is_from_environment) = match (url, std::env::var_os(REDIS_URL)) {
            (Some(url), _) => (url, false),
            (None, Some(url)) => match url.into_string() {
                Ok(url) => (url, true),
                Err(_) => return Err(Failure::Usage("REDIS_URL is not text")),
            },
            (None, None) => (DEFAULT.into(), false),
        };
        let url = address(&url, options)?;
        let certificates = Certificates::read(options)?;
        if certificates.is_some() && !url.starts_with("rediss") {
            return Err(Failure::Usage("certificates are for a URL with rediss://"));
        }
        #[cfg(not(any(feature = "tls-rustls", feature = "tls-native-tls")))]
        if certificates.is_some() {
            return Err(Failure::Usage("this lockctl was built without TLS"));
        }
        Ok(Self {
            url,
            is_from_environment,
            #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
            tls: certificates.map(Certificates::tls),
        })
    }

    /// A client that is not connected yet.
    pub fn client(&self) -> ClientBuilder {
        let client = LockClient::builder();
        #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
        if let Some(tls) = &self.tls {
            return client.tls(tls.clone());
        }
        client
    }

    /// Connects.
    pub async fn connect(&self) -> Result<LockClient, Failure> {
        Ok(self.client().connect(&self.url).await?)
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

/// What the files that the options name have in them.
#[cfg_attr(
    not(any(feature = "tls-rustls", feature = "tls-native-tls")),
    allow(dead_code, reason = "they are refused then")
)]
struct Certificates {
    authorities: Option<Vec<u8>>,
    /// A certificate and its key.
    own: Option<(Vec<u8>, Vec<u8>)>,
}

impl Certificates {
    fn read(options: &ServerOptions) -> Result<Option<Self>, Failure> {
        let read = |path: &PathBuf| {
            std::fs::read(path).map_err(|error| Failure::File {
                code: "CERTIFICATE",
                path: path.display().to_string(),
                why: error.to_string(),
            })
        };
        let own = match (&options.cert, &options.key) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
            _ => return Err(Failure::Usage("--cert and --key go together")),
        };
        let authorities = options.cacert.as_ref().map(read).transpose()?;
        let is_any = authorities.is_some() || own.is_some();
        Ok(is_any.then_some(Self { authorities, own }))
    }

    #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
    fn tls(self) -> Tls {
        let tls = match self.authorities {
            Some(pem) => Tls::new().ca_pem(pem),
            None => Tls::new(),
        };
        match self.own {
            Some((certificate, key)) => tls.client_certificate(certificate, key),
            None => tls,
        }
    }
}

/// The URL that says what the options say.
fn address(url: &str, options: &ServerOptions) -> Result<String, Failure> {
    let kind = match (&options.sentinel, options.cluster) {
        (None, false) => return Ok(url.into()),
        (Some(_), true) => return Err(Failure::Usage("give one of --sentinel and --cluster")),
        (Some(_), false) => "sentinel",
        (None, true) => "cluster",
    };
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme @ ("redis" | "rediss"), rest)) => (scheme, rest),
        _ => {
            return Err(Failure::Usage(
                "with --sentinel or --cluster the URL is redis://host,host or rediss://host,host",
            ));
        }
    };
    let Some(name) = &options.sentinel else {
        return Ok(format!("{scheme}-{kind}://{rest}"));
    };
    // The name comes before the path, which is the database.
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (hosts, path) = rest.split_at(end);
    Ok(format!("{scheme}-{kind}://{hosts}/{name}{path}"))
}

/// The first line of a file that only its owner may read, as it may hold a
/// password.
fn read_private(path: &Path) -> Result<String, Failure> {
    let failure = |why: String| Failure::File {
        code: "URLFILE",
        path: path.display().to_string(),
        why,
    };
    let failed = |error: io::Error| failure(error.to_string());
    let mut file = File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.mode();
    if mode & 0o077 != 0 {
        let why = format!(
            "others may read or change it (mode {:03o}): chmod 600",
            mode & 0o777
        );
        return Err(failure(why));
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(failed)?;
    match text.lines().next().map(str::trim) {
        Some(url) if !url.is_empty() => Ok(url.into()),
        _ => Err(failure("its first line is empty".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(url: &str, sentinel: Option<&str>, cluster: bool) -> Option<String> {
        let options = ServerOptions {
            url: None,
            url_file: None,
            sentinel: sentinel.map(Into::into),
            cluster,
            cacert: None,
            cert: None,
            key: None,
        };
        address(url, &options).ok()
    }

    #[test]
    fn where_it_is_has_no_password() {
        for (url, address) in [
            ("redis://a", "a"),
            ("rediss://u:p@a:1/2", "a:1/2"),
            ("redis-sentinel://u:p@a,b/n?sentinel_password=s", "a,b/n"),
            ("unix:///a@b?pass=p", "/a@b"),
        ] {
            let server = WhichServer {
                url: url.into(),
                is_from_environment: false,
                #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
                tls: None,
            };
            assert_eq!(server.address(), address);
        }
    }

    #[test]
    fn the_options_say_what_a_url_can_say() {
        let same = "redis-sentinel://a,b/locks";
        assert_eq!(with(same, None, false).as_deref(), Some(same));
        for (url, expected) in [
            ("redis://a,b:1", "redis-sentinel://a,b:1/locks"),
            ("rediss://u:p@a/3", "rediss-sentinel://u:p@a/locks/3"),
            ("redis://a?x=y", "redis-sentinel://a/locks?x=y"),
        ] {
            assert_eq!(with(url, Some("locks"), false).as_deref(), Some(expected));
        }
        let cluster = with("rediss://u:p@a,b:1", None, true);
        assert_eq!(cluster.as_deref(), Some("rediss-cluster://u:p@a,b:1"));
        assert_eq!(with(same, Some("locks"), false), None);
        assert_eq!(with("unix:///a", None, true), None);
        assert_eq!(with("redis://a", Some("locks"), true), None);
    }
}
