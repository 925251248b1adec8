use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use redis::{PushKind, Value};
use rustix::buffer::spare_capacity;
use rustix::event::epoll;

use super::scene;
use crate::{Connection, Result, Told, reply_text};

/// A bulk string.
pub fn text(text: impl AsRef<[u8]>) -> Value {
    Value::BulkString(text.as_ref().to_vec())
}

/// Somebody who panics where a [`Connection`] returns an error, and takes commands as
/// lines, of words between spaces. What is pushed in RESP3 it keeps apart from replies.
pub struct Client {
    /// For all that this does not do.
    pub connection: Connection,
    pushed: VecDeque<Value>,
}

impl Client {
    /// Connects, if somebody listens.
    pub fn open(addr: SocketAddr) -> Result<Self> {
        let (connection, pushed) = (Connection::open(addr)?, VecDeque::new());
        Ok(Self { connection, pushed })
    }

    /// Has it speak RESP3.
    #[track_caller]
    pub fn in_resp3(mut self) -> Self {
        assert!(matches!(self.call("HELLO 3"), Value::Map(_)));
        self
    }

    /// Sends a command. That the server has gone shows when the reply is read.
    pub fn send(&mut self, command: &str) {
        let words: Vec<&str> = command.split(' ').collect();
        let _ = self.connection.send(&words);
    }

    /// The next reply.
    #[track_caller]
    pub fn reply(&mut self) -> Value {
        self.try_reply().expect("a reply")
    }

    /// The next reply, or none if the connection has ended.
    pub fn try_reply(&mut self) -> Option<Value> {
        loop {
            match self.connection.reply().ok()? {
                pushed @ Value::Push { .. } => self.pushed.push_back(pushed),
                reply => return Some(reply),
            }
        }
    }

    /// Sends a command and reads its reply.
    #[track_caller]
    pub fn call(&mut self, command: &str) -> Value {
        self.send(command);
        self.reply()
    }

    /// The same, for any bytes.
    #[track_caller]
    pub fn words(&mut self, words: &[&[u8]]) -> Value {
        self.connection.send(words).unwrap();
        self.reply()
    }

    /// The next reply, which must be an integer.
    #[track_caller]
    pub fn reply_int(&mut self) -> i64 {
        match self.reply() {
            Value::Int(number) => number,
            other => panic!("{other:?} is not an integer"),
        }
    }

    /// Sends a command that must answer an integer.
    #[track_caller]
    pub fn int(&mut self, command: &str) -> i64 {
        self.send(command);
        self.reply_int()
    }

    /// Sends a command that must answer text.
    #[track_caller]
    pub fn bulk(&mut self, command: &str) -> String {
        let reply = self.call(command);
        reply_text(reply.clone()).unwrap_or_else(|| panic!("{command}: {reply:?} is not text"))
    }

    /// The next reply, which must be an error. Returns it, the code first.
    #[track_caller]
    pub fn reply_error(&mut self) -> String {
        let shown = scene::shown(&self.reply());
        let error = shown.strip_prefix('!').map(String::from);
        error.unwrap_or_else(|| panic!("{shown} is no error"))
    }

    /// Sends a command that must fail.
    #[track_caller]
    pub fn error(&mut self, command: &str) -> String {
        self.send(command);
        self.reply_error()
    }

    /// Subscribes in RESP3, by `SUBSCRIBE` or another such command.
    #[track_caller]
    pub fn subscribe(&mut self, command: &str) {
        use PushKind::{PSubscribe, SSubscribe, Subscribe};
        self.call("HELLO 3");
        self.send(command);
        let pushed = self.pushed();
        let is_it = matches!(pushed.0, Subscribe | SSubscribe | PSubscribe);
        assert!(is_it, "{command}: {pushed:?}");
    }

    /// What was pushed and not read yet, or what comes next.
    pub(super) fn heard(&mut self) -> Result<Value> {
        let heard = self.pushed.pop_front();
        heard.map_or_else(|| self.connection.reply(), Ok)
    }

    /// The next that is pushed.
    #[track_caller]
    pub fn pushed(&mut self) -> (PushKind, Vec<Value>) {
        match self.heard().unwrap() {
            Value::Push { kind, data } => (kind, data),
            reply => panic!("{reply:?} is not pushed"),
        }
    }

    /// The next message.
    #[track_caller]
    pub fn told(&mut self) -> Told {
        let heard = self.heard().unwrap();
        Told::of(&heard).unwrap_or_else(|| panic!("{heard:?} is no message"))
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
        assert_eq!(self.bulk("PING"), "PONG");
        (0..self.pushed.len()).map(|_| self.told()).collect()
    }

    /// A number from `INFO`.
    #[track_caller]
    pub fn info(&mut self, field: &str) -> i64 {
        self.connection.info(field).unwrap()
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

    /// Waits until the server's memory is back to what it was, and at most 128 KB more: a test
    /// has enough things come and go for this to be a few bytes of each. The server keeps the
    /// reply buffers of blocked clients in a pool, which it empties by fifty every tenth of a
    /// second: 10,000 waiters take forty seconds. Some of them, of 40 KB each, stay.
    #[track_caller]
    pub fn assert_memory_back(&mut self, before: i64) {
        let back = "used_memory is back where it was";
        super::eventually_within(Duration::from_secs(180), back, || {
            std::thread::sleep(Duration::from_millis(100));
            self.used_memory() <= before + 128 * 1024
        });
    }
}

/// Which of these clients get something to read while this is done, by their places in the
/// slice, first come first: the kernel keeps a list of those that can be read, in the order
/// in which they came to be.
pub fn arrivals(clients: &[Client], done: impl FnOnce()) -> Vec<u64> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    for (client, n) in clients.iter().zip(0..) {
        let data = epoll::EventData::new_u64(n);
        epoll::add(&epoll, &client.connection, data, epoll::EventFlags::IN).unwrap();
    }
    done();
    let mut events = Vec::with_capacity(clients.len());
    epoll::wait(&epoll, spare_capacity(&mut events), None).unwrap();
    events.iter().map(|event| event.data.u64()).collect()
}
