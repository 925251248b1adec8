//! How a lock is taken: asked for, waited for, claimed; and how the rest is given back if
//! that fails.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::backoff::Backoff;
use crate::clock::{Moment, valid_until, whole_ms};
use crate::command::{self, LEASE_MS_MAX, Mode, NUMBER_MAX, PLACE_MAX, token_in};
use crate::connection::Closed;
use crate::error::{Error, Lost};
use crate::message::Told;
use crate::register::Entry;
use crate::router::Answer;
use crate::shared::{Road, Shared};

/// How often a place is asked for again while nothing is heard of it.
const ASK_AGAIN: Duration = Duration::from_secs(30);

/// How long to wait for a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    /// Not at all.
    No,
    /// Until then, or without end.
    Until(Option<Instant>),
}

impl Wait {
    /// At most this long from now. Ten years and more are without end.
    pub(crate) fn within(time: Duration) -> Self {
        match time {
            Duration::ZERO => Self::No,
            time if whole_ms(time) >= LEASE_MS_MAX => Self::Until(None),
            time => Self::Until(Some(Instant::now() + time)),
        }
    }
}

/// What is asked for.
pub(crate) struct Request {
    pub(crate) key: Vec<u8>,
    pub(crate) owner: Vec<u8>,
    pub(crate) mode: Mode,
    pub(crate) lease: Duration,
    /// Which hold of the owner it is to be.
    pub(crate) nth: u64,
    /// Whether this owner never asked for this lock before. Then whatever is granted was
    /// granted after it was asked for.
    pub(crate) is_first: bool,
    pub(crate) road: Road,
}

impl Request {
    /// Returns an error if no server would take it.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if !(1..=LEASE_MS_MAX).contains(&whole_ms(self.lease)) {
            return Err(Error::Invalid("a lease is 1 millisecond to 10 years"));
        }
        match self.mode {
            Mode::Limited(limit) if !(1..=NUMBER_MAX).contains(&limit) => {
                Err(Error::Invalid("a limit is 1 to 2^53 - 1"))
            }
            _ => Ok(()),
        }
    }

    fn acquire(&self) -> redis::Cmd {
        let command = command::acquire(&self.key, &self.owner, self.lease, self.mode, self.nth);
        match self.road {
            Road::Client => command,
            Road::Session(_) => command::tied(command),
        }
    }
}

/// A hold that the server told of.
pub(crate) struct Grant {
    pub(crate) token: u64,
    /// No later than the grant.
    pub(crate) since: Moment,
    /// The lease that is relied upon from then on: that of the request, or the short first
    /// one of a place, which is still to be claimed.
    pub(crate) lease: Duration,
    /// Where the messages of its wait arrive.
    pub(crate) entry: Option<Entry>,
}

/// Returns whether work may begin on a grant that was told late, before it is renewed: a
/// quarter of its lease has to be left, counted from when it was first asked for. An owner
/// that asked before may be told of an earlier grant.
fn may_begin(is_first: bool, first_sent_at: Moment, lease: Duration, now: Moment) -> bool {
    is_first && now.until(valid_until(first_sent_at, lease)) >= lease / 4
}

/// One attempt to take a lock. Dropped in doubt, it gives back whatever came of it.
pub(crate) struct Attempt {
    shared: Arc<Shared>,
    pub(crate) request: Arc<Request>,
    /// The command that ends a connection that is blocked for it.
    kill: Option<redis::Cmd>,
    /// The job's turn. It is kept until everything is given back.
    turn: Option<[OwnedMutexGuard<()>; 2]>,
    /// Whether the server may have a place or a hold for it, and for how long.
    is_in_doubt: bool,
    lasts: Duration,
}

