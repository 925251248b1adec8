use std::net::SocketAddr;

use super::{TestServer, binary, eventually};
use crate::{Server, sentinel};

/// A primary named `locks` with two replicas, all with the module, and three
/// sentinels that watch them.
pub struct Sentinels {
    /// The primary of the beginning.
    pub primary: TestServer,
    /// Its replicas.
    pub replicas: [TestServer; 2],
    sentinels: [Server; 3],
}

impl Sentinels {
    /// Starts them all, and waits until every sentinel knows the others.
    #[track_caller]
    pub fn start() -> Self {
        Self::start_behind(|primary| primary)
    }

    /// As [`Sentinels::start`], where the primary is known by another address,
    /// which leads to its own.
    #[track_caller]
    pub fn start_behind(known: impl FnOnce(SocketAddr) -> SocketAddr) -> Self {
        let primary = TestServer::start();
        let replica_of = || TestServer::setup().replica_of(primary.addr());
        let replicas = [(); 2].map(|()| TestServer::launch(replica_of()));
        eventually("both replicas are online", || {
            let info = primary.client().bulk("INFO replication");
            info.matches("state=online").count() == 2
        });
        // A server takes none of another source where none has a password.
        let source = primary.addr().ip();
        let sentinels = sentinel::watch(binary(), known(primary.addr()), source);
        Self {
            sentinels: sentinels.unwrap_or_else(|error| panic!("{error}")),
            primary,
            replicas,
        }
    }

    /// Where the sentinels listen.
    pub fn addrs(&self) -> [SocketAddr; 3] {
        [0, 1, 2].map(|nth| self.sentinels[nth].addr())
    }

    /// Where the sentinel at this address says that the primary is.
    pub fn primary(addr: SocketAddr) -> Option<SocketAddr> {
        sentinel::primary(addr)
    }
}
