//! A connection, and what the server calls it.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
#[cfg(feature = "cluster")]
use redis::cluster_async::ClusterConnection;
use redis::{Cmd, PushInfo, PushKind, Value};
use tokio::sync::{OnceCell, watch};
#[cfg(feature = "cluster")]
use tokio::time::timeout;
use tokio::time::{Instant, timeout_at};

use crate::commands::{self, text};
use crate::error::Error;
use crate::mutex::locked;
use crate::servers::ear::Ear;

/// How many nodes of a cluster are asked for what any of them knows.
#[cfg(feature = "cluster")]
const ANY_TRIES: u32 = 3;

/// What a connection talks to.
#[derive(Clone)]
pub(crate) enum Wire {
    /// One server.
    Node(MultiplexedConnection),
    /// A cluster: one connection to each node, behind one face.
    #[cfg(feature = "cluster")]
    Cluster(ClusterConnection),
}

/// A connection. When nobody has it any more, it closes, even if a command waits for
/// its reply.
pub(crate) struct Connection {
    wire: Wire,
    /// Where it was opened to; nothing of a cluster.
    address: String,
    serial: u64,
    name: Option<ConnectionName>,
    interruptions: Interruptions,
    interrupt: Interrupt,
    subscriptions: Subscriptions,
    /// When the last reply came, of a connection to one server.
    heard_at: Mutex<Instant>,
}

/// What a connection is subscribed to.
#[derive(Default)]
struct Subscriptions {
    channels: Mutex<HashMap<Vec<u8>, Arc<OnceCell<()>>>>,
    /// Whether the user may not subscribe, or the module knows no places.
    are_useless: AtomicBool,
    /// Whether they take the right to be blocked from the connection.
    forbid_blocking: OnceCell<bool>,
}

/// What the server calls a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConnectionName {
    pub(crate) id: String,
    client_addr: String,
    /// The server's own end.
    server_addr: String,
    /// Which run of the server, where both ends have the same address: on a socket.
    run_id: Option<String>,
}

/// Tells that a connection was closed; of a cluster, that one of its
/// connections was. Also that messages which were asked for do not come by it any
/// more.
#[derive(Clone)]
pub(crate) struct Interruptions(watch::Receiver<()>);

impl Interruptions {
    /// Waits for the next one. Returns false if there can be none: the
    /// connection was dropped.
    pub(crate) async fn next(&mut self) -> bool {
        self.0.changed().await.is_ok()
    }

    /// Returns whether there was one that nobody has waited for, or there can be
    /// none.
    pub(crate) fn happened(&self) -> bool {
        self.0.has_changed().unwrap_or(true)
    }
}

/// Interrupts a connection.
#[derive(Clone)]
pub(crate) struct Interrupt(Arc<watch::Sender<()>>);

impl Interrupt {
    /// One, and the interruptions that it makes.
    pub(crate) fn new() -> (Self, Interruptions) {
        let (sender, receiver) = watch::channel(());
        (Self(Arc::new(sender)), Interruptions(receiver))
    }

    fn interrupt(&self) {
        self.0.send_replace(());
    }

    /// What the redis crate has to be given so that it tells of interruptions, and
    /// leads messages to those who wait for them.
    pub(crate) fn listener<E: Ear>(
        &self,
        ear: &Arc<E>,
    ) -> impl Fn(PushInfo) -> Result<(), Infallible> + Clone + use<E> {
        let (last, ear) = (Arc::new(LastWord(self.clone())), Arc::clone(ear));
        move |push: PushInfo| {
            match push.kind {
                PushKind::Disconnection | PushKind::SUnsubscribe => last.0.interrupt(),
                PushKind::Message | PushKind::SMessage => {
                    if let [Value::BulkString(channel), Value::BulkString(message)] = &push.data[..]
                    {
                        ear.hear(channel, message);
                    }
                }
                _ => {}
            }
            Ok(())
        }
    }
}

/// Interrupts when the redis crate has nothing more to tell: it tells nothing of the end
/// of the runtime, which closes all connections.
struct LastWord(Interrupt);

impl Drop for LastWord {
    fn drop(&mut self) {
        self.0.interrupt();
    }
}

impl Connection {
    /// A connection that was just opened.
    pub(crate) async fn new(
        wire: Wire,
        address: String,
        (interrupt, interruptions): (Interrupt, Interruptions),
        within: Duration,
    ) -> Result<Arc<Self>, Error> {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let mut connection = Self {
            wire,
            address,
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            name: None,
            interruptions,
            interrupt,
            subscriptions: Subscriptions::default(),
            heard_at: Mutex::new(Instant::now()),
        };
        if matches!(connection.wire, Wire::Node(_)) {
            connection.name = connection.ask_name(within).await?;
        }
        Ok(Arc::new(connection))
    }

