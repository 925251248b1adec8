//! One piece of work that takes several locks, or one lock twice.

use std::fmt;
use std::sync::Arc;

use crate::command::unique_owner;
use crate::error::Error;
use crate::hold::JobState;
use crate::lock::Lock;
use crate::shared::{Road, Shared};

/// The longest name: the server takes 1,024 bytes with what makes it unique.
const NAME_BYTES_MAX: usize = 960;

/// One piece of work: one owner of all the locks that it takes.
///
/// Within a job a lock can be taken again while it is held; it is free once as many
/// guards are released. That jobs wait for each other in a circle is found by the server:
/// [`Error::Deadlock`]. A job sends one request at a time, so it is not for tasks that
/// run side by side: an acquire that waits holds up all others of the job. It remembers the
/// names of its locks, so it is not for all work of a service either.
#[derive(Clone)]
pub struct Job {
    shared: Arc<Shared>,
    state: Arc<JobState>,
}

impl Job {
    pub(crate) fn new(shared: Arc<Shared>, owner: Vec<u8>) -> Self {
        let state = Arc::new(JobState::of(owner));
        Self { shared, state }
    }

    /// A new job, with a name that operators see: its owner is the name, `:`, and a
    /// unique part.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the name is not of 1 to 960 bytes, or begins with `@`.
    pub fn named(self, name: impl AsRef<[u8]>) -> Result<Self, Error> {
        let name = name.as_ref();
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.starts_with(b"@") {
            return Err(Error::Invalid(
                "a job's name is 1 to 960 bytes and does not begin with @",
            ));
        }
        let owner = [name, b":", &unique_owner()].concat();
        Ok(Self::new(self.shared, owner))
    }

    /// What the server calls it.
    pub fn owner(&self) -> &[u8] {
        &self.state.owner
    }

    /// A lock that is taken for this job.
    pub fn lock(&self, key: impl AsRef<[u8]>) -> Lock {
        let job = Some(Arc::clone(&self.state));
        Lock::new(Arc::clone(&self.shared), key.as_ref(), Road::Client, job)
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = String::from_utf8_lossy(self.owner());
        f.debug_tuple("Job").field(&owner).finish()
    }
}
