//! Locks that are a string set with `NX`: the bare commands as a floor, the way
//! of redis-py, and the way of python-redis-lock.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use anyhow::Result;
use redis_lock_testing::pack;

use super::{Event, Io, Kind, LEASE, LockClient, Protocol, nothing_to_prepare, unexpected};
use crate::replies::Reply;

const COMPARE_AND_DELETE: &str = include_str!("compare_and_delete.lua");
const SIGNAL_UNLOCK: &str = include_str!("signal_unlock.lua");

static COMPARE_AND_DELETE_SHA: LazyLock<String> =
    LazyLock::new(|| redis::Script::new(COMPARE_AND_DELETE).get_hash().into());
static SIGNAL_UNLOCK_SHA: LazyLock<String> =
    LazyLock::new(|| redis::Script::new(SIGNAL_UNLOCK).get_hash().into());

/// How long redis-py's `Lock` sleeps between two looks by default.
const REDIS_PY_SLEEP: Duration = Duration::from_millis(100);
/// How long python-redis-lock keeps its signal by default.
const SIGNAL_EXPIRE_MS: &str = "1000";

/// Nobody waits, nobody is asked who holds the lock: the least that takes and
/// frees one.
pub const FLOOR: Protocol = Protocol {
    name: "set-del",
    title: "`SET NX PX` + `DEL`",
    needs_module: false,
    kind: Kind::Uncontended,
    connections: 1,
    scripts: &[],
    prepare: nothing_to_prepare,
    client: |owner| SetNx::boxed(owner, Way::Bare),
    pair: |lock, owner, _| {
        let mut pair = set_command(lock, owner, LEASE);
        pair.extend(pack(&["DEL", lock]));
        pair
    },
    pair_replies: 2,
};

/// The same on a server that has the module loaded: what it costs those who
/// don't use it.
pub const FLOOR_BESIDE_MODULE: Protocol = Protocol {
    name: "set-del-beside",
    title: "`SET NX PX` + `DEL`, module loaded",
    needs_module: true,
    ..FLOOR
};

/// As redis-py's `Lock`: look again every 100 ms.
pub const REDIS_PY: Protocol = Protocol {
    name: "redis-py",
    title: "`SET NX PX` + script, polling as redis-py",
    kind: Kind::Polling,
    scripts: &[COMPARE_AND_DELETE],
    client: |owner| SetNx::boxed(owner, Way::RedisPy),
    pair: |lock, owner, _| {
        let mut pair = set_command(lock, owner, LEASE);
        pair.extend(pack(&[
            "EVALSHA",
            &COMPARE_AND_DELETE_SHA,
            "1",
            lock,
            owner,
        ]));
        pair
    },
    ..FLOOR
};

/// As python-redis-lock: `BLPOP` on a list that the unlock script pushes to.
pub const PYTHON_REDIS_LOCK: Protocol = Protocol {
    name: "python-redis-lock",
    title: "signal list, as python-redis-lock",
    kind: Kind::Lock,
    scripts: &[SIGNAL_UNLOCK],
    client: |owner| SetNx::boxed(owner, Way::SignalList),
    pair: |lock, owner, _| {
        let mut pair = pack(&["GET", lock]);
        pair.extend(set_seconds_command(lock, owner, LEASE));
        pair.extend(signal_unlock_command(lock, owner));
        pair
    },
    pair_replies: 3,
    ..FLOOR
};

fn set_command(lock: &str, owner: &str, lease: Duration) -> Vec<u8> {
    let lease = lease.as_millis().to_string();
    pack(&["SET", lock, owner, "NX", "PX", &lease])
}

fn set_seconds_command(lock: &str, owner: &str, lease: Duration) -> Vec<u8> {
    pack(&["SET", lock, owner, "EX", &whole_seconds(lease), "NX"])
}

fn whole_seconds(lease: Duration) -> String {
    lease.as_secs().max(1).to_string()
}

fn signal_list(lock: &str) -> String {
    format!("lock-signal:{lock}")
}

fn signal_unlock_command(lock: &str, owner: &str) -> Vec<u8> {
    pack(&[
        "EVALSHA",
        &SIGNAL_UNLOCK_SHA,
        "2",
        lock,
        &signal_list(lock),
        owner,
        SIGNAL_EXPIRE_MS,
    ])
}

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Bare,
    RedisPy,
    SignalList,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Idle,
    /// Asks whether it holds the lock already.
    Asking,
    Setting,
    Sleeping,
    Listening,
    Releasing,
}

struct SetNx {
    way: Way,
    owner: String,
    lock: String,
    lease: Duration,
    state: State,
}

impl SetNx {
    fn boxed(owner: String, way: Way) -> Box<dyn LockClient> {
        Box::new(Self {
            way,
            owner,
            lock: String::new(),
            lease: LEASE,
            state: State::Idle,
        })
    }

    fn set(&mut self, io: &mut Io) {
        self.state = State::Setting;
        io.out[0].extend(match self.way {
            Way::SignalList => set_seconds_command(&self.lock, &self.owner, self.lease),
            Way::Bare | Way::RedisPy => set_command(&self.lock, &self.owner, self.lease),
        });
    }

    fn wait(&mut self, io: &mut Io) -> Result<()> {
        match self.way {
            Way::RedisPy => {
                self.state = State::Sleeping;
                io.timer = Some(Instant::now() + REDIS_PY_SLEEP);
            }
            Way::SignalList => {
                self.state = State::Listening;
                let timeout = whole_seconds(self.lease);
                io.send(0, &["BLPOP", &signal_list(&self.lock), &timeout]);
            }
            Way::Bare => anyhow::bail!("{} is taken", self.lock),
        }
        Ok(())
    }
}

impl LockClient for SetNx {
    fn acquire(&mut self, lock: &str, lease: Duration, io: &mut Io) {
        self.lock = lock.into();
        self.lease = lease;
        if self.way == Way::SignalList {
            self.state = State::Asking;
            io.send(0, &["GET", lock]);
        } else {
            self.set(io);
        }
    }

    fn release(&mut self, io: &mut Io) {
        self.state = State::Releasing;
        io.out[0].extend(match self.way {
            Way::Bare => pack(&["DEL", &self.lock]),
            Way::SignalList => signal_unlock_command(&self.lock, &self.owner),
            Way::RedisPy => pack(&[
                "EVALSHA",
                &COMPARE_AND_DELETE_SHA,
                "1",
                &self.lock,
                &self.owner,
            ]),
        });
    }

    fn on_reply(&mut self, _: usize, reply: Reply, io: &mut Io) -> Result<Option<Event>> {
        match (self.state, reply) {
            (_, reply @ Reply::Error(_)) => unexpected(&reply),
            (State::Asking | State::Listening, _) => {
                self.set(io);
                Ok(None)
            }
            (State::Setting, Reply::SimpleString(_)) => {
                self.state = State::Idle;
                Ok(Some(Event::Held))
            }
            (State::Setting, Reply::Null) => {
                self.wait(io)?;
                Ok(None)
            }
            (State::Releasing, Reply::Integer(_)) => {
                self.state = State::Idle;
                Ok(Some(Event::Released))
            }
            (_, reply) => unexpected(&reply),
        }
    }

    fn on_timer(&mut self, io: &mut Io) {
        if self.state == State::Sleeping {
            self.set(io);
        }
    }

    fn is_settled(&self) -> bool {
        matches!(
            self.state,
            State::Idle | State::Sleeping | State::Listening | State::Setting
        ) && !(self.way == Way::SignalList && self.state == State::Setting)
    }
}
