use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;

use redis::{PushKind, Value};
use rustix::buffer::spare_capacity;
use rustix::event::epoll;

use crate::{Connection, Told, pack, reply_text};

/// An integer reply.
pub fn int(n: i64) -> Value {
    Value::Int(n)
}

/// The null reply.
pub fn nil() -> Value {
    Value::Nil
}

/// A status reply.
pub fn status(text: &str) -> Value {
    match text {
        "OK" => Value::Okay,
        _ => Value::SimpleString(text.into()),
    }
}

/// A bulk string.
pub fn text(text: impl AsRef<[u8]>) -> Value {
    Value::BulkString(text.as_ref().to_vec())
}

/// The fencing token in a reply, which must be one.
#[track_caller]
pub fn token(reply: &Value) -> i64 {
    match reply {
        Value::Int(token) => *token,
        other => panic!("{other:?} is no token"),
    }
}

/// A connection that panics where a [`Connection`] returns an error, and takes
/// commands as a line. In RESP3 it also hears what is published, and keeps that apart
/// from replies.
pub struct Client {
    connection: Connection,
    pushed: VecDeque<(PushKind, Vec<Value>)>,
}

impl Deref for Client {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl DerefMut for Client {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

impl Client {
    /// Connects, if somebody listens.
    pub fn try_connect(addr: SocketAddr) -> Option<Self> {
        let connection = Connection::open(addr).ok()?;
        let pushed = VecDeque::new();
        Some(Self { connection, pushed })
    }

    /// Has it speak RESP3.
    #[track_caller]
    pub fn in_resp3(mut self) -> Self {
        assert!(matches!(self.call("HELLO 3"), Value::Map(_)));
        self
    }

    /// Sends a command, given as words between spaces.
    pub fn send(&mut self, command: &str) {
        let words: Vec<&str> = command.split(' ').collect();
        self.send_bytes(&pack(&words));
    }

    /// Sends a command of any bytes.
    pub fn send_words(&mut self, words: &[&[u8]]) {
        self.send_bytes(&pack(words));
    }

    /// Sends bytes as they are.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        // A server that has gone shows when its reply is read.
        let _ = self.connection.send_bytes(bytes);
    }

    /// The next reply. Fails the test if none comes.
    #[track_caller]
    pub fn reply(&mut self) -> Value {
        self.try_reply().expect("a reply")
    }

    /// The next reply, or none if the connection has ended.
    pub fn try_reply(&mut self) -> Option<Value> {
        loop {
            match self.connection.reply().ok()? {
                Value::Push { kind, data } => self.pushed.push_back((kind, data)),
                reply => return Some(reply),
            }
        }
    }

    /// Subscribes, by `SUBSCRIBE` or another such command.
    #[track_caller]
    pub fn subscribe(&mut self, command: &str) {
        use PushKind::{PSubscribe, SSubscribe, Subscribe};
        self.send(command);
        let (kind, data) = self.pushed();
        let is_it = matches!(kind, Subscribe | SSubscribe | PSubscribe);
        assert!(is_it, "{command}: {kind:?} {data:?}");
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
        match self.connection.reply().ok()? {
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

    /// Sends a command and reads its reply.
    #[track_caller]
    pub fn call(&mut self, command: &str) -> Value {
        self.send(command);
        self.reply()
    }

    /// As [`Client::call`], for any bytes.
    #[track_caller]
    pub fn words(&mut self, words: &[&[u8]]) -> Value {
        self.send_words(words);
        self.reply()
    }

    /// Sends a command that must answer an integer.
    #[track_caller]
    pub fn int(&mut self, command: &str) -> i64 {
        match self.call(command) {
            Value::Int(n) => n,
            other => panic!("{command}: {other:?} is not an integer"),
        }
    }

    /// Sends a command that must answer text.
    #[track_caller]
    pub fn bulk(&mut self, command: &str) -> String {
        let reply = self.call(command);
        reply_text(reply.clone()).unwrap_or_else(|| panic!("{command}: {reply:?} is not text"))
    }

    /// Sends a command that must fail. Returns its error, the code first.
    #[track_caller]
    pub fn error(&mut self, command: &str) -> String {
        self.send(command);
        self.reply_error()
    }

    /// The next reply, which must be an error.
    #[track_caller]
    pub fn reply_error(&mut self) -> String {
        match self.reply() {
            Value::ServerError(error) => {
                format!("{} {}", error.code(), error.details().unwrap_or_default())
            }
            other => panic!("{other:?} is no error"),
        }
    }

    /// A number from `INFO`.
    #[track_caller]
    pub fn info(&mut self, field: &str) -> i64 {
        self.connection.info(field).expect("a number")
    }

    /// The server's memory, once what it frees in the background is freed.
    #[track_caller]
    pub fn used_memory(&mut self) -> i64 {
        self.call("MEMORY PURGE");
        super::eventually("nothing is left to free in the background", || {
            self.info("lazyfree_pending_objects") == 0
        });
        self.info("used_memory")
    }

    /// Waits until the server's memory is back to what it was, and at most 128 KB more: a
    /// test has enough things come and go for this to be a few bytes of each.
    /// The server keeps the reply buffers of blocked clients in a pool, which it
    /// empties by fifty every tenth of a second: 10,000 waiters take forty seconds. Some of
    /// them, of 40 KB each, stay.
    #[track_caller]
    pub fn assert_memory_back(&mut self, before: i64) {
        let mut now = i64::MAX;
        let back = "used_memory is back where it was";
        super::eventually_within(std::time::Duration::from_secs(180), back, || {
            if now < i64::MAX {
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
            now = self.used_memory();
            now <= before + 128 * 1024
        });
    }
}

/// Tells which of several clients got something to read first. The kernel keeps
/// a list of those that can be read, in the order in which they came to be.
pub struct Arrivals {
    epoll: OwnedFd,
    count: usize,
}

impl Arrivals {
    /// Watches clients that have nothing to read yet.
    pub fn at(clients: &[Client]) -> Self {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        for (client, n) in clients.iter().zip(0..) {
            let data = epoll::EventData::new_u64(n);
            epoll::add(&epoll, &**client, data, epoll::EventFlags::IN).unwrap();
        }
        let count = clients.len();
        Self { epoll, count }
    }

    /// Their places in the slice, first come first. All must have come.
    #[track_caller]
    pub fn in_order(self) -> Vec<u64> {
        let mut events = Vec::with_capacity(self.count);
        epoll::wait(&self.epoll, spare_capacity(&mut events), None).unwrap();
        assert_eq!(events.len(), self.count, "not all have come");
        events.iter().map(|event| event.data.u64()).collect()
    }
}

#[track_caller]
fn read(data: &[Value]) -> Told {
    Told::of_push(data).unwrap_or_else(|| panic!("{data:?} is no message"))
}
