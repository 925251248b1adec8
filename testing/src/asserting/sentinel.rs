//! Sentinels: servers that watch a primary named `locks`.

use std::net::{IpAddr, SocketAddr};

use super::{binary, eventually_within};
use crate::{Connection, SOON, Server, Setup};

/// Starts these as sentinels that watch this primary with its two replicas, and waits
/// until each knows all of them. Their own connections come from `source`.
#[track_caller]
pub fn watch(setups: [Setup; 3], primary: SocketAddr, source: IpAddr) -> [Server; 3] {
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
    let sentinels = setups.map(|setup| {
        let mut setup = setup.options(&options);
        setup.config = Some(settings.clone());
        setup.start().unwrap()
    });
    eventually_within(2 * SOON, "the sentinels see it all", || {
        sentinels.iter().all(|sentinel| {
            let info = sentinel.client().bulk("INFO sentinel");
            info.contains("status=ok") && info.contains("slaves=2,sentinels=3")
        })
    });
    sentinels
}

/// Where the sentinel at this address says that the primary is.
pub fn primary(sentinel: SocketAddr) -> Option<SocketAddr> {
    let mut connection = Connection::open(sentinel).ok()?;
    let question = ["SENTINEL", "get-master-addr-by-name", "locks"];
    let reply = connection.call(&question).ok()?;
    let words: Vec<String> = redis::from_redis_value(reply).ok()?;
    words.join(":").parse().ok()
}

/// A primary named `locks` with two replicas, all with the module, and three
/// sentinels that watch them.
pub struct Sentinels {
    /// The primary of the beginning.
    pub primary: Server,
    /// Its replicas.
    pub replicas: [Server; 2],
    sentinels: [Server; 3],
}

impl Sentinels {
    /// Starts them all, and waits until every sentinel knows the others.
    #[track_caller]
    pub fn start() -> Self {
        let primary = Server::start();
        let replicas = [(); 2].map(|()| primary.replica(true));
        // A server takes none of another source where none has a password.
        let (setups, addr) = ([(); 3].map(|()| Setup::of(binary())), primary.addr());
        Self {
            sentinels: watch(setups, addr, addr.ip()),
            primary,
            replicas,
        }
    }

    /// Where the sentinels listen.
    pub fn addrs(&self) -> [SocketAddr; 3] {
        [0, 1, 2].map(|nth| self.sentinels[nth].addr())
    }
}