    /// Returns whether the server blocks this connection no more once it is subscribed,
    /// as Valkey 8.1.1 and later do. Then it would refuse all that replicas have to
    /// acknowledge.
    pub(crate) async fn subscriptions_forbid_blocking(
        &self,
        within: Duration,
    ) -> Result<bool, Error> {
        let known = &self.subscriptions.forbid_blocking;
        let ask = || self.ask_what_subscriptions_forbid(within);
        known.get_or_try_init(ask).await.copied()
    }

    async fn ask_what_subscriptions_forbid(&self, within: Duration) -> Result<bool, Error> {
        let hello = self.ask_for_all(within, b"", &commands::hello()).await?;
        let (server, version) = server_in(hello);
        if server != "redis" || version != VALKEY_AS_REDIS {
            return Ok(blocks_no_subscriber(&server, &version));
        }
        let info = commands::server_info();
        let info = match self.ask_for_all(within, b"", &info).await {
            Ok(info) => text(info).unwrap_or_default(),
            // A connection more does no harm.
            Err(error) if error.is_of_the_command() => return Ok(true),
            Err(error) => return Err(error),
        };
        let version = commands::info_field(&info, "valkey_version");
        Ok(version.is_some_and(|version| blocks_no_subscriber("valkey", version)))
    }

    /// Returns whether places can be had by this connection, once it is subscribed to
    /// the channel or is known not to be of use.
    pub(crate) fn is_subscribed(&self, channel: &[u8]) -> Option<bool> {
        if self.subscriptions.are_useless.load(Ordering::SeqCst) {
            return Some(false);
        }
        let channels = locked(&self.subscriptions.channels);
        channels.get(channel)?.initialized().then_some(true)
    }

