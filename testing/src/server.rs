use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use redis::Value;
use tempfile::TempDir;

use super::client::Client;
use super::process::spawn;
use super::{SOON, eventually, free_port};

/// The server's binary: `REDISLOCK_SERVER`, or `redis-server` from the path.
pub fn binary() -> String {
    std::env::var("REDISLOCK_SERVER").unwrap_or_else(|_| "redis-server".into())
}

/// The module: `REDISLOCK_MODULE`, or what `make build` leaves.
pub fn module() -> PathBuf {
    let module = std::env::var_os("REDISLOCK_MODULE").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/release/libredislock.so"),
        PathBuf::from,
    );
    assert!(
        module.exists(),
        "{} is not there: run `make build`, or `make test` which does",
        module.display()
    );
    module
}

/// With this argument the module does not look at contended locks by itself, as
/// it does twice a second. So an event that it does not hear makes a test fail.
/// A test of those looks sets `lock.recheck-interval` before anybody waits.
pub const NO_REGULAR_LOOKS: [&str; 2] = ["recheck-interval", "3600000"];

/// A server on a free port with a directory of its own. It dies with the test;
/// if the test failed, its directory and log stay.
pub struct TestServer {
    child: Option<Child>,
    addr: SocketAddr,
    dir: Option<TempDir>,
    options: Vec<String>,
    environment: Vec<(String, String)>,
    with_module: bool,
}

impl TestServer {
    /// A server with the module.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// A server with the module and these options, as on its command line.
    pub fn start_with(options: &[&str]) -> Self {
        Self::launch(|| owned(options), &[], true)
    }

    /// A server with the module and these environment variables.
    pub fn start_in_environment(environment: &[(&str, &str)]) -> Self {
        Self::launch(Vec::new, environment, true)
    }

    /// A server without the module.
    pub fn start_plain(options: &[&str]) -> Self {
        Self::launch(|| owned(options), &[], false)
    }

    /// A server with the module whose options name other ports than its own.
    /// They are asked for again if one of them turns out to be taken.
    pub(crate) fn start_on_ports(options: impl FnMut() -> Vec<String>) -> Self {
        Self::launch(options, &[], true)
    }

    fn launch(
        mut options: impl FnMut() -> Vec<String>,
        environment: &[(&str, &str)],
        with_module: bool,
    ) -> Self {
        let mut server = Self {
            child: None,
            addr: SocketAddr::from(([127, 0, 0, 1], 0)),
            dir: Some(tempfile::tempdir().unwrap()),
            options: Vec::new(),
            environment: environment
                .iter()
                .map(|&(name, value)| (name.into(), value.into()))
                .collect(),
            with_module,
        };
        // Another test may take a port between our look and the server's.
        for _ in 0..5 {
            server.addr.set_port(free_port());
            server.options = options();
            if server.spawn() {
                return server;
            }
        }
        panic!("the server does not start:\n{}", server.log());
    }

