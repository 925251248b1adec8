//! A lock that is held: how long it can be relied upon, and the task that keeps it up.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use tokio::sync::{OwnedMutexGuard, oneshot, watch};
use tokio::time::{sleep, timeout};

use crate::acquire::{Attempt, Grant, Request};
use crate::backoff::Backoff;
use crate::clock::{Moment, valid_until};
use crate::command;
use crate::error::{Error, Lost};
use crate::link::Link;
use crate::mutex::locked;
use crate::register::Entry;
use crate::shared::{CLAIM_AFTER, Road, Shared};

/// The longest sleep: timers stand still while a machine is suspended, leases do not.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// A hold at the server, and what is known of it.
pub(crate) struct Hold {
    pub(crate) shared: Arc<Shared>,
    pub(crate) request: Arc<Request>,
    pub(crate) token: u64,
    job: Option<Arc<JobState>>,
    state: Mutex<State>,
    /// One renewal at a time: none comes after a later one with a longer lease.
    renewing: tokio::sync::Mutex<()>,
    /// Why it is over, once it is.
    lost: watch::Sender<Option<Lost>>,
    _entry: Option<Entry>,
}

type Turn = Arc<tokio::sync::Mutex<()>>;

/// What all clones of a job share.
pub(crate) struct JobState {
    pub(crate) owner: Vec<u8>,
    /// Taken while the job asks for a lock.
    turn: Turn,
    /// For each lock, taken while the job asks for it or releases it. So a release does
    /// not wait until the job has another lock.
    turns: Mutex<HashMap<Vec<u8>, Turn>>,
    /// How many releases are under way. What the job asks for next comes after them.
    releases: watch::Sender<usize>,
    /// Every lock that was asked for, and the hold that came of it.
    locks: Mutex<HashMap<Vec<u8>, Weak<Hold>>>,
}

struct State {
    valid_until: Moment,
    /// What the next renewal asks for.
    lease: Duration,
    /// How many guards there are: one, or in a job as many as the server counts.
    guards: u64,
    /// The link by which it was last asked for.
    link: Option<Weak<Link>>,
}

impl Hold {
    /// The hold of a grant. It is kept up from now on, by at most so many `renewals`.
    pub(crate) fn start(
        shared: &Arc<Shared>,
        attempt: &Attempt,
        grant: Grant,
        renewals: Option<u32>,
        job: Option<Arc<JobState>>,
    ) -> Arc<Self> {
        let request = Arc::clone(&attempt.request);
        let hold = Arc::new(Self {
            shared: Arc::clone(shared),
            token: grant.token,
            job,
            state: Mutex::new(State {
                valid_until: valid_until(grant.since, grant.lease),
                lease: request.lease,
                guards: 1,
                link: shared.router.known_link(&request.key),
            }),
            renewing: tokio::sync::Mutex::default(),
            lost: watch::Sender::new(None),
            _entry: grant.entry,
            request,
        });
        let unkept = Unkept {
            hold: Arc::clone(&hold),
            since: grant.since,
            lease: grant.lease,
            renewals,
        };
        match hold.request.road {
            // At least a quarter of the lease is left.
            Road::Client if grant.lease / 32 >= CLAIM_AFTER => shared.later(move || {
                if unkept.hold.left().is_ok() {
                    tokio::spawn(keep(unkept));
                }
            }),
            _ => _ = shared.router.runtime.spawn(keep(unkept)),
        }
        hold
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    /// How long it can be relied upon, or why it can't.
    pub(crate) fn left(&self) -> Result<Duration, Lost> {
        if let Some(lost) = *self.lost.borrow() {
            return Err(lost);
        }
        if self.request.road.is_over() {
            return Err(Lost::Disconnected);
        }
        let left = Moment::now().until(self.state().valid_until);
        match left.is_zero() {
            true => Err(Lost::Expired),
            false => Ok(left),
        }
    }

    pub(crate) fn lost(&self) -> impl Future<Output = Lost> + Send + 'static + use<> {
        let mut lost = self.lost.subscribe();
        async move {
            // The reason is told before its sender is dropped.
            let lost = lost.wait_for(Option::is_some).await;
            lost.ok().and_then(|lost| *lost).unwrap_or(Lost::Expired)
        }
    }

    /// Notes that it is over. Returns why it was over before, if it was.
    pub(crate) fn end(&self, why: Lost) -> Option<Lost> {
        let why = self.left().err().unwrap_or(why);
        // What the job asks for next comes after what is given back.
        let releasing = self.job.as_ref().map(Releasing::of);
        let mut before = None;
        self.lost.send_if_modified(|lost| {
            before = *lost;
            *lost = lost.or(Some(why));
            before.is_none()
        });
        match before {
            None if why == Lost::Released => None,
            None if matches!(why, Lost::Expired | Lost::Disconnected) => {
                self.give_back(releasing);
                Some(why)
            }
            before => before.or(Some(why)),
        }
    }

