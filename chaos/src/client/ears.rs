//! What a client hears of its places, beside the replies to its commands.

use std::collections::VecDeque;

use redis::Value;
use redis_lock_testing::{Connection, Told, Wait};

use super::{Client, Connected};
use crate::clock;
use crate::history::Nanos;

/// A subscription to a channel of its own.
pub(crate) struct Ears {
    pub(super) channel: String,
    /// Where it was taken.
    node: usize,
    /// Who speaks RESP2 hears on a second connection.
    pub(crate) second: Option<Connection>,
    is_deaf: bool,
    told: VecDeque<(Nanos, Told)>,
}

impl Ears {
    /// Notes something that is no reply.
    pub(super) fn note(&mut self, heard: &Value) {
        let told = Told::of(heard).map(|told| (clock::now(), told));
        self.told.extend(told);
    }

    /// Notes what has come on the second connection.
    pub(super) fn listen(&mut self) {
        while let Some(second) = &mut self.second {
            match second.next_now() {
                Ok(Some(heard)) => self.note(&heard),
                Ok(None) => return,
                Err(_) => self.close(),
            }
        }
    }

    /// From now on nobody hears.
    pub(crate) fn close(&mut self) {
        self.second = None;
        self.is_deaf = true;
    }
}

impl Client {
    /// Opens a connection whose channel is heard, on the same connection with RESP3 and
    /// on a second one with RESP2. Returns whether that succeeds.
    pub(crate) fn open_ears(&mut self, in_resp3: bool) -> bool {
        let mut first = self.connected();
        let prefix = &self.shared.prefix;
        let channel = format!("{prefix}client{}-{}", self.id, self.connections);
        let asked = clock::now();
        let patient = || clock::now() < self.patience(asked, None).0;
        let way = self.shared.guide.way(first.node, self.side);
        let mut second = None;
        let hearing = if in_resp3 {
            first.connection.call_while(&["HELLO", "3"], patient);
            Some(&mut first.connection)
        } else {
            second = Connection::open(way).ok();
            second.as_mut()
        };
        // In a cluster those hear of it who serve the lock.
        let subscribe = if prefix.is_empty() {
            "SUBSCRIBE"
        } else {
            "SSUBSCRIBE"
        };
        let heard = hearing.and_then(|one| one.call_while(&[subscribe, &channel], patient));
        if !matches!(heard, Some(Value::Push { .. } | Value::Array(_))) {
            return false;
        }
        first.hears = in_resp3;
        let node = first.node;
        self.connection = Some(first);
        self.ears = Some(Ears {
            channel,
            node,
            second,
            is_deaf: false,
            told: VecDeque::new(),
        });
        true
    }

    /// Notes the messages that have come by now.
    pub(super) fn listen(&mut self) {
        let Some(ears) = &mut self.ears else {
            return;
        };
        ears.listen();
        while let Some(Connected {
            connection,
            hears: true,
            ..
        }) = &mut self.connection
        {
            match connection.next_now() {
                Ok(Some(heard)) => ears.note(&heard),
                Ok(None) => return,
                Err(_) => {
                    self.connection = None;
                    ears.close();
                }
            }
        }
    }

    /// The next message, and when it came.
    pub(super) fn next_told(&mut self) -> Option<(Nanos, Told)> {
        self.ears.as_mut()?.told.pop_front()
    }

    /// Whether no more messages may come that say how the places of this client end.
    pub(super) fn is_deaf(&self) -> bool {
        let Some(ears) = &self.ears else {
            return true;
        };
        let has_moved = self.is_direct() && self.shared.guide.primary(0) != Some(ears.node);
        let hears = self.connection.as_ref().is_some_and(|one| one.hears);
        ears.is_deaf || has_moved || ears.second.is_none() && !hears
    }

    pub(super) fn close_ears(&mut self) {
        self.connection = None;
        self.ears = None;
    }
}

impl Connected {
    /// Waits for the last of `replies` replies. What is heard before them is noted.
    pub(super) fn wait_for(
        &mut self,
        replies: usize,
        ears: &mut Option<Ears>,
        mut patient: impl FnMut() -> bool,
    ) -> Wait {
        loop {
            let wait = self.connection.wait_for(replies, || {
                ears.iter_mut().for_each(Ears::listen);
                patient()
            });
            match (wait, &mut *ears) {
                (Wait::Replied(heard @ Value::Push { .. }), Some(ears)) => ears.note(&heard),
                (wait, _) => return wait,
            }
        }
    }
}
