//! The servers under test. Each is a child process that dies with us.

use std::fs::File;
use std::io;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::wire::{self, Connection};

const START_TIMEOUT: Duration = Duration::from_secs(20);
const LOG: &str = "server.log";

/// Has the kernel kill the process when the thread that starts it ends, so
/// that nothing stays behind, however this process ends.
pub fn die_with_us(command: &mut Command) -> &mut Command {
    // SAFETY: the call is safe between fork and exec, and touches no memory.
    unsafe {
        command.pre_exec(
            || match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            },
        )
    }
}

/// Sends a signal to a child that has not been waited for.
pub fn signal(child: &Child, signal: libc::c_int) {
    let Ok(pid) = libc::pid_t::try_from(child.id()) else {
        return;
    };
    // SAFETY: the child's id is its own until it is waited for.
    unsafe {
        libc::kill(pid, signal);
    }
}

/// What a server does with its writes before it replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fsync {
    /// It has them on disk.
    Always,
    /// It has them on disk a second later.
    EverySecond,
    /// It leaves that to the operating system.
    No,
}

impl Fsync {
    /// As the configuration has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::EverySecond => "everysec",
            Self::No => "no",
        }
    }
}

/// What to start.
pub struct Build {
    /// The server's binary.
    pub server: PathBuf,
    /// The module.
    pub module: PathBuf,
    /// The fault to plant, if the module was built for that.
    pub fault: Option<String>,
}

/// A server with its port, directory and log.
pub struct Server {
    child: Child,
    /// Where it listens.
    pub port: u16,
    dir: PathBuf,
}

impl Server {
    /// Starts a server on a free port, maybe as a replica of the one on
    /// another port.
    pub fn start(
        build: &Build,
        dir: &Path,
        fsync: Fsync,
        primary: Option<u16>,
    ) -> Result<Self, String> {
        std::fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let mut last = String::new();
        // Somebody may take the port between our look and the server's.
        for _ in 0..5 {
            let port = TcpListener::bind("127.0.0.1:0")
                .and_then(|free| free.local_addr())
                .map_err(|error| error.to_string())?
                .port();
            match spawn(build, dir, port, fsync, primary) {
                Ok(child) => {
                    return Ok(Self {
                        child,
                        port,
                        dir: dir.to_path_buf(),
                    });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Kills it as a crash would.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again after [`Server::kill`], with or without its data.
    pub fn restart(
        &mut self,
        build: &Build,
        fsync: Fsync,
        primary: Option<u16>,
        forget: bool,
    ) -> Result<(), String> {
        if forget {
            // Without an append-only file there is nothing to remove.
            let _ = std::fs::remove_dir_all(self.dir.join("appendonlydir"));
        }
        self.child = spawn(build, &self.dir, self.port, fsync, primary)?;
        Ok(())
    }

    /// Stops it for a while.
    pub fn stop_for(&self, time: Duration) {
        signal(&self.child, libc::SIGSTOP);
        std::thread::sleep(time);
        signal(&self.child, libc::SIGCONT);
    }

    /// An error if it has died, or has caught a panic of the module.
    pub fn examine(&mut self) -> Result<(), String> {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return Err(format!("the server of {} died", self.dir.display()));
        }
        let log = std::fs::read(self.dir.join(LOG)).unwrap_or_default();
        if String::from_utf8_lossy(&log).contains("panic") {
            return Err(format!("the module panicked, see {}", self.dir.display()));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(
    build: &Build,
    dir: &Path,
    port: u16,
    fsync: Fsync,
    primary: Option<u16>,
) -> Result<Child, String> {
    let log_path = dir.join(LOG);
    let log = File::options()
        .create(true)
        .append(true)
        .open(&log_path)
        .map_err(|error| format!("{}: {error}", log_path.display()))?;
    let errors = log.try_clone().map_err(|error| error.to_string())?;
    let mut command = Command::new(&build.server);
    command
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--save", "", "--appendonly", "yes"])
        .args(["--repl-diskless-sync-delay", "0"])
        .args(["--appendfsync", fsync.name(), "--dir"])
        .arg(dir)
        .arg("--loadmodule")
        .arg(&build.module)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors);
    if let Some(fault) = &build.fault {
        command.env("REDISLOCK_PLANTED_FAULT", fault);
    }
    if let Some(primary) = primary {
        command.args(["--replicaof", "127.0.0.1", &primary.to_string()]);
    }
    let mut child = die_with_us(&mut command)
        .spawn()
        .map_err(|error| format!("{}: {error}", build.server.display()))?;
    let deadline = Instant::now() + START_TIMEOUT;
    while Instant::now() < deadline && matches!(child.try_wait(), Ok(None)) {
        if ready(port, child.id(), deadline) {
            return Ok(child);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let _ = child.wait();
    Err(format!("no start, see {}", log_path.display()))
}

/// Whether the one who answers is this very process, and has loaded its data.
fn ready(port: u16, process: u32, deadline: Instant) -> bool {
    let Ok(mut connection) = Connection::open(port) else {
        return false;
    };
    let patient = || Instant::now() < deadline;
    let Some(info) = connection.call(&["INFO"], patient).and_then(wire::text) else {
        return false;
    };
    let has = |line: String| info.lines().any(|found| found == line);
    has(format!("process_id:{process}")) && has("loading:0".into())
}
