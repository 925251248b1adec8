//! This module's commands.

use std::time::Duration;

use anyhow::Result;

use super::{Event, Io, LEASE, LockClient, Protocol, nothing_to_prepare, unexpected};
use crate::wire::{Reply, pack};

pub const PROTOCOL: Protocol = Protocol {
    name: "redislock",
    title: "**this module**",
    needs_module: true,
    excludes: true,
    polls: false,
    connections: 1,
    scripts: &[],
    prepare: nothing_to_prepare,
    client: |owner| {
        Box::new(RedisLock {
            owner,
            lock: String::new(),
        })
    },
    pair: |lock, owner, _| {
        let lease = LEASE.as_millis().to_string();
        let mut pair = pack(&["LOCK.ACQUIRE", lock, owner, "LEASE", &lease]);
        pair.extend(pack(&["LOCK.RELEASE", lock, owner]));
        pair
    },
    pair_replies: 2,
};

struct RedisLock {
    owner: String,
    lock: String,
}

impl LockClient for RedisLock {
    fn acquire(&mut self, lock: &str, lease: Duration, io: &mut Io) {
        self.lock = lock.into();
        let lease = lease.as_millis().to_string();
        let words = [
            "LOCK.ACQUIRE",
            lock,
            &self.owner,
            "LEASE",
            &lease,
            "BLOCK",
            "0",
        ];
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
