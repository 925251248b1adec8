//! A lock, and how to take it.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tracing::Instrument;

use crate::acquire::cohort;
use crate::acquire::handing_out::hand_out;
use crate::acquire::reentry::re_enter;
use crate::acquire::{majority, single};
use crate::backoff::Backoff;
use crate::commands;
use crate::error::Error;
use crate::guard::{HoldHandle, LockGuard};
use crate::holding::binding::Binding;
use crate::holding::owner::Joined;
use crate::inspect::LockInfo;
use crate::request::{Mode, Renew, Replicas, Request, Wait};
use crate::servers::node::by;
use crate::shared::{ATTEMPT_SUFFIX_BYTES, Servers, Shared};
use crate::validity::whole_ms;

/// The greatest token.
const TOKEN_MAX: u64 = (1 << 53) - 1;

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
#[derive(Clone)]
#[must_use = "a lock is taken by `acquire`, `acquire_within`, `try_acquire` or `run`"]
pub struct Lock {
    client: Arc<Shared>,
    key: Vec<u8>,
    owner: Option<Vec<u8>>,
    lease: Option<Duration>,
    is_renewed: bool,
    max_renewals: Option<u32>,
    mode: Mode,
    replicas: Option<Replicas>,
    session: Option<Arc<Binding>>,
}

impl Lock {
    pub(crate) fn new(client: Arc<Shared>, key: &[u8]) -> Self {
        let key = [&client.key_prefix, key].concat();
        Self {
            client,
            key,
            owner: None,
            lease: None,
            is_renewed: true,
            max_renewals: None,
            mode: Mode::Exclusive,
            replicas: None,
            session: None,
        }
    }

    /// Has its holds bound to a session.
    pub(crate) fn within(mut self, session: Arc<Binding>) -> Self {
        self.session = Some(session);
        self
    }

    /// The lease: how long the lock stays taken if this process dies. Whole
    /// milliseconds, at least one, at most ten years. Without it, that of the
    /// client: 30 seconds if not changed.
    ///
    /// A task renews it every third of it for as long as a guard is there;
    /// [`Lock::renew`] and [`Lock::max_renewals`] change that.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Whether the lease is renewed by itself. If not, the hold ends one lease
    /// after it was granted or after the last [`LockGuard::renew`]. A hold in a
    /// [session](crate::Session) is always renewed, and so is one that another
    /// guard of its owner wants renewed.
    pub fn renew(mut self, renew: bool) -> Self {
        self.is_renewed = renew;
        self
    }

    /// Renews at most this many times by itself, so that a task that hangs does
    /// not keep the lock for ever; and as long as another guard of its owner is
    /// there that wants more. In a [session](crate::Session) it has no effect.
    pub fn max_renewals(mut self, renewals: u32) -> Self {
        self.max_renewals = Some(renewals);
        self
    }

    /// Takes the lock for this owner: 1 to 1024 bytes that don't begin with
    /// `@`. Guards of one owner share one hold, which ends with the last of
    /// them. Without it, every guard excludes every other.
    ///
    /// Only among owners with a name are deadlocks found ([`Error::Deadlock`]): any
    /// other guard is an owner of its own, which has one lock and waits for none.
    ///
    /// An owner's name belongs to one client. Two clients that use the same
    /// one don't exclude each other, and a client that was started anew takes
    /// over what its predecessor held by that name. A renewal of the predecessor may still
    /// be on the way then, and make the lease as short as it was: release such a hold, and
    /// acquire the lock anew. Where two wait for one lock by the
    /// same name, one of them may hear of its turn only a minute later. With a
    /// [`Redlock`](crate::Redlock) two clients do exclude each other: there only
    /// the guards of one client share a hold, and the name is at most 960 bytes.
    pub fn owner(mut self, owner: impl AsRef<[u8]>) -> Self {
        self.owner = Some(owner.as_ref().to_vec());
        self
    }

    /// Holds the lock together with any number of others that share it, as
    /// readers do; a writer asks without this. First come, first served, so a
    /// stream of readers does not keep a writer out.
    ///
    /// Guards of one owner share its hold in the mode in which it was taken. A
    /// looser mode is granted as the stricter one that it has; for a stricter
    /// one it gets [`Error::Upgrade`].
    pub fn shared(mut self) -> Self {
        self.mode = Mode::Shared;
        self
    }

    /// Holds the lock together with at most `limit` - 1 others: one of `limit`
    /// permits (1 to 2^53 - 1), each with a lease and a token of its own. Where several ask with
    /// different limits, the least of the holders' and of the newcomer's counts.
    /// Of this and [`Lock::shared`] the last one called counts.
    ///
    /// A [`Redlock`](crate::Redlock) has no permits: each of its majorities would
    /// count for itself.
    pub fn limit(mut self, limit: u64) -> Self {
        self.mode = Mode::Limited(limit);
        self
    }

