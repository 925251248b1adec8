//! Measures the lock module: beside plain commands of the server and other libraries, in
//! instructions, and with many of everything.
//!
//! ```text
//! peers          this module beside SET, BLPOP, and whole libraries with their servers
//! instructions   what a command costs, counted by valgrind, into docs/bench/instructions.md
//! growth         what a command costs against how many locks, holders and waiters there are
//! driver         lock libraries as programs that are asked over standard input
//! ```

#![forbid(unsafe_code)]

mod driver;
mod growth;
mod instructions;
mod peers;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Parser};
use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;
use redis_lock_testing::{Setup, info_field};

/// Measures the lock module.
#[derive(Parser)]
enum Command {
    /// Measures this module beside SET, BLPOP and Redisson
    Main(peers::Options),
    /// Measures whole libraries beside each other, each with its server
    Peers(peers::Options),
    /// Counts the instructions of locks and of what takes their place
    Instructions(instructions::Options),
    /// Shows what it costs when locks, holders and waiters become many
    Growth(growth::Options),
    /// Answers what a run asks of a Rust library
    #[command(hide = true)]
    Drive,
}

fn main() -> Result<ExitCode> {
    match Command::parse() {
        Command::Main(options) => peers::run(&options, "bench", &peers::MAIN)?,
        Command::Peers(options) => peers::run(&options, "bench-peers", &peers::PEERS)?,
        Command::Instructions(options) => instructions::run(&options)?,
        Command::Growth(options) => growth::run(&options)?,
        Command::Drive => peers::rust_driver::drive()?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The server and the module, as the command line names them.
#[derive(Args)]
struct Subject {
    /// The server's binary
    #[arg(long, env = "REDISLOCK_SERVER", default_value = "redis-server")]
    server: PathBuf,
    /// The module
    #[arg(
        long,
        env = "REDISLOCK_MODULE",
        default_value = "target/release/libredislock.so"
    )]
    module: PathBuf,
}

impl Subject {
    /// The server's binary.
    fn server(&self) -> &Path {
        &self.server
    }

    /// The module's whole path: a server runs in a folder of its own.
    fn module(&self) -> Result<PathBuf> {
        let module = self.module.display();
        let why = || format!("there is no {module}: `make build` makes it");
        self.module.canonicalize().with_context(why)
    }

    /// The server with the module, which has these arguments.
    fn with_module(&self, args: &[&str]) -> Result<Setup> {
        Ok(Setup::of(&self.server).module(self.module()?, args))
    }

    /// What a server without the module says of itself by `INFO server`.
    fn info(&self) -> Result<String> {
        let server = Setup::of(&self.server).start()?;
        server.connect()?.info_section("server")
    }

    /// The server's name and version.
    fn version(&self) -> Result<String> {
        let info = self.info()?;
        let valkey = info_field(&info, "valkey_version").map(|version| format!("Valkey {version}"));
        let redis = || info_field(&info, "redis_version").map(|version| format!("Redis {version}"));
        valkey.or_else(|_| redis())
    }
}

/// The processor's time that a process has used, all its threads together.
fn cpu_time(pid: u32) -> Result<Duration> {
    let clock = clock_getcpuclockid(Pid::from_raw(pid.cast_signed()))?;
    Ok(clock.now()?.into())
}
