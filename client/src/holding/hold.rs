//! A hold: how long it is valid, its renewal, its release.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{join, join_all, select_all};
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::Value;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::clock::Moment;
use crate::commands;
use crate::error::Error;
use crate::holding::binding::{Binding, InUse};
use crate::holding::release::{FirstOutcome, PendingRelease, settle_all};
use crate::holding::server_hold::ServerHold;
use crate::holding::wishes::Wishes;
use crate::inspect::LockInfo;
use crate::mutex::locked;
use crate::process::Process;
use crate::request::Mode;
use crate::servers::node::Reply;
use crate::tasks::Tasks;
use crate::validity::{Lost, Validity, whole_ms};
use crate::votes::Votes;

/// An answer to one of several servers' acquires.
pub(crate) struct Vote {
    /// Which server.
    pub(crate) nth: usize,
    /// Its token, if it granted the lock.
    pub(crate) answer: Result<Option<u64>, Error>,
}

impl Vote {
    /// Whether there may be something to give back.
    pub(crate) fn leaves_something(&self) -> bool {
        match &self.answer {
            Ok(token) => token.is_some(),
            Err(error) => error.leaves_doubt(),
        }
    }
}

/// What a hold is made of.
pub(crate) struct Grant {
    pub(crate) key: Vec<u8>,
    pub(crate) owner: Vec<u8>,
    pub(crate) mode: Mode,
    pub(crate) lease: Duration,
    pub(crate) server_holds: Vec<ServerHold>,
    /// When the command was sent from which the lease counts.
    pub(crate) sent_at: Moment,
    /// For how long it is good from then on, at least.
    pub(crate) good_for: Duration,
    /// The session that it is bound to.
    pub(crate) session: Option<Arc<Binding>>,
    pub(crate) in_use: Option<InUse>,
    /// Servers that a majority did without, and that may still grant it.
    pub(crate) stragglers: JoinSet<Vote>,
}

/// How far the release of a hold is.
#[derive(Clone)]
enum Release {
    NotBegun,
    /// A majority of the servers has answered, if there is an outcome.
    Begun(Option<Result<(), Error>>),
    /// Every server has answered, or the lease is over.
    Settled(Result<(), Error>),
}

/// A hold on one server, or on the majority of several.
pub(crate) struct Hold {
    pub(crate) key: Vec<u8>,
    pub(crate) owner: Vec<u8>,
    /// The greatest of its tokens.
    pub(crate) token: u64,
    pub(crate) mode: Mode,
    pub(crate) session: Option<Arc<Binding>>,
    server_holds: Vec<ServerHold>,
    lease_ms: AtomicU64,
    /// For how long the last renewal was good.
    good_for_ms: AtomicU64,
    validity: watch::Sender<Validity>,
    release: watch::Sender<Release>,
    /// Whether it is left to its lease.
    is_forgotten: AtomicBool,
    /// When the lease ends that was last asked for, whether or not that was
    /// answered.
    asked_until: Arc<std::sync::Mutex<Moment>>,
    /// One renewal at a time, so that the last one sent is the last one carried out.
    renewing: Mutex<()>,
    /// How often its guards want it renewed.
    pub(crate) wishes: std::sync::Mutex<Wishes>,
    stragglers: std::sync::Mutex<JoinSet<Vote>>,
    /// Kept until it is released.
    _in_use: Option<InUse>,
    /// The runtime of the client's tasks.
    runtime: Handle,
    process: Process,
}

impl Hold {
    pub(crate) fn new(grant: Grant, runtime: Handle) -> Self {
        let tokens = grant.server_holds.iter().filter_map(|held| held.token);
        Self {
            token: tokens.max().unwrap_or_default(),
            key: grant.key,
            owner: grant.owner,
            mode: grant.mode,
            session: grant.session,
            server_holds: grant.server_holds,
            lease_ms: AtomicU64::new(whole_ms(grant.lease)),
            good_for_ms: AtomicU64::new(whole_ms(grant.good_for)),
            validity: watch::Sender::new(Validity::new(grant.sent_at, grant.good_for)),
            release: watch::Sender::new(Release::NotBegun),
            is_forgotten: AtomicBool::new(false),
            asked_until: Arc::new((grant.sent_at + grant.lease).into()),
            renewing: Mutex::default(),
            wishes: std::sync::Mutex::default(),
            stragglers: grant.stragglers.into(),
            _in_use: grant.in_use,
            runtime,
            process: Process::this(),
        }
    }

