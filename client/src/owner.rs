//! An owner's hold, which all its guards share.

use std::sync::{Arc, Mutex, Weak};

use crate::error::Error;
use crate::hold::Hold;
use crate::keyed::{Content, KeyedMutex, Permit};
use crate::mutex::locked;
use crate::tasks::Tasks;
use crate::validity::Lost;

/// A lock and an owner with a name.
pub(crate) type OwnerId = (Vec<u8>, Vec<u8>);

/// The owners with a name. Each acquires one after another.
pub(crate) type Owners = KeyedMutex<OwnerId, OwnerState>;

/// An owner's turn to acquire.
pub(crate) type OwnerPermit = Permit<OwnerId, OwnerState>;

/// A hold that is released when its last guard goes.
pub(crate) struct SharedHold {
    pub(crate) hold: Arc<Hold>,
    guards: Mutex<Guards>,
    tasks: Tasks,
    /// Where the owner is noted.
    noted: Option<(Owners, OwnerId)>,
}

struct Guards {
    /// None is left once it is released or left to its lease: then it can't be
    /// joined any more.
    count: usize,
    /// Whether one was forgotten, so that the lock is to stay taken.
    is_forgotten: bool,
}

impl SharedHold {
    /// A hold with one guard.
    pub(crate) fn new(hold: Arc<Hold>, tasks: Tasks, noted: Option<(Owners, OwnerId)>) -> Self {
        Self {
            hold,
            guards: Mutex::new(Guards {
                count: 1,
                is_forgotten: false,
            }),
            tasks,
            noted,
        }
    }

    /// One guard more. Returns false if the last one has gone.
    pub(crate) fn join(&self) -> bool {
        let mut guards = locked(&self.guards);
        let is_open = guards.count > 0;
        guards.count += usize::from(is_open);
        is_open
    }

    /// One guard less, whether or not somebody waits for the outcome. Only the
    /// last one asks the server; the others leave the hold to those that are
    /// left.
    pub(crate) fn leave(&self) -> impl Future<Output = Result<(), Error>> + Send + 'static + use<> {
        let valid = self.hold.valid_for().map(drop).map_err(Error::Lost);
        let mut guards = locked(&self.guards);
        guards.count = guards.count.saturating_sub(1);
        let is_last = guards.count == 0;
        let mut released = None;
        if is_last && !guards.is_forgotten && self.tasks.process().is_this() {
            // Before the owner's next acquire can find that there is no guard.
            self.begin_release();
            released = Some(self.hold.released());
        }
        drop(guards);
        if is_last {
            self.hold.lose(Lost::Released);
        }
        async move {
            match released {
                Some(released) => released.await,
                None => valid,
            }
        }
    }

    /// Gives the hold back, whatever guards there are.
    pub(crate) fn begin_release(&self) {
        let noted = self.noted.clone();
        let settled = move || forget_if_idle(noted.as_ref());
        self.hold.begin_release(&self.tasks, settled);
    }

    /// Has the lock stay taken until its lease is over.
    pub(crate) fn forget(&self) {
        locked(&self.guards).is_forgotten = true;
    }
}

impl Drop for SharedHold {
    fn drop(&mut self) {
        forget_if_idle(self.noted.as_ref());
    }
}

/// Forgets an owner, unless it is busy with the lock.
fn forget_if_idle(noted: Option<&(Owners, OwnerId)>) {
    if let Some((owners, id)) = noted {
        drop(owners.try_lock(id));
    }
}

/// What is known of an owner on one lock.
#[derive(Default)]
pub(crate) struct OwnerState {
    shared: Weak<SharedHold>,
    last: Weak<Hold>,
}

impl OwnerState {
    /// The hold that its guards share, if there are any, and one guard more for
    /// it.
    pub(crate) fn join(&self) -> Option<Arc<SharedHold>> {
        self.shared.upgrade().filter(|shared| shared.join())
    }

    /// The last hold, if it is being released.
    pub(crate) fn releasing(&self) -> Option<Arc<Hold>> {
        self.last.upgrade().filter(|last| last.is_releasing())
    }

    pub(crate) fn set(&mut self, shared: &Arc<SharedHold>) {
        self.shared = Arc::downgrade(shared);
        self.last = Arc::downgrade(&shared.hold);
    }
}

impl Content for OwnerState {
    fn is_idle(&self) -> bool {
        self.shared.strong_count() == 0 && self.releasing().is_none()
    }
}
