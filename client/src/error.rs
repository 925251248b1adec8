//! What can go wrong, and whether trying again can help.

use redis::{ErrorKind, RedisError};
use tokio::task::JoinError;

use crate::validity::Lost;

/// What can go wrong.
///
/// That another owner has the lock is no error: [`try_acquire`] and
/// [`acquire_within`] return `None` then.
///
/// [`try_acquire`]: crate::Lock::try_acquire
/// [`acquire_within`]: crate::Lock::acquire_within
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server refused. It has changed nothing, unless the code is `NOREPLICAS`, or
    /// `UNBLOCKED` where replicas are awaited: then a hold or a renewal is not known to
    /// be safe. The client gives such a hold back, and relies on no such renewal.
    #[error("{code} {message}")]
    #[non_exhaustive]
    Server {
        /// The first word of the server's error, such as `NOTALOCK` or `NOPERM`.
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
    /// The server at this address does not take locks itself: it is a replica,
    /// or a node of a cluster. The message says how to connect instead.
    #[error("{message}")]
    #[non_exhaustive]
    WrongServer {
        /// What to do.
        message: String,
    },
    /// Waiting would close a cycle of owners that wait for each other, so it
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
    #[error("no answer from the server: {message}")]
    #[non_exhaustive]
    Unavailable {
        /// What happened to the connection.
        message: String,
        /// Whether the connection was closed, rather than silent.
        closed: bool,
        /// Whether the same can be expected the next time, as with a
        /// certificate that is not trusted.
        permanent: bool,
    },
    /// The address is invalid, or this build can't connect to it.
    #[error("{0}")]
    Address(String),
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
    /// The request is impossible: a lease out of its range, an empty owner.
    #[error("{0}")]
    Invalid(&'static str),
    /// The server's reply is not that of a lock command.
    #[error("not the reply of a lock command: {0}")]
    Reply(String),
    /// The server posts no events of locks: its `notify-keyspace-events` lacks `E` or
    /// `d`. [`LockClient::post_events`](crate::LockClient::post_events) sets it.
    #[error(
        "{server} posts no events of locks. Type there: CONFIG SET notify-keyspace-events {wanted}"
    )]
    #[non_exhaustive]
    NoEvents {
        /// Which server.
        server: String,
        /// What the setting should be.
        wanted: String,
    },
    /// The runtime in which the client was connected has ended. Its tasks do
    /// the work, so connect in a runtime that lives as long as the client.
    #[error("the runtime in which the client was connected has ended")]
    Stopped,
    /// This process was forked after the client was connected. The connections
    /// belong to the parent: connect anew after the fork.
    #[error("the client was connected before a fork: connect anew in this process")]
    Forked,
}