impl Attempt {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        request: Request,
        turn: Option<[OwnedMutexGuard<()>; 2]>,
    ) -> Self {
        Self {
            shared: Arc::clone(shared),
            lasts: request.lease,
            request: Arc::new(request),
            kill: None,
            turn,
            is_in_doubt: false,
        }
    }

    /// Has everything given back that the server may have for it.
    pub(crate) fn doubt(&mut self) {
        self.is_in_doubt = true;
    }

    pub(crate) async fn take(&mut self, wait: Wait) -> Result<Option<Grant>, Error> {
        let timeouts = self.shared.router.timeouts;
        let taken = match wait {
            Wait::No => {
                let within = timeouts.connect + timeouts.response;
                timeout(within, self.try_once()).await
            }
            // Only a place waits, and it is for the first hold.
            Wait::Until(deadline) if self.request.nth > 1 => Ok(self.try_until(deadline).await),
            Wait::Until(None) => Ok(self.queue(None).await),
            Wait::Until(Some(deadline)) => {
                timeout_at(deadline + timeouts.response, self.queue(Some(deadline))).await
            }
        };
        let taken = taken.unwrap_or_else(|_| Err(Error::timed_out()))?;
        self.is_in_doubt = false;
        Ok(taken)
    }

    /// Sends a command, and notes whether that leaves the attempt in doubt.
    async fn ask(&mut self, command: &redis::Cmd, channel: Option<&[u8]>) -> Result<Answer, Error> {
        let request = &self.request;
        if request.road.is_over() {
            return Err(Error::Lost(Lost::Disconnected));
        }
        let was_in_doubt = std::mem::replace(&mut self.is_in_doubt, true);
        let (road, key) = (&request.road, &request.key);
        let answer = road.ask(&self.shared, key, command, channel).await;
        if let Err(error) = &answer {
            self.is_in_doubt = was_in_doubt || error.leaves_doubt();
        }
        answer
    }

    async fn try_once(&mut self) -> Result<Option<Grant>, Error> {
        let answer = self.ask(&self.request.acquire(), None).await?;
        Ok(token_in(&answer.value)?.map(|token| self.grant(token, answer.sent_at, None)))
    }

    /// Tries until the deadline, as long as errors may pass.
    async fn try_until(&mut self, deadline: Option<Instant>) -> Result<Option<Grant>, Error> {
        let mut backoff = Backoff::default();
        loop {
            match self.try_once().await {
                Err(error)
                    if error.may_pass() && self.pause(&error, &mut backoff, deadline).await => {}
                tried => return tried,
            }
        }
    }

    /// Waits by a place in the queue.
    async fn queue(&mut self, deadline: Option<Instant>) -> Result<Option<Grant>, Error> {
        let request = Arc::clone(&self.request);
        self.lasts = request.lease.max(PLACE_MAX);
        let router = &self.shared.router;
        let entry = router.register.enter(&request.key, &request.owner);
        let channel = router.channel_for(&request.key);
        let (mut backoff, first_sent_at) = (Backoff::default(), Moment::now());
        // How the last request went. One is sent even if the time is over by then.
        let mut asked = None;
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO)
                && let Some(asked) = asked
            {
                asked?;
                return self.give_up().await;
            }
            let command = command::queue(request.acquire(), left, &channel);
            let mut asked_by = 0;
            let (by, told) = match self.ask(&command, Some(&channel)).await {
                Ok(answer) => {
                    asked = Some(Ok(()));
                    asked_by = answer.link.as_ref().map_or(0, |link| link.serial);
                    match token_in(&answer.value)? {
                        Some(0) => {}
                        Some(token) => {
                            return Ok(Some(self.grant(token, answer.sent_at, Some(entry))));
                        }
                        None => return Err(Error::unexpected(&Value::Nil)),
                    }
                    let again_at = Instant::now() + ASK_AGAIN;
                    let until = deadline.unwrap_or(again_at).min(again_at);
                    let link = answer.link.as_ref();
                    let closed = link.map(|link| link.closed.clone()).unwrap_or_default();
                    tokio::select! {
                        biased;
                        told = entry.told() => told,
                        () = request.road.over() => return Err(Error::Lost(Lost::Disconnected)),
                        () = closed.closed() => continue,
                        () = sleep_until(until) => continue,
                    }
                }
                // Boxed, so that other waits need no room for it.
                Err(Error::NoPermission(_)) => return Box::pin(self.block(deadline)).await,
                Err(error) if error.may_pass() => tokio::select! {
                    biased;
                    // A message for the place of an earlier request.
                    told = entry.told() => told,
                    goes_on = self.pause(&error, &mut backoff, deadline) => {
                        if !goes_on {
                            return Err(error);
                        }
                        asked = Some(Err(error));
                        continue;
                    }
                },
                Err(error) => return Err(error),
            };
            let passing = match told {
                Told::Granted { token, first_lease } => {
                    let lease = first_lease.min(request.lease);
                    // Another node of the shard may tell of a grant that its primary has
                    // taken back.
                    let is_sure = request.is_first && asked_by == by;
                    match self.begin(token, first_sent_at, lease, is_sure, by).await {
                        Ok(Some(grant)) => {
                            let entry = Some(entry);
                            return Ok(Some(Grant { entry, ..grant }));
                        }
                        Ok(None) => continue,
                        Err(error) => error,
                    }
                }
                // The place's time is over, or the server has forgotten it. That is no failure.
                Told::Gone => {
                    backoff.pause_before(deadline).await;
                    continue;
                }
                Told::Refused(error) => {
                    self.is_in_doubt = error.leaves_doubt();
                    error
                }
            };
            if !passing.may_pass() {
                return Err(passing);
            }
            self.pause(&passing, &mut backoff, deadline).await;
        }
    }

    /// Waits by blocking a connection of its own, for users who may not subscribe.
    async fn block(&mut self, deadline: Option<Instant>) -> Result<Option<Grant>, Error> {
        let (shared, request) = (Arc::clone(&self.shared), Arc::clone(&self.request));
        let mut backoff = Backoff::default();
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return self.give_up().await;
            }
            let command = command::block(request.acquire(), left);
            let kill = &mut self.kill;
            let asked = async {
                let address = shared.router.address_of(&request.key).await?;
                let connection = shared.router.open(&address, &Closed::default()).await?;
                *kill = connection.about(shared.router.timeouts.response).await.0;
                let reply = connection.ask_patiently(&command).await;
                if let Err(error) = &reply {
                    shared.router.learn(&request.key, error, connection.host());
                }
                Ok::<_, Error>((token_in(&reply?)?, connection))
            };
            let asked = async {
                tokio::select! {
                    biased;
                    () = request.road.over() => Err(Error::Lost(Lost::Disconnected)),
                    asked = asked => asked,
                }
            };
            let was_in_doubt = std::mem::replace(&mut self.is_in_doubt, true);
            let passing = match asked.await {
                Ok((None, ..)) => continue,
                // What keeps it up from now on asks for it, too, before this connection closes.
                Ok((Some(_), _tied)) => match self.try_once().await {
                    Ok(None) => continue,
                    Ok(grant) => return Ok(grant),
                    Err(error) => error,
                },
                Err(error) => {
                    self.is_in_doubt = was_in_doubt || error.leaves_doubt();
                    error
                }
            };
            if !passing.may_pass() || !self.pause(&passing, &mut backoff, deadline).await {
                return Err(passing);
            }
        }
    }

    /// A grant that was told late: with this lease if work may begin at once, else with a
    /// full one, once it is renewed. None if it is over.
    async fn begin(
        &self,
        token: u64,
        since: Moment,
        lease: Duration,
        is_sure: bool,
        by: u64,
    ) -> Result<Option<Grant>, Error> {
        if may_begin(is_sure, since, lease, Moment::now()) {
            let grant = self.grant(token, since, None);
            return Ok(Some(Grant { lease, ..grant }));
        }
        let request = &self.request;
        let renew = command::renew(&request.key, &request.owner, request.lease, token);
        let asked = request.road.ask(&self.shared, &request.key, &renew, None);
        let answer = asked.await?;
        // Where another server than told of it answers, it has to be asked for again.
        let is_there = answer.link.as_ref().is_none_or(|link| link.serial == by);
        let is_held = is_there && command::is_one(&answer.value)?;
        Ok(is_held.then(|| self.grant(token, answer.sent_at, None)))
    }

    /// Ends a wait whose time is over, so that nothing of it is left.
    async fn give_up(&mut self) -> Result<Option<Grant>, Error> {
        if self.is_in_doubt {
            let release = self.release();
            let within = self.shared.router.timeouts.response;
            let request = &self.request;
            let asked = request.road.ask(&self.shared, &request.key, &release, None);
            if matches!(timeout(within, asked).await, Ok(Ok(_))) {
                self.is_in_doubt = false;
            } else {
                self.settle();
            }
        }
        Ok(None)
    }

    /// A pause after an error that may pass. Returns false if the deadline would be over then.
    async fn pause(
        &self,
        passing: &Error,
        backoff: &mut Backoff,
        deadline: Option<Instant>,
    ) -> bool {
        self.shared.report(passing);
        backoff.pause_before(deadline).await
    }

    fn grant(&self, token: u64, since: Moment, entry: Option<Entry>) -> Grant {
        Grant {
            token,
            since,
            lease: self.request.lease,
            entry: entry.map(|entry| entry.granted(token)),
        }
    }

    /// The release that ends its place and its hold.
    fn release(&self) -> redis::Cmd {
        let nth = self.turn.is_some().then_some(self.request.nth);
        command::release(&self.request.key, &self.request.owner, None, nth)
    }

    /// Gives back what the server may have for it, in the background.
    fn settle(&mut self) {
        self.is_in_doubt = false;
        let release = self.release();
        let (shared, request) = (Arc::clone(&self.shared), Arc::clone(&self.request));
        let (turn, kill, lasts) = (self.turn.take(), self.kill.take(), self.lasts);
        self.shared.settle(async move {
            let _turn = turn;
            if let Some(kill) = kill {
                let _ = shared.ask(&request.key, &kill).await;
            }
            let (road, until) = (&request.road, Moment::now() + lasts);
            let _ = shared.release(road, &request.key, &release, until).await;
        });
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if self.is_in_doubt && self.shared.check_process().is_ok() {
            self.settle();
        }
    }
}

#[cfg(test)]
#[path = "tests/claims.rs"]
mod claims;
