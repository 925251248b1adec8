//! A server: a process on a free port, with a directory and a log.

use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{anyhow, ensure};
use tempfile::TempDir;

use crate::connection::info_field;
use crate::process::{Signal, signal, spawn};
use crate::{Connection, Error, Result, SOON, comes_true, local};

const START_TIMEOUT: Duration = Duration::from_secs(20);

/// What to start.
#[derive(Clone, Default)]
pub struct Setup {
    /// The server's binary.
    pub binary: PathBuf,
    /// Options, as on the command line.
    pub options: Vec<String>,
    /// Environment variables.
    pub environment: Vec<(String, String)>,
    /// Where it stores and logs; else in a directory of its own, which goes with it unless a
    /// test fails.
    pub dir: Option<PathBuf>,
    /// The one processor that it shall run on.
    pub processor: Option<usize>,
    /// Whether it also speaks TLS, by a certificate among its options.
    pub speaks_tls: bool,
    /// What its configuration file says at first.
    pub config: Option<String>,
}

impl Setup {
    /// This server, without a module.
    pub fn of(binary: impl Into<PathBuf>) -> Self {
        Self {
            binary: binary.into(),
            ..Self::default()
        }
    }

    /// With this module and its arguments.
    pub fn module(self, module: impl AsRef<Path>, args: &[&str]) -> Self {
        let module = module.as_ref().display().to_string();
        self.options(&["--loadmodule", &module]).options(args)
    }

    /// With these options more.
    pub fn options(mut self, options: &[&str]) -> Self {
        self.options.extend(options.iter().map(ToString::to_string));
        self
    }

    /// As a replica of this server.
    pub fn replica_of(self, primary: SocketAddr) -> Self {
        let [host, port] = [primary.ip().to_string(), primary.port().to_string()];
        self.options(&["--replicaof", &host, &port])
    }

    /// As a node that is in no cluster yet.
    pub fn in_a_cluster(self) -> Self {
        self.options(&["--cluster-enabled", "yes"])
            .options(&["--cluster-node-timeout", "10000"])
    }

    /// Starts the server, and waits until it has loaded its data.
    pub fn start(self) -> Result<Server> {
        let own_dir = self.dir.is_none().then(tempfile::tempdir).transpose()?;
        let own = own_dir.as_ref().map(|own| own.path().to_owned());
        let dir = self.dir.clone().or(own).unwrap_or_default();
        std::fs::create_dir_all(&dir)?;
        if let Some(config) = &self.config {
            std::fs::write(dir.join("server.conf"), config)?;
        }
        let mut server = Server {
            setup: self,
            child: None,
            port: 0,
            bus_port: 0,
            tls_port: 0,
            dir,
            own_dir,
        };
        // Somebody may take a port between our look and the server's.
        for _ in 0..5 {
            server.port = free_port()?;
            server.bus_port = free_port()?;
            server.tls_port = free_port()?;
            match server.launch() {
                Err(_) if server.finds_port_taken() => {}
                started => return started.map(|()| server),
            }
        }
        Err(server.error("finds no free port"))
    }
}

/// A running server, or one that has crashed. It ends with this, and with this process.
pub struct Server {
    /// What it is, from its next start on.
    pub setup: Setup,
    /// The port where it listens.
    pub port: u16,
    /// The one where it listens to the other nodes of its cluster.
    pub bus_port: u16,
    tls_port: u16,
    /// Where it stores and logs.
    pub dir: PathBuf,
    child: Option<Child>,
    own_dir: Option<TempDir>,
}

/// A port that nobody listens on right now.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(local(0))?.local_addr()?.port())
}

impl Server {
    fn error(&self, what: &str) -> Error {
        let dir = self.dir.display();
        anyhow!("the server of {dir} {what}:\n{}", self.log())
    }

    /// Starts it again on its port and its data, after a crash or with one.
    pub fn restart(&mut self) -> Result<()> {
        // Its port may be somebody else's for a moment.
        let mut launched = Ok(());
        comes_true(SOON, || {
            launched = self.launch();
            launched.is_ok() || !self.finds_port_taken()
        });
        launched
    }

    fn finds_port_taken(&self) -> bool {
        self.log().contains("ddress already in use")
    }

