//! How one waits in the server: each wait blocks a connection of its own.
//!
//! A limit bounds how many there are. A wait beyond it is not in the server's
//! queue yet; whoever has it asks for the lock now and then instead, so that a
//! lock that is free is never missed.
//!
//! Nothing tells of a connection that has fallen silent, so every two seconds
//! one `CLIENT LIST` asks whether the connections that wait are known to the
//! server as waiting. A user who may not do that does without; then TCP's
//! keepalive tells of a server that is gone.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, sleep_until};

use crate::commands::text;
use crate::connection::{Connection, ConnectionName, field};
use crate::error::Error;
use crate::mutex::locked;
use crate::node::{Address, Node};

/// So many idle connections are kept for the next waits, and more where waits are
/// at their limit.
const IDLE_MAX: usize = 8;

/// How long an idle connection is kept.
const IDLE: Duration = Duration::from_secs(10);

/// A connection that was idle for longer is tried out before it is used.
const FRESH: Duration = Duration::from_secs(1);

/// How often to ask whether the connections that wait are known as waiting.
const CHECK_EVERY: Duration = Duration::from_secs(2);

/// The reply to a wait may be on its way at one check, but not at two.
const CHECKS_MISSED_MAX: u8 = 2;

/// The least time between two asks of waits beyond the limit, all together: the
/// server has better things to do, however many there are.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// The connections that wait.
pub(crate) struct Waits {
    node: Arc<Node>,
    permits: Arc<Semaphore>,
    /// For those that have been granted and ask replicas, which are not long.
    confirming: Arc<Semaphore>,
    idle: Mutex<IdleOnes>,
    watched: Mutex<Watched>,
    /// When one that is beyond the limit may ask next.
    next_ask: Mutex<Instant>,
    /// Whether the user may ask which connections are known as waiting.
    may_check: AtomicBool,
}

#[derive(Default)]
struct IdleOnes {
    all: Vec<Idle>,
    /// Whether a task closes those that are idle for too long.
    is_tended: bool,
}

struct Idle {
    connection: Connection,
    address: Address,
    /// When it was opened, no server had been looked for anew since.
    epoch: u64,
    since: Instant,
}

#[derive(Default)]
struct Watched {
    by_serial: HashMap<u64, Watch>,
    /// Whether a task checks them.
    is_checked: bool,
}

struct Watch {
    key: Vec<u8>,
    name: ConnectionName,
    checks_missed: u8,
    gone: Arc<Notify>,
}

impl Waits {
    /// At most so many on this server.
    pub(crate) fn new(node: Arc<Node>, max: usize) -> Self {
        let max = max.min(Semaphore::MAX_PERMITS);
        Self {
            node,
            permits: Arc::new(Semaphore::new(max)),
            confirming: Arc::new(Semaphore::new(max)),
            idle: Mutex::default(),
            watched: Mutex::default(),
            next_ask: Mutex::new(Instant::now()),
            may_check: AtomicBool::new(true),
        }
    }

