//! What the servers said of one hold, and still say.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis_lock_client::{Error as ClientError, Lock, LockGuard as ClientGuard, Lost};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, timeout_at};

use crate::error::Error;
use crate::guard::LockGuard;
use crate::redlock::Shared;

/// What a server said.
enum Part {
    Open,
    Held(Arc<ClientGuard>),
    /// Another has the lock there, or the part was lost.
    No,
    Failed(ClientError),
}

/// A hold, or the try to get one: a part of each server.
pub(crate) struct Hold {
    shared: Arc<Shared>,
    parts: Mutex<Vec<Part>>,
    /// Why it is over, once it is. What comes later is given back.
    over: watch::Sender<Option<Lost>>,
}

impl Hold {
    /// Asks all servers at once, for a short time. Returns the hold if a majority grants
    /// it; what a minority grants is given back.
    pub(crate) async fn ask(
        shared: &Arc<Shared>,
        key: &[u8],
        locks: Vec<Lock>,
    ) -> Result<Option<LockGuard>, Error> {
        let hold = Arc::new(Self {
            shared: Arc::clone(shared),
            parts: Mutex::new(locks.iter().map(|_| Part::Open).collect()),
            over: watch::Sender::new(None),
        });
        let guard = LockGuard::new(Arc::clone(&hold), key);
        let deadline = Instant::now() + shared.response;
        let (tell, mut told) = mpsc::unbounded_channel();
        for (nth, lock) in locks.into_iter().enumerate() {
            let asking = ask_one(Arc::clone(&hold), nth, lock, tell.clone());
            shared.runtime.spawn(asking);
        }
        drop(tell);
        while hold.valid_for().is_zero() && !hold.is_refused() {
            if !matches!(timeout_at(deadline, told.recv()).await, Ok(Some(()))) {
                break;
            }
        }
        if !hold.valid_for().is_zero() {
            return Ok(Some(guard));
        }
        match hold.is_refused() {
            true => Ok(None),
            false => Err(hold.failure()),
        }
    }

