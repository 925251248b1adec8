//! Servers of our own: one process each, on a free port, gone with the run.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::placement::Placement;
use crate::wire::Connection;

const START_WITHIN: Duration = Duration::from_secs(10);

/// What every server of the run has in common.
pub struct Launcher {
    /// The server's binary.
    pub binary: PathBuf,
    /// The module, loaded where a contender asks for it.
    pub module: PathBuf,
    /// Where servers run.
    pub placement: Placement,
}

/// A running server.
pub struct Server {
    child: Child,
    addr: SocketAddr,
    cpu_clock: ClockId,
    _dir: TempDir,
}

impl Launcher {
    /// Starts a server, with or without the module.
    pub fn start(&self, with_module: bool, options: &[&str]) -> Result<Server> {
        let dir = tempfile::tempdir()?;
        let addr = free_addr()?;
        let log = File::create(dir.path().join("server.log"))?;
        let mut command = Command::new(&self.binary);
        command
            .args(["--port", &addr.port().to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--maxclients", "15000"])
            .arg("--dir")
            .arg(dir.path())
            .args(options);
        if with_module {
            command.arg("--loadmodule").arg(&self.module);
        }
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let child = self.placement.start_server(|| {
            command
                .spawn()
                .with_context(|| format!("can't start {}", self.binary.display()))
        })?;
        let mut server = Server {
            cpu_clock: clock_getcpuclockid(Pid::from_raw(child.id().cast_signed()))?,
            child,
            addr,
            _dir: dir,
        };
        server.await_start()?;
        Ok(server)
    }
}

fn free_addr() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

impl Server {
    fn await_start(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_WITHIN;
        while Instant::now() < deadline && self.child.try_wait()?.is_none() {
            if let Ok(mut connection) = Connection::open(self.addr)
                && connection.info("process_id").ok() == Some(self.child.id().into())
            {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let log = std::fs::read_to_string(self.dir().join("server.log")).unwrap_or_default();
        bail!("the server does not start:\n{log}");
    }

    fn dir(&self) -> &Path {
        self._dir.path()
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// A new connection.
    pub fn connect(&self) -> Result<Connection> {
        Connection::open(self.addr)
    }

    /// The CPU time that the whole process has used, all its threads together.
    pub fn cpu_time(&self) -> Result<Duration> {
        Ok(self.cpu_clock.now()?.into())
    }

    /// Leaves no data behind for the next contender.
    pub fn flush(&self) -> Result<()> {
        self.connect()?.call(&["FLUSHALL", "SYNC"])?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