    /// A permit to wait, if there is one left.
    pub(crate) fn try_permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.permits).try_acquire_owned().ok()
    }

    /// Waits for a permit, first come, first served.
    pub(crate) async fn permit(&self) -> Result<OwnedSemaphorePermit, Error> {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        permit.map_err(|_| Error::Stopped)
    }

    /// A permit for a connection that waits for replicas alone. A hold must not
    /// wait for the waits of others to end.
    pub(crate) async fn permit_to_confirm(&self) -> Result<OwnedSemaphorePermit, Error> {
        let permit = Arc::clone(&self.confirming).acquire_owned().await;
        permit.map_err(|_| Error::Stopped)
    }

    /// Waits until a lock may be asked for without waiting in the server.
    pub(crate) async fn time_to_ask(&self) {
        let at = {
            let mut next_ask = locked(&self.next_ask);
            *next_ask = (*next_ask).max(Instant::now()) + ASK_EVERY;
            *next_ask
        };
        sleep_until(at).await;
    }

    /// A connection to the server of this key.
    pub(crate) async fn connection(
        self: &Arc<Self>,
        key: &[u8],
        permit: OwnedSemaphorePermit,
    ) -> Result<WaitingConnection, Error> {
        let (epoch, address) = (self.node.epoch(), self.node.address(key).await?);
        let connection = match self.reuse(&address).await {
            Some(connection) => connection,
            None => self.node.open(address.clone()).await?,
        };
        Ok(WaitingConnection {
            connection,
            address,
            epoch,
            waits: Arc::clone(self),
            _permit: permit,
        })
    }

    async fn reuse(&self, address: &Address) -> Option<Connection> {
        loop {
            let found = {
                let mut idle = locked(&self.idle);
                let epoch = self.node.epoch();
                idle.all.retain(|idle| idle.epoch == epoch);
                let nth = idle.all.iter().rposition(|idle| idle.address == *address)?;
                idle.all.remove(nth)
            };
            if found.connection.is_closed() {
                continue;
            }
            if found.since.elapsed() < FRESH {
                return Some(found.connection);
            }
            let within = self.node.timeouts().response;
            let ping = redis::cmd("PING");
            match found.connection.ask_within(within, b"", &ping).await {
                Ok(_) | Err(Error::Server { .. }) => return Some(found.connection),
                Err(_) => {}
            }
        }
    }

    fn keep(self: &Arc<Self>, connection: Connection, address: Address, epoch: u64) {
        // Whoever waits for a permit takes it over at once.
        let is_wanted = self.permits.available_permits() == 0;
        let mut idle = locked(&self.idle);
        if (idle.all.len() >= IDLE_MAX && !is_wanted) || connection.is_closed() {
            return;
        }
        idle.all.push(Idle {
            connection,
            address,
            epoch,
            since: Instant::now(),
        });
        if !std::mem::replace(&mut idle.is_tended, true) {
            self.node.runtime().spawn(tend(Arc::downgrade(self)));
        }
    }

    fn watch(self: &Arc<Self>, key: &[u8], connection: &Connection) -> Watching {
        let gone = Arc::new(Notify::new());
        let serial = connection.serial();
        if let Some(name) = connection.name()
            && self.may_check.load(Ordering::SeqCst)
        {
            let mut watched = locked(&self.watched);
            let watch = Watch {
                key: key.to_vec(),
                name: name.clone(),
                checks_missed: 0,
                gone: Arc::clone(&gone),
            };
            watched.by_serial.insert(serial, watch);
            if !std::mem::replace(&mut watched.is_checked, true) {
                let this = Arc::clone(self);
                self.node.runtime().spawn(this.check());
            }
        }
        Watching {
            waits: Arc::clone(self),
            serial,
            gone,
        }
    }

    /// Checks those that are watched, until there are none.
    async fn check(self: Arc<Self>) {
        loop {
            sleep(CHECK_EVERY).await;
            let mut by_server: HashMap<String, Vec<(u64, ConnectionName, Vec<u8>)>> =
                HashMap::new();
            {
                let mut watched = locked(&self.watched);
                if watched.by_serial.is_empty() {
                    watched.is_checked = false;
                    return;
                }
                for (serial, watch) in &watched.by_serial {
                    let server = by_server.entry(watch.name.server_addr.clone());
                    let watch = (*serial, watch.name.clone(), watch.key.clone());
                    server.or_default().push(watch);
                }
            }
            for group in by_server.into_values() {
                self.check_on_one_server(group).await;
            }
        }
    }

    async fn check_on_one_server(&self, group: Vec<(u64, ConnectionName, Vec<u8>)>) {
        let mut cmd = redis::cmd("CLIENT");
        cmd.arg("LIST").arg("ID");
        for (_, name, _) in &group {
            cmd.arg(&name.id);
        }
        let key = group.first().map(|(_, _, key)| key.as_slice());
        // Without an answer nothing is known about them.
        let reply = match self.node.call(key.unwrap_or_default(), &cmd).await {
            Ok(reply) => reply,
            Err(error) => {
                if error.code() == "NOPERM" {
                    self.may_check.store(false, Ordering::SeqCst);
                }
                return;
            }
        };
        let list = text(reply.value).unwrap_or_default();
        let mut waiting: HashMap<ConnectionName, bool> = HashMap::new();
        for line in list.lines() {
            if let Some(name) = ConnectionName::parse(line) {
                let is_blocked = field(line, "flags").is_some_and(|flags| flags.contains('b'));
                waiting.insert(name, is_blocked);
            }
        }
        let mut watched = locked(&self.watched);
        for (serial, name, _) in group {
            let Some(watch) = watched.by_serial.get_mut(&serial) else {
                continue;
            };
            if waiting.get(&name) == Some(&true) {
                watch.checks_missed = 0;
                continue;
            }
            watch.checks_missed = watch.checks_missed.saturating_add(1);
            if watch.checks_missed >= CHECKS_MISSED_MAX {
                watch.gone.notify_one();
            }
        }
    }
}

/// Closes connections that are idle for too long, until there are none.
async fn tend(waits: Weak<Waits>) {
    loop {
        sleep(IDLE).await;
        let Some(waits) = waits.upgrade() else {
            return;
        };
        let mut idle = locked(&waits.idle);
        idle.all.retain(|idle| idle.since.elapsed() < IDLE);
        if idle.all.is_empty() {
            idle.is_tended = false;
            return;
        }
    }
}

/// A wait that is watched. Ends with this.
struct Watching {
    waits: Arc<Waits>,
    serial: u64,
    gone: Arc<Notify>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        locked(&self.waits.watched).by_serial.remove(&self.serial);
    }
}

/// A connection that may block. It closes when this is dropped, unless it is
/// [kept](WaitingConnection::keep).
pub(crate) struct WaitingConnection {
    connection: Connection,
    address: Address,
    epoch: u64,
    waits: Arc<Waits>,
    _permit: OwnedSemaphorePermit,
}

impl WaitingConnection {
    /// What the server calls it.
    pub(crate) fn name(&self) -> Option<&ConnectionName> {
        self.connection.name()
    }

    /// Sends a command that waits, and returns its reply; or an error as soon as
    /// the connection is closed or the server does not know it as waiting.
    pub(crate) async fn wait(&self, key: &[u8], cmd: &Cmd) -> Result<Value, Error> {
        let watching = self.waits.watch(key, &self.connection);
        let answered = tokio::select! {
            biased;
            answered = self.connection.ask(key, cmd) => answered,
            () = watching.gone.notified() => {
                Err(Error::unavailable("the server does not know of the wait"))
            }
        };
        answered.map_err(|error| self.explain(error))
    }

    /// Sends a command that does not wait for a lock.
    pub(crate) async fn ask_within(
        &self,
        within: Duration,
        key: &[u8],
        cmd: &Cmd,
    ) -> Result<Value, Error> {
        let answered = self.connection.ask_within(within, key, cmd).await;
        answered.map_err(|error| self.explain(error))
    }

    fn explain(&self, error: Error) -> Error {
        if error.calls_for_new_connection() || error.code() == "MOVED" {
            self.waits.node.look_up_again();
        }
        // Only what is true of a new connection as well is here to stay.
        match error.code() {
            "READONLY" => error,
            _ => self.waits.node.explain(error),
        }
    }

    /// Leaves it to the next wait. All that was sent on it has been answered.
    pub(crate) fn keep(self) {
        self.waits.keep(self.connection, self.address, self.epoch);
    }
}
