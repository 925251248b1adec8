//! A connection, and what the server calls it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::cluster::{ClusterClient, ClusterConfig};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
use redis::sentinel::SentinelClient;
use redis::{AsyncConnectionConfig, Cmd, PushInfo, PushKind, RedisResult, Value};
use tokio::sync::{Mutex, Notify};
use tokio::time::timeout;

use crate::error::Error;

/// Where connections lead.
pub(crate) enum Target {
    /// To one server.
    Server(Box<redis::Client>),
    /// To whoever the sentinels say is the primary.
    Sentinel(Box<Mutex<SentinelClient>>),
    /// To a cluster, of which the key names the node.
    Cluster(Box<ClusterClient>),
}

impl Target {
    /// Opens a connection within this time.
    pub(crate) async fn connect(&self, within: Duration) -> Result<Link, Error> {
        timeout(within, self.open(within))
            .await
            .unwrap_or_else(|_| Err(Error::timed_out()))
    }

    async fn open(&self, within: Duration) -> Result<Link, Error> {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let interrupted = Arc::new(Notify::new());
        let tell = {
            let interrupted = Arc::clone(&interrupted);
            move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    interrupted.notify_one();
                }
                Ok::<_, std::convert::Infallible>(())
            }
        };
        // Who sends a command decides how long it may take.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(within))
            .set_response_timeout(None)
            .set_push_sender(tell.clone());
        let wire = match self {
            Self::Server(client) => Wire::Node(
                client
                    .get_multiplexed_async_connection_with_config(&config)
                    .await?,
            ),
            Self::Sentinel(client) => {
                let mut client = client.lock().await;
                Wire::Node(client.get_async_connection_with_config(&config).await?)
            }
            Self::Cluster(client) => {
                let config = ClusterConfig::new().set_push_sender(tell);
                Wire::Cluster(client.get_async_connection_with_config(config).await?)
            }
        };
        let mut link = Link {
            wire,
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            name: None,
            interrupted,
        };
        if let Wire::Node(_) = link.wire {
            link.name = link.ask_name(within, b"").await?;
        }
        Ok(link)
    }
}

#[derive(Clone)]
enum Wire {
    Node(MultiplexedConnection),
    Cluster(ClusterConnection),
}

/// A connection. When its last clone goes, it closes, even if a command waits
/// for its reply.
#[derive(Clone)]
pub(crate) struct Link {
    wire: Wire,
    serial: u64,
    name: Option<ServerSideName>,
    interrupted: Arc<Notify>,
}

/// What the server calls a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerSideName {
    id: String,
    client_addr: String,
    /// The server's own end.
    pub(crate) server_addr: String,
}

impl Link {
    /// Sends a command to the node of this key and waits for the reply.
    pub(crate) async fn ask(&self, key: &[u8], cmd: &Cmd) -> RedisResult<Value> {
        let reply = match self.wire.clone() {
            Wire::Node(mut connection) => connection.send_packed_command(cmd).await?,
            Wire::Cluster(mut connection) => {
                let node = Route::with_key(key, SlotAddr::Master);
                let node = RoutingInfo::SingleNode(SingleNodeRoutingInfo::SpecificNode(node));
                connection.route_command(cmd.clone(), node).await?
            }
        };
        reply.extract_error()
    }

    /// As [`Link::ask`], with an end.
    pub(crate) async fn ask_within(
        &self,
        within: Duration,
        key: &[u8],
        cmd: &Cmd,
    ) -> Result<Value, Error> {
        match timeout(within, self.ask(key, cmd)).await {
            Ok(reply) => Ok(reply?),
            Err(_) => Err(Error::timed_out()),
        }
    }

    /// Notified when the connection is closed, in a cluster that to any node.
    pub(crate) fn interrupted(&self) -> Arc<Notify> {
        Arc::clone(&self.interrupted)
    }

    /// Whether it is the same connection.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.serial == other.serial
    }

    /// What the server calls this connection, if the user may know.
    pub(crate) fn name(&self) -> Option<&ServerSideName> {
        self.name.as_ref()
    }

    /// What the server of this key calls this connection. Only in a cluster is
    /// that not always the same.
    pub(crate) async fn name_at(
        &self,
        within: Duration,
        key: &[u8],
    ) -> Result<Option<ServerSideName>, Error> {
        match self.wire {
            Wire::Node(_) => Ok(self.name.clone()),
            Wire::Cluster(_) => self.ask_name(within, key).await,
        }
    }

    async fn ask_name(
        &self,
        within: Duration,
        key: &[u8],
    ) -> Result<Option<ServerSideName>, Error> {
        match self.ask_within(within, key, &ServerSideName::ask()).await {
            Ok(reply) => Ok(ServerSideName::read(reply)),
            Err(Error::Server { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl ServerSideName {
    /// The command that asks for it.
    pub(crate) fn ask() -> Cmd {
        let mut cmd = redis::cmd("CLIENT");
        cmd.arg("INFO");
        cmd
    }

    /// Reads its reply.
    pub(crate) fn read(reply: Value) -> Option<Self> {
        Self::parse(&redis::from_redis_value::<String>(reply).ok()?)
    }

    fn parse(info: &str) -> Option<Self> {
        let field = |name: &str| {
            let mut fields = info.split_ascii_whitespace();
            fields.find_map(|field| Some(field.strip_prefix(name)?.strip_prefix('=')?.to_string()))
        };
        Some(Self {
            id: field("id")?,
            client_addr: field("addr")?,
            server_addr: field("laddr")?,
        })
    }

    /// The command that closes it from the server's side, so that nothing that
    /// is still on its way there can be carried out. Both addresses are named,
    /// because after a fail-over the id may be another connection's.
    pub(crate) fn kill(&self) -> Cmd {
        let mut cmd = redis::cmd("CLIENT");
        cmd.arg("KILL").arg("ID").arg(&self.id);
        cmd.arg("ADDR").arg(&self.client_addr);
        cmd.arg("LADDR").arg(&self.server_addr);
        cmd
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connections_name_is_read_from_client_info() {
        let info = "id=7 addr=127.0.0.1:4 laddr=10.0.0.1:6379 fd=8 name= age=0 laddr-like=x\n";
        let name = ServerSideName::parse(info).unwrap();
        assert_eq!(name.id, "7");
        assert_eq!(name.client_addr, "127.0.0.1:4");
        assert_eq!(name.server_addr, "10.0.0.1:6379");
        assert_eq!(ServerSideName::parse("id=7 addr=x"), None);
    }
}
