//! A connection that sends one command at a time and never waits unasked.

use std::io::{self, ErrorKind, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use redis::{Parser, Value};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(50);
const REST_OF_REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// How the wait for a reply ended.
pub enum Wait {
    /// With the reply.
    Replied(Value),
    /// With the connection.
    Closed,
    /// With the patience of the client.
    GivenUp,
}

/// A connection.
pub struct Connection {
    stream: TcpStream,
    parser: Parser,
}

impl Drop for Connection {
    /// Ends the connection now. A process that is being started may have the
    /// socket for a moment, too, and would keep it open.
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Connection {
    /// Connects to a port of this machine.
    pub fn open(port: u16) -> io::Result<Self> {
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let stream = TcpStream::connect_timeout(&addr, CONNECT_TIMEOUT)?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            parser: Parser::new(),
        })
    }

    /// Sends a command.
    pub fn send(&mut self, words: &[impl AsRef<[u8]>]) -> io::Result<()> {
        self.stream.write_all(&packed(words))
    }

    /// Sends some commands at once.
    pub fn send_all(&mut self, lines: &[Vec<&str>]) -> io::Result<()> {
        let packed: Vec<u8> = lines.iter().flat_map(|line| packed(line)).collect();
        self.stream.write_all(&packed)
    }

    /// Waits for the reply as long as `patient` says.
    pub fn wait(&mut self, mut patient: impl FnMut() -> bool) -> Wait {
        while patient() {
            match self.has_more() {
                Ok(true) => return self.read(),
                Ok(false) => {}
                Err(_) => return Wait::Closed,
            }
        }
        Wait::GivenUp
    }

    /// Waits for the last of so many replies as long as `patient` says, and no
    /// longer for the others when the first has come.
    pub fn wait_for(&mut self, replies: usize, patient: impl FnMut() -> bool) -> Wait {
        let mut last = self.wait(patient);
        for _ in 1..replies {
            if matches!(last, Wait::Replied(_)) {
                last = self.read();
            }
        }
        last
    }

    /// Whether a reply is there, or the connection closed.
    pub fn has_reply(&self) -> bool {
        !matches!(self.has_more(), Ok(false))
    }

    fn has_more(&self) -> io::Result<bool> {
        self.stream.set_read_timeout(Some(LOOK_EVERY))?;
        match self.stream.peek(&mut [0]) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(true),
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => Ok(false),
                _ => Err(error),
            },
        }
    }

    fn read(&mut self) -> Wait {
        let timeout = self.stream.set_read_timeout(Some(REST_OF_REPLY_TIMEOUT));
        match timeout.map(|()| self.parser.parse_value(&self.stream)) {
            Ok(Ok(value)) => Wait::Replied(value),
            _ => Wait::Closed,
        }
    }

    /// Sends a command and waits for its reply.
    pub fn call(
        &mut self,
        words: &[impl AsRef<[u8]>],
        patient: impl FnMut() -> bool,
    ) -> Option<Value> {
        self.send(words).ok()?;
        match self.wait(patient) {
            Wait::Replied(value) => Some(value),
            Wait::Closed | Wait::GivenUp => None,
        }
    }
}

fn packed(words: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut command = redis::Cmd::new();
    for word in words {
        command.arg(word.as_ref());
    }
    command.get_packed_command()
}

/// A reply that is text.
pub fn text(reply: Value) -> Option<String> {
    match reply {
        Value::BulkString(text) => String::from_utf8(text).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text),
        _ => None,
    }
}