    /// Holds the lock only once this many replicas have it, too; else releases
    /// it and fails with [`Error::NotReplicated`]. It makes it unlikely that a
    /// fail-over forgets the lock. `timeout` is for the replicas alone, and at
    /// most the lease; zero counts as a millisecond. It costs a connection while
    /// the lock is taken.
    ///
    /// This is for servers without the setting `lock.min-replicas`, which sees to it for
    /// every grant and every renewal of all clients, and tells of no hold before.
    pub fn replicas(mut self, replicas: usize, timeout: Duration) -> Self {
        self.replicas = Some(Replicas {
            wanted: replicas,
            within: timeout,
        });
        self
    }

    /// Takes the lock, waiting for it without end if another owner has it.
    ///
    /// Waits are served first come, first served, as the server gets to know of them. A
    /// lost connection on the way is made good and costs no place; so is a fail-over,
    /// after which all stand in line anew. A grant that too few replicas have
    /// acknowledged (`NOREPLICAS`) is asked for again. Within a server's grace period
    /// every lock is as one that another owner has.
    ///
    /// If the future is dropped, neither a place in the queue nor a hold is
    /// left on the server: what may have been granted meanwhile is released in
    /// the background. A future that is kept but not polled keeps its place until its
    /// turn comes, and misses that: then the lock passes to the next one, that of a
    /// [`Redlock`](crate::Redlock) when the lease is over. A lock that was free is granted at
    /// once and missed as well: it stays taken until the lease is over, that of a
    /// [session](crate::Session) until the future is dropped or the session ends. Later
    /// acquires of this lock by the same [owner's name](Lock::owner) wait until it is polled
    /// or dropped.
    ///
    /// # Errors
    /// What the server refused; [`Error::Deadlock`] where the wait would never
    /// end; [`Error::Lost`] where the lease was so short that it was over when
    /// the answer came.
    pub fn acquire(
        &self,
    ) -> impl Future<Output = Result<LockGuard, Error>> + Send + 'static + use<> {
        let this = self.clone();
        async move {
            let mut backoff = Backoff::default();
            loop {
                if let Some(guard) = this.clone().take(Wait::Until(None)).await? {
                    return Ok(guard);
                }
                // Only `CLIENT UNBLOCK` ends such a wait without the lock.
                backoff.pause_before(None).await;
            }
        }
    }

    /// As [`Lock::acquire`], waiting at most this long: none if the wait was over
    /// before. Zero is [`Lock::try_acquire`]. The server may take as long as the
    /// [response time-out](crate::ClientBuilder::response_timeout) in addition.
    ///
    /// # Errors
    /// As [`Lock::acquire`], or the last failure if no answer was to be had
    /// within the wait.
    pub fn acquire_within(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<LockGuard>, Error>> + Send + 'static + use<> {
        self.clone().take(Wait::within(wait))
    }

    /// Takes the lock if it is free and nobody waits for it; else returns none.
    ///
    /// The acquires of an owner with a name come one after another. While another
    /// one of the same owner waits for this lock, this returns none after the
    /// response time-out. Where the server does not answer, it takes the connect and
    /// the response time-out.
    ///
    /// # Errors
    /// What the server refused, or that it does not answer.
    pub fn try_acquire(
        &self,
    ) -> impl Future<Output = Result<Option<LockGuard>, Error>> + Send + 'static + use<> {
        self.clone().take(Wait::No)
    }

    /// Takes the lock as [`Lock::acquire`] does, does the work, and releases the
    /// lock. If the lock is lost, the work is dropped where it stands.
    ///
    /// ```no_run
    /// # async fn write(token: u64) -> u64 { token }
    /// # async fn example(client: redis_lock_client::LockClient) -> Result<(), redis_lock_client::Error> {
    /// let lock = client.lock("orders:42");
    /// let written = lock.run(|hold| async move { write(hold.token()).await }).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Lock::acquire`]; and [`Error::Lost`] if the lock was lost before the
    /// work was done. That the release failed is only a warning: the lock ends
    /// with its lease.
    pub async fn run<T, F, W>(&self, work: F) -> Result<T, Error>
    where
        F: FnOnce(HoldHandle) -> W,
        W: Future<Output = T>,
    {
        let guard = self.acquire().await?;
        let done = {
            let lost = guard.lost();
            let work = pin!(work(guard.handle()));
            tokio::select! {
                biased;
                why = lost => return Err(Error::Lost(why)),
                done = work => done,
            }
        };
        match guard.release().await {
            Err(Error::Lost(why)) => Err(Error::Lost(why)),
            Ok(()) | Err(_) => Ok(done),
        }
    }

    /// Who holds the lock and who waits for it.
    ///
    /// # Errors
    /// What the server refused, or that it does not answer.
    pub async fn info(&self) -> Result<LockInfo, Error> {
        let reply = self.call(&commands::info(&self.key)).await?;
        LockInfo::read(self.key.clone(), reply)
    }

    /// Takes the lock from its holders, if this is its newest token, and passes
    /// it on. Returns whether there was such a hold.
    ///
    /// A holder is not told, other than by its next renewal or by its token.
    ///
    /// # Errors
    /// What the server refused, or that it does not answer.
    pub async fn break_lock(&self, token: u64) -> Result<bool, Error> {
        if !(1..=TOKEN_MAX).contains(&token) {
            // No hold has such a token.
            return Ok(false);
        }
        let cmd = commands::break_lock(&self.key, Some(token));
        commands::found(&self.call(&cmd).await?)
    }

    /// As [`Lock::break_lock`], whatever the newest token is.
    ///
    /// # Errors
    /// As [`Lock::break_lock`].
    pub async fn break_any(&self) -> Result<bool, Error> {
        let cmd = commands::break_lock(&self.key, None);
        commands::found(&self.call(&cmd).await?)
    }

    async fn call(&self, cmd: &redis::Cmd) -> Result<redis::Value, Error> {
        self.client.check_process()?;
        let node = self.client.node()?;
        Ok(node.call(&self.key, cmd).await?.value)
    }

    /// Boxed, so that the compiler does not carry its depth into every future
    /// that awaits it.
    fn take(self, wait: Wait) -> BoxFuture<'static, Result<Option<LockGuard>, Error>> {
        let key = String::from_utf8_lossy(&self.key).into_owned();
        let span = tracing::debug_span!("acquire", key);
        let taken = async move {
            let response = self.response_timeout();
            let give_up_at = match wait {
                Wait::Until(Some(deadline)) => Some(deadline + response),
                Wait::No | Wait::Until(None) => None,
            };
            // What it leaves behind is given back in the background.
            let taken = by(give_up_at, self.take_now(wait)).await;
            taken.unwrap_or_else(|| Err(Error::timed_out()))
        };
        Box::pin(taken.instrument(span))
    }

    /// Each way is boxed: a future is moved now and then, with room for all its ways.
    async fn take_now(&self, wait: Wait) -> Result<Option<LockGuard>, Error> {
        let (client, session) = (&*self.client, self.session.as_ref());
        let request = self.request()?;
        let mut owner_permit = None;
        if let Some(owner) = &request.owner {
            // The acquires of one owner come one after another.
            let id = (request.key.clone(), owner.clone());
            let deadline = wait.deadline_or(self.response_timeout());
            let Some(permit) = by(deadline, client.owners.lock(&id)).await else {
                return Ok(None);
            };
            let joined = Box::pin(re_enter(client, &request, session, wait, &permit)).await?;
            if let Some(joined) = joined {
                return Ok(joined.into_shared().map(LockGuard::new));
            }
            owner_permit = Some(permit);
        }
        let taken = match &client.servers {
            Servers::One { .. } if request.pass_on.is_some() => {
                return Ok(cohort::take(&self.client, &request, wait)
                    .await?
                    .and_then(Joined::into_shared)
                    .map(LockGuard::new));
            }
            Servers::One { node, waits, .. } => {
                let servers = (node, waits);
                let taking = single::take(client, servers, &request, wait, session, owner_permit);
                Box::pin(taking).await?
            }
            Servers::Many(nodes) => {
                let client = &self.client;
                Box::pin(majority::take(client, nodes, &request, wait, owner_permit)).await?
            }
        };
        let Some((attempt, granted)) = taken else {
            return Ok(None);
        };
        let joined = hand_out(client, &request, session, attempt, granted)?;
        Ok(joined.into_shared().map(LockGuard::new))
    }

    /// What is asked of the servers, if they take it.
    fn request(&self) -> Result<Request, Error> {
        self.client.check_process()?;
        let lease = self.lease.unwrap_or(self.client.default_lease);
        let mut request = Request {
            key: self.key.clone(),
            owner: self.owner.clone(),
            mode: self.mode,
            lease: Duration::from_millis(whole_ms(lease)),
            renew: match (self.max_renewals, self.is_renewed) {
                _ if self.session.is_some() => Renew::Always,
                (_, false) | (Some(0), _) => Renew::Never,
                (Some(renewals), true) => Renew::AtMost(renewals),
                (None, true) => Renew::Always,
            },
            replicas: self.replicas,
            pass_on: None,
        };
        if request.is_like_any_other() && self.session.is_none() {
            request.pass_on = self.client.pass_on;
        }
        match self.client.servers {
            Servers::One { .. } => request.check()?,
            Servers::Many(_) => request.check_for_many(ATTEMPT_SUFFIX_BYTES)?,
        }
        Ok(request)
    }

    fn response_timeout(&self) -> Duration {
        match &self.client.servers {
            Servers::One { node, .. } => node.timeouts().response,
            Servers::Many(nodes) => {
                let responses = nodes.iter().map(|node| node.timeouts().response);
                responses.max().unwrap_or_default()
            }
        }
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("key", &String::from_utf8_lossy(&self.key))
            .field("owner", &self.owner.as_deref().map(String::from_utf8_lossy))
            .field("lease", &self.lease)
            .field("renew", &self.is_renewed)
            .field("mode", &self.mode)
            .field("session", &self.session.is_some())
            .finish_non_exhaustive()
    }
}
