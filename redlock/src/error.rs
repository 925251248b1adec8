//! What can go wrong.

use redis_lock_client::{Error as ClientError, Lost};

/// Why there is no lock.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Too many servers gave an error, or no answer in time.
    #[error("{failed} of {servers} servers failed{}", last.as_ref().map(|last| format!(": {last}")).unwrap_or_default())]
    NoMajority {
        /// How many servers there are.
        servers: usize,
        /// How many of them failed.
        failed: usize,
        /// What one of them said, if any said something in time: one that may pass, unless
        /// a majority refuses for good.
        #[source]
        last: Option<Box<ClientError>>,
    },
    /// The hold is over.
    #[error("the hold is lost: {0}")]
    Lost(Lost),
    /// A server, an address or a setting that can't be used.
    #[error(transparent)]
    Client(#[from] ClientError),
}

impl Error {
    /// A stable word for programs: `NOMAJORITY`, `LOST`, or that of the client's error.
    pub fn code(&self) -> &str {
        match self {
            Self::NoMajority { .. } => "NOMAJORITY",
            Self::Lost(_) => "LOST",
            Self::Client(error) => error.code(),
        }
    }

    /// Returns whether the same call may succeed if it is tried again.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::NoMajority { last, .. } => last.as_ref().is_none_or(|last| last.is_retryable()),
            Self::Lost(_) => false,
            Self::Client(error) => error.is_retryable(),
        }
    }

    pub(crate) fn no_majority(servers: usize, failed: usize, errors: Vec<ClientError>) -> Self {
        let lasting = errors.iter().filter(|error| !error.is_retryable());
        let passes = lasting.count() < servers.div_ceil(2);
        let mut errors = errors.into_iter();
        let last = errors.find(|error| error.is_retryable() == passes);
        Self::NoMajority {
            servers,
            failed,
            last: last.map(Box::new),
        }
    }
}
