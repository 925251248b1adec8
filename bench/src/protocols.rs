//! Lock clients that speak RESP, each a state machine over its connections, so
//! that one thread can play thousands of them with the same code.

mod acknowledged;
mod places;
mod redislock;
mod redisson;
mod set_nx;
mod token_list;

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use redis_lock_testing::{Connection, pack};

use crate::replies::Reply;

/// The lease that clients ask for where a workload does not say otherwise.
pub const LEASE: Duration = Duration::from_secs(30);

/// What became of a request.
pub enum Event {
    /// The client holds the lock.
    Held,
    /// The client has given the lock back.
    Released,
}

/// What a client wants of the outside world: bytes sent on its connections and
/// a call at some time.
#[derive(Default)]
pub struct Io {
    /// Bytes to send, for each connection.
    pub out: [Vec<u8>; 2],
    /// When to call `on_timer`, if at all.
    pub timer: Option<Instant>,
}

impl Io {
    fn send<W: AsRef<[u8]>>(&mut self, connection: usize, words: &[W]) {
        self.out[connection].extend(pack(words));
    }
}

/// A lock client.
pub trait LockClient {
    /// Begins to take a lock; `Event::Held` follows.
    fn acquire(&mut self, lock: &str, lease: Duration, io: &mut Io);
    /// Gives it back; `Event::Released` follows.
    fn release(&mut self, io: &mut Io);
    /// A reply or message came.
    fn on_reply(&mut self, connection: usize, reply: Reply, io: &mut Io) -> Result<Option<Event>>;
    /// The timer rang.
    fn on_timer(&mut self, _io: &mut Io) {}
    /// Whether nothing happens until somebody else does something.
    fn is_settled(&self) -> bool {
        true
    }
}

/// What a protocol can be put to.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    /// Nobody can wait for its locks.
    Uncontended,
    /// A lock without a lease.
    Endless,
    /// A lock whose waiters look again and again instead of being told.
    Polling,
    /// A lock.
    Lock,
    /// A lock whose waiters block no connection and are told by messages.
    Place,
    /// A lock that ends with its holder's connection.
    Session,
    /// A lock that a replica has before its holder is told.
    Acknowledged,
}

/// A way to lock, spoken over RESP.
pub struct Protocol {
    /// Its name in files and on the command line.
    pub name: &'static str,
    /// Its name in tables.
    pub title: &'static str,
    /// Whether it needs a server with the module.
    pub needs_module: bool,
    /// What it can be put to.
    pub kind: Kind,
    /// Connections a client.
    pub connections: usize,
    /// Scripts that the server must know.
    pub scripts: &'static [&'static str],
    /// What must be in the server before a lock can be used.
    pub prepare: fn(&mut Connection, locks: &[String]) -> Result<()>,
    /// A new client of this owner.
    pub client: fn(owner: String) -> Box<dyn LockClient>,
    /// The commands of an uncontended acquire and release, the `n`-th of this
    /// owner.
    pub pair: fn(lock: &str, owner: &str, n: usize) -> Vec<u8>,
    /// Replies to a pair.
    pub pair_replies: usize,
}

/// All protocols, ours first.
pub const PROTOCOLS: &[Protocol] = &[
    redislock::PROTOCOL,
    redislock::SESSION,
    places::PROTOCOL,
    acknowledged::REDISLOCK,
    acknowledged::REDISLOCK_AND_WAIT,
    acknowledged::SET_AND_WAIT,
    redisson::PROTOCOL,
    set_nx::REDIS_PY,
    set_nx::PYTHON_REDIS_LOCK,
    token_list::PROTOCOL,
    set_nx::FLOOR,
    set_nx::FLOOR_BESIDE_MODULE,
];

impl Protocol {
    /// Makes the server ready for this protocol and these locks.
    pub fn set_up(&self, connection: &mut Connection, locks: &[String]) -> Result<()> {
        for script in self.scripts {
            connection.call_ok(&["SCRIPT", "LOAD", script])?;
        }
        (self.prepare)(connection, locks)
    }
}

/// An owner's name as Redisson makes them, for every contender alike: the UUID
/// of a process, and a thread of it.
pub fn owner_name(n: usize) -> String {
    format!("3b8a7e52-1d0c-4f6e-9a27-{n:012x}:1")
}

fn nothing_to_prepare(_: &mut Connection, _: &[String]) -> Result<()> {
    Ok(())
}

fn unexpected<T>(reply: &Reply) -> Result<T> {
    bail!("the server answered {reply:?}")
}
