//! One piece of work that takes several locks, or one lock twice.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use tokio::sync::{OwnedMutexGuard, watch};

use crate::command::unique_owner;
use crate::error::Error;
use crate::hold::Hold;
use crate::lock::Lock;
use crate::mutex::locked;
use crate::shared::{Road, Shared};

/// The longest name: the server takes 1,024 bytes with what makes it unique.
const NAME_BYTES_MAX: usize = 960;

/// One piece of work: one owner of all the locks that it takes.
///
/// Within a job a lock can be taken again while it is held; it is free once as many
/// guards are released. That jobs wait for each other in a circle is found by the server:
/// [`Error::Deadlock`]. A job sends one request at a time, so it is not for tasks that
/// run side by side: an acquire that waits holds up all others of the job.
#[derive(Clone)]
pub struct Job {
    shared: Arc<Shared>,
    state: Arc<JobState>,
}

type Turn = Arc<tokio::sync::Mutex<()>>;

/// What all clones of a job share.
pub(crate) struct JobState {
    pub(crate) owner: Vec<u8>,
    /// Who asks for a lock now.
    turn: Turn,
    /// Who asks for each lock now, or releases it: a release does not wait for the job's
    /// wait for another lock.
    turns: Mutex<HashMap<Vec<u8>, Turn>>,
    /// How many releases are under way. What the job asks for next comes after them.
    releases: watch::Sender<usize>,
    /// Every lock that was asked for, and the hold that came of it.
    locks: Mutex<HashMap<Vec<u8>, Weak<Hold>>>,
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

impl JobState {
    pub(crate) fn of(owner: Vec<u8>) -> Self {
        Self {
            owner,
            turn: Arc::default(),
            turns: Mutex::default(),
            releases: watch::Sender::new(0),
            locks: Mutex::default(),
        }
    }

    fn locks(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Weak<Hold>>> {
        locked(&self.locks)
    }

    pub(crate) fn turn_of(&self, key: &[u8]) -> Turn {
        let mut turns = locked(&self.turns);
        Arc::clone(turns.entry(key.to_vec()).or_default())
    }

    /// Waits until the job asks for no other lock, and does not release this one.
    pub(crate) async fn turn(&self, key: &[u8]) -> [OwnedMutexGuard<()>; 2] {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let mut releases = self.releases.subscribe();
        let _ = releases.wait_for(|releases| *releases == 0).await;
        [turn, self.turn_of(key).lock_owned().await]
    }

    /// Waits until the job asks for this lock no more.
    pub(crate) async fn turn_to_release(&self, key: &[u8]) -> OwnedMutexGuard<()> {
        self.turn_of(key).lock_owned().await
    }

    /// The hold of a lock that still stands, and whether the lock was never asked for.
    pub(crate) fn look_up(&self, key: &[u8]) -> (Option<Arc<Hold>>, bool) {
        let mut locks = self.locks();
        let is_first = !locks.contains_key(key);
        let hold = locks.entry(key.to_vec()).or_default().upgrade();
        (hold.filter(|hold| hold.left().is_ok()), is_first)
    }

    pub(crate) fn note(&self, key: &[u8], hold: &Arc<Hold>) {
        self.locks().insert(key.to_vec(), Arc::downgrade(hold));
    }

    /// Returns whether it has a hold with this token that still stands.
    pub(crate) fn has(&self, key: &[u8], token: u64) -> bool {
        let hold = self.locks().get(key).and_then(Weak::upgrade);
        hold.is_some_and(|hold| hold.token == token && hold.left().is_ok())
    }
}

/// A release of a job that is under way.
pub(crate) struct Releasing(Arc<JobState>);

impl Releasing {
    pub(crate) fn of(job: &Arc<JobState>) -> Self {
        job.releases.send_modify(|releases| *releases += 1);
        Self(Arc::clone(job))
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        self.0.releases.send_modify(|releases| *releases -= 1);
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Job")
            .field(&String::from_utf8_lossy(self.owner()))
            .finish()
    }
}