    /// Ends this hold for all who have it, and returns one in its place, of the same
    /// grant; if at least half of its lease is left, so that whoever is next has time.
    pub(crate) fn pass_on(&self) -> Option<Self> {
        let (now, lease) = (Moment::now(), self.lease());
        let mut passed = None;
        self.validity.send_if_modified(|validity| {
            let is_long = validity.left(now).is_ok_and(|left| left >= lease / 2);
            passed = is_long.then_some(*validity);
            is_long && validity.lose(Lost::Released, now) && self.validity.receiver_count() > 0
        });
        let validity = passed?;
        self.release.send_if_modified(|release| {
            *release = Release::Settled(Ok(()));
            self.release.receiver_count() > 0
        });
        Some(Self {
            key: self.key.clone(),
            owner: self.owner.clone(),
            token: self.token,
            mode: self.mode,
            session: self.session.clone(),
            server_holds: self.server_holds.clone(),
            lease_ms: AtomicU64::new(whole_ms(lease)),
            good_for_ms: AtomicU64::new(whole_ms(self.good_for())),
            validity: watch::Sender::new(validity),
            release: watch::Sender::new(Release::NotBegun),
            is_forgotten: AtomicBool::new(false),
            asked_until: Arc::clone(&self.asked_until),
            renewing: Mutex::default(),
            wishes: std::sync::Mutex::default(),
            stragglers: std::mem::take(&mut *locked(&self.stragglers)).into(),
            // A session's hold is passed on to nobody.
            _in_use: None,
            runtime: self.runtime.clone(),
            process: self.process,
        })
    }

