//! The connections of a session, which end together.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use redis::Cmd;
use tokio::time::timeout;

use crate::clock::Moment;
use crate::connection::{Closed, Connection};
use crate::error::{Error, Lost};
use crate::link::Link;
use crate::mutex::locked;
use crate::router::{Answer, REDIRECTIONS_MAX, Router};
use crate::slots::Address;

/// How often a session's connections are probed.
const PROBE: Duration = Duration::from_secs(2);

/// The connections of a session: one, or in a cluster one to each node that has locks of
/// it. They end together.
pub(crate) struct Bond {
    pub(crate) closed: Closed,
    connections: Mutex<HashMap<Address, Arc<Connection>>>,
    opening: tokio::sync::Mutex<()>,
    /// After how long a silence they are closed.
    silence_max: Duration,
}

impl Bond {
    pub(crate) async fn open(
        router: &Arc<Router>,
        silence_max: Duration,
    ) -> Result<Arc<Self>, Error> {
        let bond = Arc::new(Self {
            closed: Closed::default(),
            connections: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
            silence_max,
        });
        match router.is_cluster() {
            // It is not known yet which nodes will have its locks.
            true => _ = router.link(b"").await?,
            false => _ = bond.connection(router, b"").await?,
        }
        router.runtime.spawn(probe(Arc::downgrade(&bond)));
        Ok(bond)
    }

    pub(crate) fn close(&self) {
        self.closed.close();
        self.connections().clear();
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<Address, Arc<Connection>>> {
        locked(&self.connections)
    }

    fn open_connection(&self, address: &Address) -> Result<Option<Arc<Connection>>, Error> {
        match self.closed.is_closed() {
            true => Err(Error::Lost(Lost::Disconnected)),
            false => Ok(self.connections().get(address).cloned()),
        }
    }

    /// The connection to the node of a key.
    async fn connection(
        self: &Arc<Self>,
        router: &Arc<Router>,
        key: &[u8],
    ) -> Result<Arc<Connection>, Error> {
        let address = router.address_of(key).await?;
        if let Some(connection) = self.open_connection(&address)? {
            return Ok(connection);
        }
        let (bond, opening) = (Arc::clone(self), Arc::clone(router));
        let open = async move {
            let _opening = bond.opening.lock().await;
            if let Some(connection) = bond.open_connection(&address)? {
                return Ok(connection);
            }
            // A connection that can't be opened does not end the others.
            let connection = Arc::new(opening.open(&address, &bond.closed).await?);
            // It may have been closed meanwhile.
            bond.open_connection(&address)?;
            bond.connections().insert(address, Arc::clone(&connection));
            Ok(connection)
        };
        router.spawned(open).await
    }

    pub(crate) async fn ask(
        self: &Arc<Self>,
        router: &Arc<Router>,
        key: &[u8],
        command: &Cmd,
        link: Option<Arc<Link>>,
    ) -> Result<Answer, Error> {
        let mut redirections = 0;
        loop {
            let connection = self.connection(router, key).await.map_err(Error::unsent)?;
            // The channel has to be on the node that has the place.
            let is_apart = |link: &Arc<Link>| link.commands.addr() != connection.addr();
            if link.as_ref().is_some_and(is_apart) {
                return Err(Error::from_line("MOVED the lock is on its way"));
            }
            let sent_at = Moment::now();
            match connection.ask(command, self.silence_max).await {
                Ok(value) => {
                    return Ok(Answer {
                        value,
                        sent_at,
                        link,
                        is_resent: false,
                    });
                }
                Err(error)
                    if redirections < REDIRECTIONS_MAX
                        && router.learn(key, &error, connection.host()) =>
                {
                    redirections += 1;
                }
                Err(_) if self.closed.is_closed() => return Err(Error::Lost(Lost::Disconnected)),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Closes a session whose server is silent for too long.
async fn probe(bond: Weak<Bond>) {
    let ping = redis::cmd("PING");
    loop {
        let Some(closed) = bond.upgrade().map(|bond| bond.closed.clone()) else {
            return;
        };
        let ended = timeout(PROBE, closed.closed()).await.is_ok();
        let Some(bond) = bond.upgrade() else { return };
        if ended {
            bond.connections().clear();
            return;
        }
        let connections: Vec<_> = bond.connections().values().cloned().collect();
        for connection in connections {
            let _ = connection.ask(&ping, bond.silence_max).await;
        }
    }
}
