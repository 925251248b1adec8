//! A lock that is held.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis_lock_client::Lost;

use crate::error::Error;
use crate::hold::Hold;

/// A lock that a majority of the servers has granted.
///
/// Each server's part is renewed by itself for as long as this lives. Dropping it
/// releases the lock everywhere, in the background.
pub struct LockGuard {
    hold: Arc<Hold>,
    key: Vec<u8>,
}

impl LockGuard {
    pub(crate) fn new(hold: Arc<Hold>, key: &[u8]) -> Self {
        let key = key.to_vec();
        Self { hold, key }
    }

    /// How long a majority of the servers is sure to keep the lock for this holder from
    /// now on, less what clocks may differ: the least time of the best majority. Zero once
    /// the lock is lost.
    pub fn valid_for(&self) -> Duration {
        self.hold.valid_for()
    }

    /// Completes when no majority holds the lock any more: before its leases end at the
    /// servers. What is left elsewhere is given back then.
    pub fn lost(&self) -> impl Future<Output = Lost> + Send + 'static + use<> {
        self.hold.lost()
    }

    /// Renews the lock now on all servers that have granted it.
    ///
    /// # Errors
    /// [`Error::Lost`] if it is over; [`Error::NoMajority`] if too few have answered in
    /// time. It holds on for [`LockGuard::valid_for`] then.
    pub async fn renew(&self) -> Result<(), Error> {
        self.hold.renew().await
    }

    /// Releases the lock everywhere. The rest of it goes on in the background once a
    /// majority of the servers is known not to have it.
    ///
    /// # Errors
    /// [`Error::Lost`] if it was over before; [`Error::NoMajority`] if too few have
    /// answered in time. What failed is tried again in the background.
    pub async fn release(self) -> Result<(), Error> {
        self.hold.release().await
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        drop(self.hold.end(Lost::Released));
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("key", &String::from_utf8_lossy(&self.key))
            .field("valid_for", &self.valid_for())
            .finish_non_exhaustive()
    }
}