    fn parts(&self) -> MutexGuard<'_, Vec<Part>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn quorum(&self) -> usize {
        self.shared.clients.len() / 2 + 1
    }

    /// Returns whether so many refused that the others are no majority.
    fn is_refused(&self) -> bool {
        let parts = self.parts();
        let refused = parts.iter().filter(|part| matches!(part, Part::No));
        parts.len() - refused.count() < self.quorum()
    }

    fn failure(&self) -> Error {
        let parts = self.parts();
        let open = parts.iter().filter(|part| matches!(part, Part::Open));
        let open = open.count();
        let errors = parts.iter().filter_map(|part| match part {
            Part::Failed(error) => Some(error.clone()),
            _ => None,
        });
        let errors: Vec<_> = errors.collect();
        Error::no_majority(parts.len(), open + errors.len(), errors)
    }

    /// How long a majority is sure to hold: as long as the least of the best.
    pub(crate) fn valid_for(&self) -> Duration {
        if self.over.borrow().is_some() {
            return Duration::ZERO;
        }
        let guards = self.guards();
        let mut times: Vec<_> = guards.iter().map(|guard| guard.valid_for()).collect();
        times.sort_unstable_by(|one, other| other.cmp(one));
        times.get(self.quorum() - 1).copied().unwrap_or_default()
    }

    fn guards(&self) -> Vec<Arc<ClientGuard>> {
        let parts = self.parts();
        let guards = parts.iter().filter_map(|part| match part {
            Part::Held(guard) => Some(Arc::clone(guard)),
            _ => None,
        });
        guards.collect()
    }

    /// Notes what a server said. A grant that comes late joins the hold, unless that is
    /// over.
    fn note(
        &self,
        nth: usize,
        said: Result<Option<ClientGuard>, ClientError>,
    ) -> Option<Arc<ClientGuard>> {
        let mut parts = self.parts();
        let (part, guard) = match said {
            Ok(Some(guard)) if self.over.borrow().is_none() => {
                let guard = Arc::new(guard);
                (Part::Held(Arc::clone(&guard)), Some(guard))
            }
            Ok(_) => (Part::No, None),
            Err(error) => (Part::Failed(error), None),
        };
        parts[nth] = part;
        guard
    }

    /// Ends it for good. Returns the parts that are to be given back, or why it was over
    /// before.
    pub(crate) fn end(&self, why: Lost) -> Result<Vec<Arc<ClientGuard>>, Lost> {
        let why = match why {
            Lost::Released if self.valid_for().is_zero() => Lost::Expired,
            why => why,
        };
        let mut parts = self.parts();
        let guards = parts
            .iter_mut()
            .filter_map(|part| match std::mem::replace(part, Part::No) {
                Part::Held(guard) => Some(guard),
                _ => None,
            });
        let guards = guards.collect();
        let mut before = None;
        self.over.send_if_modified(|over| {
            before = *over;
            *over = over.or(Some(why));
            before.is_none()
        });
        match before.or(Some(why).filter(|why| *why != Lost::Released)) {
            Some(before) => Err(before),
            None => Ok(guards),
        }
    }

    /// Completes when it is over.
    pub(crate) fn lost(&self) -> impl Future<Output = Lost> + Send + 'static + use<> {
        let mut over = self.over.subscribe();
        async move {
            let over = over.wait_for(Option::is_some).await;
            over.ok().and_then(|over| *over).unwrap_or(Lost::Released)
        }
    }

    pub(crate) async fn renew(&self) -> Result<(), Error> {
        let guards = self.guards().into_iter();
        let renewals = guards.map(|guard| async move { guard.renew().await });
        self.by_a_majority(renewals, |_| false).await
    }

    /// Gives it back everywhere.
    pub(crate) async fn release(&self) -> Result<(), Error> {
        let guards = self.end(Lost::Released).map_err(Error::Lost)?.into_iter();
        let releases = guards.map(|mut guard| async move {
            loop {
                match Arc::try_unwrap(guard) {
                    Ok(guard) => return guard.release().await,
                    // A renewal that was given up has it for a moment yet.
                    Err(shared) => guard = shared,
                }
                yield_now().await;
            }
        });
        // A part that was lost is as good as one that was given back.
        let is_done = |error: &ClientError| matches!(error, ClientError::Lost(_));
        self.by_a_majority(releases, is_done).await
    }

    /// Does all of this at once, until a majority has done it or the time is over. The
    /// rest goes on in the clients, and has no guard of this any more.
    async fn by_a_majority<C>(
        &self,
        calls: impl Iterator<Item = C>,
        is_done: fn(&ClientError) -> bool,
    ) -> Result<(), Error>
    where
        C: Future<Output = Result<(), ClientError>> + Send + 'static,
    {
        let deadline = Instant::now() + self.shared.response;
        let mut calling = JoinSet::new();
        calls.for_each(|call| _ = calling.spawn_on(call, &self.shared.runtime));
        let (mut done, mut errors) = (0, Vec::new());
        while done < self.quorum() {
            match timeout_at(deadline, calling.join_next()).await {
                Ok(Some(Ok(Err(error)))) if !is_done(&error) => errors.push(error),
                Ok(Some(Ok(_))) => done += 1,
                Ok(Some(Err(_)) | None) | Err(_) => break,
            }
        }
        calling.shutdown().await;
        let servers = self.shared.clients.len();
        let is_over = self.valid_for().is_zero();
        let over = is_over.then(|| self.end(Lost::Refused).err()).flatten();
        match over.filter(|why| *why != Lost::Released) {
            _ if done == self.quorum() => Ok(()),
            Some(why) => Err(Error::Lost(why)),
            None => Err(Error::no_majority(servers, servers - done, errors)),
        }
    }
}

/// Asks one server, and then waits for the loss of what it granted.
async fn ask_one(hold: Arc<Hold>, nth: usize, lock: Lock, tell: mpsc::UnboundedSender<()>) {
    let said = lock.try_acquire().await;
    let guard = hold.note(nth, said);
    let _ = tell.send(());
    drop(tell);
    let Some(lost) = guard.map(|guard| guard.lost()) else {
        return;
    };
    let why = lost.await;
    hold.parts()[nth] = Part::No;
    if hold.valid_for().is_zero() {
        drop(hold.end(why));
    }
}
