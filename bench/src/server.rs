//! Servers of our own: one process each, on a free port, gone with the run.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::placement::{Placement, Processors};
use crate::wire::Connection;

const START_WITHIN: Duration = Duration::from_secs(10);

/// What every server of the run has in common.
pub struct Launcher {
    /// The server's binary.
    pub binary: PathBuf,
    /// The module, loaded where a contender asks for it.
    pub module: PathBuf,
    /// Where they run.
    pub processors: Processors,
}

/// A running server.
pub struct Server {
    child: Child,
    addr: SocketAddr,
    cpu_clock: ClockId,
    dir: TempDir,
    replica: Option<Box<Server>>,
}

/// What a server does besides answering.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Duty {
    /// Nothing.
    MemoryOnly,
    /// It writes an append-only file, synced every second, and feeds a replica.
    Durable,
}

impl Launcher {
    /// Starts a server, with or without the module.
    pub fn start(&self, with_module: bool, duty: Duty, placement: Placement) -> Result<Server> {
        let start = |options: &[&str], placement| {
            self.processors
                .start_server(placement, || self.start_with(with_module, options))
        };
        match duty {
            Duty::MemoryOnly => start(&[], placement),
            Duty::Durable => {
                let options = ["--appendonly", "yes", "--appendfsync", "everysec"];
                let mut server = start(&options, placement)?;
                let port = server.addr.port().to_string();
                // The replica is another machine's work: not on the server's processor.
                let options = ["--replicaof", "127.0.0.1", &port];
                let replica = start(&options, Placement::Together)?;
                replica.await_link()?;
                server.replica = Some(Box::new(replica));
                Ok(server)
            }
        }
    }

    fn start_with(&self, with_module: bool, options: &[&str]) -> Result<Server> {
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
        // SAFETY: between fork and exec this makes one system call and nothing
        // else: it allocates nothing and takes no lock.
        unsafe {
            // A server never outlives this program, however that ends.
            command.pre_exec(|| Ok(set_pdeathsig(Signal::SIGKILL)?));
        }
        let child = command
            .spawn()
            .with_context(|| format!("can't start {}", self.binary.display()))?;
        let mut server = Server {
            cpu_clock: clock_getcpuclockid(Pid::from_raw(child.id().cast_signed()))?,
            child,
            addr,
            dir,
            replica: None,
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
        let log = std::fs::read_to_string(self.dir.path().join("server.log")).unwrap_or_default();
        bail!("the server does not start:\n{log}");
    }

    fn await_link(&self) -> Result<()> {
        let deadline = Instant::now() + START_WITHIN;
        while Instant::now() < deadline {
            if self.connect()?.info_text("master_link_status")? == "up" {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        bail!("the replica does not reach its primary");
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
}

impl Drop for Server {
    fn drop(&mut self) {
        self.replica = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
