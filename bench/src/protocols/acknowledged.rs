//! Locks of which nobody is told before a replica has them: by this module's setting, or
//! by a `WAIT` in the same write.

use std::time::Duration;

use anyhow::Result;
use redis_lock_testing::Connection;

use super::{Event, Io, Kind, LockClient, Protocol, redislock, set_nx, unexpected};
use crate::replies::Reply;

/// The server withholds the reply.
pub const REDISLOCK: Protocol = Protocol {
    name: "redislock-acknowledged",
    title: "**this module**, `lock.min-replicas 1`",
    kind: Kind::Acknowledged,
    prepare: |connection, _| {
        await_replica(connection)?;
        connection.call_ok(&["CONFIG", "SET", "lock.min-replicas", "1"])?;
        Ok(())
    },
    ..redislock::PROTOCOL
};

/// The client asks for the acknowledgement.
pub const REDISLOCK_AND_WAIT: Protocol = Protocol {
    name: "redislock-wait",
    title: "`LOCK.ACQUIRE` + `WAIT 1`, `LOCK.RELEASE`",
    kind: Kind::Acknowledged,
    prepare: |connection, _| await_replica(connection),
    client: |owner| AndWait::boxed((redislock::PROTOCOL.client)(owner)),
    ..redislock::PROTOCOL
};

/// The same with the bare commands.
pub const SET_AND_WAIT: Protocol = Protocol {
    name: "set-wait-del",
    title: "`SET NX PX` + `WAIT 1`, `DEL`",
    kind: Kind::Acknowledged,
    prepare: |connection, _| await_replica(connection),
    client: |owner| AndWait::boxed((set_nx::FLOOR.client)(owner)),
    ..set_nx::FLOOR
};

/// A new replica is sent nothing before its first acknowledgement, which may take it a
/// second.
fn await_replica(connection: &mut Connection) -> Result<()> {
    connection.call_ok(&["SET", "first", "1"])?;
    connection.call_ok(&["WAIT", "1", "0"])?;
    Ok(())
}

struct AndWait {
    client: Box<dyn LockClient>,
    /// The lock is held, and the replica has not said so yet.
    is_held: bool,
}

impl AndWait {
    fn boxed(client: Box<dyn LockClient>) -> Box<dyn LockClient> {
        let is_held = false;
        Box::new(Self { client, is_held })
    }
}

impl LockClient for AndWait {
    fn acquire(&mut self, lock: &str, lease: Duration, io: &mut Io) {
        self.client.acquire(lock, lease, io);
        io.send(0, &["WAIT", "1", "0"]);
    }

    fn release(&mut self, io: &mut Io) {
        self.client.release(io);
    }

    fn on_reply(&mut self, connection: usize, reply: Reply, io: &mut Io) -> Result<Option<Event>> {
        if self.is_held {
            self.is_held = false;
            return match reply {
                Reply::Integer(1) => Ok(Some(Event::Held)),
                reply => unexpected(&reply),
            };
        }
        let event = self.client.on_reply(connection, reply, io)?;
        self.is_held = matches!(event, Some(Event::Held));
        Ok(event.filter(|_| !self.is_held))
    }
}
