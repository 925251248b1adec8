//! What a client hears of its places, beside the replies to its commands.

use std::collections::VecDeque;

use redis::{PushKind, Value};
use redis_lock_testing::{Connection, Told, Wait, local};

use super::{Client, Connected, Route};
use crate::clock;
use crate::history::Nanos;

/// A subscription to a channel of its own.
pub(super) struct Ears {
    pub(super) channel: String,
    /// Where it was taken.
    port: u16,
    /// Who speaks RESP2 hears on a second connection.
    second: Option<Connection>,
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
    pub(super) fn close(&mut self) {
        self.second = None;
        self.is_deaf = true;
    }
}

impl Client {
    /// Opens a connection whose channel is heard, on the same connection with RESP3 and
    /// on a second one with RESP2. Returns whether that succeeds.
    pub(super) fn open_ears(&mut self, in_resp3: bool) -> bool {
        let port = self.port();
        let mut first = self.connected();
        let channel = format!("client{}-{}", self.id, self.connections);
        let asked = clock::now();
        let patient = || clock::now() < self.patience(asked, None).0;
        let subscribe = ["SUBSCRIBE", &channel];
        let mut second = None;
        let is_heard = if in_resp3 {
            let spoken = first.connection.call_while(&["HELLO", "3"], patient);
            let heard = first.connection.call_while(&subscribe, patient);
            let subscribed =
                |heard| matches!(heard, Value::Push { kind, .. } if kind == PushKind::Subscribe);
            matches!(spoken, Some(Value::Map(_))) && heard.is_some_and(subscribed)
        } else {
            second = Connection::open(local(port)).ok();
            let heard = second
                .as_mut()
                .and_then(|second| second.call_while(&subscribe, patient));
            matches!(heard, Some(Value::Array(_)))
        };
        if !is_heard {
            return false;
        }
        first.hears = in_resp3;
        self.connection = Some(first);
        self.ears = Some(Ears {
            channel,
            port,
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
        let has_moved = matches!(self.route, Route::Direct(_)) && ears.port != self.port();
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