    /// Returns an error in a process that was forked from the one that has it.
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        self.process.check()
    }

    /// For how long it is valid, as that changes. It is closed when the hold is gone.
    pub(crate) fn validity(&self) -> watch::Receiver<Validity> {
        self.validity.subscribe()
    }

    /// How long it can be relied upon from now, if it can.
    pub(crate) fn valid_for(&self) -> Result<Duration, Lost> {
        let left = self.validity.borrow().left(Moment::now());
        match (left, self.session_ended()) {
            (Ok(_), Some(why)) => Err(why),
            (left, _) => left,
        }
    }

    fn session_ended(&self) -> Option<Lost> {
        self.session.as_ref().and_then(|session| session.ended())
    }

    pub(crate) fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms.load(Ordering::SeqCst))
    }

    /// For how long the last renewal was good: the lease, unless a shorter one may yet
    /// take its place on the server.
    pub(crate) fn good_for(&self) -> Duration {
        Duration::from_millis(self.good_for_ms.load(Ordering::SeqCst))
    }

    /// Marks it as lost, if it is not yet.
    pub(crate) fn lose(&self, why: Lost) {
        let why = self.session_ended().unwrap_or(why);
        // To tell nobody costs as much as to tell somebody. Whoever comes now looks
        // before it waits.
        self.validity.send_if_modified(|validity| {
            validity.lose(why, Moment::now()) && self.validity.receiver_count() > 0
        });
    }

    /// Completes when the hold can no longer be relied upon. With each poll it looks at
    /// the clock: a runtime that has stood still runs its tasks before its timers.
    pub(crate) fn lost(&self) -> impl Future<Output = Lost> + Send + 'static + use<> {
        let present = self.validity.subscribe();
        let mut validity = present.clone();
        let session = self.session.as_ref().map(|session| session.end_of());
        let lost = async move {
            loop {
                let left = validity.borrow_and_update().left(Moment::now());
                let left = match left {
                    Ok(left) => left,
                    Err(lost) => return lost,
                };
                tokio::select! {
                    () = sleep(left) => {}
                    changed = validity.changed() => if changed.is_err() {
                        return Lost::Released;
                    }
                }
            }
        };
        let told = async move {
            match session {
                None => lost.await,
                Some(session) => tokio::select! {
                    biased;
                    why = lost => why,
                    why = session => why,
                },
            }
        };
        async move {
            let mut told = pin!(told);
            poll_fn(|cx| {
                let left = present.borrow().left(Moment::now());
                match left {
                    Ok(_) => told.as_mut().poll(cx),
                    Err(lost) => Poll::Ready(lost),
                }
            })
            .await
        }
    }

    /// Has all who wait for the end look at the clock again: time may have
    /// passed that no timer has seen.
    pub(crate) fn look_at_the_clock(&self) {
        self.validity.send_modify(|_| {});
    }

    /// Renews the lease where the hold is; from now on for this long, if that is
    /// longer. What one guard asked for is never cut short by another. A task
    /// does it, so that it gets done even if the caller is not polled any more.
    pub(crate) async fn renew(self: &Arc<Self>, lease: Duration) -> Result<(), Error> {
        self.check_process()?;
        let this = Arc::clone(self);
        let renewal = async move { this.renew_now(lease).await };
        let renewed = self.runtime.spawn(renewal).await;
        renewed.unwrap_or_else(|error| Err(Error::from_task(error)))
    }

    /// As [`Hold::renew`], by the calling task.
    pub(crate) async fn renew_now(&self, lease: Duration) -> Result<(), Error> {
        // Only when it is its turn it is known how long the lease is, and what is left.
        let _permit = self.renewing.lock().await;
        let lease = lease.max(self.lease());
        self.in_time(async {
            let sent_at = Moment::now();
            self.note_asked(sent_at + lease);
            let Some(good_for_ms) = self.ask_to_renew(whole_ms(lease)).await? else {
                return Err(Error::Lost(Lost::Refused));
            };
            self.lease_ms.fetch_max(whole_ms(lease), Ordering::SeqCst);
            self.good_for_ms.store(good_for_ms, Ordering::SeqCst);
            self.extend(sent_at, self.good_for()).map_err(Error::Lost)
        })
        .await
    }

    /// Finds out whether the hold is still there, and prolongs nothing.
    pub(crate) async fn check(&self) -> Result<(), Error> {
        self.in_time(async {
            match self.ask_whether_held().await? {
                true => Ok(()),
                false => Err(Error::Lost(Lost::Refused)),
            }
        })
        .await
    }

    /// Asks as long as the hold is valid. If the answer is that it is not, it is
    /// lost.
    async fn in_time(&self, asked: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
        let left = self.valid_for().map_err(Error::Lost)?;
        let answered = timeout(left, asked).await;
        let answered = answered.unwrap_or(Err(Error::Lost(Lost::Expired)));
        if let Err(Error::Lost(why)) = answered {
            self.lose(why);
        }
        answered
    }

    fn extend(&self, sent_at: Moment, lease: Duration) -> Result<(), Lost> {
        let mut outcome = Ok(());
        self.validity.send_modify(|validity| {
            outcome = validity.extend(sent_at, lease, Moment::now());
        });
        outcome
    }

    fn note_asked(&self, until: Moment) {
        let mut asked = locked(&self.asked_until);
        *asked = until.max(*asked);
    }

    /// When the lease is over on the servers, whatever was answered.
    pub(crate) fn lease_ends(&self) -> Moment {
        *locked(&self.asked_until)
    }

    /// Renews on the server, or on all of them. Returns for how many milliseconds that
    /// is good, if it is held there.
    async fn ask_to_renew(&self, lease_ms: u64) -> Result<Option<u64>, Error> {
        if let Some(session) = &self.session {
            let renewal = commands::renew(&self.key, &self.owner, lease_ms, Some(self.token));
            let reply = session.ask_of_hold(&self.key, &renewal).await?;
            return Ok(commands::found(&reply)?.then_some(lease_ms));
        }
        let good_for_ms = Arc::new(AtomicU64::new(lease_ms));
        let renew = |held: &ServerHold| {
            let good_for_ms = Arc::clone(&good_for_ms);
            let renewal = held.renew(&self.key, &self.owner, lease_ms);
            async move {
                let good_for = renewal.await?;
                good_for_ms.fetch_min(good_for.unwrap_or(lease_ms), Ordering::SeqCst);
                Ok(good_for.is_some())
            }
        };
        let is_held = self.ask_all(renew).await?;
        Ok(is_held.then(|| good_for_ms.load(Ordering::SeqCst)))
    }

    async fn ask_whether_held(&self) -> Result<bool, Error> {
        let info = commands::info(&self.key);
        if let Some(session) = &self.session {
            let reply = session.ask_of_hold(&self.key, &info).await?;
            return is_held(&self.key, &self.owner, Some(self.token), reply);
        }
        let ask = |held: &ServerHold| {
            let (held, info) = (held.clone(), info.clone());
            let (key, owner) = (self.key.clone(), self.owner.clone());
            async move {
                let reply = held.server.ask(&key, &info).await?;
                is_held(&key, &owner, held.token, reply.value)
            }
        };
        self.ask_all(ask).await
    }

    /// Asks wherever the hold is, and returns what a majority says.
    async fn ask_all<F>(&self, ask: impl Fn(&ServerHold) -> F) -> Result<bool, Error>
    where
        F: Future<Output = Result<bool, Error>> + Send + 'static,
    {
        if let [held] = self.server_holds.as_slice() {
            return ask(held).await;
        }
        // Each goes on by itself, so that a slow one is asked to the end, too.
        let held = self.server_holds.iter();
        let mut replies: FuturesUnordered<_> =
            held.map(|held| self.runtime.spawn(ask(held))).collect();
        let mut votes = Votes::new(self.server_holds.len());
        while let Some(reply) = replies.next().await {
            votes.count(reply.unwrap_or_else(|error| Err(Error::from_task(error))));
            if let Some(decided) = votes.decided() {
                return decided;
            }
        }
        votes.time_is_over()
    }

    /// What has to be done to release it.
    fn pending_releases(&self) -> Vec<PendingRelease> {
        let lease_ends = self.lease_ends();
        let server_holds = self.server_holds.iter();
        let pending = server_holds.map(|held| PendingRelease {
            server: Arc::clone(&held.server),
            key: self.key.clone(),
            owner: self.owner.clone(),
            token: held.token,
            trace: held.trace.clone(),
            unanswered: None,
            lease_ends,
            // Of those who share it the last one hands it on, whoever that is.
            is_handed_off: self.mode != Mode::Shared,
            is_one_of_many: self.server_holds.len() > 1,
        });
        pending.collect()
    }

    /// Leaves it to its lease.
    pub(crate) fn forget(&self) {
        self.is_forgotten.store(true, Ordering::SeqCst);
        self.lose(Lost::Released);
    }

    /// Returns whether it is left to its lease, and may still be there.
    pub(crate) fn is_forgotten(&self) -> bool {
        self.is_forgotten.load(Ordering::SeqCst) && Moment::now() < self.lease_ends()
    }

    /// Completes when no renewal is on the way, and has none be sent after that.
    pub(crate) async fn end_renewals(&self) {
        join_all(self.server_holds.iter().map(ServerHold::end_renewals)).await;
    }

    /// This hold on the server where it has this token.
    pub(crate) fn hold_of(&self, token: u64) -> Option<ServerHold> {
        let mut server_holds = self.server_holds.iter();
        server_holds.find(|held| held.token == Some(token)).cloned()
    }

    /// Returns whether it is being given back.
    pub(crate) fn is_releasing(&self) -> bool {
        matches!(*self.release.borrow(), Release::Begun(_))
    }

    /// Has a task give the hold back everywhere, once, and calls `settled` when
    /// every server has released it or the lease is over.
    pub(crate) fn begin_release(
        self: &Arc<Self>,
        tasks: &Tasks,
        settled: impl FnOnce() + Send + 'static,
    ) {
        let mut is_first = false;
        self.release.send_if_modified(|release| {
            is_first = matches!(release, Release::NotBegun);
            if is_first {
                *release = Release::Begun(None);
            }
            // Whoever waits, waits for more.
            false
        });
        if !is_first {
            return;
        }
        let releasing = Releasing {
            before: self.valid_for(),
            hold: Arc::clone(self),
        };
        // No renewal may come after this.
        self.lose(Lost::Released);
        self.server_holds.iter().for_each(ServerHold::renew_no_more);
        tasks.spawn(async move {
            releasing.carry_out().await;
            settled();
        });
    }

    /// Completes as soon as a majority of the servers has answered the release
    /// that has begun. [`Error::Lost`] if it was no hold any more.
    pub(crate) fn released(
        &self,
    ) -> impl Future<Output = Result<(), Error>> + Send + 'static + use<> {
        let mut release = self.release.subscribe();
        async move {
            let is_decided = |release: &Release| {
                matches!(release, Release::Begun(Some(_)) | Release::Settled(_))
            };
            match release.wait_for(is_decided).await.as_deref() {
                Ok(Release::Begun(Some(outcome)) | Release::Settled(outcome)) => outcome.clone(),
                Ok(_) | Err(_) => Err(Error::Stopped),
            }
        }
    }

    /// For warnings.
    pub(crate) fn warn(&self, error: &Error, message: &str) {
        let key = String::from_utf8_lossy(&self.key);
        let owner = String::from_utf8_lossy(&self.owner);
        let left = self.valid_for().ok();
        tracing::warn!(%key, %owner, token = self.token, ?left, %error, "{message}");
    }
}

