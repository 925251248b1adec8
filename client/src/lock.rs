//! A lock, and how to take it.

use std::fmt;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{timeout, timeout_at};

use crate::acquire::{Attempt, Grant, Request, Wait};
use crate::backoff::Backoff;
use crate::command::{self, Mode, NUMBER_MAX, unique_owner};
use crate::error::{Error, Lost};
use crate::guard::LockGuard;
use crate::hold::{Hold, JobState};
use crate::info::LockInfo;
use crate::shared::{Road, Shared};

/// A lock, and how to take it. It can be used any number of times.
///
/// ```no_run
/// # async fn example(client: redis_lock_client::LockClient) -> Result<(), redis_lock_client::Error> {
/// let guard = client.lock("orders:42").acquire().await?;
/// println!("token {}", guard.token());
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// Each acquire is an owner of its own: a program that holds the lock and acquires it
/// again waits for itself. [`Job`](crate::Job) is for work that takes a lock twice.
#[derive(Clone)]
#[must_use = "a lock is taken by `acquire`, `acquire_within`, `try_acquire` or `run`"]
pub struct Lock {
    shared: Arc<Shared>,
    key: Vec<u8>,
    lease: Duration,
    renewals: Option<u32>,
    mode: Mode,
    road: Road,
    job: Option<Arc<JobState>>,
}

impl Lock {
    pub(crate) fn new(
        shared: Arc<Shared>,
        key: &[u8],
        road: Road,
        job: Option<Arc<JobState>>,
    ) -> Self {
        Self {
            key: [&shared.key_prefix, key].concat(),
            lease: shared.default_lease,
            renewals: None,
            mode: Mode::Exclusive,
            shared,
            road,
            job,
        }
    }

    /// The lease: how long the lock stays taken if this process dies. Whole milliseconds,
    /// 1 to ten years. Without it, that of the client.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Whether the lease is renewed by itself, every third of it. If not, the hold ends just
    /// before one lease has passed since it was granted or last renewed by [`LockGuard::renew`].
    pub fn renew(mut self, renew: bool) -> Self {
        self.renewals = (!renew).then_some(0);
        self
    }

    /// Renews at most this many times by itself: work that hangs keeps no lock for ever.
    pub fn max_renewals(mut self, renewals: u32) -> Self {
        self.renewals = Some(renewals);
        self
    }

    /// Holds the lock together with all others that share it, as readers do; a writer
    /// asks without this. First come, first served, so a stream of readers does not keep
    /// a writer out.
    pub fn shared(mut self) -> Self {
        self.mode = Mode::Shared;
        self
    }

    /// Holds the lock together with at most `limit` - 1 others: one of `limit` permits (1
    /// to 2^53 - 1), each with a lease and a token of its own. Where several ask with
    /// different limits, the least of the holders' and of the newcomer's counts.
    pub fn limit(mut self, limit: u64) -> Self {
        self.mode = Mode::Limited(limit);
        self
    }

