//! This module's places in the queue: a request waits without blocking its connection,
//! and a message tells of the grant, which a renewal claims.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::Result;
use subject::told;

use super::{Event, Io, Kind, LockClient, Protocol, redislock, unexpected};
use crate::replies::Reply;

/// The connection for commands, and the one for messages.
const COMMANDS: usize = 0;
const MESSAGES: usize = 1;

/// Longer than anybody waits.
const PLACE_MS: &str = "600000";

pub const PROTOCOL: Protocol = Protocol {
    name: "redislock-places",
    title: "**this module**, `QUEUE`",
    kind: Kind::Place,
    connections: 2,
    client: |owner| {
        Box::new(Places {
            owner,
            lock: String::new(),
            lease_ms: String::new(),
            state: State::Deaf,
            unanswered: VecDeque::new(),
        })
    },
    ..redislock::PROTOCOL
};

#[derive(PartialEq)]
enum State {
    Deaf,
    Subscribing,
    Hearing,
}

enum Asked {
    Place,
    Claim,
    Release,
}

struct Places {
    owner: String,
    lock: String,
    lease_ms: String,
    state: State,
    unanswered: VecDeque<Asked>,
}

impl Places {
    fn ask(&mut self, io: &mut Io) {
        self.unanswered.push_back(Asked::Place);
        let (lock, owner) = (self.lock.as_str(), self.owner.as_str());
        io.send(
            COMMANDS,
            &[
                "LOCK.ACQUIRE",
                lock,
                owner,
                "LEASE",
                &self.lease_ms,
                "QUEUE",
                PLACE_MS,
                owner,
            ],
        );
    }

    fn claim(&mut self, token: &str, io: &mut Io) {
        self.unanswered.push_back(Asked::Claim);
        let (lock, owner) = (self.lock.as_str(), self.owner.as_str());
        io.send(
            COMMANDS,
            &[
                "LOCK.RENEW",
                lock,
                owner,
                "LEASE",
                &self.lease_ms,
                "FENCE",
                token,
            ],
        );
    }

    fn on_message(&mut self, reply: Reply, io: &mut Io) -> Result<Option<Event>> {
        match (&self.state, &reply) {
            (State::Subscribing, Reply::Array(_)) => {
                self.state = State::Hearing;
                self.ask(io);
                Ok(None)
            }
            (State::Hearing, Reply::Array(parts)) => match parts.last() {
                Some(Reply::BulkString(message)) => {
                    let message = String::from_utf8_lossy(message);
                    self.claim(told(&message), io);
                    Ok(Some(Event::Held))
                }
                _ => unexpected(&reply),
            },
            _ => unexpected(&reply),
        }
    }
}

impl LockClient for Places {
    fn acquire(&mut self, lock: &str, lease: Duration, io: &mut Io) {
        self.lock = lock.into();
        self.lease_ms = lease.as_millis().to_string();
        if self.state == State::Hearing {
            self.ask(io);
        } else {
            self.state = State::Subscribing;
            io.send(MESSAGES, &["SUBSCRIBE", &self.owner]);
        }
    }

    fn release(&mut self, io: &mut Io) {
        self.unanswered.push_back(Asked::Release);
        io.send(COMMANDS, &["LOCK.RELEASE", &self.lock, &self.owner]);
    }

    fn on_reply(&mut self, connection: usize, reply: Reply, io: &mut Io) -> Result<Option<Event>> {
        if connection == MESSAGES {
            return self.on_message(reply, io);
        }
        match (self.unanswered.pop_front(), reply) {
            (Some(Asked::Place), Reply::Integer(0)) | (Some(Asked::Claim), Reply::Integer(1)) => {
                Ok(None)
            }
            (Some(Asked::Place), Reply::Integer(_)) => Ok(Some(Event::Held)),
            (Some(Asked::Release), Reply::Integer(1)) => Ok(Some(Event::Released)),
            (_, reply) => unexpected(&reply),
        }
    }

    fn is_settled(&self) -> bool {
        self.state != State::Subscribing && self.unanswered.is_empty()
    }
}
