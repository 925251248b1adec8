//! What there is of a lock that is held: how long it can be relied upon, and a task that
//! keeps it up.

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
use crate::router::Answer;
use crate::shared::{Road, Shared};

/// How soon a hold is kept up, and a short first lease claimed. Work that is done sooner
/// spares both.
pub(crate) const CLAIM_AFTER: Duration = Duration::from_millis(20);

/// The longest sleep: timers stand still while a machine is suspended, leases do not.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// A hold of the server's, and what is known of it.
pub(crate) struct Hold {
    shared: Arc<Shared>,
    pub(crate) request: Arc<Request>,
    pub(crate) token: u64,
    job: Option<Arc<JobState>>,
    state: Mutex<State>,
    /// Why it is over, once it is.
    lost: watch::Sender<Option<Lost>>,
    _entry: Option<Entry>,
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

struct State {
    valid_until: Moment,
    /// What the next renewal asks for.
    lease: Duration,
    /// How many guards there are: one, or in a job as many as the server counts.
    guards: u64,
    /// By what it was last asked for.
    link: Option<Weak<Link>>,
}

impl Hold {
    /// The hold of a grant, which is kept up from now on, by at most so many renewals.
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
            lost: watch::Sender::new(None),
            _entry: grant.entry,
            request,
        });
        let left = hold.left().unwrap_or_default();
        let is_claimed = grant.lease == hold.request.lease;
        let renew_at = match is_claimed {
            true => Some(grant.since + grant.lease / 3).filter(|_| renewals != Some(0)),
            false => Some(Moment::now() + CLAIM_AFTER.min(left / 4)),
        };
        let unkept = Unkept {
            hold: Arc::clone(&hold),
            is_claimed,
            renew_at,
            renewals,
        };
        match hold.request.road {
            // Up to twice as late, and no less time is left to claim it.
            Road::Client if left >= CLAIM_AFTER * 8 => shared.keep_later(unkept),
            _ => _ = shared.router.runtime.spawn(unkept.keep()),
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

    pub(crate) fn check_process(&self) -> Result<(), Error> {
        self.shared.check_process()
    }

    pub(crate) fn lost(&self) -> impl Future<Output = Lost> + Send + 'static + use<> {
        let mut lost = self.lost.subscribe();
        async move {
            // It is told before its sender goes.
            let lost = lost.wait_for(Option::is_some).await;
            lost.ok().and_then(|lost| *lost).unwrap_or(Lost::Expired)
        }
    }

    /// Notes that it is over. Returns why it was over before, if it was.
    pub(crate) fn end(&self, why: Lost) -> Option<Lost> {
        let why = self.left().err().unwrap_or(why);
        let mut before = None;
        self.lost.send_if_modified(|lost| {
            before = *lost;
            *lost = lost.or(Some(why));
            before.is_none()
        });
        match before {
            None if why == Lost::Released => None,
            None if matches!(why, Lost::Expired | Lost::Disconnected) => {
                self.give_back();
                Some(why)
            }
            before => before.or(Some(why)),
        }
    }

    /// Ends what the server may still have of a hold that is lost here: a renewal that
    /// got no answer may come late.
    fn give_back(&self) {
        let (shared, request, token) = (
            Arc::clone(&self.shared),
            Arc::clone(&self.request),
            self.token,
        );
        let job = self.job.clone();
        self.shared.settle(async move {
            let _turn = match &job {
                Some(job) => Some(job.turn_to_release(&request.key).await),
                None => None,
            };
            // The job may have been given the same hold again meanwhile.
            if job.is_none_or(|job| !job.has(&request.key, token)) {
                let release = command::release(&request.key, &request.owner, Some(token), None);
                let until = Moment::now() + request.lease;
                let _ = shared
                    .release(&request.road, &request.key, &release, until)
                    .await;
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

    /// Has renewals ask for no less than this from now on: one that comes after an acquire
    /// would cut off what that was given. To be called before it is sent.
    pub(crate) fn ask_for(&self, lease: Duration) {
        let mut state = self.state();
        state.lease = state.lease.max(lease);
    }

    /// Another guard of the same job, whose acquire was sent then.
    pub(crate) fn re_enter(&self, sent_at: Moment, lease: Duration) -> Result<(), Lost> {
        self.extend(sent_at, lease)?;
        self.state().guards += 1;
        Ok(())
    }

    pub(crate) fn guards(&self) -> u64 {
        self.state().guards
    }

    /// Returns, once for each link, whether that has ended by which it was asked for. The
    /// server may have forgotten it then.
    fn has_lost_link(&self) -> bool {
        let mut state = self.state();
        let is_closed = |link: &Weak<Link>| link.upgrade().is_none_or(|it| it.closed.is_closed());
        state.link.take_if(|link| is_closed(link)).is_some()
    }

    /// Renews it. Returns when the renewal was sent.
    pub(crate) async fn renew(&self) -> Result<Moment, Error> {
        loop {
            let (sent_at, lease) = self.renew_once().await?;
            // A longer one that was asked for meanwhile may have been cut off.
            if lease >= self.state().lease {
                return Ok(sent_at);
            }
        }
    }

    async fn renew_once(&self) -> Result<(Moment, Duration), Error> {
        self.check_process()?;
        self.left().map_err(Error::Lost)?;
        let (request, lease) = (&self.request, self.state().lease);
        let renew = command::renew(&request.key, &request.owner, lease, self.token);
        let asked = request
            .road
            .ask(&self.shared, &request.key, &renew, None)
            .await;
        let answer = match asked {
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

    /// Runs a command at the server under the condition that it is still held there.
    pub(crate) async fn guarded(&self, command: &redis::Cmd) -> Result<redis::Value, Error> {
        let guard = command::guard(&self.request.key, self.token, command);
        Ok(self.shared.ask(&self.request.key, &guard).await?.value)
    }

    /// Ends one guard, and waits for the server's word. Where that is not waited for, or
    /// the first one is a failure, it goes on in the background until the lease is over.
    pub(crate) fn leave(
        self: &Arc<Self>,
    ) -> impl Future<Output = Result<(), Error>> + Send + 'static + use<> {
        let leaving = match &self.job {
            None => Leaving::AtOnce(match self.end(Lost::Released) {
                Some(why) => Err(Error::Lost(why)),
                None => Ok(Release::new(self, None, None)),
            }),
            Some(job) => Leaving::InTurn(self.leave_job(job)),
        };
        async {
            match leaving {
                Leaving::AtOnce(release) => release?.send().await,
                Leaving::InTurn(told) => told.await.unwrap_or(Err(Error::Stopped)),
            }
        }
    }

    /// Ends one guard of a job, when it is its turn.
    fn leave_job(self: &Arc<Self>, job: &Arc<JobState>) -> oneshot::Receiver<Result<(), Error>> {
        let (tell, told) = oneshot::channel();
        // Taken at once if it is free, so that what the job asks for next comes after.
        let releasing = Releasing::of(job);
        let turn = job.turn_of(&self.request.key).try_lock_owned().ok();
        let (this, job) = (Arc::clone(self), Arc::clone(job));
        self.shared.settle(async move {
            let turn = match turn {
                Some(turn) => turn,
                None => job.turn_to_release(&this.request.key).await,
            };
            let told = match this.leave_one() {
                // With `HOLD 1` one that somebody else has ended would look released.
                Ok(nth) => {
                    let nth = (nth > 1).then_some(nth);
                    let release = Release::new(&this, nth, Some((releasing, turn)));
                    release.send().await
                }
                Err(why) => Err(Error::Lost(why)),
            };
            if let Err(Err(error)) = tell.send(told) {
                // Of a dropped guard nobody hears.
                this.shared.report(&error);
            }
        });
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
}

/// How a guard is ended.
enum Leaving {
    AtOnce(Result<Release, Error>),
    InTurn(oneshot::Receiver<Result<(), Error>>),
}

/// A release that is still to be answered. Dropped before, it goes on in the background.
struct Release {
    hold: Arc<Hold>,
    command: redis::Cmd,
    until: Moment,
    /// What the job may not do meanwhile.
    turn: Option<(Releasing, OwnedMutexGuard<()>)>,
    was_sent: bool,
    is_answered: bool,
}

impl Release {
    fn new(
        hold: &Arc<Hold>,
        nth: Option<u64>,
        turn: Option<(Releasing, OwnedMutexGuard<()>)>,
    ) -> Self {
        let request = &hold.request;
        Self {
            command: command::release(&request.key, &request.owner, Some(hold.token), nth),
            until: Moment::now() + hold.state().lease,
            hold: Arc::clone(hold),
            turn,
            was_sent: false,
            is_answered: false,
        }
    }

    async fn send(mut self) -> Result<(), Error> {
        self.was_sent = true;
        let Hold {
            shared, request, ..
        } = &*self.hold;
        let asked = request.road.ask(shared, &request.key, &self.command, None);
        let answer = asked.await;
        self.is_answered = matches!(answer, Ok(_) | Err(Error::Lost(_)));
        check_released(&answer?)
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        if self.is_answered {
            return;
        }
        let (hold, until) = (Arc::clone(&self.hold), self.until);
        let (turn, was_sent) = (self.turn.take(), self.was_sent);
        let command = std::mem::take(&mut self.command);
        self.hold.shared.settle(async move {
            let _turn = turn;
            let (shared, request) = (&hold.shared, &hold.request);
            let released = shared.release(&request.road, &request.key, &command, until);
            if let Ok(answer) = released.await
                && !was_sent
                && let Err(error) = check_released(&answer)
            {
                shared.report(&error);
            }
        });
    }
}

/// What was sent before may have ended it.
fn check_released(answer: &Answer) -> Result<(), Error> {
    match answer.value == redis::Value::Nil && !answer.is_resent {
        true => Err(Error::Lost(Lost::Refused)),
        false => Ok(()),
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
pub(crate) struct Unkept {
    hold: Arc<Hold>,
    /// Whether its lease is the full one.
    is_claimed: bool,
    renew_at: Option<Moment>,
    renewals: Option<u32>,
}

impl Drop for Unkept {
    fn drop(&mut self) {
        self.hold.end(Lost::Expired);
    }
}

impl Unkept {
    pub(crate) fn is_over(&self) -> bool {
        self.hold.lost.borrow().is_some()
    }

    /// Keeps a hold up until it is over.
    pub(crate) async fn keep(mut self) {
        let hold = Arc::clone(&self.hold);
        let mut lost = std::pin::pin!(hold.lost());
        let mut backoff = Backoff::default();
        loop {
            let left = match hold.left() {
                Ok(left) => left,
                Err(why) => {
                    hold.end(why);
                    if why == Lost::Expired && self.renew_at.is_some() {
                        // The server may keep it up for as long as a session's connection is open.
                        hold.request.road.end();
                    }
                    return;
                }
            };
            let now = Moment::now();
            if self.renewals != Some(0) && hold.has_lost_link() {
                self.renew_at = Some(now);
            }
            let due = self.renew_at.map_or(left, |renew_at| now.until(renew_at));
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
                renewed = timeout(left, hold.renew()) => renewed,
            };
            match renewed.unwrap_or_else(|_| Err(Error::timed_out())) {
                Ok(sent_at) => {
                    backoff = Backoff::default();
                    if std::mem::replace(&mut self.is_claimed, true) {
                        self.renewals = self.renewals.map(|renewals| renewals.saturating_sub(1));
                    }
                    let next = sent_at + hold.state().lease / 3;
                    self.renew_at = Some(next).filter(|_| self.renewals != Some(0));
                }
                Err(Error::Lost(_)) => {}
                Err(error) => {
                    hold.shared.report(&error);
                    self.renew_at = Some(Moment::now() + backoff.pause().min(left / 8));
                }
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