    /// Ends what the server may still have of a hold that is lost here: a renewal that
    /// got no answer may come late.
    fn give_back(&self, releasing: Option<Releasing>) {
        if self.shared.check_process().is_err() {
            return;
        }
        let (shared, request) = (Arc::clone(&self.shared), Arc::clone(&self.request));
        let (token, job) = (self.token, self.job.clone());
        self.shared.settle(async move {
            let _releasing = releasing;
            let _turn = match &job {
                Some(job) => Some(job.turn_to_release(&request.key).await),
                None => None,
            };
            // The job may have been given the same hold again meanwhile.
            if job.is_none_or(|job| !job.has(&request.key, token)) {
                let release = command::release(&request.key, &request.owner, Some(token), None);
                let (road, until) = (&request.road, Moment::now() + request.lease);
                let _ = shared.release(road, &request.key, &release, until).await;
            }
        });
    }

    /// Counts a lease anew from a command that was sent then and answered now.
    fn extend(&self, sent_at: Moment, lease: Duration) -> Result<(), Lost> {
        self.left()?;
        let mut state = self.state();
        state.valid_until = state.valid_until.max(valid_until(sent_at, lease));
        Ok(())
    }

    /// Has renewals ask for at least this lease from now on, and returns what they did ask for.
    /// It comes before an acquire with it is sent: a shorter renewal would cut that off.
    pub(crate) fn ask_for(&self, lease: Duration) -> Duration {
        let longest = lease.max(self.state().lease);
        std::mem::replace(&mut self.state().lease, longest)
    }

    /// Has renewals ask for this lease again, as the server has refused a longer one.
    pub(crate) fn ask_again_for(&self, lease: Duration) {
        self.state().lease = lease;
    }

    /// Another guard of the same job, whose acquire was sent then.
    pub(crate) fn re_enter(&self, sent_at: Moment, lease: Duration) -> Result<(), Lost> {
        // A renewal begun before may come after it with the first lease: a later one counts.
        self.extend(sent_at, lease.min(self.request.lease))?;
        self.state().guards += 1;
        Ok(())
    }

    pub(crate) fn guards(&self) -> u64 {
        self.state().guards
    }

    /// Returns, once for each link, whether the link by which the hold was asked for has
    /// ended. The server may have forgotten the hold then.
    fn has_lost_link(&self) -> bool {
        let mut state = self.state();
        let is_closed = |link: &Weak<Link>| link.upgrade().is_none_or(|it| it.closed.is_closed());
        state.link.take_if(|link| is_closed(link)).is_some()
    }

    /// Renews it. Returns when the renewal was sent.
    pub(crate) async fn renew(&self) -> Result<Moment, Error> {
        loop {
            let (sent_at, lease) = self.renew_once().await?;
            // It may have cut off a longer lease that was asked for meanwhile.
            if lease >= self.state().lease {
                return Ok(sent_at);
            }
        }
    }

    async fn renew_once(&self) -> Result<(Moment, Duration), Error> {
        self.shared.check_process()?;
        let _turn = self.renewing.lock().await;
        self.left().map_err(Error::Lost)?;
        let (request, lease) = (&self.request, self.state().lease);
        let renew = command::renew(&request.key, &request.owner, lease, self.token);
        let (road, key) = (&request.road, &request.key);
        let answer = match road.ask(&self.shared, key, &renew, None).await {
            Err(Error::Lost(why)) => {
                self.end(why);
                return Err(Error::Lost(why));
            }
            asked => asked?,
        };
        if !command::is_one(&answer.value)? {
            self.end(Lost::Refused);
            return Err(Error::Lost(self.left().err().unwrap_or(Lost::Refused)));
        }
        self.extend(answer.sent_at, lease).map_err(Error::Lost)?;
        let mut state = self.state();
        if let Some(link) = &answer.link {
            state.link = Some(Arc::downgrade(link));
        }
        if lease < state.lease {
            state.valid_until = valid_until(answer.sent_at, lease);
        }
        Ok((answer.sent_at, lease))
    }

    /// Runs a command at the server if the lock is still held there.
    pub(crate) async fn guarded(&self, command: &redis::Cmd) -> Result<redis::Value, Error> {
        let guard = command::guard(&self.request.key, self.token, command);
        Ok(self.shared.ask(&self.request.key, &guard).await?.value)
    }

    /// Ends one guard. What it takes goes on in the background, until it is answered or
    /// the lease is over; the first failure is told at once.
    pub(crate) fn leave(self: &Arc<Self>) -> oneshot::Receiver<Result<(), Error>> {
        let (tell, told) = oneshot::channel();
        let this = Arc::clone(self);
        match &self.job {
            None => match self.end(Lost::Released) {
                Some(why) => _ = tell.send(Err(Error::Lost(why))),
                None => self
                    .shared
                    .settle(async move { this.release(None, tell).await }),
            },
            Some(job) => {
                // Taken at once if it is free, so that the job's next request comes after this.
                let releasing = Releasing::of(job);
                let turn = job.turn_of(&self.request.key).try_lock_owned().ok();
                let job = Arc::clone(job);
                self.shared.settle(async move {
                    let _releasing = releasing;
                    let _turn = match turn {
                        Some(turn) => turn,
                        None => job.turn_to_release(&this.request.key).await,
                    };
                    match this.leave_one() {
                        // With `HOLD 1` a hold that another has ended would look released.
                        Ok(nth) => this.release((nth > 1).then_some(nth), tell).await,
                        Err(why) => _ = tell.send(Err(Error::Lost(why))),
                    }
                });
            }
        }
        told
    }

