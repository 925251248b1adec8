//! One connection, with an end that everybody hears of.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, PushInfo, PushKind, Value,
};
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use crate::error::Error;
use crate::mutex::locked;
use crate::register::Register;

/// How many commands may wait to be sent. Each takes room only while it waits. With few,
/// futures that nobody polls for a while could keep the others from sending anything.
const QUEUED_COMMANDS: usize = 1 << 20;

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    pub(crate) connect: Duration,
    pub(crate) response: Duration,
}

/// The end of a connection, or of several that end together: seen by all its clones.
#[derive(Clone, Default)]
pub(crate) struct Closed(watch::Sender<bool>);

impl Closed {
    pub(crate) fn close(&self) {
        self.0.send_replace(true);
    }

    pub(crate) fn is_closed(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits for it.
    pub(crate) async fn closed(&self) {
        let _ = self.0.subscribe().wait_for(|closed| *closed).await;
    }
}

/// A connection. It closes when nobody has it any more.
pub(crate) struct Connection {
    wire: MultiplexedConnection,
    addr: ConnectionAddr,
    closed: Closed,
    /// When the last reply came.
    heard_at: Mutex<Instant>,
}

impl Connection {
    /// Opens a connection within this time. It ends together with others (`closed`), and
    /// its messages go to the waits in the register. To be called in the client's runtime.
    pub(crate) async fn open(
        info: &ConnectionInfo,
        within: Duration,
        register: Option<(&Arc<Register>, u64)>,
        closed: &Closed,
    ) -> Result<Self, Error> {
        let gone = Closed::default();
        let (last_word, register) = (
            LastWord(gone.clone()),
            register.map(|(it, link)| (Arc::clone(it), link)),
        );
        let listener = move |push: PushInfo| {
            match (push.kind, &push.data[..]) {
                (PushKind::Disconnection | PushKind::SUnsubscribe, _) => last_word.0.close(),
                (
                    PushKind::Message | PushKind::SMessage,
                    [Value::BulkString(_), Value::BulkString(message)],
                ) => {
                    if let Some((register, link)) = &register {
                        register.hear(*link, message);
                    }
                }
                _ => {}
            }
            Ok::<_, Infallible>(())
        };
        // Whoever sends a command decides how long it may take.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(within))
            .set_response_timeout(None)
            .set_pipeline_buffer_size(QUEUED_COMMANDS)
            .set_push_sender(listener);
        let opened = async {
            let client = Client::open(info.clone())?;
            Ok(client
                .get_multiplexed_async_connection_with_config(&config)
                .await?)
        };
        let opened = timeout(within, opened).await;
        let opened = opened.unwrap_or_else(|_| Err(Error::timed_out()));
        let wire = opened.map_err(|error: Error| error.at(&info.addr().to_string()))?;
        // The connection ends with the runtime, too.
        let all = LastWord(closed.clone());
        tokio::spawn(async move {
            gone.closed().await;
            drop(all);
        });
        Ok(Self {
            wire,
            addr: info.addr().clone(),
            closed: closed.clone(),
            heard_at: Mutex::new(Instant::now()),
        })
    }

    /// Sends a command, and waits for the reply as long as the connection lives.
    pub(crate) async fn ask_patiently(&self, command: &Cmd) -> Result<Value, Error> {
        let mut wire = self.wire.clone();
        let reply = tokio::select! {
            biased;
            reply = wire.send_packed_command(command) => reply,
            () = self.closed.closed() => return Err(Error::closed()),
        };
        *locked(&self.heard_at) = Instant::now();
        Ok(reply.and_then(Value::extract_error)?)
    }

    /// As [`Connection::ask_patiently`], with an end: when the connection has been silent
    /// for so long it is closed. Replies come in the order of the commands, so one that
    /// answers others is not silent.
    pub(crate) async fn ask(&self, command: &Cmd, within: Duration) -> Result<Value, Error> {
        let mut reply = pin!(self.ask_patiently(command));
        let mut silent_since = Instant::now();
        loop {
            if let Ok(reply) = timeout_at(silent_since + within, &mut reply).await {
                return reply;
            }
            let heard_at = *locked(&self.heard_at);
            if heard_at <= silent_since {
                self.closed.close();
                return Err(Error::timed_out().at(&self.addr.to_string()));
            }
            silent_since = heard_at;
        }
    }

    /// Sends `ASKING` first, so that this node serves a key whose slot is just being moved to it.
    pub(crate) async fn ask_ahead(&self, command: &Cmd, within: Duration) -> Result<Value, Error> {
        let mut pipe = redis::pipe();
        pipe.cmd("ASKING").add_command(command.clone());
        let mut wire = self.wire.clone();
        let replies = timeout(within, wire.send_packed_commands(&pipe, 1, 1)).await;
        let replies = replies.map_err(|_| Error::timed_out())??;
        let reply = replies.into_iter().next().unwrap_or(Value::Nil);
        Ok(reply.extract_error()?)
    }

    /// The `CLIENT KILL` that ends this connection and no other; and whether the server
    /// surely blocks it once it has subscribed: Valkey 8.1.1 and later, which tell of
    /// capabilities, do not. Neither is known if the user may not ask; and no `CLIENT
    /// KILL` names one of a socket's connections, which all have one address.
    pub(crate) async fn about(&self, within: Duration) -> (Option<Cmd>, bool) {
        let mut ask = redis::cmd("CLIENT");
        ask.arg("INFO");
        let told = self.ask(&ask, within).await.unwrap_or(Value::Nil);
        let told: String = redis::from_redis_value(told).unwrap_or_default();
        let field = |name: &str| {
            let mut fields = told.split_ascii_whitespace();
            fields.find_map(|field| field.strip_prefix(name))
        };
        let named = field("id=").zip(field("addr="));
        let kill = named.filter(|(_, addr)| !addr.contains('/'));
        let kill = kill.map(|(id, addr)| {
            let mut kill = redis::cmd("CLIENT");
            kill.arg("KILL").arg("ID").arg(id).arg("ADDR").arg(addr);
            kill
        });
        (kill, named.is_some() && field("capa=").is_none())
    }

    pub(crate) fn addr(&self) -> &ConnectionAddr {
        &self.addr
    }

    /// The host to which it was opened.
    pub(crate) fn host(&self) -> &str {
        match &self.addr {
            ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host,
            _ => "",
        }
    }
}

/// Closes when the redis crate has nothing more to tell: it tells nothing of the end of
/// the runtime, which closes all connections.
struct LastWord(Closed);

impl Drop for LastWord {
    fn drop(&mut self) {
        self.0.close();
    }
}