    /// Subscribes to a channel, once; to a sharded one in a cluster. Returns whether
    /// places can be had by this connection.
    pub(crate) async fn subscribe(
        &self,
        within: Duration,
        channel: &[u8],
        is_sharded: bool,
    ) -> Result<bool, Error> {
        if self.subscriptions.are_useless.load(Ordering::SeqCst) {
            return Ok(false);
        }
        let subscribed = {
            let mut channels = locked(&self.subscriptions.channels);
            Arc::clone(channels.entry(channel.to_vec()).or_default())
        };
        let cmd = commands::subscribe(channel, is_sharded);
        let subscribe = async || match self.ask_for_all(within, channel, &cmd).await? {
            // A cluster may have sent word of another end meanwhile.
            Value::Push {
                kind: PushKind::Subscribe | PushKind::SSubscribe,
                ..
            } => Ok(()),
            other => Err(Error::unexpected(&other)),
        };
        match subscribed.get_or_try_init(subscribe).await {
            Ok(()) => Ok(true),
            Err(error) if error.code() == "NOPERM" => {
                self.knows_no_places();
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Places can't be had by this connection.
    pub(crate) fn knows_no_places(&self) {
        tracing::debug!("no places can be had, so each wait blocks a connection");
        self.subscriptions.are_useless.store(true, Ordering::SeqCst);
    }

    /// Tells that it is given up.
    pub(crate) fn interrupt(&self) {
        self.interrupt.interrupt();
    }

    /// Sends a command to the node of this key and waits for the reply.
    pub(crate) async fn ask(&self, key: &[u8], cmd: &Cmd) -> Result<Value, Error> {
        let reply = match self.wire.clone() {
            Wire::Node(mut connection) => {
                let reply = connection.send_packed_command(cmd).await;
                *locked(&self.heard_at) = Instant::now();
                reply
            }
            #[cfg(feature = "cluster")]
            Wire::Cluster(mut connection) => {
                use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
                let node = Route::with_key(key, SlotAddr::Master);
                let node = RoutingInfo::SingleNode(SingleNodeRoutingInfo::SpecificNode(node));
                // Boxed, so that it makes no room elsewhere.
                Box::pin(connection.route_command(cmd.clone(), node)).await
            }
        };
        #[cfg(not(feature = "cluster"))]
        let _ = key;
        reply
            .and_then(Value::extract_error)
            .map_err(Error::from_redis)
    }

    /// As [`Connection::ask`], with an end: when the connection has been silent for so
    /// long. Replies come in the order of the commands, so one that answers others is
    /// not silent; it may be that this process is slow.
    pub(crate) async fn ask_within(
        &self,
        within: Duration,
        key: &[u8],
        cmd: &Cmd,
    ) -> Result<Value, Error> {
        let mut ask = pin!(self.ask(key, cmd));
        let mut silent_since = Instant::now();
        loop {
            if let Ok(answered) = timeout_at(silent_since + within, &mut ask).await {
                return answered;
            }
            let heard_at = *locked(&self.heard_at);
            if heard_at <= silent_since {
                return Err(Error::timed_out());
            }
            silent_since = heard_at;
        }
    }

    /// As [`Connection::ask_within`], what others wait for as well. Where no answer comes,
    /// the connection is given up, so that they don't ask it one after another.
    async fn ask_for_all(&self, within: Duration, key: &[u8], cmd: &Cmd) -> Result<Value, Error> {
        if self.is_closed() {
            return Err(Error::unavailable("the connection has been given up"));
        }
        let answered = self.ask_within(within, key, cmd).await;
        if let Err(Error::Unavailable { .. }) = &answered {
            self.interrupt();
        }
        answered
    }

    /// Asks any node of a cluster. One that gives no answer leaves time for another.
    #[cfg(feature = "cluster")]
    pub(crate) async fn ask_any(&self, within: Duration, cmd: &Cmd) -> Result<Value, Error> {
        use redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
        let Wire::Cluster(connection) = &self.wire else {
            return self.ask_within(within, b"", cmd).await;
        };
        let mut answer = Err(Error::timed_out());
        for _ in 0..ANY_TRIES {
            let mut connection = connection.clone();
            let node = RoutingInfo::SingleNode(SingleNodeRoutingInfo::Random);
            let asked = connection.route_command(cmd.clone(), node);
            match timeout(within / ANY_TRIES, asked).await {
                Ok(answered) => {
                    answer = answered
                        .and_then(Value::extract_error)
                        .map_err(Error::from_redis);
                    if answer.is_ok() {
                        break;
                    }
                }
                Err(_) => answer = Err(Error::timed_out()),
            }
        }
        answer
    }

    /// Sends a command to every primary that there is, and returns all replies.
    pub(crate) async fn ask_everywhere(
        &self,
        within: Duration,
        cmd: &Cmd,
    ) -> Result<Vec<Value>, Error> {
        match self.wire.clone() {
            Wire::Node(_) => Ok(vec![self.ask_within(within, b"", cmd).await?]),
            #[cfg(feature = "cluster")]
            Wire::Cluster(mut connection) => {
                use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo};
                let primaries = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
                let asked = connection.route_command(cmd.clone(), primaries);
                let reply = timeout(within, asked)
                    .await
                    .map_err(|_| Error::timed_out())?
                    .map_err(Error::from_redis)?;
                let Value::Map(replies) = reply else {
                    return Err(Error::unexpected(&reply));
                };
                let replies = replies.into_iter().map(|(_, reply)| reply.extract_error());
                let replies: redis::RedisResult<Vec<Value>> = replies.collect();
                replies.map_err(Error::from_redis)
            }
        }
    }

    /// Tells when the connection is closed.
    pub(crate) fn interruptions(&self) -> Interruptions {
        self.interruptions.clone()
    }

    /// As [`Connection::interruptions`], but for those of before.
    pub(crate) fn interruptions_from_now(&self) -> Interruptions {
        let mut interruptions = self.interruptions();
        interruptions.0.mark_unchanged();
        interruptions
    }

    /// Returns whether it is known to be closed.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.wire, Wire::Node(_)) && self.interruptions.happened()
    }

    /// Where it was opened to.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// What tells it from every other connection of this process.
    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    /// What the server calls this connection, if it is one and the user may know.
    pub(crate) fn name(&self) -> Option<&ConnectionName> {
        self.name.as_ref()
    }

    async fn ask_name(&self, within: Duration) -> Result<Option<ConnectionName>, Error> {
        let mut cmd = redis::cmd("CLIENT");
        cmd.arg("INFO");
        match self.ask_within(within, b"", &cmd).await {
            Ok(reply) => {
                let name = text(reply).and_then(|info| ConnectionName::parse(&info));
                match name {
                    Some(name) if name.client_addr == name.server_addr => {
                        let run_id = self.ask_run_id(within).await?;
                        let run_id = run_id.map(Some);
                        Ok(run_id.map(|run_id| ConnectionName { run_id, ..name }))
                    }
                    name => Ok(name),
                }
            }
            Err(error) if error.is_of_the_command() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Which run of the server it is, if the user may know.
    pub(crate) async fn ask_run_id(&self, within: Duration) -> Result<Option<String>, Error> {
        let asked = self.ask_within(within, b"", &commands::server_info()).await;
        match asked {
            Ok(reply) => {
                let info = text(reply).unwrap_or_default();
                Ok(commands::info_field(&info, "run_id").map(str::to_owned))
            }
            Err(error) if error.is_of_the_command() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The version of Redis that Valkey says it is, with `extended-redis-compatibility`.
const VALKEY_AS_REDIS: &str = "7.2.4";

/// The server's name and version, as `HELLO` tells them.
fn server_in(hello: Value) -> (String, String) {
    let fields = redis::from_redis_value::<HashMap<String, Value>>(hello);
    let mut fields = fields.unwrap_or_default();
    let mut field = |name: &str| fields.remove(name).and_then(text).unwrap_or_default();
    (field("server"), field("version"))
}

/// Whether this server blocks no connection that has subscribed.
fn blocks_no_subscriber(server: &str, version: &str) -> bool {
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().ok());
    let [major, minor] = [numbers.next(), numbers.next()].map(Option::flatten);
    server == "valkey" && (major, minor) >= (Some(8), Some(1))
}

impl ConnectionName {
    /// Reads a line of `CLIENT LIST`.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        Some(Self {
            id: field(line, "id")?.into(),
            client_addr: field(line, "addr")?.into(),
            server_addr: field(line, "laddr")?.into(),
            run_id: None,
        })
    }

    /// Returns whether the server was not started anew between the two connections, as far
    /// as that can be known.
    pub(crate) fn is_of_the_same_run_as(&self, other: &Self) -> bool {
        self.run_id == other.run_id
    }

    /// Returns whether another connection leads to the same server.
    pub(crate) fn has_same_server_as(&self, other: &Self) -> bool {
        self.server_addr == other.server_addr
    }

    /// The command that looks at it.
    pub(crate) fn look(&self) -> Cmd {
        let mut cmd = redis::cmd("CLIENT");
        cmd.arg("LIST").arg("ID").arg(&self.id);
        cmd
    }

    /// Returns whether it is blocked, by the answer to that.
    pub(crate) fn is_blocked(&self, list: &str) -> bool {
        let mut lines = list.lines();
        let is_it =
            |name: Self| (name.id, name.client_addr) == (self.id.clone(), self.client_addr.clone());
        let line = lines.find(|line| Self::parse(line).is_some_and(is_it));
        line.and_then(|line| field(line, "flags"))
            .is_some_and(|flags| flags.contains('b'))
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

/// A field of a line of `CLIENT LIST`.
fn field<'line>(line: &'line str, name: &str) -> Option<&'line str> {
    let mut fields = line.split_ascii_whitespace();
    fields.find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connections_name_is_read_from_client_info() {
        let info = "id=7 addr=127.0.0.1:4 laddr=10.0.0.1:6379 fd=8 name= age=0 laddr-like=x\n";
        let name = ConnectionName::parse(info).unwrap();
        assert_eq!(name.id, "7");
        assert_eq!(name.client_addr, "127.0.0.1:4");
        assert_eq!(name.server_addr, "10.0.0.1:6379");
        assert_eq!(ConnectionName::parse("id=7 addr=x"), None);
    }

    #[test]
    fn valkey_blocks_no_subscriber_from_8_1_on() {
        let hello = |server: &str, version: &str| {
            let fields = [
                ("server", server),
                ("version", version),
                ("mode", "standalone"),
            ];
            let bulk = |text: &str| Value::BulkString(text.into());
            Value::Map(fields.map(|(name, value)| (bulk(name), bulk(value))).into())
        };
        for (server, version, expected) in [
            ("redis", "7.0.15", false),
            ("redis", "8.6.3", false),
            ("valkey", "8.0.1", false),
            ("valkey", "8.1.1", true),
            ("valkey", "9.1.2", true),
            ("valkey", "10.0.0", true),
        ] {
            let told = server_in(hello(server, version));
            assert_eq!((told.0.as_str(), told.1.as_str()), (server, version));
            let found = blocks_no_subscriber(server, version);
            assert_eq!(found, expected, "{server} {version}");
        }
        assert_eq!(server_in(Value::Okay), Default::default());
    }
}