/// A release that has begun.
struct Releasing {
    hold: Arc<Hold>,
    /// How long it was valid when it began.
    before: Result<Duration, Lost>,
}

impl Releasing {
    async fn carry_out(self) {
        let hold = &self.hold;
        let stragglers = std::mem::take(&mut *locked(&hold.stragglers));
        let (outcomes, settle) =
            settle_all(hold.pending_releases(), stragglers, hold.session.clone());
        let decide = async {
            let outcome = self.decide(outcomes).await;
            hold.release.send_replace(Release::Begun(Some(outcome)));
        };
        join(settle, decide).await;
    }

    /// Whether it was a hold until now, as soon as a majority has answered.
    async fn decide(&self, mut outcomes: Vec<FirstOutcome>) -> Result<(), Error> {
        let mut votes = Votes::new(outcomes.len());
        let is_held = loop {
            if outcomes.is_empty() {
                break votes.time_is_over()?;
            }
            let (outcome, _, left) = select_all(outcomes).await;
            outcomes = left;
            votes.count(released(outcome.unwrap_or(Err(Error::Stopped))));
            if let Some(decided) = votes.decided() {
                break decided?;
            }
        };
        match (self.before, is_held) {
            (Err(why), _) => Err(Error::Lost(why)),
            (Ok(_), false) => Err(Error::Lost(Lost::Refused)),
            (Ok(_), true) => Ok(()),
        }
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        self.hold.release.send_if_modified(|release| {
            let (outcome, is_news) = match release {
                Release::Begun(Some(outcome)) | Release::Settled(outcome) => {
                    (outcome.clone(), false)
                }
                // The runtime has ended.
                Release::NotBegun | Release::Begun(None) => (Err(Error::Stopped), true),
            };
            *release = Release::Settled(outcome);
            is_news
        });
    }
}

