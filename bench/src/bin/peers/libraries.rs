//! Who takes part, and how each one's driver is built.

use std::process::Command;

use anyhow::Result;
use subject::driver::{java, run, source, target};

use crate::servers::Kind;

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
}

#[derive(Clone, Copy)]
enum Language {
    Rust,
    Java,
    Go,
    Python,
    JavaScript,
}

const fn library(
    name: &'static str,
    title: &'static str,
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
    }
}

/// All of them, ours first.
pub const LIBRARIES: [Library; 9] = [
    library(
        "redis-lock-client",
        "**this module**, Rust client",
        Kind::RedisWithModule,
        Language::Rust,
        5,
    ),
    library(
        "redis-lock-session",
        "**this module**, Rust client, `SESSION`",
        Kind::RedisWithModule,
        Language::Rust,
        5,
    ),
    library(
        "watchdog",
        "Redisson 4.7 `RLock`",
        Kind::Redis,
        Language::Java,
        5,
    ),
    library("rslock", "rslock 0.10", Kind::Redis, Language::Rust, 200),
    library(
        "redis-py",
        "redis-py `Lock`",
        Kind::Redis,
        Language::Python,
        100,
    ),
    library(
        "redlock",
        "node-redlock 4.2, one server",
        Kind::Redis,
        Language::JavaScript,
        300,
    ),
    library(
        "etcd",
        "etcd `concurrency.Mutex`",
        Kind::Etcd,
        Language::Go,
        // This often etcd brings watches that begin at a known revision up to date.
        100,
    ),
    library(
        "curator",
        "ZooKeeper, Curator 5.9 `InterProcessMutex`",
        Kind::ZooKeeper,
        Language::Java,
        5,
    ),
    library(
        "postgresql",
        "PostgreSQL `pg_advisory_lock`, pgx 5.4",
        Kind::PostgreSql,
        Language::Go,
        5,
    ),
];

impl Library {
    /// The command of its driver, which is built if need be.
    pub fn driver(&self) -> Result<Command> {
        match self.language {
            Language::Rust => {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg("--drive");
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