    /// Takes the lock, waiting for it without end if another owner has it.
    ///
    /// First come, first served. A lost connection on the way is made good and costs no
    /// place; so is a fail-over, after which all stand in line anew. What passes (too few
    /// replicas, a server that is loading, slots that move) is waited for, and told to
    /// [`on_failure`](crate::ClientBuilder::on_failure).
    ///
    /// If the future is dropped, neither a place in the queue nor a hold is left at the
    /// server. One that is kept but not polled misses its turn, or has the lock for a lease.
    /// An acquire does not re-enter: see [`Job`](crate::Job).
    ///
    /// # Errors
    /// What the server refused; [`Error::Deadlock`] where the wait would never end;
    /// [`Error::Lost`] where the lease was so short that it was over when the answer came.
    ///
    /// # Panics
    /// Outside of a tokio runtime, as all acquires do when they are polled.
    pub fn acquire(
        &self,
    ) -> impl Future<Output = Result<LockGuard, Error>> + Send + 'static + use<> {
        let taking = self.clone().take(Wait::Until(None));
        async { taking.await?.ok_or_else(Error::timed_out) }
    }

    /// As [`Lock::acquire`], waiting at most this long: none if the wait was over before.
    /// Zero is [`Lock::try_acquire`]. A server that does not answer may take the
    /// [response time-out](crate::ClientBuilder::response_timeout) in addition.
    ///
    /// # Errors
    /// As [`Lock::acquire`], or the last failure if no answer was to be had.
    pub fn acquire_within(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<LockGuard>, Error>> + Send + 'static + use<> {
        self.clone().take(Wait::within(wait))
    }

    /// Takes the lock if it is free and nobody waits for it; else returns none. A job's waits
    /// for what the job does just now, as long as for an answer.
    ///
    /// # Errors
    /// What the server refused, or that it does not answer.
    pub fn try_acquire(
        &self,
    ) -> impl Future<Output = Result<Option<LockGuard>, Error>> + Send + 'static + use<> {
        self.clone().take(Wait::No)
    }

    /// Takes the lock as [`Lock::acquire`] does, does the work, and releases the lock. If
    /// the lock is lost, the work is dropped where it stands.
    ///
    /// ```no_run
    /// # async fn write(token: u64) -> u64 { token }
    /// # async fn example(client: redis_lock_client::LockClient) -> Result<(), redis_lock_client::Error> {
    /// let lock = client.lock("orders:42");
    /// let written = lock.run(|guard| async move { write(guard.token()).await }).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Lock::acquire`]; and [`Error::Lost`] if the lock was lost before the work was
    /// done. That the release failed is told to
    /// [`on_failure`](crate::ClientBuilder::on_failure) alone: the lease ends it.
    pub async fn run<T, F, W>(&self, work: F) -> Result<T, Error>
    where
        F: FnOnce(Arc<LockGuard>) -> W,
        W: Future<Output = T>,
    {
        let guard = Arc::new(self.acquire().await?);
        let done = {
            let work = pin!(work(Arc::clone(&guard)));
            tokio::select! {
                biased;
                why = guard.lost() => return Err(Error::Lost(why)),
                done = work => done,
            }
        };
        match guard.end().await {
            Err(Error::Lost(why)) => Err(Error::Lost(why)),
            Ok(()) | Err(_) => Ok(done),
        }
    }

    /// Who holds the lock and who waits for it.
    ///
    /// # Errors
    /// What the server refused, or that it does not answer.
    pub async fn info(&self) -> Result<LockInfo, Error> {
        let command = command::info(&self.key);
        let answer = self.shared.ask(&self.key, &command).await?;
        LockInfo::read(self.key.clone(), answer.value)
    }

    /// Takes the lock from its holders and passes it on: if this is its newest token, or
    /// with `None` whatever that is. Returns whether there was such a hold. A holder hears
    /// of it by its next renewal.
    ///
    /// # Errors
    /// What the server refused, or that it does not answer: then it may have been done.
    pub async fn break_lock(&self, token: impl Into<Option<u64>>) -> Result<bool, Error> {
        let token = token.into();
        if token.is_some_and(|token| !(1..=NUMBER_MAX).contains(&token)) {
            // No hold has such a token.
            return Ok(false);
        }
        let command = command::break_lock(&self.key, token);
        command::is_one(&self.shared.ask(&self.key, &command).await?.value)
    }

    /// Boxed, so that its size is not part of every future that awaits it.
    fn take(
        self,
        wait: Wait,
    ) -> Pin<Box<dyn Future<Output = Result<Option<LockGuard>, Error>> + Send>> {
        Box::pin(async move {
            self.shared.check_process()?;
            match self.job.clone() {
                None => self.take_as(unique_owner(), wait).await,
                Some(job) => self.take_for(&job, wait).await,
            }
        })
    }

    fn request(&self, owner: Vec<u8>, nth: u64, is_first: bool) -> Result<Request, Error> {
        let request = Request {
            key: self.key.clone(),
            owner,
            mode: self.mode,
            lease: self.lease,
            nth,
            is_first,
            road: self.road.clone(),
        };
        request.check()?;
        Ok(request)
    }

    async fn take_as(&self, owner: Vec<u8>, wait: Wait) -> Result<Option<LockGuard>, Error> {
        let mut attempt = Attempt::new(&self.shared, self.request(owner, 1, true)?, None);
        let grant = attempt.take(wait).await?;
        self.hand_out(&attempt, grant, None)
    }

    /// Takes it for a job: another hold of the one that the job has, or its first.
    async fn take_for(&self, job: &Arc<JobState>, wait: Wait) -> Result<Option<LockGuard>, Error> {
        let (turn, timeouts) = (job.turn(&self.key), self.shared.router.timeouts);
        let turn = match wait {
            Wait::No => timeout(timeouts.connect + timeouts.response, turn).await,
            Wait::Until(Some(deadline)) => timeout_at(deadline, turn).await,
            Wait::Until(None) => Ok(turn.await),
        };
        let turn = match (turn, wait) {
            (Ok(turn), _) => turn,
            (Err(_), Wait::No) => return Err(Error::timed_out()),
            (Err(_), _) => return Ok(None),
        };
        let (held, is_first) = job.look_up(&self.key);
        let nth = held.as_ref().map_or(1, |hold| hold.guards() + 1);
        let request = self.request(job.owner.clone(), nth, is_first)?;
        let before = held.as_ref().map(|hold| hold.ask_for(self.lease));
        let before = before.unwrap_or(self.lease);
        let mut attempt = Attempt::new(&self.shared, request, Some(turn));
        let mut taken = attempt.take(wait).await;
        // In a grace period nothing is granted, and the hold stands all the same.
        let mut backoff = Backoff::default();
        while let (Some(hold), Ok(None)) = (&held, &taken) {
            match (hold.renew().await, wait) {
                (Ok(_), Wait::Until(deadline)) if backoff.pause_before(deadline).await => {}
                (Ok(_), _) => return Ok(None),
                (Err(Error::Lost(_)), _) => break,
                (Err(error), _) => return Err(error),
            }
            taken = attempt.take(wait).await;
        }
        let Some(hold) = held else {
            return self.hand_out(&attempt, taken?, Some(job));
        };
        match taken {
            Ok(Some(grant)) if grant.token == hold.token => {
                let entered = hold.re_enter(grant.since, self.lease);
                // If this is dropped, so is the guard, which is released then.
                let guard = entered.map(|()| LockGuard::new(hold));
                if let (Ok(guard), true) = (&guard, before < self.lease) {
                    let _ = guard.renew().await;
                }
                guard.map(Some).map_err(Error::Lost)
            }
            // The server has ended the hold without a word, and somebody may have had it.
            Ok(_) | Err(Error::HoldCount(_)) => {
                attempt.doubt();
                Err(Error::Lost(
                    hold.end(Lost::Refused).unwrap_or(Lost::Refused),
                ))
            }
            Err(error) => {
                if !error.leaves_doubt() {
                    hold.ask_again_for(before);
                }
                Err(error)
            }
        }
    }

    /// Hands the hold of a grant out, unless it is over already.
    fn hand_out(
        &self,
        attempt: &Attempt,
        grant: Option<Grant>,
        job: Option<&Arc<JobState>>,
    ) -> Result<Option<LockGuard>, Error> {
        let Some(grant) = grant else {
            return Ok(None);
        };
        let hold = Hold::start(&self.shared, attempt, grant, self.renewals, job.cloned());
        if let Some(job) = job {
            job.note(&self.key, &hold);
        }
        match hold.left() {
            Ok(_) => Ok(Some(LockGuard::new(hold))),
            Err(why) => {
                hold.end(why);
                Err(Error::Lost(why))
            }
        }
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("key", &String::from_utf8_lossy(&self.key))
            .field("lease", &self.lease)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}
