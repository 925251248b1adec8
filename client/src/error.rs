//! What can go wrong, and whether trying again can help.

use std::fmt;

use redis::{ErrorKind, RedisError, Value};

/// Why a hold can no longer be relied upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lost {
    /// No renewal succeeded in time. The lock may be another's by now.
    Expired,
    /// The server says that the hold is over: broken, deleted, or another's.
    Refused,
    /// The connection of the hold's [session](crate::Session) is closed, and the hold
    /// ended with it.
    Disconnected,
    /// It was released, or its guard was dropped or forgotten.
    Released,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its lease ran out",
            Self::Refused => "the server says that the hold has ended",
            Self::Disconnected => "the connection of its session was closed",
            Self::Released => "it was released",
        })
    }
}

/// What can go wrong.
///
/// That another owner has the lock is no error: [`try_acquire`] and [`acquire_within`]
/// return `None` then.
///
/// [`try_acquire`]: crate::Lock::try_acquire
/// [`acquire_within`]: crate::Lock::acquire_within
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server refused, and has changed nothing.
    #[error("{code} {message}")]
    #[non_exhaustive]
    Server {
        /// The first word of the server's error, such as `OOM` or `LOADING`.
        code: String,
        /// The rest of it.
        message: String,
    },
    /// The server does not know the lock commands.
    #[error(
        "the server has no lock module: load libredislock.so; \
         or it is a sentinel: connect by redis-sentinel://host/NAME"
    )]
    NoModule,
    /// The server at this address does not take locks itself: it is a replica, or a node
    /// of a cluster. The message says how to connect instead.
    #[error("{0}")]
    WrongServer(&'static str),
    /// Waiting would close a cycle of owners that wait for each other, told in the
    /// server's words. Release what this owner holds, and begin anew.
    #[error("DEADLOCK {0}")]
    Deadlock(String),
    /// The job has the lock in a shared or limited mode and asked for a stricter one.
    /// Release it first.
    #[error("UPGRADE {0}")]
    Upgrade(String),
    /// A later request of the same owner took this one over.
    #[error("SUPERSEDED {0}")]
    Superseded(String),
    /// Too many wait already, for the lock or at the server.
    #[error("QUEUEFULL {0}")]
    QueueFull(String),
    /// The key holds something else than a lock.
    #[error("{0}")]
    NotALock(String),
    /// The server counts the holds of this job otherwise: somebody else uses its name.
    #[error("HOLDCOUNT {0}")]
    HoldCount(String),
    /// Too few replicas acknowledged in time, so the grant or renewal is not known to be
    /// safe. The client gives such a grant back, and relies on no such renewal.
    #[error("NOREPLICAS {0}")]
    NoReplicas(String),
    /// A guarded command came after the hold had ended. Nothing was done.
    #[error("NOTHELD {0}")]
    NotHeld(String),
    /// The user may not do this.
    #[error("NOPERM {0}")]
    NoPermission(String),
    /// No answer: the connection failed, or the time for an answer ran out.
    #[error("no answer from the server: {message}")]
    #[non_exhaustive]
    Unavailable {
        /// What happened to the connection.
        message: String,
        /// Whether the connection was closed, rather than silent.
        closed: bool,
        /// Whether the command may have reached the server.
        sent: bool,
        /// Whether the same can be expected the next time, as with a certificate that
        /// is not trusted.
        permanent: bool,
    },
    /// The address is invalid, or this build can't connect to it.
    #[error("{0}")]
    Address(String),
    /// The hold is over, so what it protected may have been another's for a while.
    #[error("the hold is lost: {0}")]
    Lost(Lost),
    /// The request is impossible: a lease out of its range, an empty name.
    #[error("{0}")]
    Invalid(&'static str),
    /// The server's reply is not that of a lock command.
    #[error("not the reply of a lock command: {0}")]
    Reply(String),
    /// The runtime in which the client was connected has ended. Connect in a runtime
    /// that lives as long as the client.
    #[error("the runtime in which the client was connected has ended")]
    Stopped,
    /// This process was forked after the client was connected. The connections belong
    /// to the parent: connect anew after the fork.
    #[error("the client was connected before a fork: connect anew in this process")]
    Forked,
}

impl Error {
    /// Returns whether it may succeed if it is tried again: the same call, or after
    /// [`Error::Deadlock`] the whole work.
    ///
    /// An acquire that waits makes good by itself what a fail-over or a lost connection
    /// brings, until its wait is over.
    pub fn is_retryable(&self) -> bool {
        self.may_pass() || matches!(self, Self::Deadlock(_))
    }

    /// A stable word for programs: the first word of the server's error where the server
    /// refused, else one of `NOMODULE`, `WRONGSERVER`, `UNAVAILABLE`, `ADDRESS`, `LOST`,
    /// `INVALID`, `REPLY`, `STOPPED`, `FORKED`.
    pub fn code(&self) -> &str {
        match self {
            Self::Server { code, .. } => code,
            Self::NoModule => "NOMODULE",
            Self::WrongServer(_) => "WRONGSERVER",
            Self::Deadlock(_) => "DEADLOCK",
            Self::Upgrade(_) => "UPGRADE",
            Self::Superseded(_) => "SUPERSEDED",
            Self::QueueFull(_) => "QUEUEFULL",
            Self::NotALock(message) => message.split(' ').next().unwrap_or_default(),
            Self::HoldCount(_) => "HOLDCOUNT",
            Self::NoReplicas(_) => "NOREPLICAS",
            Self::NotHeld(_) => "NOTHELD",
            Self::NoPermission(_) => "NOPERM",
            Self::Unavailable { .. } => "UNAVAILABLE",
            Self::Address(_) => "ADDRESS",
            Self::Lost(_) => "LOST",
            Self::Invalid(_) => "INVALID",
            Self::Reply(_) => "REPLY",
            Self::Stopped => "STOPPED",
            Self::Forked => "FORKED",
        }
    }

    /// Returns whether an acquire goes on waiting: a fail-over may be on its way.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Server { code, .. } => matches!(
                code.as_str(),
                "UNBLOCKED"
                    | "MOVED"
                    | "ASK"
                    | "TRYAGAIN"
                    | "CLUSTERDOWN"
                    | "LOADING"
                    | "BUSY"
                    | "READONLY"
                    | "MASTERDOWN"
            ),
            Self::NoReplicas(_) | Self::QueueFull(_) => true,
            Self::Unavailable { permanent, .. } => !permanent,
            _ => false,
        }
    }

    /// Returns whether the command may have been carried out all the same.
    pub(crate) fn leaves_doubt(&self) -> bool {
        match self {
            // A server that is demoted unblocks also a client whose grant it did not tell.
            Self::Server { code, .. } => code == "UNBLOCKED",
            Self::Unavailable { sent, .. } => *sent,
            Self::NoReplicas(_) | Self::Reply(_) | Self::Stopped | Self::Lost(_) => true,
            _ => false,
        }
    }

    /// Returns whether the connection was closed.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self, Self::Unavailable { closed: true, .. })
    }

    pub(crate) fn timed_out() -> Self {
        Self::no_answer("no answer in time", false)
    }

    pub(crate) fn closed() -> Self {
        Self::no_answer("the connection was closed", true)
    }

    fn no_answer(message: &str, closed: bool) -> Self {
        Self::Unavailable {
            message: message.into(),
            closed,
            sent: true,
            permanent: false,
        }
    }

    /// The same error, of a command that was not sent.
    pub(crate) fn unsent(mut self) -> Self {
        if let Self::Unavailable { sent, .. } = &mut self {
            *sent = false;
        }
        self
    }

    /// Names the server that could not be reached.
    pub(crate) fn at(mut self, address: &str) -> Self {
        if let Self::Unavailable { message, .. } = &mut self {
            *message = format!("{address}: {message}");
        }
        self
    }

    pub(crate) fn unexpected(reply: &Value) -> Self {
        Self::Reply(format!("{reply:?}"))
    }

    /// An error as a server writes it: its code, and its words.
    pub(crate) fn from_line(line: &str) -> Self {
        let (code, message) = line.split_once(' ').unwrap_or((line, ""));
        Self::of_server(code, message.to_string())
    }

    fn of_server(code: &str, message: String) -> Self {
        match code {
            "ERR" if message.starts_with("unknown command 'LOCK.") => Self::NoModule,
            "DEADLOCK" => Self::Deadlock(message),
            "UPGRADE" => Self::Upgrade(message),
            "SUPERSEDED" => Self::Superseded(message),
            "QUEUEFULL" => Self::QueueFull(message),
            "NOTALOCK" | "WRONGTYPE" => Self::NotALock(format!("{code} {message}")),
            "HOLDCOUNT" => Self::HoldCount(message),
            "NOREPLICAS" => Self::NoReplicas(message),
            "NOTHELD" => Self::NotHeld(message),
            "NOPERM" => Self::NoPermission(message),
            "" => Self::of_server("ERR", message),
            _ => Self::Server {
                code: code.to_string(),
                message,
            },
        }
    }
}

