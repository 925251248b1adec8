//! What `lockctl run` tells on stderr. Stdout is the command's.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use redis_lock_client::{Error, LockGuard, Lost};
use serde::Serialize;

use super::log::Log;
use super::members::Process;
use super::stderr::Stderr;
use crate::arguments::RunOptions;
use crate::exit::Exit;
use crate::name::Name;

/// What happened.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    Acquired {
        #[serde(flatten, serialize_with = "Name::as_key")]
        key: Name,
        #[serde(flatten, serialize_with = "Name::as_owner")]
        owner: Name,
        token: u64,
        waited_ms: u128,
    },
    NotAcquired {
        #[serde(flatten, serialize_with = "Name::as_key")]
        key: Name,
        waited_ms: u128,
        why: String,
    },
    Interrupted {
        #[serde(flatten, serialize_with = "Name::as_key")]
        key: Name,
    },
    Lost {
        #[serde(flatten, serialize_with = "Name::as_key")]
        key: Name,
        code: &'static str,
        why: String,
    },
    /// What can't be ended still runs.
    Unended {
        #[serde(flatten, serialize_with = "Name::as_key")]
        key: Name,
        pids: Vec<i32>,
        /// Whether it runs without the lock.
        lost: bool,
        #[serde(skip)]
        processes: String,
    },
    Released {
        #[serde(flatten, serialize_with = "Name::as_key")]
        key: Name,
        exit_code: u8,
    },
    Kept {
        #[serde(flatten, serialize_with = "Name::as_key")]
        key: Name,
        exit_code: u8,
        lease_ms: u128,
    },
    Unreleased {
        #[serde(flatten, serialize_with = "Name::as_key")]
        key: Name,
        exit_code: u8,
        code: String,
        why: String,
    },
}

impl Event {
    pub fn acquired(guard: &LockGuard, waited: Duration) -> Self {
        Self::Acquired {
            key: guard.key().into(),
            owner: guard.owner().into(),
            token: guard.token(),
            waited_ms: waited.as_millis(),
        }
    }

    pub fn not_acquired(key: &OsStr, waited: Duration, why: String) -> Self {
        Self::NotAcquired {
            key: key.as_bytes().into(),
            waited_ms: waited.as_millis(),
            why,
        }
    }

    pub fn interrupted(key: &OsStr) -> Self {
        Self::Interrupted {
            key: key.as_bytes().into(),
        }
    }

    pub fn lost(key: &[u8], why: Lost) -> Self {
        Self::Lost {
            key: key.into(),
            code: match why {
                Lost::Expired => "EXPIRED",
                Lost::Refused => "REFUSED",
                Lost::Disconnected => "DISCONNECTED",
                Lost::Released => "RELEASED",
                _ => "LOST",
            },
            why: why.to_string(),
        }
    }

    pub fn unended(key: &[u8], processes: &[Process], lost: bool) -> Self {
        let names: Vec<_> = processes.iter().map(Process::to_string).collect();
        Self::Unended {
            key: key.into(),
            pids: processes.iter().map(|process| process.pid).collect(),
            lost,
            processes: match &names[..] {
                [] => "a process that can't be ended".into(),
                [name] => format!("process {name}, which this user may not end,"),
                names => format!("{}, which this user may not end,", names.join(", ")),
            },
        }
    }

    pub fn released(key: &[u8], exit: Exit) -> Self {
        Self::Released {
            key: key.into(),
            exit_code: exit.code(),
        }
    }

    pub fn kept(key: &[u8], exit: Exit, lease: Duration) -> Self {
        Self::Kept {
            key: key.into(),
            exit_code: exit.code(),
            lease_ms: lease.as_millis(),
        }
    }

    pub fn unreleased(key: &[u8], exit: Exit, error: &Error) -> Self {
        Self::Unreleased {
            key: key.into(),
            exit_code: exit.code(),
            code: error.code().into(),
            why: error.to_string(),
        }
    }

    /// Whether the exit code tells enough, as with flock(1).
    fn is_routine(&self) -> bool {
        !matches!(
            self,
            Self::Lost { .. } | Self::Unended { .. } | Self::Unreleased { .. }
        )
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
            Self::NotAcquired {
                key,
                waited_ms,
                why,
            } => write!(f, "{key} was not granted within {waited_ms} ms: {why}"),
            Self::Interrupted { key } => write!(f, "the wait for {key} was interrupted"),
            Self::Lost { key, why, .. } => {
                write!(f, "{key} was lost before the command had ended: {why}")
            }
            Self::Unended {
                key,
                lost,
                processes,
                ..
            } => match lost {
                true => write!(
                    f,
                    "{key} is lost, but {processes} still runs: another may hold the lock. \
                     Waiting for its end"
                ),
                false => write!(f, "{processes} still runs: {key} stays taken until it ends"),
            },
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
    stderr: Stderr,
}

impl Report {
    /// From now on what the client says is told as well.
    pub fn new(json: bool, options: &RunOptions) -> io::Result<Self> {
        let (verbose, stderr) = (options.verbose, Stderr::open()?);
        let key = options.name.as_bytes().into();
        Log::listen(json, verbose, key, stderr.clone());
        Ok(Self {
            json,
            verbose,
            stderr,
        })
    }

    /// Whether it tells more than trouble.
    pub fn tells_routine(&self) -> bool {
        self.json || self.verbose
    }

    /// Tells what happened.
    pub fn tell(&self, event: &Event) {
        let told = match self.json {
            true => serde_json::to_string(event).unwrap_or_default(),
            false if event.is_routine() && !self.tells_routine() => return,
            false => format!("lockctl: {event}"),
        };
        self.stderr.tell(told);
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        self.stderr.finish();
    }
}
