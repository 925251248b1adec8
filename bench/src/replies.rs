//! Replies of many connections, decoded as they come.

use std::io::Read;

use anyhow::{Context, Result, bail};
use redis_protocol::resp2::decode::decode;
pub use redis_protocol::resp2::types::OwnedFrame as Reply;

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

    /// Waits for the next reply. An error reply is an error.
    pub fn await_next(&mut self, socket: &mut impl Read) -> Result<Reply> {
        loop {
            match self.next()? {
                Some(Reply::Error(error)) => bail!("{error}"),
                Some(reply) => return Ok(reply),
                None => {}
            }
            if self.read_from(socket).context("no reply from the server")? == 0 {
                bail!("the server hung up");
            }
        }
    }
}