    fn launch(&mut self) -> Result<()> {
        self.crash();
        let mut log = File::options();
        let log = log.create(true).append(true).open(self.log_path())?;
        let setup = &self.setup;
        let mut command = Command::new(&setup.binary);
        if let Some(processor) = setup.processor {
            command = Command::new("taskset");
            command
                .args(["--cpu-list", &processor.to_string()])
                .arg(&setup.binary);
        }
        if setup.config.is_some() {
            command.arg(self.dir.join("server.conf"));
        }
        if setup.speaks_tls {
            command.args(["--tls-port", &self.tls_port.to_string()]);
        }
        command
            .envs(setup.environment.iter().cloned())
            .args(["--port", &self.port.to_string()])
            // The bus would be ten thousand ports higher, which may not exist.
            .args(["--cluster-port", &self.bus_port.to_string()])
            .args(["--bind", "127.0.0.1", "--save", ""])
            // Sentinels come from another address of this machine.
            .args(["--protected-mode", "no"])
            .args(["--repl-diskless-sync-delay", "0", "--dir"])
            .arg(&self.dir)
            .args(&setup.options)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        self.child = Some(spawn(command)?);
        let mut is_ready = false;
        comes_true(START_TIMEOUT, || {
            is_ready = self.is_ready().unwrap_or(false);
            is_ready || !self.is_running()
        });
        if !is_ready {
            self.crash();
            return Err(self.error("does not start"));
        }
        Ok(())
    }

    /// Whether the one who answers is this very process, and has loaded its data.
    fn is_ready(&self) -> Result<bool> {
        let info = self.connect()?.info_section("default")?;
        let pid = self.pid().map(|pid| pid.to_string());
        let has_loaded = info_field(&info, "loading").unwrap_or("0") == "0";
        Ok(Some(info_field(&info, "process_id")?) == pid.as_deref() && has_loaded)
    }

    fn is_running(&mut self) -> bool {
        let child = self.child.as_mut();
        child.is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Kills it as a crash would.
    pub fn crash(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Waits until it has ended by itself.
    pub fn await_end(&mut self) -> Result<ExitStatus> {
        if !comes_true(SOON, || !self.is_running()) {
            self.crash();
            return Err(self.error("does not end"));
        }
        let child = self.child.take();
        Ok(child.ok_or_else(|| self.error("did not run"))?.wait()?)
    }

    /// Stops it, until [`Server::go_on`].
    pub fn stop(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Has it go on after [`Server::stop`].
    pub fn go_on(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, what: Signal) -> Result<()> {
        let pid = self.pid().ok_or_else(|| self.error("does not run"))?;
        signal(pid, what)
    }

    /// An error if it has ended, or has caught a panic of the module.
    pub fn examine(&mut self) -> Result<()> {
        let is_running = self.is_running();
        let dir = self.dir.display();
        ensure!(is_running, "the server of {dir} died");
        ensure!(
            !self.log().contains("panic"),
            "the server of {dir} caught a panic"
        );
        Ok(())
    }

    /// Waits until it is connected to its primary.
    pub fn await_link(&self) -> Result<()> {
        let mut connection = self.connect()?;
        let is_up = comes_true(START_TIMEOUT, || {
            let info = connection.info_section("replication");
            info.is_ok_and(|info| info.contains("master_link_status:up"))
        });
        let link = is_up.then_some(());
        link.ok_or_else(|| self.error("does not reach its primary"))
    }

    /// Starts a replica of this server and waits until it is connected.
    pub fn replica_with(&self, setup: Setup) -> Result<Self> {
        let replica = setup.replica_of(self.addr()).start()?;
        replica.await_link()?;
        Ok(replica)
    }

    /// A new connection.
    pub fn connect(&self) -> Result<Connection> {
        Connection::open(self.addr())
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        local(self.port)
    }

    /// Where it speaks TLS, if it does.
    pub fn tls_addr(&self) -> SocketAddr {
        local(self.tls_port)
    }

    /// The number of its process, if it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    fn log_path(&self) -> PathBuf {
        self.dir.join("server.log")
    }

    /// All that it has logged.
    pub fn log(&self) -> String {
        let log = std::fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.crash();
        if let Some(dir) = self.own_dir.take().filter(|_| std::thread::panicking()) {
            eprintln!("the server's files stay in {}", dir.keep().display());
        }
    }
}
