//! What can go wrong.

use std::io::{self, Write};

use redis_lock_client::Error;
use serde_json::json;

use crate::exit::Exit;

/// Why lockctl gave up.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// What the client said.
    #[error("{0}")]
    Lock(#[from] Error),
    /// The command did not start.
    #[error("{command}: {error}")]
    Command {
        /// Its name.
        command: String,
        /// What the system said.
        error: io::Error,
    },
    /// A file that the command line names.
    #[error("{path}: {why}")]
    File {
        /// `URLFILE` or `CERTIFICATE`.
        code: &'static str,
        /// Its path.
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

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self::System(error.into())
    }
}

impl Failure {
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
