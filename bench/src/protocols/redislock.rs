//! This module's commands.

use std::time::Duration;

use anyhow::Result;
use redis_lock_testing::pack;

use super::{Event, Io, Kind, LEASE, LockClient, Protocol, nothing_to_prepare, unexpected};
use crate::replies::Reply;

pub const PROTOCOL: Protocol = Protocol {
    name: "redislock",
    title: "**this module**",
    needs_module: true,
    kind: Kind::Lock,
    connections: 1,
    scripts: &[],
    prepare: nothing_to_prepare,
    client: |owner| RedisLock::boxed(owner, false),
    pair: |lock, owner, _| {
        let lease = LEASE.as_millis().to_string();
        let mut pair = pack(&["LOCK.ACQUIRE", lock, owner, "LEASE", &lease]);
        pair.extend(pack(&["LOCK.RELEASE", lock, owner]));
        pair
    },
    pair_replies: 2,
};

/// The same, bound to the connection.
pub const SESSION: Protocol = Protocol {
    name: "redislock-session",
    title: "**this module**, `SESSION`",
    kind: Kind::Session,
    client: |owner| RedisLock::boxed(owner, true),
    prepare: |connection, _| {
        connection.call_ok(&["LOCK.ACQUIRE", "lock:probe", "probe", "SESSION"])?;
        Ok(())
    },
    ..PROTOCOL
};

struct RedisLock {
    owner: String,
    lock: String,
    session: bool,
}

impl RedisLock {
    fn boxed(owner: String, session: bool) -> Box<dyn LockClient> {
        Box::new(Self {
            owner,
            lock: String::new(),
            session,
        })
    }
}

impl LockClient for RedisLock {
    fn acquire(&mut self, lock: &str, lease: Duration, io: &mut Io) {
        self.lock = lock.into();
        let lease = lease.as_millis().to_string();
        let mut words = vec!["LOCK.ACQUIRE", lock, &self.owner, "LEASE", &lease];
        words.extend(["BLOCK", "0"]);
        if self.session {
            words.push("SESSION");
        }
        io.send(0, &words);
    }

    fn release(&mut self, io: &mut Io) {
        io.send(0, &["LOCK.RELEASE", &self.lock, &self.owner]);
    }

    fn on_reply(&mut self, _: usize, reply: Reply, _: &mut Io) -> Result<Option<Event>> {
        match reply {
            // A fencing token is far greater.
            Reply::Integer(1) => Ok(Some(Event::Released)),
            Reply::Integer(token) if token > 1 => Ok(Some(Event::Held)),
            reply => unexpected(&reply),
        }
    }
}
