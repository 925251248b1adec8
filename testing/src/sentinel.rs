//! Sentinels: servers that watch a primary named `locks`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use redis::Value;

use crate::{Connection, Error, Result, Server, Setup, comes_true};

/// How long the sentinels may take to find each other.
const DISCOVERY: Duration = Duration::from_secs(20);

/// Starts three sentinels that watch this primary with its two replicas, and
/// waits until each knows all of them. Their own connections come from `source`.
pub fn watch(
    binary: impl Into<PathBuf>,
    primary: SocketAddr,
    source: IpAddr,
) -> Result<[Server; 3]> {
    let settings = format!(
        "sentinel announce-ip 127.0.0.1\n\
         sentinel monitor locks {} {} 2\n\
         sentinel down-after-milliseconds locks 1000\n\
         sentinel failover-timeout locks 5000\n",
        primary.ip(),
        primary.port()
    );
    let source = source.to_string();
    let options = ["--sentinel", "--bind-source-addr", &source];
    let mut setup = Setup::of(binary).options(&options);
    setup.config = Some(settings);
    let start = || Server::start(setup.clone());
    let sentinels = [start()?, start()?, start()?];
    if comes_true(DISCOVERY, || sentinels.iter().all(knows_all)) {
        return Ok(sentinels);
    }
    Err(Error::new("the sentinels don't see it all"))
}

/// Whether it knows both replicas and both other sentinels.
fn knows_all(sentinel: &Server) -> bool {
    let connection = sentinel.connect();
    let info = connection.and_then(|mut connection| connection.info_section("sentinel"));
    info.is_ok_and(|info| info.contains("status=ok") && info.contains("slaves=2,sentinels=3"))
}

/// Where the sentinel at this address says that the primary is.
pub fn primary(sentinel: SocketAddr) -> Option<SocketAddr> {
    let mut connection = Connection::open(sentinel).ok()?;
    let question = ["SENTINEL", "get-master-addr-by-name", "locks"];
    let Value::Array(words) = connection.call(&question).ok()? else {
        return None;
    };
    let [Value::BulkString(host), Value::BulkString(port)] = &words[..] else {
        return None;
    };
    let text = [host.as_slice(), port].map(String::from_utf8_lossy);
    text.join(":").parse().ok()
}