impl From<RedisError> for Error {
    fn from(error: RedisError) -> Self {
        if let Some(code) = error.code() {
            return Self::of_server(code, error.detail().unwrap_or_default().to_string());
        }
        match error.kind() {
            ErrorKind::InvalidClientConfig => Self::Address(error.to_string()),
            ErrorKind::AuthenticationFailed => Self::of_server("WRONGPASS", error.to_string()),
            ErrorKind::UnexpectedReturnType | ErrorKind::Parse => Self::Reply(error.to_string()),
            _ => Self::Unavailable {
                message: error.to_string(),
                closed: error.is_connection_dropped(),
                sent: true,
                permanent: is_distrust(&error),
            },
        }
    }
}

/// So that conversions to servers that can't fail fit [`LockClient::connect`].
///
/// [`LockClient::connect`]: crate::LockClient::connect
impl From<std::convert::Infallible> for Error {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

/// Returns whether one end does not accept the other's certificate or ways, which does
/// not change by trying again. What a TLS library found is told by its words alone.
fn is_distrust(error: &RedisError) -> bool {
    let told = error.to_string().to_lowercase();
    ["certificate", "handshakefailure", "handshake failure"]
        .iter()
        .any(|words| told.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_code_is_kept() {
        for code in [
            "NOTALOCK",
            "WRONGTYPE",
            "HOLDCOUNT",
            "QUEUEFULL",
            "READONLY",
            "MOVED",
            "ERR",
            "DEADLOCK",
            "UPGRADE",
            "SUPERSEDED",
            "NOREPLICAS",
            "NOTHELD",
            "NOPERM",
        ] {
            let error = Error::from_line(&format!("{code} some words"));
            assert_eq!(error.code(), code, "{error:?}");
            assert_eq!(error.to_string(), format!("{code} some words"));
        }
        for line in ["", " some words"] {
            assert_eq!(Error::from_line(line).code(), "ERR", "{line:?}");
        }
    }

    #[test]
    fn a_server_without_the_module_is_told_by_name() {
        let error = Error::from_line("ERR unknown command 'LOCK.ACQUIRE', with args");
        assert!(matches!(error, Error::NoModule), "{error:?}");
        assert!(error.to_string().contains("redis-sentinel://"), "{error}");
    }

    #[test]
    fn what_a_failover_brings_is_retryable_and_a_mistake_is_not() {
        for line in [
            "UNBLOCKED x",
            "MOVED 1 a:1",
            "LOADING x",
            "BUSY x",
            "READONLY x",
            "QUEUEFULL x",
        ] {
            assert!(Error::from_line(line).is_retryable(), "{line}");
        }
        for line in [
            "ERR syntax error",
            "WRONGTYPE x",
            "NOTALOCK x",
            "NOPERM x",
            "OOM x",
            "SUPERSEDED x",
        ] {
            assert!(!Error::from_line(line).is_retryable(), "{line}");
        }
        assert!(Error::timed_out().is_retryable());
        assert!(!Error::Lost(Lost::Expired).is_retryable());
        let deadlock = Error::from_line("DEADLOCK x");
        assert!(deadlock.is_retryable() && !deadlock.may_pass());
    }

    #[test]
    fn only_what_may_have_been_carried_out_leaves_doubt() {
        assert!(Error::timed_out().leaves_doubt());
        for line in ["NOREPLICAS x", "UNBLOCKED x"] {
            assert!(Error::from_line(line).leaves_doubt(), "{line}");
        }
        for line in ["NOPERM x", "BUSY x", "DEADLOCK x", "OOM x"] {
            assert!(!Error::from_line(line).leaves_doubt(), "{line}");
        }
    }
}
