//! A connection: commands out, raw replies in.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use anyhow::Context;
use redis::{Parser, Value};
use rustix::io::retry_on_intr;

use crate::{Result, SOON};

const REPLY_TIMEOUT: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A port of this machine.
pub fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// A command as it goes over the wire.
pub fn pack(words: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut command = redis::Cmd::new();
    for word in words {
        command.arg(word.as_ref());
    }
    command.get_packed_command()
}

/// A reply that is text.
pub fn reply_text(reply: Value) -> Option<String> {
    match reply {
        Value::BulkString(text) => String::from_utf8(text).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text),
        _ => None,
    }
}

/// The value of a field in what `INFO` answers.
pub fn info_field<'i>(info: &'i str, name: &str) -> Result<&'i str> {
    let value = |line: &'i str| line.strip_prefix(name)?.strip_prefix(':');
    let found = info.lines().find_map(value);
    found.with_context(|| format!("INFO has no {name}"))
}

/// A stream that is read on where a signal interrupts that.
struct Uninterrupted<'s>(&'s TcpStream);

impl Read for Uninterrupted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        Ok(retry_on_intr(|| rustix::io::read(self.0, &mut *buffer))?)
    }
}

/// One connection. It sends commands and reads replies, each by itself, so that
/// whoever uses it decides when to wait. It speaks RESP2 until a `HELLO 3`.
pub struct Connection {
    stream: TcpStream,
    parser: Parser,
}

impl Connection {
    /// Connects, if somebody listens.
    pub fn open(addr: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&addr, SOON)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        let parser = Parser::new();
        Ok(Self { stream, parser })
    }

    /// Where the other end is.
    pub fn addr(&self) -> Result<SocketAddr> {
        Ok(self.stream.peer_addr()?)
    }

    /// Sends bytes as they are.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.stream.write_all(bytes)?)
    }

    /// Sends a command.
    pub fn send(&mut self, words: &[impl AsRef<[u8]>]) -> Result<()> {
        self.send_bytes(&pack(words))
    }

    /// Sends some commands at once.
    pub fn send_all(&mut self, lines: &[Vec<impl AsRef<[u8]>>]) -> Result<()> {
        let packed: Vec<u8> = lines.iter().flat_map(|line| pack(line)).collect();
        self.send_bytes(&packed)
    }

    /// The next reply. One that is an error is a reply as well.
    pub fn reply(&mut self) -> Result<Value> {
        self.next_within(REPLY_TIMEOUT)?.context("no reply comes")
    }

    /// Sends a command and waits for its reply.
    pub fn call(&mut self, words: &[impl AsRef<[u8]>]) -> Result<Value> {
        self.send(words)?;
        self.reply()
    }

    /// As [`Connection::call`], where a reply that is an error is one here, too.
    pub fn call_ok(&mut self, words: &[impl AsRef<[u8]>]) -> Result<Value> {
        Ok(self.call(words)?.extract_error()?)
    }

    /// As [`Connection::call`], as long as `patient` says.
    pub fn call_while(
        &mut self,
        words: &[impl AsRef<[u8]>],
        patient: impl FnMut() -> bool,
    ) -> Option<Value> {
        self.send(words).ok()?;
        self.wait(1, patient).ok()?
    }

    /// Waits for the last of so many replies as long as `patient` says, and no longer for
    /// the others when the first has come. An error is the end of the connection.
    pub fn wait(
        &mut self,
        replies: usize,
        mut patient: impl FnMut() -> bool,
    ) -> Result<Option<Value>> {
        let mut last = None;
        while last.is_none() && patient() {
            last = self.next_within(LOOK_EVERY)?;
        }
        for _ in 1..replies {
            if last.is_some() {
                last = Some(self.next_within(SOON)?.context("the others do not come")?);
            }
        }
        Ok(last)
    }

    /// The next reply, if all of it is there within this time. What has come of it
    /// before is not lost.
    pub fn next_within(&mut self, within: Duration) -> Result<Option<Value>> {
        self.stream.set_read_timeout(Some(within))?;
        match self.parser.parse_value(Uninterrupted(&self.stream)) {
            Ok(reply) => Ok(Some(reply)),
            Err(error) if error.is_timeout() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether a reply is there, or the connection closed.
    pub fn has_reply(&self) -> bool {
        use ErrorKind::{Interrupted, TimedOut, WouldBlock};
        let looked = self.stream.set_read_timeout(Some(LOOK_EVERY));
        let peeked = looked.and_then(|()| self.stream.peek(&mut [0]));
        !peeked.is_err_and(|error| matches!(error.kind(), WouldBlock | TimedOut | Interrupted))
    }

    /// A section of `INFO`.
    pub fn info_section(&mut self, section: &str) -> Result<String> {
        let info = self.call(&["INFO", section])?;
        reply_text(info).context("INFO does not answer text")
    }

    /// A number from `INFO`; of `cmdstat_` and a command, how often it was called.
    pub fn info(&mut self, field: &str) -> Result<i64> {
        let info = self.info_section("everything")?;
        let value = info_field(&info, field)?.trim_start_matches("calls=");
        let number = value.split(',').next().unwrap_or(value);
        number.parse().with_context(|| format!("{field}:{number}"))
    }

    /// Reads this many bytes that are no replies.
    pub fn skip(&mut self, bytes: usize) -> Result<Vec<u8>> {
        let mut skipped = vec![0; bytes];
        self.stream.read_exact(&mut skipped)?;
        Ok(skipped)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Drop for Connection {
    /// Ends the connection now. A process that is being started may have the
    /// socket for a moment, too, and would keep it open.
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}
