//! Servers of our own: one process each, on a free port, gone with the run.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;
use redis_lock_testing::{self as testing, Connection, Setup};

use crate::placement::{Placement, Processors};

/// What every server of the run has in common.
pub struct Launcher {
    /// The server, with the module.
    pub setup: Setup,
    /// Where they run.
    pub processors: Processors,
}

/// A running server.
pub struct Server {
    _replica: Option<testing::Server>,
    server: testing::Server,
    cpu_clock: ClockId,
}

/// What a server does besides answering.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Duty {
    /// Nothing.
    MemoryOnly,
    /// It feeds a replica.
    Replicated,
    /// It writes an append-only file, synced every second, and feeds a replica.
    Durable,
}

impl Launcher {
    /// Starts a server, with or without the module.
    pub fn start(&self, with_module: bool, duty: Duty, placement: Placement) -> Result<Server> {
        let has_replica = duty != Duty::MemoryOnly;
        let mut setup = self.setup.clone().options(&["--maxclients", "15000"]);
        setup.module.take_if(|_| !with_module);
        // The replica is another machine's work: not on the server's processor.
        let mut replica = setup.clone();
        replica.processor = Some(self.processors.of(Placement::Together));
        setup.processor = Some(self.processors.of(placement));
        if duty == Duty::Durable {
            setup = setup.options(&["--appendonly", "yes", "--appendfsync", "everysec"]);
        }
        let server = testing::Server::start(setup)?;
        let pid = server.pid().context("the server has ended")?;
        Ok(Server {
            cpu_clock: clock_getcpuclockid(Pid::from_raw(pid.cast_signed()))?,
            _replica: has_replica.then(|| server.replica(replica)).transpose()?,
            server,
        })
    }
}

impl Server {
    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.server.addr()
    }

    /// A new connection.
    pub fn connect(&self) -> Result<Connection> {
        Ok(self.server.connect()?)
    }

    /// The CPU time that the whole process has used, all its threads together.
    pub fn cpu_time(&self) -> Result<Duration> {
        Ok(self.cpu_clock.now()?.into())
    }
}
