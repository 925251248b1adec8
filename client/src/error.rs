//! What can go wrong, and whether trying again can help.

use redis::{ErrorKind, RedisError, RetryMethod};

use crate::hold::Lost;

/// What can go wrong.
///
/// That another owner has the lock is no error: an acquire then answers `None`.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server refused. It has changed nothing.
    #[error("{code} {message}")]
    #[non_exhaustive]
    Server {
        /// The first word of the server's error, such as `NOTALOCK` or `NOPERM`.
        code: String,
        /// The rest of it.
        message: String,
    },
    /// The server does not know the lock commands.
    #[error("the server has no lock module: load libredislock.so")]
    NoModule,
    /// To wait would close a cycle of owners that wait for each other, so it
    /// would never end. Release what this owner holds, so that the others can go
    /// on, and begin anew.
    #[error("DEADLOCK {cycle}")]
    #[non_exhaustive]
    Deadlock {
        /// Who waits for which lock held by whom, in the server's words:
        /// `'b' waits for 'k1' held by 'a', 'a' waits for 'k2' held by 'b'`.
        cycle: String,
    },
    /// The owner has the lock in a shared or limited mode and asked for a
    /// stricter one, for which it could only wait in vain. Release it first.
    #[error("UPGRADE {message}")]
    #[non_exhaustive]
    Upgrade {
        /// The server's words.
        message: String,
    },
    /// No answer: the connection failed, or the time for an answer ran out.
    #[error("no answer from the server: {0}")]
    Unavailable(#[source] RedisError),
    /// The hold is over, so what it protected may have been another's for a while.
    #[error("the hold is lost: {0}")]
    Lost(Lost),
    /// Fewer replicas than asked for had the lock in time. It was released.
    #[error("{reached} of {wanted} replicas have the lock")]
    #[non_exhaustive]
    NotReplicated {
        /// How many replicas were asked for.
        wanted: usize,
        /// How many confirmed.
        reached: usize,
    },
    /// Too many servers of a Redlock gave no answer or an error.
    #[error("{failed} of {servers} servers failed, the last one: {last}")]
    #[non_exhaustive]
    NoMajority {
        /// How many servers there are.
        servers: usize,
        /// How many of them failed.
        failed: usize,
        /// What the last of them said.
        last: Box<Error>,
    },
    /// The request can't be made: a lease of no length, an empty owner.
    #[error("{0}")]
    Invalid(&'static str),
}

impl Error {
    /// Whether it may succeed if it is tried again: the same call, or after
    /// [`Error::Deadlock`] the whole work, once the owner has released all that it
    /// holds.
    ///
    /// An acquire that waits makes good by itself what a fail-over or a lost
    /// connection brings, until its wait is over.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Server { code, .. } => matches!(
                code.as_str(),
                "UNBLOCKED"
                    | "MOVED"
                    | "ASK"
                    | "TRYAGAIN"
                    | "CLUSTERDOWN"
                    | "LOADING"
                    | "READONLY"
                    | "MASTERDOWN"
                    | "NOREPLICAS"
                    | "QUEUEFULL"
            ),
            Self::Unavailable(error) => {
                error.kind() != ErrorKind::AuthenticationFailed
                    && !matches!(error.retry_method(), RetryMethod::NoRetry)
            }
            Self::NotReplicated { .. } | Self::Deadlock { .. } => true,
            Self::NoMajority { last, .. } => last.is_retryable(),
            Self::NoModule | Self::Upgrade { .. } | Self::Lost(_) | Self::Invalid(_) => false,
        }
    }

    /// The first word of the server's error, if it was the server that refused.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Server { code, .. } => Some(code),
            Self::NoModule => Some("ERR"),
            Self::Deadlock { .. } => Some("DEADLOCK"),
            Self::Upgrade { .. } => Some("UPGRADE"),
            Self::NoMajority { last, .. } => last.code(),
            _ => None,
        }
    }

    /// Whether an acquire goes on waiting: a fail-over may be on its way.
    pub(crate) fn may_pass(&self) -> bool {
        self.is_retryable() && !matches!(self, Self::NotReplicated { .. } | Self::Deadlock { .. })
    }

    /// Whether the command may have been carried out all the same.
    pub(crate) fn leaves_doubt(&self) -> bool {
        matches!(self, Self::Unavailable(_))
    }

    /// Whether a new connection may lead to a server that does better.
    pub(crate) fn calls_for_new_connection(&self) -> bool {
        match self {
            Self::Unavailable(_) => true,
            Self::Server { code, .. } => {
                matches!(code.as_str(), "READONLY" | "MASTERDOWN" | "UNBLOCKED")
            }
            _ => false,
        }
    }

    pub(crate) fn timed_out() -> Self {
        Self::Unavailable(std::io::Error::from(std::io::ErrorKind::TimedOut).into())
    }

    pub(crate) fn unexpected(reply: &redis::Value) -> Self {
        Self::Unavailable(RedisError::from((
            ErrorKind::UnexpectedReturnType,
            "this is no reply of a lock command",
            format!("{reply:?}"),
        )))
    }
}

