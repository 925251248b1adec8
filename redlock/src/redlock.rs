//! The servers, and how they are connected.

use std::sync::Arc;
use std::time::Duration;

use redis_lock_client::{ClientBuilder, Error as ClientError, LockClient, Servers};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::error::Error;
use crate::lock::Lock;

/// How long each server is asked if nothing else is set.
const RESPONSE: Duration = Duration::from_millis(50);

/// Locks on the majority of several independent servers.
///
/// All clones share their connections. What goes on in the background does so in the tokio
/// runtime in which it was connected.
#[derive(Clone, Debug)]
pub struct Redlock {
    shared: Arc<Shared>,
}

/// What all clones share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) clients: Vec<LockClient>,
    pub(crate) response: Duration,
    pub(crate) runtime: Handle,
}

impl Redlock {
    /// Connects to independent servers: no replicas of each other, no nodes of one cluster.
    /// Five as a rule. A majority has to answer; the others are connected as soon as they
    /// do. Each is asked for 50 milliseconds.
    ///
    /// # Errors
    /// [`Error::NoMajority`] if a majority does not answer. [`Error::Client`] if an address
    /// is invalid, or a server has no lock module or refuses this user.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn connect<S>(servers: impl IntoIterator<Item = S>) -> Result<Self, Error>
    where
        S: TryInto<Servers, Error: Into<ClientError>>,
    {
        Self::connect_with(LockClient::builder(), RESPONSE, servers).await
    }

    /// As [`Redlock::connect`], with settings for the client of each server, and another
    /// time for which each is asked. It should be small beside the leases, since what
    /// answers take is lost of them.
    ///
    /// # Errors
    /// As there.
    pub async fn connect_with<S>(
        client: ClientBuilder,
        response: Duration,
        servers: impl IntoIterator<Item = S>,
    ) -> Result<Self, Error>
    where
        S: TryInto<Servers, Error: Into<ClientError>>,
    {
        let servers = servers.into_iter().map(TryInto::try_into);
        let servers: Vec<Servers> = servers.collect::<Result<_, _>>().map_err(Into::into)?;
        let (builder, count) = (client.response_timeout(response), servers.len());
        let mut connecting = JoinSet::new();
        for server in servers {
            let builder = builder.clone();
            connecting.spawn(async move {
                match builder.clone().connect(server.clone()).await {
                    // It is connected when it is asked.
                    Err(error) if error.is_retryable() => {
                        Ok((builder.connect_lazy(server)?, Some(error)))
                    }
                    connected => Ok::<_, ClientError>((connected?, None)),
                }
            });
        }
        let (mut clients, mut errors) = (Vec::with_capacity(count), Vec::new());
        while let Some(connected) = connecting.join_next().await {
            let (client, error) = connected.unwrap_or(Err(ClientError::Stopped))?;
            clients.push(client);
            errors.extend(error);
        }
        if errors.len() >= count.div_ceil(2) {
            return Err(Error::no_majority(count, errors.len(), errors));
        }
        let shared = Arc::new(Shared {
            clients,
            response,
            runtime: Handle::current(),
        });
        Ok(Self { shared })
    }

    /// A lock by its name.
    pub fn lock(&self, key: impl AsRef<[u8]>) -> Lock {
        Lock::new(Arc::clone(&self.shared), key.as_ref())
    }

    /// Waits until the releases of dropped guards are done: at most for a lease.
    pub async fn flush(&self) {
        for client in &self.shared.clients {
            client.flush().await;
        }
    }
}
