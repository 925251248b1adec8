//! Locks that end with this process.

use std::fmt;
use std::sync::Arc;

use crate::holding::binding::Binding;
use crate::lock::Lock;
use crate::shared::Shared;
use crate::validity::Lost;

/// A connection, and any number of locks that end with it.
///
/// The server ends them the moment that the connection closes: when this process
/// ends, even by `kill -9`, or when somebody or something closes the connection.
/// Until then the server keeps their leases renewed. A lease bounds how long a
/// lock stays taken where the server can't see the end: after its own crash, or
/// while the network swallows everything. Where the server can't keep up a lease,
/// because it may not write or too few replicas acknowledge it, it closes the
/// connection before that lease is over.
///
/// [`LockGuard::lost`] completes when the connection is closed, and when it gave
/// no sign of life for a lease: it is asked every third of one. So the shortest
/// lease of its locks decides how long a session survives a silent network; and
/// with one hold that ran out, the whole session ends. While it has no holds, it
/// ends when nothing that it asks is answered for a lease of the client.
///
/// In a cluster the session has a connection to each node whose locks it takes. The
/// end of one of them ends the session, and so does a slot of its locks that moves
/// to another node: such a lock stays taken until its guard is dropped or its lease
/// is over.
///
/// When the session is dropped, its connection closes and its locks end,
/// whatever guards there are.
///
/// [`LockGuard::lost`]: crate::LockGuard::lost
#[must_use = "the session's locks end when it is dropped"]
pub struct Session {
    client: Arc<Shared>,
    binding: Arc<Binding>,
}

impl Session {
    pub(crate) fn new(client: Arc<Shared>, binding: Arc<Binding>) -> Self {
        Self { client, binding }
    }

    /// A lock whose holds end with this session.
    ///
    /// All guards of an owner with a name share one hold, so it can't be had
    /// here while that owner holds the lock elsewhere.
    pub fn lock(&self, key: impl AsRef<[u8]>) -> Lock {
        Lock::new(Arc::clone(&self.client), key.as_ref()).within(Arc::clone(&self.binding))
    }

    /// Returns whether the connection is there, as far as this machine has heard.
    pub fn is_alive(&self) -> bool {
        self.binding.ended().is_none()
    }

    /// Completes when the session has ended. It can't be used again: begin a new
    /// one.
    pub fn lost(&self) -> impl Future<Output = Lost> + Send + 'static + use<> {
        self.binding.end_of()
    }

    /// Ends the session and all its locks, and waits until the server has closed
    /// the connection or did not answer.
    pub async fn close(self) {
        self.binding.close().await;
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.binding.end(Lost::Disconnected);
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("is_alive", &self.is_alive())
            .finish_non_exhaustive()
    }
}
