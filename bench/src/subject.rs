//! What all programs here measure: a server, with and without the module.

#![forbid(unsafe_code)]

pub mod chart;
pub mod driver;

use std::path::{Path, PathBuf};

use clap::Args;
use redis_lock_testing::{Error, Result, Server, Setup, info_field};

/// The server and the module, as the command line names them.
#[derive(Args)]
pub struct Subject {
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
    pub fn server(&self) -> &Path {
        &self.server
    }

    /// The module's whole path: a server runs in a folder of its own.
    pub fn module(&self) -> Result<PathBuf> {
        self.module.canonicalize().map_err(|_| {
            let module = self.module.display();
            Error::new(format!("there is no {module}: `make build` makes it"))
        })
    }

    /// The server with the module.
    pub fn with_module(&self) -> Result<Setup> {
        Ok(Setup::of(&self.server).module(self.module()?))
    }

    /// What a server without the module says of itself by `INFO server`.
    pub fn info(&self) -> Result<String> {
        let server = Server::start(Setup::of(&self.server))?;
        server.connect()?.info_section("server")
    }
}

/// What a message tells of a place in the queue: the fourth of its five netstrings.
pub fn told(message: &str) -> &str {
    let result = message.trim_end_matches(',').rsplit(',').nth(1);
    let text = result.and_then(|result| result.rsplit(':').next());
    text.unwrap_or_default()
}

/// The server's name and version, of its `INFO server`.
pub fn version(info: &str) -> Result<String> {
    let valkey = info_field(info, "valkey_version").map(|version| format!("Valkey {version}"));
    valkey.or_else(|_| info_field(info, "redis_version").map(|version| format!("Redis {version}")))
}