    fn spawn(&mut self) -> bool {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_path())
            .unwrap();
        let mut command = Command::new(binary());
        command
            .envs(self.environment.iter().cloned())
            .args(["--port", &self.addr.port().to_string()])
            .args(["--bind", "127.0.0.1", "--save", ""])
            .args(["--repl-diskless-sync-delay", "0"])
            .arg("--dir")
            .arg(self.dir())
            .args(["--enable-debug-command", "yes"])
            .args(["--enable-module-command", "yes"])
            .args(&self.options);
        if self.with_module {
            command.arg("--loadmodule").arg(module());
            command.args(NO_REGULAR_LOOKS);
        }
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        let child = self.child.insert(spawn(command));
        let deadline = Instant::now() + SOON;
        while Instant::now() < deadline {
            if child.try_wait().unwrap().is_some() {
                return false;
            }
            // Who answers may be another test's server that took the port first.
            if let Some(mut client) = Client::try_connect(self.addr)
                && client.try_info("process_id") == Some(child.id().into())
                && client.try_info("loading") == Some(0)
            {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    /// Runs the server to its end with module arguments it can't start with.
    /// Returns its log.
    pub fn log_of_failed_start(module_args: &[&str]) -> String {
        Self::log_of_failed_start_with(&[], module_args)
    }

    /// Runs the server to its end with options, as on its command line, and
    /// module arguments that it can't start with. Returns its log.
    pub fn log_of_failed_start_with(options: &[&str], module_args: &[&str]) -> String {
        let dir = tempfile::tempdir().unwrap();
        let log_path = dir.path().join("server.log");
        let log = File::create(&log_path).unwrap();
        let mut server = Command::new(binary())
            .args([
                "--port",
                "0",
                "--save",
                "",
                "--unixsocket",
                "socket",
                "--dir",
            ])
            .arg(dir.path())
            .args(options)
            .arg("--loadmodule")
            .arg(module())
            .args(module_args)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let said = || std::fs::read_to_string(&log_path).unwrap();
        let deadline = Instant::now() + SOON;
        let ended = loop {
            if let Some(ended) = server.try_wait().unwrap() {
                break Some(ended);
            }
            if said().contains("eady to accept connections") || Instant::now() > deadline {
                break None;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let _ = server.kill();
        let _ = server.wait();
        let failed = ended.is_some_and(|status| !status.success());
        assert!(failed, "the server started:\n{}", said());
        said()
    }

    /// Kills the server as a crash would, and starts it again on its data.
    pub fn crash_and_restart(&mut self) {
        self.crash();
        self.restart();
    }

    /// Kills the server as a crash would.
    pub fn crash(&mut self) {
        self.kill();
    }

    /// Starts the server again on its data.
    pub fn restart(&mut self) {
        // Its port may be somebody else's for a moment.
        let deadline = Instant::now() + SOON;
        while !self.spawn() {
            assert!(Instant::now() < deadline, "no restart:\n{}", self.log());
        }
    }

    /// Waits until the server ends by itself.
    #[track_caller]
    pub fn await_end(&mut self) -> ExitStatus {
        let mut child = self.child.take().unwrap();
        let mut ended = None;
        let deadline = Instant::now() + SOON;
        while ended.is_none() && Instant::now() < deadline {
            ended = child.try_wait().unwrap();
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = child.kill();
        let _ = child.wait();
        ended.expect("the server ends")
    }

    /// Checks that the server lives and has reported no crash.
    #[track_caller]
    pub fn assert_sound(&self) {
        assert!(self.info("process_id") > 0);
        let log = self.log();
        assert!(!log.contains("BUG REPORT START"), "{log}");
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// The server's version, of Valkey its own.
    pub fn version(&self) -> (u32, u32) {
        let info = self.client().bulk("INFO server");
        let version = info
            .lines()
            .find_map(|line| line.strip_prefix("valkey_version:"))
            .or_else(|| {
                info.lines()
                    .find_map(|line| line.strip_prefix("redis_version:"))
            })
            .unwrap();
        let mut numbers = version.split('.').map(|number| number.parse().unwrap());
        (numbers.next().unwrap(), numbers.next().unwrap())
    }

    /// Sends the server a signal, by its name without `SIG`.
    pub fn signal(&self, name: &str) {
        let pid = self.child.as_ref().unwrap().id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(sent.unwrap().success());
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    fn dir(&self) -> &Path {
        self.dir.as_ref().unwrap().path()
    }

    fn log_path(&self) -> PathBuf {
        self.dir().join("server.log")
    }

    /// All that it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// A new connection.
    pub fn client(&self) -> Client {
        Client::try_connect(self.addr).expect("the server takes connections")
    }

    /// A number from `INFO`.
    pub fn info(&self, field: &str) -> i64 {
        self.client().info(field)
    }

    /// Waits until exactly so many clients are blocked.
    #[track_caller]
    pub fn await_blocked(&self, count: i64) {
        let mut client = self.client();
        eventually(&format!("{count} blocked clients"), || {
            client.info("blocked_clients") == count
        });
    }

    /// Starts a replica of this server and waits until it is in step.
    pub fn replica(&self, with_module: bool) -> Self {
        let port = self.addr.port().to_string();
        let options = owned(&["--replicaof", "127.0.0.1", &port]);
        let replica = Self::launch(|| options.clone(), &[], with_module);
        let mut client = replica.client();
        eventually("the replica is connected", || {
            client
                .bulk("INFO replication")
                .contains("master_link_status:up")
        });
        replica
    }

    /// Checks that this server and its replica hold the same data.
    #[track_caller]
    pub fn assert_same_data(&self, replica: &Self) {
        let mut here = self.client();
        let mut there = replica.client();
        // A key that expires between two questions makes a difference that the
        // replica makes good at once.
        eventually("the replica holds the same data", || {
            here.info("master_repl_offset") == there.info("slave_repl_offset")
                && here.call("DEBUG DIGEST") == there.call("DEBUG DIGEST")
        });
        let Value::Array(keys) = here.call("KEYS *") else {
            panic!("KEYS did not answer a list");
        };
        for key in keys {
            let Value::BulkString(key) = key else {
                panic!("KEYS did not answer names");
            };
            let expiry = [b"PEXPIRETIME".as_slice(), &key];
            assert_eq!(here.words(&expiry), there.words(&expiry));
        }
    }
}

fn owned(options: &[&str]) -> Vec<String> {
    options.iter().map(ToString::to_string).collect()
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking()
            && let Some(dir) = self.dir.take()
        {
            let kept = dir.keep();
            eprintln!("the server's files stay in {}", kept.display());
        }
    }
}
