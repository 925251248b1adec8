//! What can go wrong.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;

use redis_lock_client::Error;
use redis_lock_client::redis::RedisError;
use serde_json::json;

use crate::exit::Exit;

/// Why lockctl gave up.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// What the client said.
    #[error("{0}")]
    Lock(#[from] Error),
    /// The server posts no events.
    #[error(
        "{server} does not post what happens to locks. Type there: \
         CONFIG SET notify-keyspace-events {wanted}"
    )]
    NoEvents {
        server: String,
        /// What the setting should be.
        wanted: String,
    },
    /// The command did not start.
    #[error("{command}: {error}")]
    Command { command: String, error: io::Error },
    /// A file that the command line names.
    #[error("{path}: {why}")]
    File {
        /// `URLFILE` or `CERTIFICATE`.
        code: &'static str,
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// The system refused.
    #[error("{0}")]
    System(#[from] io::Error),
    /// The command line can't be read.
    #[error("{0}")]
    CommandLine(String),
    /// The command line asks for something impossible.
    #[error("{0}")]
    Usage(&'static str),
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Self {
        Self::Lock(error.into())
    }
}

impl Failure {
    /// Something is wrong with a file.
    pub fn file(code: &'static str, path: &Path, why: &impl Display) -> Self {
        Self::File {
            code,
            path: path.display().to_string(),
            why: why.to_string(),
        }
    }

    /// What the process ends with.
    pub fn exit(&self) -> Exit {
        match self {
            // Whoever reads what is written had seen enough, as `head` has.
            Self::System(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::SUCCESS,
            Self::Command { error, .. } if error.kind() == io::ErrorKind::NotFound => {
                Exit::NOT_FOUND
            }
            Self::Command { .. } => Exit::NOT_EXECUTABLE,
            _ => Exit::FAILED,
        }
    }

    /// A stable word for programs: the server's where it refused.
    pub fn code(&self) -> &str {
        match self {
            Self::Lock(error) => error.code(),
            Self::NoEvents { .. } => "NOEVENTS",
            Self::Command { .. } => "COMMAND",
            Self::File { code, .. } => code,
            Self::System(_) => "SYSTEM",
            Self::CommandLine(_) | Self::Usage(_) => "USAGE",
        }
    }

    /// Tells it on stderr, if anybody is there to read it.
    pub fn print(&self, json: bool) {
        let told = if json {
            json!({"error": {"code": self.code(), "message": self.to_string()}}).to_string()
        } else {
            format!("lockctl: {self}")
        };
        let _ = writeln!(io::stderr(), "{told}");
    }
}
