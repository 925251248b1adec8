//! The peers' servers: processes of our own, on free ports, in folders of their own.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::driver::run;
use crate::{Subject, cpu_time};
use anyhow::{Context, Result, ensure};
use nix::unistd::Uid;
use redis_lock_testing::{self as testing, Setup, Signal, comes_true, signal, spawn};
use tempfile::TempDir;

/// How long a server may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(40);

/// What a library locks with.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    Redis,
    RedisWithModule,
    /// With a replica; a module waits for it.
    Replicated,
    ReplicatedWithModule,
    Etcd,
    ZooKeeper,
    PostgreSql,
}

/// How much a server does before it replies.
#[derive(Clone, Copy, PartialEq)]
pub enum Setting {
    Durable,
    Fast,
}

impl Kind {
    /// What the setting is called there, if there is such a one.
    pub fn describe(self, setting: Setting) -> Option<&'static str> {
        Some(match (self, setting) {
            (Self::Redis | Self::RedisWithModule, Setting::Durable) => {
                "durable: `appendfsync always`"
            }
            (Self::Redis | Self::RedisWithModule, Setting::Fast) => "fast: no AOF",
            (Self::Replicated | Self::ReplicatedWithModule, Setting::Durable) => return None,
            (Self::Replicated | Self::ReplicatedWithModule, Setting::Fast) => "no AOF, a replica",
            (Self::Etcd, Setting::Durable) => "durable: as it comes",
            (Self::Etcd, Setting::Fast) => "fast: `--unsafe-no-fsync`",
            (Self::ZooKeeper, Setting::Durable) => "durable: `forceSync=yes`",
            (Self::ZooKeeper, Setting::Fast) => "fast: `forceSync=no`",
            (Self::PostgreSql, Setting::Durable) => return None,
            (Self::PostgreSql, Setting::Fast) => "in memory alone, whatever is set",
        })
    }

    /// The server's name and version.
    pub fn version(self, subject: &Subject) -> Result<String> {
        let words = |command: &mut Command| -> Result<String> {
            let output = command.output()?;
            Ok(String::from_utf8(output.stdout)?)
        };
        match self {
            Self::Etcd => {
                let said = words(Command::new("etcd").arg("--version"))?;
                let version = said.lines().next().unwrap_or_default();
                Ok(version.replace(" Version:", ""))
            }
            Self::ZooKeeper => {
                // Beside the jar without a version is one with it.
                let jars = Path::new(ZOOKEEPER)
                    .parent()
                    .context("no folder")?
                    .read_dir()?;
                let names = jars.filter_map(|jar| jar.ok()?.file_name().into_string().ok());
                let version = names
                    .filter_map(|name| Some(name.strip_prefix("zookeeper-")?.to_owned()))
                    .find(|rest| rest.starts_with(|first: char| first.is_ascii_digit()));
                let version = version.unwrap_or_default();
                Ok(format!("ZooKeeper {}", version.trim_end_matches(".jar")))
            }
            Self::PostgreSql => {
                let said = words(Command::new(postgresql("postgres")?).arg("--version"))?;
                let version = said.split_whitespace().nth(2).unwrap_or_default();
                Ok(format!("PostgreSQL {version}"))
            }
            _ => subject.version(),
        }
    }
}

/// Where Debian's package has it.
const ZOOKEEPER: &str = "/usr/share/java/zookeeper.jar";

/// A program of PostgreSQL: Debian has those of the server in no folder of `PATH`.
fn postgresql(program: &str) -> Result<PathBuf> {
    let versions = Path::new("/usr/lib/postgresql").read_dir();
    let mut found: Vec<PathBuf> = versions
        .context("no PostgreSQL: `scripts/install-missing peers` installs it")?
        .filter_map(|version| Some(version.ok()?.path().join("bin").join(program)))
        .filter(|path| path.exists())
        .collect();
    found.sort();
    found.pop().with_context(|| format!("no {program}"))
}

/// A running server. It ends with this.
pub struct Server {
    process: Process,
    pub port: u16,
    _replica: Option<testing::Server>,
    _dir: TempDir,
}

enum Process {
    Redis(Box<testing::Server>),
    Other(Child),
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// A command that stays on this processor.
pub fn on_processor(processor: usize, command: &Command) -> Command {
    let mut placed = Command::new("taskset");
    placed.args(["--cpu-list", &processor.to_string()]);
    placed.arg(command.get_program()).args(command.get_args());
    placed
}

impl Server {
    /// Starts one that lets in this many clients, and waits until it answers.
    pub fn start(
        kind: Kind,
        setting: Setting,
        clients: usize,
        subject: &Subject,
        processor: usize,
    ) -> Result<Self> {
        let (dir, port) = (TempDir::new()?, free_port()?);
        let durable = setting == Setting::Durable;
        let command = match kind {
            Kind::Etcd => etcd(dir.path(), port, durable)?,
            Kind::ZooKeeper => zookeeper(dir.path(), port, durable)?,
            Kind::PostgreSql => postgres(dir.path(), port, clients)?,
            _ => {
                let mut setup = match kind {
                    Kind::Redis | Kind::Replicated => Setup::of(subject.server()),
                    Kind::ReplicatedWithModule => subject.with_module(&["min-replicas", "1"])?,
                    _ => subject.with_module(&[])?,
                };
                let most = (3 * clients + 100).to_string();
                setup = setup.options(&["--maxclients", &most, "--save", ""]);
                if durable {
                    setup = setup.options(&["--appendonly", "yes", "--appendfsync", "always"]);
                }
                // A replica is another machine's work: not on the server's processor.
                let replica = setup.clone();
                setup.processor = Some(processor);
                let server = setup.start()?;
                let replicated = [Kind::Replicated, Kind::ReplicatedWithModule].contains(&kind);
                let replica = replicated
                    .then(|| server.replica_with(replica))
                    .transpose()?;
                return Ok(Self {
                    port: server.addr().port(),
                    process: Process::Redis(Box::new(server)),
                    _replica: replica,
                    _dir: dir,
                });
            }
        };
        let mut command = on_processor(processor, &command);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let log = dir.path().join("log");
        command.stderr(std::fs::File::create(&log)?);
        let server = Self {
            process: Process::Other(spawn(command)?),
            port,
            _replica: None,
            _dir: dir,
        };
        let answers = comes_true(START_TIMEOUT, || match kind {
            Kind::PostgreSql => postgresql("pg_isready").is_ok_and(|program| {
                let port = port.to_string();
                run(Command::new(program).args(["-h", "127.0.0.1", "-p", &port])).is_ok()
            }),
            _ => TcpStream::connect(("127.0.0.1", port)).is_ok(),
        });
        let log = std::fs::read_to_string(log).unwrap_or_default();
        ensure!(answers, "the server does not start: {log}");
        Ok(server)
    }

