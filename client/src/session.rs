//! Locks that end with this process.

use std::fmt;
use std::sync::Arc;

use crate::bond::Bond;
use crate::error::{Error, Lost};
use crate::lock::Lock;
use crate::shared::{Road, Shared};

/// Locks that end at once when this process does: the server ties them to a connection of
/// the session's own, and keeps their leases up while it lives.
///
/// A session is for locks whose holder may die, so that the next one need not wait for
/// the end of a lease. When its connection is closed, by whoever it is, all its holds are
/// lost, which [`lost`](Self::lost) and each guard's `lost` tell: a session never connects
/// again by itself. Dropping it closes it. It gives a server up that is silent for the
/// client's default lease, and so long its requests may take.
#[must_use = "the session's locks end when it is dropped"]
pub struct Session {
    shared: Arc<Shared>,
    bond: Arc<Bond>,
}

impl Session {
    pub(crate) async fn open(shared: Arc<Shared>) -> Result<Self, Error> {
        shared.check_process()?;
        let bond = Bond::open(&shared.router, shared.default_lease).await?;
        Ok(Self { shared, bond })
    }

    /// A lock of this session.
    pub fn lock(&self, key: impl AsRef<[u8]>) -> Lock {
        let road = Road::Session(Arc::clone(&self.bond));
        Lock::new(Arc::clone(&self.shared), key.as_ref(), road, None)
    }

    /// Returns whether its connection lives, as far as is known.
    pub fn is_alive(&self) -> bool {
        !self.bond.closed.is_closed() && self.shared.check_process().is_ok()
    }

    /// Completes when the session has ended.
    pub fn lost(&self) -> impl Future<Output = Lost> + Send + 'static + use<> {
        let closed = self.bond.closed.clone();
        async move {
            closed.closed().await;
            Lost::Disconnected
        }
    }

    /// Ends the session, and with it all its holds.
    pub async fn close(self) {
        self.bond.close();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.bond.closed.close();
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("is_alive", &self.is_alive())
            .finish_non_exhaustive()
    }
}
