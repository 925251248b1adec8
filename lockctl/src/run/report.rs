//! What `lockctl run` tells on stderr. Stdout is the command's.

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use redis_lock_client::{Error, LockGuard, Lost};
use serde::Serialize;

use crate::exit::Exit;
use crate::quoting::shown;

/// What happened.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    Acquired {
        key: String,
        owner: String,
        token: u64,
        waited_ms: u128,
    },
    NotAcquired {
        key: String,
        waited_ms: u128,
    },
    Interrupted {
        key: String,
    },
    Lost {
        key: String,
        why: String,
    },
    Released {
        key: String,
        exit_code: u8,
    },
    Kept {
        key: String,
        exit_code: u8,
        lease_ms: u128,
    },
    Unreleased {
        key: String,
        exit_code: u8,
        why: String,
    },
}

impl Event {
    pub fn acquired(guard: &LockGuard, waited: Duration) -> Self {
        Self::Acquired {
            key: shown(guard.key()),
            owner: shown(guard.owner()),
            token: guard.token(),
            waited_ms: waited.as_millis(),
        }
    }

    pub fn not_acquired(key: &OsStr, waited: Duration) -> Self {
        Self::NotAcquired {
            key: shown(key.as_bytes()),
            waited_ms: waited.as_millis(),
        }
    }

    pub fn interrupted(key: &OsStr) -> Self {
        Self::Interrupted {
            key: shown(key.as_bytes()),
        }
    }

    pub fn lost(key: &[u8], why: Lost) -> Self {
        Self::Lost {
            key: shown(key),
            why: why.to_string(),
        }
    }

    pub fn released(key: &[u8], exit: Exit) -> Self {
        Self::Released {
            key: shown(key),
            exit_code: exit.code(),
        }
    }

    pub fn kept(key: &[u8], exit: Exit, lease: Duration) -> Self {
        Self::Kept {
            key: shown(key),
            exit_code: exit.code(),
            lease_ms: lease.as_millis(),
        }
    }

    pub fn unreleased(key: &[u8], exit: Exit, error: &Error) -> Self {
        Self::Unreleased {
            key: shown(key),
            exit_code: exit.code(),
            why: error.to_string(),
        }
    }

    /// Whether the exit code tells enough, as with flock(1).
    fn is_routine(&self) -> bool {
        !matches!(self, Self::Lost { .. } | Self::Unreleased { .. })
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Acquired {
                key,
                owner,
                token,
                waited_ms,
            } => write!(
                f,
                "{key} is taken by {owner} with token {token} after {waited_ms} ms"
            ),
            Self::NotAcquired { key, waited_ms } => {
                write!(f, "{key} is held by another, still after {waited_ms} ms")
            }
            Self::Interrupted { key } => write!(f, "the wait for {key} was interrupted"),
            Self::Lost { key, why } => {
                write!(f, "{key} was lost before the command had ended: {why}")
            }
            Self::Released { key, exit_code } => {
                write!(f, "{key} is released; the command exited with {exit_code}")
            }
            Self::Kept {
                key,
                exit_code,
                lease_ms,
            } => write!(
                f,
                "{key} stays taken for {lease_ms} ms; the command exited with {exit_code}"
            ),
            Self::Unreleased { key, why, .. } => {
                write!(
                    f,
                    "{key} could not be released yet: {why}. It ends with its lease"
                )
            }
        }
    }
}

/// How to tell it.
pub struct Report {
    json: bool,
    verbose: bool,
}

impl Report {
    /// With `verbose`, what the client does is told as well.
    pub fn new(json: bool, verbose: bool) -> Self {
        if verbose && !json {
            tracing_subscriber::fmt()
                .with_env_filter("redis_lock_client=debug")
                .with_writer(std::io::stderr)
                .without_time()
                .init();
        }
        Self { json, verbose }
    }

    /// Tells what happened.
    pub fn tell(&self, event: &Event) {
        let told = match self.json {
            true => serde_json::to_string(event).unwrap_or_default(),
            false if event.is_routine() && !self.verbose => return,
            false => format!("lockctl: {event}"),
        };
        // Nobody may be there to read it, which is no reason to end the command.
        let _ = writeln!(io::stderr(), "{told}");
    }
}