/// Returns whether the owner has this hold, by the answer to `LOCK.INFO`.
fn is_held(key: &[u8], owner: &[u8], token: Option<u64>, reply: Value) -> Result<bool, Error> {
    let info = LockInfo::read(key.to_vec(), reply)?;
    let mut holders = info.holders.iter();
    Ok(holders.any(|holder| holder.owner == owner && (token.is_none() || holder.token == token)))
}

/// Returns whether a release found the hold. Where an earlier try may have ended
/// it, not finding it is no surprise.
fn released(outcome: Result<Reply, Error>) -> Result<bool, Error> {
    let reply = outcome?;
    Ok(commands::found(&reply.value)? || reply.resent)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use futures_util::future::join_all;

    use super::*;
    use crate::clock::suspend;
    use crate::fake_server::{Answer, FakeServer};

    const SHORT: Duration = Duration::from_secs(3);
    const LONG: Duration = Duration::from_secs(60);

    /// Whoever asks whether it is lost is told, even before any timer has noticed.
    #[tokio::test(start_paused = true)]
    async fn the_end_of_the_lease_shows_when_it_is_looked_for() {
        let hold = FakeServer::new().hold(SHORT);
        let mut lost = pin!(hold.lost());
        assert_eq!(lost.as_mut().now_or_never(), None);
        suspend(SHORT);
        assert_eq!(lost.now_or_never(), Some(Lost::Expired));
    }

    /// Renewals of the lease that the hold has, and what comes of them.
    async fn renewed<const N: usize>(hold: &Arc<Hold>) -> [Result<(), Error>; N] {
        let renewals = [(); N].map(|()| hold.renew(hold.lease()));
        join_all(renewals).await.try_into().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_that_waited_for_a_longer_one_does_not_shorten_the_lease() {
        let server = FakeServer::new();
        let hold = server.hold(SHORT);
        server.will([
            Answer::SaysAfter(SHORT / 10, 1),
            Answer::SaysAfter(SHORT / 10, 1),
        ]);
        let longer = hold.renew(LONG);
        let (longer, others) = join(longer, renewed(&hold)).await;
        assert!(longer.is_ok() && matches!(others, [Ok(()), Ok(())]));
        let asked = server.asked();
        assert_eq!(asked.len(), 3);
        for (_, renewal) in asked {
            assert_eq!(renewal, "LOCK.RENEW k o LEASE 60000 FENCE 7");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_that_waited_for_another_has_the_time_that_this_one_gave() {
        let server = FakeServer::new();
        let hold = server.hold(SHORT);
        sleep(SHORT * 3 / 10).await;
        server.will([
            Answer::SaysAfter(SHORT * 2 / 5, 1),
            Answer::SaysAfter(SHORT * 2 / 5, 1),
        ]);
        assert!(matches!(renewed(&hold).await, [Ok(()), Ok(())]));
        assert!(hold.valid_for().is_ok());
    }

    /// A hold of the short lease, whose renewal is not answered before it is renewed for
    /// a longer one.
    async fn renewed_for_long(server: &Arc<FakeServer>) -> Arc<Hold> {
        let hold = server.hold(SHORT);
        server.will([Answer::IsSilent(SHORT / 10)]);
        hold.renew(SHORT).await.unwrap_err();
        hold.renew(LONG).await.unwrap();
        hold
    }

    #[tokio::test(start_paused = true)]
    async fn no_longer_lease_is_relied_upon_while_a_shorter_one_may_take_its_place() {
        let server = FakeServer::new();
        let hold = renewed_for_long(&server).await;
        assert!(hold.valid_for().unwrap() > SHORT, "it can't");
        server.lets_linger();
        let hold = renewed_for_long(&server).await;
        let left = hold.valid_for().unwrap();
        assert!(left > SHORT / 2 && left < SHORT, "{left:?}");
        assert_eq!(hold.lease(), LONG, "it is asked for");
    }

    #[tokio::test(start_paused = true)]
    async fn each_server_is_told_of_one_renewal_at_a_time_and_of_the_last_one_last() {
        let servers = [(); 3].map(|()| FakeServer::new());
        let hold = FakeServer::hold_on(&servers.each_ref(), SHORT);
        let slow = &servers[0];
        slow.will([Answer::SaysAfter(SHORT / 10, 1)]);
        for lease in [SHORT, SHORT * 2, LONG] {
            hold.renew(lease).await.unwrap();
        }
        assert!(hold.valid_for().unwrap() > SHORT, "a majority has answered");
        assert_eq!(slow.asked().len(), 1);
        sleep(SHORT / 5).await;
        let asked = slow.commands();
        let renewal = |lease_ms| format!("LOCK.RENEW k o LEASE {lease_ms} FENCE 7");
        assert_eq!(asked, [renewal(3_000), renewal(60_000)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_that_waited_for_another_is_not_sent_after_the_release() {
        let servers = [(); 3].map(|()| FakeServer::new());
        let hold = FakeServer::hold_on(&servers.each_ref(), SHORT);
        let slow = &servers[0];
        slow.will([Answer::SaysAfter(SHORT / 10, 1)]);
        for _ in 0..2 {
            hold.renew(SHORT).await.unwrap();
        }
        hold.begin_release(&Tasks::new(Handle::current()), || {});
        hold.released().await.unwrap();
        sleep(SHORT).await;
        let asked = slow.commands();
        assert_eq!(asked.len(), 2, "{asked:?}");
        assert_eq!(asked[1], "LOCK.RELEASE k o FENCE 7 ALL");
    }
}
