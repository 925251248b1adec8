//! What all campaigns are told on the command line.

use std::fmt::{self, Display};
use std::path::PathBuf;
use std::time::Duration;

use rand::RngExt;
use redis_lock_testing::Setup;
use tempfile::TempDir;

/// How often a campaign tells how far it is.
pub const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// The arguments of any campaign.
#[derive(clap::Args)]
pub struct Campaign {
    /// How long the faults go on, in seconds
    #[arg(long, visible_alias = "seconds", default_value_t = 300)]
    pub duration: u64,
    /// The server's binary
    #[arg(long, default_value = "redis-server")]
    server: PathBuf,
    /// The module
    #[arg(long, default_value = "target/release/libredislock.so")]
    module: PathBuf,
    /// Chooses the faults and what the clients do, though not how it is timed;
    /// random if not given
    #[arg(long)]
    seed: Option<u64>,
}

impl Campaign {
    /// The seed, which is another one each time if none is given.
    pub fn seed(&self) -> u64 {
        self.seed
            .unwrap_or_else(|| rand::rng().random_range(0..1_000_000_000))
    }

    /// What to start.
    pub fn setup(&self) -> Result<Setup, String> {
        let module = self.module.canonicalize();
        let module = module.map_err(|error| format!("{}: {error}", self.module.display()))?;
        Ok(Setup::of(&self.server).module(module))
    }
}

impl Display for Campaign {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (server, module) = (self.server.display(), self.module.display());
        write!(formatter, "{server} with {module}")
    }
}

/// A new directory for what the servers store and log.
pub fn directory() -> Result<TempDir, String> {
    let mut builder = tempfile::Builder::new();
    let dir = builder.prefix("redis-lock-chaos-").tempdir();
    dir.map_err(|error| error.to_string())
}
