//! What all campaigns have in common: their arguments, their course, and what they tell.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rand::RngExt;
use redis_lock_testing::Setup;
use tempfile::TempDir;

use crate::history::{Breach, History, Operation, Outcome, Promise};

/// How often a campaign tells how far it is.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// How many breaches of each promise are shown in full.
const SHOWN: usize = 3;

/// Where the locks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Topology {
    /// On one server.
    One,
    /// On a primary that sentinels name.
    Sentinel,
    /// In a cluster, in which two other primaries vote.
    Cluster,
}

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
    /// Write the history to this file, a JSON object a line
    #[arg(long, value_name = "FILE")]
    pub history: Option<PathBuf>,
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

/// How often, and whether there is something that ends the campaign.
pub type Search<'s> = (Duration, &'s dyn Fn() -> bool);

/// Hurts something again and again, for this long or until the search finds something.
pub fn hurt_for(
    duration: Duration,
    mut hurt: impl FnMut() -> Result<(), String>,
    search: Option<Search<'_>>,
    tell: impl Fn() -> String,
) -> Result<(), String> {
    let started = Instant::now();
    let (mut told, mut searched, mut times) = (started, started, 0);
    while started.elapsed() < duration {
        hurt()?;
        times += 1;
        if told.elapsed() >= PROGRESS_EVERY {
            told = Instant::now();
            let seconds = started.elapsed().as_secs();
            println!("{seconds:4} s: {}, {times} faults", tell());
        }
        if let Some((every, found)) = search
            && searched.elapsed() >= every
        {
            if found() {
                break;
            }
            searched = Instant::now();
        }
    }
    Ok(())
}

/// How often there was each kind of something.
pub type Tally = BTreeMap<String, usize>;

/// What came of all operations. What shows that a section relies upon its lock is none.
pub fn outcomes(history: &History) -> Tally {
    let mut outcomes = Tally::new();
    let is_none = |one: &&Operation| one.answered == Some(one.sent);
    for one in history.operations.iter().filter(|one| !is_none(one)) {
        let kind = match &one.outcome {
            Outcome::Granted(_) | Outcome::GrantedWithoutToken => "granted".to_owned(),
            Outcome::Told { .. } => "told".to_owned(),
            Outcome::Elements(_) => "read".to_owned(),
            Outcome::Error(code) => code.to_lowercase(),
            other => format!("{other:?}").to_lowercase(),
        };
        *outcomes.entry(kind).or_default() += 1;
    }
    outcomes
}

/// Each kind with its number, and the sum before them.
pub fn counts(kinds: &BTreeMap<impl AsRef<str>, usize>) -> String {
    let mut line = kinds.values().sum::<usize>().to_string();
    for (index, (kind, count)) in kinds.iter().enumerate() {
        let separator = if index == 0 { " (" } else { ", " };
        line.push_str(&format!("{separator}{} {count}", kind.as_ref()));
    }
    if !kinds.is_empty() {
        line.push(')');
    }
    line
}

/// Shows some breaches of each promise, as `tell` tells them. Returns how many there are.
pub fn show_as(breaches: &[Breach], tell: impl Fn(&Breach) -> String) -> Tally {
    let mut broken: BTreeMap<Promise, usize> = BTreeMap::new();
    for breach in breaches {
        let count = broken.entry(breach.promise).or_default();
        *count += 1;
        if *count <= SHOWN {
            println!("{}", tell(breach));
        }
    }
    let named = broken.iter();
    named
        .map(|(promise, count)| (promise.to_string(), *count))
        .collect()
}

/// As [`show_as`], with the evidence alone.
pub fn show(breaches: &[Breach]) -> Tally {
    show_as(breaches, |one| {
        format!("breach of {}: {}", one.promise, one.evidence)
    })
}

/// Writes a history, a line each, as `--judge` reads it.
pub fn write_history(history: &History, path: &Path) -> Result<(), String> {
    let write = || -> std::io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        for operation in &history.operations {
            serde_json::to_writer(&mut file, operation)?;
            file.write_all(b"\n")?;
        }
        for interference in &history.interferences {
            serde_json::to_writer(&mut file, interference)?;
            file.write_all(b"\n")?;
        }
        file.flush()
    };
    write().map_err(|error| format!("{}: {error}", path.display()))
}
