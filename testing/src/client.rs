use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use redis::{Parser, Value};
use rustix::buffer::spare_capacity;
use rustix::event::epoll;

use super::SOON;

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
///
/// # Panics
/// If it is none.
#[track_caller]
pub fn token(reply: &Value) -> i64 {
    match reply {
        Value::Int(token) => *token,
        other => panic!("{other:?} is no token"),
    }
}

/// One connection. It sends commands and reads replies, each by itself, so
/// that a test decides when to wait.
pub struct Client {
    stream: TcpStream,
    parser: Parser,
}

impl Client {
    /// Connects, if somebody listens.
    pub fn try_connect(addr: SocketAddr) -> Option<Self> {
        let stream = TcpStream::connect(addr).ok()?;
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(3 * SOON)).unwrap();
        Some(Self {
            stream,
            parser: Parser::new(),
        })
    }

    /// Sends a command, given as words between spaces.
    pub fn send(&mut self, command: &str) {
        let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
        self.send_words(&words);
    }

    /// Sends a command of any bytes.
    pub fn send_words(&mut self, words: &[&[u8]]) {
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(*word);
        }
        self.send_bytes(&command.get_packed_command());
    }

    /// Sends bytes as they are.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        use std::io::Write;
        // A server that has gone shows when its reply is read.
        let _ = self.stream.write_all(bytes);
    }

    /// The next reply. Fails the test if none comes.
    #[track_caller]
    pub fn reply(&mut self) -> Value {
        self.try_reply().expect("a reply")
    }

    /// The next reply, or none if the connection has ended.
    pub fn try_reply(&mut self) -> Option<Value> {
        self.parser.parse_value(&self.stream).ok()
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
        match self.call(command) {
            Value::BulkString(text) => String::from_utf8(text).unwrap(),
            Value::VerbatimString { text, .. } => text,
            other => panic!("{command}: {other:?} is not text"),
        }
    }

    /// Sends a command that must fail. Returns its error, the code first.
    #[track_caller]
    pub fn error(&mut self, command: &str) -> String {
        let reply = self.call(command);
        error_text(&reply).unwrap_or_else(|| panic!("{command}: {reply:?} is no error"))
    }

    /// The next reply, which must be an error.
    #[track_caller]
    pub fn reply_error(&mut self) -> String {
        let reply = self.reply();
        error_text(&reply).unwrap_or_else(|| panic!("{reply:?} is no error"))
    }

    /// A number from `INFO`.
    #[track_caller]
    pub fn info(&mut self, field: &str) -> i64 {
        self.try_info(field)
            .unwrap_or_else(|| panic!("INFO has no number {field}"))
    }

    /// A number from `INFO`, if the server answers and has it.
    pub fn try_info(&mut self, field: &str) -> Option<i64> {
        self.send("INFO everything");
        let info = match self.try_reply()? {
            Value::BulkString(info) => String::from_utf8(info).ok()?,
            Value::VerbatimString { text, .. } => text,
            _ => return None,
        };
        let prefix = format!("{field}:");
        info.lines()
            .find_map(|line| line.strip_prefix(&prefix))
            .and_then(|value| value.trim().parse().ok())
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

    /// Waits until the server's memory is back to what it was, and a hundredth.
    /// The server keeps the reply buffers of blocked clients in a pool, which it
    /// empties by fifty every tenth of a second: 10,000 waiters take forty seconds.
    #[track_caller]
    pub fn assert_memory_back(&mut self, before: i64) {
        let mut now = i64::MAX;
        let back = "used_memory is back where it was";
        super::eventually_within(std::time::Duration::from_secs(180), back, || {
            if now < i64::MAX {
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
            now = self.used_memory();
            now <= before + before / 100
        });
    }

    /// The fields of a hash, sorted.
    #[track_caller]
    pub fn hash(&mut self, key: &str) -> Vec<(String, String)> {
        let Value::Array(flat) = self.call(&format!("HGETALL {key}")) else {
            panic!("HGETALL did not answer a list");
        };
        let mut words = flat.into_iter().map(|word| match word {
            Value::BulkString(word) => String::from_utf8_lossy(&word).into_owned(),
            other => panic!("{other:?} is not text"),
        });
        let mut fields = Vec::new();
        while let (Some(name), Some(value)) = (words.next(), words.next()) {
            fields.push((name, value));
        }
        fields.sort();
        fields
    }

    /// Reads past the RDB file with which a server answers `SYNC`.
    pub fn skip_snapshot(&mut self) {
        use std::io::Read;
        let mut header = String::new();
        let mut byte = [0];
        // The server sends empty lines while it prepares the file.
        while !(header.starts_with('$') && header.ends_with('\n')) {
            self.stream.read_exact(&mut byte).unwrap();
            if header.is_empty() && byte[0] == b'\n' {
                continue;
            }
            header.push(byte[0].into());
        }
        let header = header[1..].trim_end();
        if let Some(mark) = header.strip_prefix("EOF:") {
            let mut tail = Vec::new();
            while !tail.ends_with(mark.as_bytes()) {
                self.stream.read_exact(&mut byte).unwrap();
                tail.push(byte[0]);
            }
        } else {
            let mut snapshot = vec![0; header.parse().unwrap()];
            self.stream.read_exact(&mut snapshot).unwrap();
        }
    }

    /// Sends a command that must block, and waits until one client more is
    /// blocked than before.
    #[track_caller]
    pub fn send_and_block(&mut self, observer: &mut Self, command: &str) {
        let before = observer.info("blocked_clients");
        self.send(command);
        super::eventually("the client is blocked", || {
            observer.info("blocked_clients") == before + 1
        });
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
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
            epoll::add(&epoll, client, data, epoll::EventFlags::IN).unwrap();
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

impl Drop for Client {
    /// Ends the connection now. A child process that another test is starting may
    /// have the socket for a moment, too, and would keep it open.
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

fn error_text(reply: &Value) -> Option<String> {
    let Value::ServerError(error) = reply else {
        return None;
    };
    Some(format!(
        "{} {}",
        error.code(),
        error.details().unwrap_or_default()
    ))
}
