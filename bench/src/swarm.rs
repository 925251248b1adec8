//! Many lock clients in one thread: sockets that don't block, one `epoll`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use mio::net::TcpStream;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use redis_lock_testing::Connection;

use crate::protocols::{Event, Io, LockClient, Protocol, owner_name};
use crate::replies::{CHUNK, ReplyBuffer};

/// Longer than anything that a workload waits for.
const STUCK_AFTER: Duration = Duration::from_secs(40);
const TIMER: Token = Token(usize::MAX);

/// What happened to one of the clients, and when.
pub struct Happened {
    /// Which client.
    pub client: usize,
    /// What.
    pub event: Event,
    /// When its reply had been read.
    pub at: Instant,
}

struct Socket {
    stream: TcpStream,
    replies: ReplyBuffer,
}

struct Member {
    client: Box<dyn LockClient>,
    sockets: Vec<Socket>,
    io: Io,
    armed: Option<Instant>,
}

/// The clients of a workload.
pub struct Swarm {
    poll: Poll,
    events: Events,
    members: Vec<Member>,
    connections: usize,
    /// When whose timer rings. An entry whose member has since changed its mind
    /// is passed over.
    timers: BinaryHeap<Reverse<(Instant, usize)>>,
    timer: TimerFd,
    timer_set_to: Option<Instant>,
    control: Connection,
    /// Round trips made to see that everybody waits; not part of any lock.
    pub control_pings: u64,
}

impl Swarm {
    /// Connects `count` clients, each an owner of its own.
    pub fn connect(addr: SocketAddr, protocol: &Protocol, count: usize) -> Result<Self> {
        let poll = Poll::new()?;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_NONBLOCK)?;
        poll.registry().register(
            &mut SourceFd(&timer.as_fd().as_raw_fd()),
            TIMER,
            Interest::READABLE,
        )?;
        let mut swarm = Self {
            poll,
            events: Events::with_capacity(256),
            members: Vec::with_capacity(count),
            connections: protocol.connections,
            timers: BinaryHeap::new(),
            timer,
            timer_set_to: None,
            control: Connection::open(addr)?,
            control_pings: 0,
        };
        for n in 0..count {
            let sockets = (0..protocol.connections)
                .map(|connection| swarm.open(addr, n * protocol.connections + connection))
                .collect::<Result<_>>()?;
            swarm.members.push(Member {
                client: (protocol.client)(owner_name(n)),
                sockets,
                io: Io::default(),
                armed: None,
            });
        }
        Ok(swarm)
    }

    fn open(&self, addr: SocketAddr, token: usize) -> Result<Socket> {
        // Connected at leisure: a backlog of thousands would be refused.
        let stream = std::net::TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let mut stream = TcpStream::from_std(stream);
        self.poll
            .registry()
            .register(&mut stream, Token(token), Interest::READABLE)?;
        Ok(Socket {
            stream,
            replies: ReplyBuffer::default(),
        })
    }

    /// A client begins to take a lock.
    pub fn acquire(&mut self, n: usize, lock: &str, lease: Duration) -> Result<()> {
        let member = &mut self.members[n];
        member.client.acquire(lock, lease, &mut member.io);
        self.flush(n)
    }

    /// A client begins to give its lock back.
    pub fn release(&mut self, n: usize) -> Result<()> {
        let member = &mut self.members[n];
        member.client.release(&mut member.io);
        self.flush(n)
    }

    /// Closes a client's connections, as its death would.
    pub fn kill(&mut self, n: usize) {
        self.members[n].sockets.clear();
        self.members[n].armed = None;
    }

    fn flush(&mut self, n: usize) -> Result<()> {
        let member = &mut self.members[n];
        for (out, socket) in member.io.out.iter_mut().zip(&mut member.sockets) {
            // Commands are far smaller than a socket's buffer.
            if !out.is_empty() {
                socket.stream.write_all(out)?;
                out.clear();
            }
        }
        if member.io.timer != member.armed {
            member.armed = member.io.timer;
            if let Some(at) = member.armed {
                self.timers.push(Reverse((at, n)));
            }
        }
        Ok(())
    }

    /// Waits for something to happen, until `deadline` at most.
    pub fn next(&mut self, deadline: Option<Instant>, happened: &mut Vec<Happened>) -> Result<()> {
        let first_timer = self.first_timer();
        let wake_at = [first_timer, deadline].into_iter().flatten().min();
        let now = Instant::now();
        let timeout = match wake_at {
            Some(at) if at <= now => Some(Duration::ZERO),
            at if at == self.timer_set_to => None,
            Some(at) => {
                self.timer_set_to = wake_at;
                let delay = TimeSpec::from_duration(at - now);
                self.timer
                    .set(Expiration::OneShot(delay), TimerSetTimeFlags::empty())?;
                None
            }
            None => Some(STUCK_AFTER),
        };
        match self.poll.poll(&mut self.events, timeout) {
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(()),
            result => result?,
        }
        if self.events.is_empty() && wake_at.is_none() {
            bail!("nothing happens any more: a waiter was forgotten");
        }
        let tokens: Vec<Token> = self.events.iter().map(mio::event::Event::token).collect();
        for token in tokens {
            if token == TIMER {
                // Nothing to read if it has been set anew since it rang.
                let _ = self.timer.wait();
                self.timer_set_to = None;
            } else {
                let (n, connection) = (token.0 / self.connections, token.0 % self.connections);
                self.read(n, connection, happened)?;
            }
        }
        self.ring()
    }

    fn first_timer(&mut self) -> Option<Instant> {
        while let Some(&Reverse((at, n))) = self.timers.peek() {
            if self.members[n].armed == Some(at) {
                return Some(at);
            }
            self.timers.pop();
        }
        None
    }

    fn ring(&mut self) -> Result<()> {
        let now = Instant::now();
        while let Some(at) = self.first_timer()
            && at <= now
            && let Some(Reverse((_, n))) = self.timers.pop()
        {
            let member = &mut self.members[n];
            member.armed = None;
            member.io.timer = None;
            member.client.on_timer(&mut member.io);
            self.flush(n)?;
        }
        Ok(())
    }

    fn read(&mut self, n: usize, connection: usize, happened: &mut Vec<Happened>) -> Result<()> {
        let member = &mut self.members[n];
        loop {
            let Some(socket) = member.sockets.get_mut(connection) else {
                return Ok(());
            };
            let read = match socket.replies.read_from(&mut socket.stream) {
                Ok(0) => bail!("the server hung up"),
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            };
            let at = Instant::now();
            while let Some(reply) = member.sockets[connection].replies.next()? {
                if let Some(event) = member.client.on_reply(connection, reply, &mut member.io)? {
                    happened.push(Happened {
                        client: n,
                        event,
                        at,
                    });
                }
            }
            if read < CHUNK {
                break;
            }
        }
        self.flush(n)
    }

    /// Returns when the server has seen all that was sent and every client waits.
    pub fn settle(&mut self, happened: &mut Vec<Happened>) -> Result<()> {
        loop {
            // What was sent before the first round trip has been read by the
            // server when the second one ends.
            self.control.call(&["PING"])?;
            self.control.call(&["PING"])?;
            self.control_pings += 2;
            self.next(Some(Instant::now()), happened)?;
            if self.events.is_empty() && self.members.iter().all(|m| m.client.is_settled()) {
                return Ok(());
            }
            while !self.members.iter().all(|m| m.client.is_settled()) {
                self.next(None, happened)?;
            }
        }
    }
}