    /// The process and its children.
    fn processes(&self) -> Result<Vec<u32>> {
        let pid = match &self.process {
            Process::Redis(server) => server.pid().context("the server has ended")?,
            Process::Other(child) => child.id(),
        };
        let children = format!("/proc/{pid}/task/{pid}/children");
        let children = std::fs::read_to_string(children).unwrap_or_default();
        let children = children.split_whitespace().map(str::parse);
        Ok(std::iter::once(Ok(pid))
            .chain(children)
            .collect::<Result<_, _>>()?)
    }

    /// The time of the processor that it has used, all processes and threads together.
    pub fn cpu_time(&self) -> Result<Duration> {
        let mut all = Duration::ZERO;
        for pid in self.processes()? {
            all += cpu_time(pid).unwrap_or_default();
        }
        Ok(all)
    }

    /// The memory that it uses, in KiB: what processes share counts once.
    pub fn memory_kib(&self) -> Result<u64> {
        let mut all = 0;
        for pid in self.processes()? {
            let maps = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"));
            let maps = maps.unwrap_or_default();
            let pss = maps.lines().find_map(|line| line.strip_prefix("Pss:"));
            let kib = pss.and_then(|pss| pss.split_whitespace().next());
            all += kib.map_or(Ok(0), str::parse)?;
        }
        Ok(all)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Process::Other(child) = &mut self.process {
            // PostgreSQL ends its children, and gives its shared memory back.
            let _ = signal(child.id(), Signal::INT);
            let ended = comes_true(testing::SOON, || matches!(child.try_wait(), Ok(Some(_))));
            if !ended {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

fn etcd(dir: &Path, port: u16, durable: bool) -> Result<Command> {
    let clients = format!("http://127.0.0.1:{port}");
    let peers = format!("http://127.0.0.1:{}", free_port()?);
    let mut command = Command::new("etcd");
    command.arg("--data-dir").arg(dir);
    for option in ["--listen-client-urls", "--advertise-client-urls"] {
        command.args([option, &clients]);
    }
    for option in ["--listen-peer-urls", "--initial-advertise-peer-urls"] {
        command.args([option, &peers]);
    }
    command.args(["--initial-cluster", &format!("default={peers}")]);
    command.args(["--logger", "zap", "--log-level", "error"]);
    if !durable {
        command.arg("--unsafe-no-fsync");
    }
    Ok(command)
}

fn zookeeper(dir: &Path, port: u16, durable: bool) -> Result<Command> {
    ensure!(
        Path::new(ZOOKEEPER).exists(),
        "no ZooKeeper: `scripts/install-missing peers` installs it"
    );
    let settings = dir.join("zoo.cfg");
    let lines = [
        format!("dataDir={}", dir.display()),
        format!("clientPort={port}"),
        "clientPortAddress=127.0.0.1".into(),
        "tickTime=2000".into(),
        "maxClientCnxns=0".into(),
        "admin.enableServer=false".into(),
    ];
    std::fs::write(&settings, lines.join("\n"))?;
    let mut command = Command::new("java");
    let force_sync = if durable { "yes" } else { "no" };
    command.arg(format!("-Dzookeeper.forceSync={force_sync}"));
    command.args(["-cp", ZOOKEEPER]);
    command.arg("org.apache.zookeeper.server.ZooKeeperServerMain");
    command.arg(settings);
    Ok(command)
}

fn postgres(dir: &Path, port: u16, clients: usize) -> Result<Command> {
    // It refuses to run as root.
    let is_root = Uid::effective().is_root();
    let as_postgres = |program: &str| -> Result<Command> {
        let program = postgresql(program)?;
        if !is_root {
            return Ok(Command::new(program));
        }
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "postgres", "--regid", "postgres"]);
        command.args(["--clear-groups", "--pdeathsig", "KILL"]);
        command.arg(program);
        Ok(command)
    };
    if is_root {
        run(Command::new("chown").arg("postgres").arg(dir))?;
    }
    let data = dir.join("data");
    let mut initdb = as_postgres("initdb")?;
    initdb.args(["--auth", "trust", "--username", "postgres", "--no-sync"]);
    run(initdb.arg("--pgdata").arg(&data))?;
    let mut command = as_postgres("postgres")?;
    command.arg("-D").arg(&data).args(["-p", &port.to_string()]);
    command.args(["-h", "127.0.0.1", "-k", ""]);
    command.args(["-N", &(clients + 10).to_string()]);
    Ok(command)
}
