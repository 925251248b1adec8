//! An owner's hold, which all its guards share, and which may be passed on to others
//! of the same client.

use std::sync::{Arc, Mutex, Weak};

use tokio::time::sleep;

use crate::clock::Moment;
use crate::error::Error;
use crate::holding::hold::Hold;
use crate::holding::wishes::Wish;
use crate::keyed::{Content, KeyedMutex, Permit};
use crate::lines::Lines;
use crate::mutex::locked;
use crate::tasks::Tasks;
use crate::validity::Lost;

/// A lock and an owner with a name.
pub(crate) type OwnerId = (Vec<u8>, Vec<u8>);

/// The owners with a name. Each acquires one after another.
pub(crate) type Owners = KeyedMutex<OwnerId, OwnerState>;

/// An owner's turn to acquire.
pub(crate) type OwnerPermit = Permit<OwnerId, OwnerState>;

/// A lock and a lease in milliseconds, for which tasks of one client wait together.
pub(crate) type CohortName = (Vec<u8>, u64);

/// The tasks that wait for holds to be passed on, or taken for all of them.
pub(crate) type Cohorts = Lines<CohortName, Result<Joined, Error>>;

/// How a hold may be passed on within its client.
#[derive(Clone)]
pub(crate) struct Passing {
    pub(crate) cohorts: Arc<Cohorts>,
    pub(crate) cohort: CohortName,
    /// How often.
    pub(crate) left: u32,
    /// And until when.
    pub(crate) until: Moment,
}

/// A hold that is released when its last guard goes.
pub(crate) struct SharedHold {
    pub(crate) hold: Arc<Hold>,
    guards: Mutex<Guards>,
    tasks: Tasks,
    /// Where the owner is noted.
    noted: Option<(Owners, OwnerId)>,
    passing: Option<Passing>,
}

/// A guard that nobody has yet. It leaves again if it comes to nothing.
pub(crate) struct Joined {
    shared: Option<Arc<SharedHold>>,
    /// How often it wants the hold renewed.
    pub(crate) wish: Wish,
}

impl Joined {
    /// A guard that the hold counts already.
    pub(crate) fn new(shared: Arc<SharedHold>) -> Self {
        Self {
            shared: Some(shared),
            wish: Wish::default(),
        }
    }

    pub(crate) fn hold(&self) -> Option<&Arc<Hold>> {
        self.shared.as_ref().map(|shared| &shared.hold)
    }

    /// Somebody has it now.
    pub(crate) fn into_shared(mut self) -> Option<(Arc<SharedHold>, Wish)> {
        let shared = self.shared.take()?;
        Some((shared, self.wish))
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.take() {
            drop(shared.leave(self.wish));
        }
    }
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
    pub(crate) fn new(
        hold: Arc<Hold>,
        tasks: Tasks,
        noted: Option<(Owners, OwnerId)>,
        passing: Option<Passing>,
    ) -> Self {
        Self {
            hold,
            guards: Mutex::new(Guards {
                count: 1,
                is_forgotten: false,
            }),
            tasks,
            noted,
            passing,
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
    pub(crate) fn leave(
        &self,
        wish: Wish,
    ) -> impl Future<Output = Result<(), Error>> + Send + 'static + use<> {
        locked(&self.hold.wishes).remove(wish);
        let process = self.tasks.process().check();
        let is_this = process.is_ok();
        let valid = self.hold.valid_for().map(drop).map_err(Error::Lost);
        let mut guards = locked(&self.guards);
        guards.count = guards.count.saturating_sub(1);
        let is_last = guards.count == 0;
        let mut released = None;
        let is_given_back = is_last && !guards.is_forgotten && is_this;
        if is_given_back && !self.pass_on() {
            // Before the owner's next acquire can find that there is no guard.
            self.begin_release();
            released = Some(self.hold.released());
        }
        let is_forgotten = is_last && guards.is_forgotten;
        drop(guards);
        if is_forgotten {
            self.leave_to_lease();
        } else if is_last {
            self.hold.lose(Lost::Released);
        }
        async move {
            match released {
                Some(released) => released.await,
                None => process.and(valid),
            }
        }
    }

    /// Passes the hold on to the next task of this client that waits for it, if that may
    /// be.
    fn pass_on(&self) -> bool {
        let Some(passing) = &self.passing else {
            return false;
        };
        let may_pass = passing.left > 0 && Moment::now() < passing.until;
        may_pass
            && passing.cohorts.offer_if(&passing.cohort, || {
                let passed = Self::new(
                    Arc::new(self.hold.pass_on()?),
                    self.tasks.clone(),
                    None,
                    Some(Passing {
                        left: passing.left - 1,
                        ..passing.clone()
                    }),
                );
                Some(Ok(Joined::new(Arc::new(passed))))
            })
    }

    /// Gives the hold back, whatever guards there are.
    pub(crate) fn begin_release(&self) {
        let noted = self.noted.clone();
        let settled = move || forget_if_idle(noted.as_ref());
        self.hold.begin_release(&self.tasks, settled);
    }

    /// Forgets the hold. The owner's next acquire may meet it until its lease is over.
    fn leave_to_lease(&self) {
        self.hold.forget();
        let Some(noted) = self.noted.clone() else {
            return;
        };
        let hold = Arc::clone(&self.hold);
        self.tasks.runtime().spawn(async move {
            sleep(Moment::now().until(hold.lease_ends())).await;
            drop(hold);
            forget_if_idle(Some(&noted));
        });
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

    /// The last hold, if it is left to its lease.
    pub(crate) fn forgotten(&self) -> Option<Arc<Hold>> {
        self.last.upgrade().filter(|last| last.is_forgotten())
    }

    pub(crate) fn set(&mut self, shared: &Arc<SharedHold>) {
        self.shared = Arc::downgrade(shared);
        self.last = Arc::downgrade(&shared.hold);
    }
}

impl Content for OwnerState {
    fn is_idle(&self) -> bool {
        self.shared.strong_count() == 0 && self.releasing().or(self.forgotten()).is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::runtime::Handle;

    use super::*;
    use crate::fake_server::FakeServer;

    #[tokio::test(start_paused = true)]
    async fn an_owner_that_forgot_its_guard_is_remembered_until_the_lease_is_over() {
        const LEASE: Duration = Duration::from_secs(30);
        let hold = FakeServer::new().hold(LEASE);
        let (owners, id) = (Owners::default(), (b"k".to_vec(), b"o".to_vec()));
        let noted = Some((owners.clone(), id.clone()));
        let shared = SharedHold::new(hold, Tasks::new(Handle::current()), noted, None);
        let shared = Arc::new(shared);
        owners.lock(&id).await.set(&shared);
        shared.forget();
        shared.leave(Wish::default()).await.unwrap();
        drop(shared);
        sleep(LEASE / 2).await;
        let forgotten = owners.lock(&id).await.forgotten();
        assert_eq!(forgotten.map(|hold| hold.token), Some(7));
        sleep(LEASE).await;
        assert_eq!(owners.len(), 0);
    }
}