    /// One guard less of a job. Returns which of its holds that ends.
    fn leave_one(&self) -> Result<u64, Lost> {
        let nth = {
            let mut state = self.state();
            state.guards -= 1;
            state.guards + 1
        };
        match nth {
            1 => self.end(Lost::Released).map_or(Ok(nth), Err),
            _ => self.left().map(|_| nth),
        }
    }

    async fn release(&self, nth: Option<u64>, tell: oneshot::Sender<Result<(), Error>>) {
        let (shared, road, key) = (&self.shared, &self.request.road, &self.request.key);
        let release = command::release(key, &self.request.owner, Some(self.token), nth);
        let until = Moment::now() + self.state().lease;
        let told = match road.ask(shared, key, &release, None).await {
            // An earlier try of this release may have ended it.
            Ok(answer) if answer.value == redis::Value::Nil && !answer.is_resent => {
                Err(Error::Lost(Lost::Refused))
            }
            // Its session has ended meanwhile, and so the hold, if not by this.
            Err(Error::Lost(_)) => Err(Error::closed()),
            told => told.map(|_| ()),
        };
        let goes_on = matches!(&told, Err(error) if !matches!(error, Error::Lost(_)));
        if let Err(Err(error)) = tell.send(told) {
            // Nobody waits for the release of a dropped guard.
            shared.report(&error);
        }
        if goes_on {
            let _ = shared.release(road, key, &release, until).await;
        }
    }
}

/// A release of a job that is under way.
struct Releasing(Arc<JobState>);

impl Releasing {
    fn of(job: &Arc<JobState>) -> Self {
        job.releases.send_modify(|releases| *releases += 1);
        Self(Arc::clone(job))
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        self.0.releases.send_modify(|releases| *releases -= 1);
    }
}

/// A hold that nobody keeps up any more when this is dropped: its task has ended, or the
/// runtime of the client has.
struct Unkept {
    hold: Arc<Hold>,
    since: Moment,
    lease: Duration,
    renewals: Option<u32>,
}

impl Drop for Unkept {
    fn drop(&mut self) {
        self.hold.end(Lost::Expired);
    }
}

/// Keeps a hold up until it is over.
async fn keep(unkept: Unkept) {
    let (hold, mut renewals) = (&unkept.hold, unkept.renewals);
    let mut lost = std::pin::pin!(hold.lost());
    let mut is_claimed = unkept.lease == hold.request.lease;
    let mut backoff = Backoff::default();
    let mut renew_at = match is_claimed {
        true => Some(unkept.since + unkept.lease / 3).filter(|_| renewals != Some(0)),
        false => Some(Moment::now() + CLAIM_AFTER.min(hold.left().unwrap_or_default() / 4)),
    };
    loop {
        let left = match hold.left() {
            Ok(left) => left,
            Err(why) => {
                hold.end(why);
                if why == Lost::Expired && renew_at.is_some() {
                    // The server may keep it up for as long as a session's connection is open.
                    hold.request.road.end();
                }
                return;
            }
        };
        let now = Moment::now();
        if renewals != Some(0) && hold.has_lost_link() {
            renew_at = Some(now);
        }
        let due = renew_at.map_or(left, |renew_at| now.until(renew_at));
        if !due.is_zero() {
            tokio::select! {
                biased;
                _ = &mut lost => return,
                () = hold.request.road.over() => {}
                () = sleep(due.min(left).min(SLEEP_MAX)) => {}
            }
            continue;
        }
        let renewed = tokio::select! {
            biased;
            _ = &mut lost => return,
            // Boxed, so that a hold at rest keeps no room for it.
            renewed = timeout(left, Box::pin(hold.renew())) => renewed,
        };
        match renewed.unwrap_or_else(|_| Err(Error::timed_out())) {
            Ok(sent_at) => {
                backoff = Backoff::default();
                if std::mem::replace(&mut is_claimed, true) {
                    renewals = renewals.map(|renewals| renewals.saturating_sub(1));
                }
                let next = sent_at + hold.state().lease / 3;
                renew_at = Some(next).filter(|_| renewals != Some(0));
            }
            Err(Error::Lost(_)) => {}
            Err(error) => {
                hold.shared.report(&error);
                renew_at = Some(Moment::now() + backoff.pause().min(left / 8));
            }
        }
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

    fn turn_of(&self, key: &[u8]) -> Turn {
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
    async fn turn_to_release(&self, key: &[u8]) -> OwnedMutexGuard<()> {
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

#[cfg(test)]
#[path = "tests/room.rs"]
mod room;
