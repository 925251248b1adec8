//! What Redisson's `RLock` sends and expects, without Redisson: two scripts and
//! a channel. Every client here is a process of its own, as its waiters are on
//! different machines: each has its own subscription, and a release tells all.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use anyhow::Result;
use redis_lock_testing::pack;

use super::{Event, Io, Kind, LEASE, LockClient, Protocol, nothing_to_prepare, unexpected};
use crate::replies::Reply;

const LOCK: &str = include_str!("redisson_lock.lua");
const UNLOCK: &str = include_str!("redisson_unlock.lua");

static LOCK_SHA: LazyLock<String> = LazyLock::new(|| sha(LOCK));
static UNLOCK_SHA: LazyLock<String> = LazyLock::new(|| sha(UNLOCK));

/// How long the server keeps the answer to an unlock, with Redisson's default
/// settings: time-out and delay of four retries.
const LATCH_MS: &str = "20000";

/// The connection for commands, and the one for messages.
const COMMANDS: usize = 0;
const MESSAGES: usize = 1;

/// As Redisson 4 does it: an unlock leaves its answer in a key, which a third
/// command removes.
pub const PROTOCOL: Protocol = Protocol {
    name: "redisson-scripts",
    title: "Redisson's scripts and pub/sub",
    needs_module: false,
    kind: Kind::Lock,
    connections: 2,
    scripts: &[LOCK, UNLOCK],
    prepare: nothing_to_prepare,
    client: |owner| {
        Box::new(Redisson {
            owner,
            lock: String::new(),
            lease: String::new(),
            state: State::Idle,
            messages: 0,
            unlocks: 0,
            unread_dels: 0,
        })
    },
    pair: |lock, owner, n| {
        let mut pair = lock_command(lock, owner, &LEASE.as_millis().to_string());
        let latch = latch_key(lock, owner, n);
        pair.extend(unlock_command(
            lock,
            owner,
            &latch,
            &LEASE.as_millis().to_string(),
        ));
        pair.extend(pack(&["DEL", &latch]));
        pair
    },
    pair_replies: 3,
};

fn sha(script: &str) -> String {
    redis::Script::new(script).get_hash().into()
}

fn channel(lock: &str) -> String {
    format!("redisson_lock__channel:{{{lock}}}")
}

fn latch_key(lock: &str, owner: &str, n: usize) -> String {
    format!(
        "redisson_unlock_latch:{{{lock}}}:{}{n:08x}",
        &owner[12..36].replace('-', "")
    )
}

fn lock_command(lock: &str, owner: &str, lease_ms: &str) -> Vec<u8> {
    pack(&["EVALSHA", &LOCK_SHA, "1", lock, lease_ms, owner])
}

fn unlock_command(lock: &str, owner: &str, latch: &str, lease_ms: &str) -> Vec<u8> {
    pack(&[
        "EVALSHA",
        &UNLOCK_SHA,
        "3",
        lock,
        &channel(lock),
        latch,
        "0",
        lease_ms,
        owner,
        "PUBLISH",
        LATCH_MS,
    ])
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Idle,
    /// The first attempt is under way.
    FirstTry,
    Subscribing,
    /// A later attempt is under way.
    Retry,
    /// Told to wait, for a message or for the end of the lease.
    Waiting,
    Held,
    Unlocking,
}

struct Redisson {
    owner: String,
    lock: String,
    lease: String,
    state: State,
    /// Messages that came while an attempt was under way, each good for one more.
    messages: usize,
    unlocks: usize,
    /// Removals of the latch whose replies nobody waits for.
    unread_dels: usize,
}

impl Redisson {
    fn attempt(&mut self, state: State, io: &mut Io) {
        self.state = state;
        io.timer = None;
        io.out[COMMANDS].extend(lock_command(&self.lock, &self.owner, &self.lease));
    }

    fn wait(&mut self, ttl_ms: i64, io: &mut Io) {
        if self.messages > 0 {
            self.messages -= 1;
            self.attempt(State::Retry, io);
        } else {
            self.state = State::Waiting;
            let ttl = u64::try_from(ttl_ms).unwrap_or(0);
            io.timer = Some(Instant::now() + Duration::from_millis(ttl));
        }
    }

    fn on_message(&mut self, message: &[Reply], io: &mut Io) -> Result<()> {
        let Some(Reply::BulkString(kind)) = message.first() else {
            return unexpected(&Reply::Array(message.to_vec()));
        };
        match (kind.as_slice(), self.state) {
            (b"subscribe", State::Subscribing) => self.attempt(State::Retry, io),
            (b"message", State::Waiting) => self.attempt(State::Retry, io),
            (b"message", State::Retry) => self.messages += 1,
            _ => {}
        }
        Ok(())
    }
}

impl LockClient for Redisson {
    fn acquire(&mut self, lock: &str, lease: Duration, io: &mut Io) {
        self.lock = lock.into();
        self.lease = lease.as_millis().to_string();
        self.messages = 0;
        self.attempt(State::FirstTry, io);
    }

    fn release(&mut self, io: &mut Io) {
        self.state = State::Unlocking;
        self.unlocks += 1;
        let latch = latch_key(&self.lock, &self.owner, self.unlocks);
        io.out[COMMANDS].extend(unlock_command(&self.lock, &self.owner, &latch, &self.lease));
    }

    fn on_reply(&mut self, connection: usize, reply: Reply, io: &mut Io) -> Result<Option<Event>> {
        if connection == MESSAGES {
            let Reply::Array(message) = &reply else {
                return unexpected(&reply);
            };
            self.on_message(message, io)?;
            return Ok(None);
        }
        if self.unread_dels > 0 {
            self.unread_dels -= 1;
            return Ok(None);
        }
        match (self.state, reply) {
            (State::FirstTry, Reply::Null) => {
                self.state = State::Held;
                Ok(Some(Event::Held))
            }
            (State::FirstTry, Reply::Integer(_)) => {
                self.state = State::Subscribing;
                io.send(MESSAGES, &["SUBSCRIBE", &channel(&self.lock)]);
                Ok(None)
            }
            (State::Retry, Reply::Null) => {
                self.state = State::Held;
                io.send(MESSAGES, &["UNSUBSCRIBE", &channel(&self.lock)]);
                Ok(Some(Event::Held))
            }
            (State::Retry, Reply::Integer(ttl_ms)) => {
                self.wait(ttl_ms, io);
                Ok(None)
            }
            (State::Unlocking, Reply::Integer(1)) => {
                self.state = State::Idle;
                let latch = latch_key(&self.lock, &self.owner, self.unlocks);
                io.send(COMMANDS, &["DEL", &latch]);
                self.unread_dels += 1;
                Ok(Some(Event::Released))
            }
            (_, reply) => unexpected(&reply),
        }
    }

    fn on_timer(&mut self, io: &mut Io) {
        if self.state == State::Waiting {
            self.attempt(State::Retry, io);
        }
    }

    fn is_settled(&self) -> bool {
        matches!(self.state, State::Waiting | State::Held | State::Idle)
    }
}
