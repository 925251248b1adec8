//! A lock by its name, and how it is taken.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::error::Error;
use crate::guard::LockGuard;
use crate::hold::Hold;
use crate::redlock::Shared;

/// A lock on the majority of several servers, and how to take it.
#[derive(Clone, Debug)]
#[must_use = "a lock is taken by `acquire`, `acquire_within` or `try_acquire`"]
pub struct Lock {
    shared: Arc<Shared>,
    key: Vec<u8>,
    lease: Option<Duration>,
    is_renewed: bool,
}

impl Lock {
    pub(crate) fn new(shared: Arc<Shared>, key: &[u8]) -> Self {
        Self {
            shared,
            key: key.into(),
            lease: None,
            is_renewed: true,
        }
    }

    /// How long the servers keep the lock if this process dies: 30 seconds if not set.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Whether it is renewed for as long as its guard lives: so if not said otherwise.
    pub fn renew(mut self, renew: bool) -> Self {
        self.is_renewed = renew;
        self
    }

    /// Takes the lock, and tries again without end while another has it, or while too few
    /// servers answer. Whose turn it is is chance. If the future is dropped, nothing is left
    /// at any server.
    ///
    /// # Errors
    /// What does not pass: a majority that refuses to be asked.
    pub async fn acquire(&self) -> Result<LockGuard, Error> {
        loop {
            if let Some(guard) = self.take(None).await? {
                return Ok(guard);
            }
        }
    }

    /// As [`Lock::acquire`], for at most this long: none if another has it all the time. An
    /// answer may take the response time-out in addition.
    ///
    /// # Errors
    /// As [`Lock::acquire`], or [`Error::NoMajority`] where that was so at last.
    pub async fn acquire_within(&self, wait: Duration) -> Result<Option<LockGuard>, Error> {
        self.take(Instant::now().checked_add(wait)).await
    }

    /// Asks the servers once.
    ///
    /// # Errors
    /// As [`Lock::acquire_within`].
    pub async fn try_acquire(&self) -> Result<Option<LockGuard>, Error> {
        self.take(Some(Instant::now())).await
    }

    /// Asks again after a random time until the deadline. Servers don't queue those who
    /// wait: two could each wait at half of them for the other.
    async fn take(&self, deadline: Option<Instant>) -> Result<Option<LockGuard>, Error> {
        let shared = &self.shared;
        loop {
            let locks = shared.clients.iter().map(|client| {
                let lock = client.lock(&self.key).renew(self.is_renewed);
                match self.lease {
                    Some(lease) => lock.lease(lease),
                    None => lock,
                }
            });
            let outcome = match Hold::ask(shared, &self.key, locks.collect()).await {
                Ok(Some(guard)) => return Ok(Some(guard)),
                Err(error) if !error.is_retryable() => return Err(error),
                Ok(None) => Ok(None),
                Err(error) => Err(error),
            };
            let pause = shared.response * rand::random_range(50..=150) / 100;
            if deadline.is_some_and(|deadline| Instant::now() + pause >= deadline) {
                return outcome;
            }
            sleep(pause).await;
        }
    }
}
