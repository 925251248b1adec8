//! Who takes part, and how each one's driver is built.

use std::process::Command;

use crate::driver::{java, run, source, target};
use anyhow::Result;

use super::servers::Kind::{
    self, Etcd, PostgreSql, Redis, RedisWithModule, Replicated, ReplicatedWithModule, ZooKeeper,
};

/// A lock library and what it locks with.
pub struct Library {
    /// Its name on the command line and in its driver.
    pub name: &'static str,
    /// Its name in the table.
    pub title: &'static str,
    pub server: Kind,
    language: Language,
    /// How long a waiter may be deaf: it sleeps before it looks again, or is not yet
    /// among those who are told; 5 for one that is told at once.
    pub looks_after_ms: u64,
    pub does: Does,
}

#[derive(Clone, Copy)]
enum Language {
    Rust,
    Java,
    Go,
    Python,
    JavaScript,
}

use Language::{Go, Java, JavaScript, Python, Rust};

/// What there is to measure.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
pub enum Does {
    /// Nobody can wait for a lock.
    Pairs,
    /// A hold has no lease, and ends with no connection.
    Waits,
    All,
}

const fn library(
    (name, title): (&'static str, &'static str),
    server: Kind,
    language: Language,
    looks_after_ms: u64,
) -> Library {
    Library {
        name,
        title,
        server,
        language,
        looks_after_ms,
        does: Does::All,
    }
}

const COMMANDS: (&str, &str) = ("commands", "**this module**, bare commands");
const ACKNOWLEDGED: (&str, &str) = ("acknowledged", "**this module**, `lock.min-replicas 1`");
const CLIENT: (&str, &str) = ("redis-lock-client", "**this module**, Rust client");
const SHARED: (&str, &str) = (
    "redis-lock-shared",
    "**this module**, one Rust client for all",
);
const SESSION: (&str, &str) = (
    "redis-lock-session",
    "**this module**, Rust client, `SESSION`",
);
const THREADS: (&str, &str) = ("lock", "Redisson 4.7 `RLock`, one client for all");
const CURATOR: (&str, &str) = ("curator", "ZooKeeper, Curator 5.9 `InterProcessMutex`");
const POSTGRES: (&str, &str) = ("postgresql", "PostgreSQL `pg_advisory_lock`, pgx 5.4");
const REDISSON: Library = library(("watchdog", "Redisson 4.7 `RLock`"), Redis, Java, 5);

/// This module beside plain commands, and beside Redisson.
pub const MAIN: [Library; 9] = [
    library(COMMANDS, RedisWithModule, Rust, 5),
    Library {
        does: Does::Waits,
        ..library(("blpop", "`LPUSH` and `BLPOP`"), Redis, Rust, 5)
    },
    Library {
        does: Does::Pairs,
        ..library(("set-del", "`SET NX PX` and `DEL`"), Redis, Rust, 5)
    },
    Library {
        does: Does::Pairs,
        ..library(ACKNOWLEDGED, ReplicatedWithModule, Rust, 5)
    },
    Library {
        does: Does::Pairs,
        ..library(
            ("set-wait", "`SET NX PX`, `WAIT 1` and `DEL`"),
            Replicated,
            Rust,
            5,
        )
    },
    library(CLIENT, RedisWithModule, Rust, 5),
    REDISSON,
    library(SHARED, RedisWithModule, Rust, 5),
    library(THREADS, Redis, Java, 5),
];

/// Whole libraries, ours first. etcd brings watches that begin at a known revision up to date
/// each 100 ms.
pub const PEERS: [Library; 9] = [
    library(CLIENT, RedisWithModule, Rust, 5),
    library(SESSION, RedisWithModule, Rust, 5),
    REDISSON,
    library(("rslock", "rslock 0.10"), Redis, Rust, 200),
    library(("redis-py", "redis-py `Lock`"), Redis, Python, 100),
    library(
        ("redlock", "node-redlock 4.2, one server"),
        Redis,
        JavaScript,
        300,
    ),
    library(("etcd", "etcd `concurrency.Mutex`"), Etcd, Go, 100),
    library(CURATOR, ZooKeeper, Java, 5),
    library(POSTGRES, PostgreSql, Go, 5),
];

impl Library {
    /// The command of its driver, which is built if need be.
    pub fn driver(&self) -> Result<Command> {
        match self.language {
            Language::Rust => {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg("drive");
                Ok(command)
            }
            Language::Java => java(),
            Language::Go => {
                let binary = target("go")?;
                let mut build = Command::new("go");
                build.args(["build", "-o"]).arg(&binary).arg(".");
                run(build.current_dir(source("go")))?;
                Ok(Command::new(binary))
            }
            Language::Python => {
                let (source, venv) = (source("python"), target("python")?);
                let python = venv.join("bin/python");
                if !python.exists() {
                    run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
                }
                let mut pip = Command::new(&python);
                pip.args(["-m", "pip", "--quiet", "install", "--requirement"]);
                run(pip.arg(source.join("requirements.txt")))?;
                let mut command = Command::new(python);
                command.arg(source.join("driver.py"));
                Ok(command)
            }
            Language::JavaScript => {
                let (source, folder) = (source("node"), target("node")?);
                std::fs::create_dir_all(&folder)?;
                for file in ["package.json", "package-lock.json", "driver.js"] {
                    std::fs::copy(source.join(file), folder.join(file))?;
                }
                if !folder.join("node_modules").exists() {
                    run(Command::new("npm")
                        .args(["ci", "--silent"])
                        .current_dir(&folder))?;
                }
                let mut command = Command::new("node");
                command.arg(folder.join("driver.js"));
                Ok(command)
            }
        }
    }
}