impl Error {
    /// Returns whether it may succeed if it is tried again: the same call, or after
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
                    | "BUSY"
                    | "READONLY"
                    | "MASTERDOWN"
                    | "NOREPLICAS"
                    | "QUEUEFULL"
            ),
            Self::Unavailable { permanent, .. } => !permanent,
            Self::NotReplicated { .. } | Self::Deadlock { .. } => true,
            Self::NoMajority { last, .. } => last.is_retryable(),
            _ => false,
        }
    }

    /// A stable word for programs: the first word of the server's error where
    /// the server refused (`ERR` if there is none), else one of `NOMODULE`,
    /// `WRONGSERVER`, `UNAVAILABLE`, `ADDRESS`, `LOST`, `NOTREPLICATED`,
    /// `NOMAJORITY`, `INVALID`, `REPLY`, `NOEVENTS`, `STOPPED`, `FORKED`.
    pub fn code(&self) -> &str {
        match self {
            Self::Server { code, .. } => code,
            Self::NoModule => "NOMODULE",
            Self::WrongServer { .. } => "WRONGSERVER",
            Self::Deadlock { .. } => "DEADLOCK",
            Self::Upgrade { .. } => "UPGRADE",
            Self::Unavailable { .. } => "UNAVAILABLE",
            Self::Address(_) => "ADDRESS",
            Self::Lost(_) => "LOST",
            Self::NotReplicated { .. } => "NOTREPLICATED",
            Self::NoMajority { .. } => "NOMAJORITY",
            Self::Invalid(_) => "INVALID",
            Self::Reply(_) => "REPLY",
            Self::NoEvents { .. } => "NOEVENTS",
            Self::Stopped => "STOPPED",
            Self::Forked => "FORKED",
        }
    }

    /// Returns whether an acquire goes on waiting: a fail-over may be on its way.
    pub(crate) fn may_pass(&self) -> bool {
        self.is_retryable() && !matches!(self, Self::NotReplicated { .. } | Self::Deadlock { .. })
    }

    /// Returns whether the command may have been carried out all the same.
    pub(crate) fn leaves_doubt(&self) -> bool {
        match self {
            // The module gives the grant back, or a fail-over kept it. A server that is
            // demoted unblocks also whom it did not tell of a grant.
            Self::Server { code, .. } => matches!(code.as_str(), "NOREPLICAS" | "UNBLOCKED"),
            Self::Unavailable { .. } | Self::Reply(_) | Self::Stopped | Self::Lost(_) => true,
            _ => false,
        }
    }

    /// Returns whether a new connection may lead to a server that does better.
    pub(crate) fn calls_for_new_connection(&self) -> bool {
        match self {
            Self::Server { code, .. } => {
                matches!(code.as_str(), "READONLY" | "MASTERDOWN" | "UNBLOCKED")
            }
            Self::Unavailable { .. } | Self::Reply(_) | Self::WrongServer { .. } => true,
            _ => false,
        }
    }

    /// Returns whether it is what a module says that knows no places.
    pub(crate) fn is_syntax_error(&self) -> bool {
        matches!(self, Self::Server { code, message }
            if code == "ERR" && message.starts_with("syntax error"))
    }

    /// Returns whether the user may not send this command, or the server has none such.
    pub(crate) fn is_of_the_command(&self) -> bool {
        matches!(self.code(), "NOPERM" | "ERR" | "NOMODULE")
    }

    /// Returns whether the connection was closed.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self, Self::Unavailable { closed: true, .. })
    }

    pub(crate) fn timed_out() -> Self {
        Self::unavailable("no answer in time")
    }

    pub(crate) fn unavailable(why: &str) -> Self {
        Self::Unavailable {
            message: why.into(),
            closed: false,
            permanent: false,
        }
    }

    /// Names the server that could not be reached.
    pub(crate) fn at(mut self, address: &str) -> Self {
        if let Self::Unavailable { message, .. } = &mut self {
            *message = format!("{address}: {message}");
        }
        self
    }

    pub(crate) fn unexpected(reply: &redis::Value) -> Self {
        Self::Reply(format!("{reply:?}"))
    }

    /// An error as a server writes it: its code, and its words.
    pub(crate) fn from_line(line: &str) -> Self {
        let (code, message) = line.split_once(' ').unwrap_or((line, ""));
        Self::of_server(code, message.to_string())
    }

    fn of_server(code: &str, message: String) -> Self {
        match code {
            "ERR" if message.starts_with("unknown command") => Self::NoModule,
            "DEADLOCK" => Self::Deadlock { cycle: message },
            "UPGRADE" => Self::Upgrade { message },
            "" => Self::of_server("ERR", message),
            _ => Self::Server {
                code: code.to_string(),
                message,
            },
        }
    }

    /// What the redis crate told.
    pub(crate) fn from_redis(error: RedisError) -> Self {
        if let Some(code) = error.code() {
            let message = error.detail().unwrap_or_default().to_string();
            return Self::of_server(code, message);
        }
        match error.kind() {
            ErrorKind::InvalidClientConfig => Self::Address(error.to_string()),
            ErrorKind::AuthenticationFailed => Self::Server {
                code: "WRONGPASS".into(),
                message: error.to_string(),
            },
            ErrorKind::UnexpectedReturnType | ErrorKind::Parse => Self::Reply(error.to_string()),
            _ => Self::Unavailable {
                message: error.to_string(),
                closed: error.is_connection_dropped(),
                permanent: is_distrust(&error),
            },
        }
    }

    /// A task that ended before its time. A panic goes on in whoever waited
    /// for the task.
    pub(crate) fn from_task(error: JoinError) -> Self {
        match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Self::Stopped,
        }
    }
}

/// Returns whether one end does not accept the other's certificate or ways, which does
/// not change by trying again. A connection that ends during the handshake does.
fn is_distrust(error: &RedisError) -> bool {
    // What a TLS library found is told by its words alone.
    let told = error.to_string().to_lowercase();
    ["certificate", "handshakefailure", "handshake failure"]
        .iter()
        .any(|words| told.contains(words))
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
        Error::from_redis(RedisError::from(error))
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
            assert_eq!(error.code(), code, "{error:?}");
            assert_eq!(error.to_string(), format!("{code} some words"));
        }
        assert_eq!(told("DEADLOCK a -> b").code(), "DEADLOCK");
        assert_eq!(told("UPGRADE held shared").code(), "UPGRADE");
    }

    #[test]
    fn an_error_without_a_word_has_a_code_too() {
        for line in ["", " some words"] {
            assert_eq!(told(line).code(), "ERR", "{line:?}");
        }
    }

    #[test]
    fn only_whoever_began_the_work_retries_a_deadlock() {
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
        // A sentinel says the same.
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

    #[test]
    fn only_what_may_have_been_carried_out_leaves_doubt() {
        assert!(Error::timed_out().leaves_doubt());
        assert!(told("NOREPLICAS x").leaves_doubt());
        assert!(told("UNBLOCKED x").leaves_doubt());
        for line in ["NOPERM x", "BUSY x", "DEADLOCK x", "OOM x"] {
            assert!(!told(line).leaves_doubt(), "{line}");
        }
    }

    #[tokio::test]
    #[should_panic(expected = "the panic of the task")]
    async fn a_panic_is_not_turned_into_an_error() {
        let ended = tokio::spawn(async { panic!("the panic of the task") }).await;
        let error: Result<(), Error> = ended.map_err(Error::from_task);
        drop(error);
    }
}
