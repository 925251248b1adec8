//! A link to one node: a connection for commands and the messages of places.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use redis::{Cmd, ConnectionInfo, Value};
use tokio::sync::OnceCell;
use tokio::time::sleep;

use crate::connection::{Closed, Connection, Timeouts};
use crate::error::Error;
use crate::mutex::locked;
use crate::register::Register;

/// How often a link is probed while somebody relies on hearing by it.
const PROBE: Duration = Duration::from_secs(2);

/// The connection to a node, or two that end together. Messages have one of their own
/// where a server blocks no subscribed connection, as `lock.min-replicas` asks for, and in
/// a cluster: a subscription that the server ends by itself (its slot has moved) would be
/// taken for the reply of a command.
pub(crate) struct Link {
    /// Its number. Each message carries it, to say by which link it came.
    pub(crate) serial: u64,
    pub(crate) commands: Arc<Connection>,
    messages: Arc<Connection>,
    pub(crate) closed: Closed,
    timeouts: Timeouts,
    is_sharded: bool,
    /// The channels that are listened to.
    channels: Mutex<HashMap<Vec<u8>, Arc<OnceCell<()>>>>,
    /// How the server is told to end this link's connections.
    pub(crate) kills: Vec<Cmd>,
}

impl Link {
    /// Opens it; then ends the connections of the link that this one replaces, so that
    /// nothing that was sent by that is carried out later.
    pub(crate) async fn open(
        info: &ConnectionInfo,
        timeouts: Timeouts,
        is_sharded: bool,
        register: &Arc<Register>,
        replaced: &[Cmd],
    ) -> Result<Arc<Self>, Error> {
        static SERIAL: AtomicU64 = AtomicU64::new(1);
        let (serial, closed) = (SERIAL.fetch_add(1, Ordering::Relaxed), Closed::default());
        let open = async || {
            let told = Some((register, serial));
            let connection = Connection::open(info, timeouts.connect, told, &closed).await?;
            let about = connection.about(timeouts.response).await;
            Ok::<_, Error>((Arc::new(connection), about))
        };
        let (commands, (kill, is_blocked)) = open().await?;
        let (messages, (kill_messages, _)) = match is_blocked && !is_sharded {
            true => (Arc::clone(&commands), (None, true)),
            false => open().await?,
        };
        for kill in replaced {
            // A user who may not do so relies on the server to notice.
            let _ = commands.ask(kill, timeouts.response).await;
        }
        if closed.is_closed() {
            return Err(Error::closed().at(&info.addr().to_string()));
        }
        let link = Arc::new(Self {
            serial,
            commands,
            messages,
            closed,
            timeouts,
            is_sharded,
            channels: Mutex::default(),
            kills: kill.into_iter().chain(kill_messages).collect(),
        });
        tokio::spawn(probe(Arc::downgrade(&link), Arc::clone(register)));
        Ok(link)
    }

    pub(crate) async fn ask(&self, command: &Cmd) -> Result<Value, Error> {
        self.commands.ask(command, self.timeouts.response).await
    }

    pub(crate) fn listens_to(&self, channel: &[u8]) -> bool {
        let channels = locked(&self.channels);
        channels.get(channel).is_some_and(|it| it.initialized())
    }

    /// Listens to a channel, from now on.
    pub(crate) async fn listen(&self, channel: &[u8]) -> Result<(), Error> {
        let listening = {
            let mut channels = locked(&self.channels);
            Arc::clone(channels.entry(channel.to_vec()).or_default())
        };
        let listen = async || {
            let mut subscribe = redis::cmd(match self.is_sharded {
                true => "SSUBSCRIBE",
                false => "SUBSCRIBE",
            });
            subscribe.arg(channel);
            match self.messages.ask(&subscribe, self.timeouts.response).await {
                Ok(Value::Push { .. }) => Ok(()),
                Ok(other) => Err(Error::unexpected(&other)),
                Err(error) => Err(error),
            }
        };
        listening.get_or_try_init(listen).await.copied()
    }
}

/// Finds a server that has gone without a word, by its silence.
async fn probe(link: Weak<Link>, register: Arc<Register>) {
    let ping = redis::cmd("PING");
    loop {
        sleep(PROBE).await;
        let Some(link) = link.upgrade() else { return };
        if link.closed.is_closed() {
            return;
        }
        if !register.is_empty() {
            let within = link.timeouts.response;
            // An answer of any kind will do; silence closes the connection.
            let _ = tokio::join!(link.ask(&ping), link.messages.ask(&ping, within));
        }
    }
}
