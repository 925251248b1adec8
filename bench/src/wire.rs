//! RESP over TCP: packed commands, decoded replies, and a blocking connection.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use redis_protocol::resp2::decode::decode;
pub use redis_protocol::resp2::types::OwnedFrame as Reply;

const REPLY_WITHIN: Duration = Duration::from_secs(30);

/// A command as it goes over the wire.
pub fn pack<W: AsRef<[u8]>>(words: &[W]) -> Vec<u8> {
    let mut command = redis::Cmd::new();
    for word in words {
        command.arg(word.as_ref());
    }
    command.get_packed_command()
}

/// How much is read at once. A read of less has emptied the socket.
pub const CHUNK: usize = 4 * 1024;

/// Bytes received and not yet decoded.
#[derive(Default)]
pub struct ReplyBuffer {
    bytes: Vec<u8>,
    decoded: usize,
}

impl ReplyBuffer {
    /// Reads once from a socket. No bytes means that the server hung up.
    pub fn read_from(&mut self, socket: &mut impl Read) -> std::io::Result<usize> {
        self.bytes.drain(..self.decoded);
        self.decoded = 0;
        let len = self.bytes.len();
        self.bytes.resize(len + CHUNK, 0);
        let read = socket.read(&mut self.bytes[len..]);
        self.bytes
            .truncate(len + read.as_ref().copied().unwrap_or(0));
        read
    }

    /// The next whole reply.
    pub fn next(&mut self) -> Result<Option<Reply>> {
        if self.decoded == self.bytes.len() {
            return Ok(None);
        }
        let Some((reply, len)) = decode(&self.bytes[self.decoded..])? else {
            return Ok(None);
        };
        self.decoded += len;
        Ok(Some(reply))
    }
}

/// A connection that waits for its replies.
pub struct Connection {
    stream: TcpStream,
    replies: ReplyBuffer,
}

impl Connection {
    /// Connects.
    pub fn open(addr: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(REPLY_WITHIN))?;
        Ok(Self {
            stream,
            replies: ReplyBuffer::default(),
        })
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.stream.write_all(bytes)?)
    }

    /// The next reply. An error reply is an error.
    pub fn reply(&mut self) -> Result<Reply> {
        loop {
            if let Some(reply) = self.replies.next()? {
                return match reply {
                    Reply::Error(error) => bail!("{error}"),
                    reply => Ok(reply),
                };
            }
            let read = self.replies.read_from(&mut self.stream);
            if read.context("no reply from the server")? == 0 {
                bail!("the server hung up");
            }
        }
    }

    /// Sends a command and waits for its reply.
    pub fn call<W: AsRef<[u8]>>(&mut self, words: &[W]) -> Result<Reply> {
        self.send(&pack(words))?;
        self.reply()
    }

    /// A field of `INFO`, as text.
    pub fn info_text(&mut self, field: &str) -> Result<String> {
        let Reply::BulkString(info) = self.call(&["INFO", "everything"])? else {
            bail!("INFO did not answer text");
        };
        let info = String::from_utf8(info)?;
        let value = info
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        Ok(value
            .with_context(|| format!("INFO has no {field}"))?
            .into())
    }

    /// A number from `INFO`.
    pub fn info(&mut self, field: &str) -> Result<i64> {
        let text = self.info_text(field)?;
        text.parse()
            .with_context(|| format!("{field}:{text} is no number"))
    }
}
