use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

use redis::{PushKind, Value};

use super::{Client, TestServer, status};
use crate::Told;

impl Told {
    /// Reads a message.
    #[track_caller]
    pub fn read(channel: &[u8], message: &[u8]) -> Self {
        Self::parse(channel, message)
            .unwrap_or_else(|| panic!("{message:?} is not of five netstrings"))
    }

    /// The token of a grant.
    #[track_caller]
    pub fn token(&self) -> i64 {
        match self.result.parse() {
            Ok(token) if token > 0 => token,
            _ => panic!("{self:?} is no grant"),
        }
    }
}

/// A connection that sends commands and hears what is published: it speaks RESP3.
pub struct Subscriber {
    client: Client,
    pushed: VecDeque<(PushKind, Vec<Value>)>,
}

impl Deref for Subscriber {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl DerefMut for Subscriber {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}

impl Subscriber {
    /// Has this connection hear messages.
    #[track_caller]
    pub fn at(client: Client) -> Self {
        let mut subscriber = Self::plain(client);
        assert!(matches!(subscriber.call("HELLO 3"), Value::Map(_)));
        subscriber
    }

    /// A connection that hears nothing so far.
    pub(super) fn plain(client: Client) -> Self {
        let pushed = VecDeque::new();
        Self { client, pushed }
    }

    /// Has this connection hear messages, too.
    #[track_caller]
    pub(super) fn hear(&mut self, command: &str) {
        assert!(matches!(self.call("HELLO 3"), Value::Map(_)));
        self.subscribe(command);
    }

    /// Subscribes, by `SUBSCRIBE` or another such command.
    #[track_caller]
    pub fn subscribe(&mut self, command: &str) {
        self.client.send(command);
        let (kind, data) = self.pushed();
        let is_it = matches!(
            kind,
            PushKind::Subscribe | PushKind::SSubscribe | PushKind::PSubscribe
        );
        assert!(is_it, "{command}: {kind:?} {data:?}");
    }

    /// The next reply. What is pushed meanwhile is kept.
    #[track_caller]
    pub fn reply(&mut self) -> Value {
        self.try_reply().expect("a reply")
    }

    /// The same, or none if the connection has ended.
    pub fn try_reply(&mut self) -> Option<Value> {
        loop {
            match self.client.try_reply()? {
                Value::Push { kind, data } => self.pushed.push_back((kind, data)),
                reply => return Some(reply),
            }
        }
    }

    /// Sends a command and reads its reply.
    #[track_caller]
    pub fn call(&mut self, command: &str) -> Value {
        self.client.send(command);
        self.reply()
    }

    /// The next that is pushed.
    #[track_caller]
    pub fn pushed(&mut self) -> (PushKind, Vec<Value>) {
        self.try_pushed().expect("something is pushed")
    }

    #[track_caller]
    fn try_pushed(&mut self) -> Option<(PushKind, Vec<Value>)> {
        if let Some(pushed) = self.pushed.pop_front() {
            return Some(pushed);
        }
        match self.client.try_reply()? {
            Value::Push { kind, data } => Some((kind, data)),
            reply => panic!("{reply:?} is not pushed"),
        }
    }

    /// The next message.
    #[track_caller]
    pub fn told(&mut self) -> Told {
        self.try_told().expect("a message")
    }

    /// The same, or none if none comes.
    #[track_caller]
    pub(super) fn try_told(&mut self) -> Option<Told> {
        let (_, data) = self.try_pushed()?;
        Some(read(&data))
    }

    /// The next message, which tells this owner of a grant. Returns its token.
    #[track_caller]
    pub fn granted(&mut self, owner: &str) -> i64 {
        let told = self.told();
        assert_eq!(told.owner, owner, "{told:?}");
        told.token()
    }

    /// All messages that were published before this and not read.
    #[track_caller]
    pub fn told_so_far(&mut self) -> Vec<Told> {
        assert_eq!(self.call("PING"), status("PONG"));
        self.pushed.drain(..).map(|(_, data)| read(&data)).collect()
    }
}

#[track_caller]
fn read(data: &[Value]) -> Told {
    Told::of_push(data).unwrap_or_else(|| panic!("{data:?} is no message"))
}

impl TestServer {
    /// A new connection that hears this channel.
    #[track_caller]
    pub fn subscriber(&self, channel: &str) -> Subscriber {
        let mut subscriber = Subscriber::at(self.client());
        subscriber.subscribe(&format!("SUBSCRIBE {channel}"));
        subscriber
    }
}
