//! The floor of a hand-off: a list that holds the lock's one token. `BLPOP`
//! takes it, `LPUSH` puts it back. No owner, no lease, nothing to protect.

use std::time::Duration;

use anyhow::Result;
use redis_lock_testing::{Connection, pack};

use super::{Event, Io, Kind, LockClient, Protocol, unexpected};
use crate::replies::Reply;

pub const PROTOCOL: Protocol = Protocol {
    name: "blpop",
    title: "`LPUSH` → `BLPOP`",
    needs_module: false,
    kind: Kind::Endless,
    connections: 1,
    scripts: &[],
    prepare: fill,
    client: |_| Box::new(TokenList::default()),
    pair: |lock, _, _| {
        let mut pair = pack(&["BLPOP", lock, "0"]);
        pair.extend(pack(&["LPUSH", lock, "1"]));
        pair
    },
    pair_replies: 2,
};

fn fill(connection: &mut Connection, locks: &[String]) -> Result<()> {
    for lock in locks {
        connection.call_ok(&["LPUSH", lock, "1"])?;
    }
    Ok(())
}

#[derive(Default)]
struct TokenList {
    lock: String,
}

impl LockClient for TokenList {
    fn acquire(&mut self, lock: &str, _: Duration, io: &mut Io) {
        self.lock = lock.into();
        io.send(0, &["BLPOP", lock, "0"]);
    }

    fn release(&mut self, io: &mut Io) {
        io.send(0, &["LPUSH", &self.lock, "1"]);
    }

    fn on_reply(&mut self, _: usize, reply: Reply, _: &mut Io) -> Result<Option<Event>> {
        match reply {
            Reply::Array(_) => Ok(Some(Event::Held)),
            Reply::Integer(_) => Ok(Some(Event::Released)),
            reply => unexpected(&reply),
        }
    }
}