impl From<RedisError> for Error {
    fn from(error: RedisError) -> Self {
        let Some(code) = error.code() else {
            return Self::Unavailable(error);
        };
        let message = error.detail().unwrap_or_default().to_string();
        match code {
            "ERR" if message.starts_with("unknown command") => Self::NoModule,
            "DEADLOCK" => Self::Deadlock { cycle: message },
            "UPGRADE" => Self::Upgrade { message },
            _ => Self::Server {
                code: code.to_string(),
                message,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use redis::{ServerError, Value};

    use super::*;

    /// The error that a line of the server becomes.
    fn told(line: &str) -> Error {
        let reply = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        let Value::ServerError(error) = reply else {
            panic!("{reply:?} is no error");
        };
        let error: ServerError = error;
        RedisError::from(error).into()
    }

    #[test]
    fn the_servers_code_is_kept() {
        for code in [
            "NOTALOCK",
            "HOLDCOUNT",
            "QUEUEFULL",
            "READONLY",
            "MOVED",
            "ERR",
        ] {
            let error = told(&format!("{code} some words"));
            assert_eq!(error.code(), Some(code), "{error:?}");
            assert_eq!(error.to_string(), format!("{code} some words"));
        }
        assert_eq!(told("DEADLOCK a -> b").code(), Some("DEADLOCK"));
        assert_eq!(told("UPGRADE held shared").code(), Some("UPGRADE"));
    }

    #[test]
    fn a_deadlock_is_for_who_began_the_work_to_try_again_and_an_upgrade_for_nobody() {
        let deadlock = told("DEADLOCK 'a' waits for 'k' held by 'b'");
        assert!(deadlock.is_retryable() && !deadlock.may_pass());
        assert!(matches!(deadlock,
            Error::Deadlock { cycle } if cycle == "'a' waits for 'k' held by 'b'"));
        let upgrade = told("UPGRADE held shared");
        assert!(!upgrade.is_retryable());
        assert!(matches!(upgrade, Error::Upgrade { .. }));
    }

    #[test]
    fn a_server_without_the_module_is_told_by_name() {
        let error = told("ERR unknown command 'LOCK.ACQUIRE', with args beginning with: 'a' 'b' ");
        assert!(matches!(error, Error::NoModule), "{error:?}");
    }

    #[test]
    fn what_a_failover_brings_is_retryable_and_a_mistake_is_not() {
        for line in [
            "UNBLOCKED x",
            "MOVED 1 a:1",
            "LOADING x",
            "READONLY x",
            "QUEUEFULL x",
        ] {
            assert!(told(line).is_retryable(), "{line}");
        }
        for line in [
            "ERR syntax error",
            "WRONGTYPE x",
            "NOTALOCK x",
            "NOPERM x",
            "OOM x",
        ] {
            assert!(!told(line).is_retryable(), "{line}");
        }
        assert!(Error::timed_out().is_retryable());
        assert!(!Error::Lost(Lost::Expired).is_retryable());
    }
}
