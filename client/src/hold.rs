//! A hold: who has which lock where, and until when that can be relied upon.
//!
//! A hold is relied upon from the *send* of the last command that granted or
//! renewed it, by the monotonic clock, for the length of the lease less a
//! margin for clocks that run apart. What is once lost stays lost: a renewal
//! that is answered too late does not bring it back.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{Mutex, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::background::Debt;
use crate::commands;
use crate::error::Error;
use crate::mode::Mode;
use crate::node::{Node, Reply, by};
use crate::pending::Ask;
use crate::session::Session;
use crate::votes::Votes;

/// Why a hold can no longer be relied upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lost {
    /// No renewal succeeded in time. The lock may be another's by now.
    Expired,
    /// The server says that the hold is over, or that another owner has the lock.
    Refused,
    /// The connection of a [session](crate::Lock::session) was closed, and the
    /// hold with it.
    Disconnected,
    /// The guards of this hold were released, dropped or forgotten.
    Released,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its lease ran out",
            Self::Refused => "the server says that it is over",
            Self::Disconnected => "the connection of its session was closed",
            Self::Released => "it was released",
        })
    }
}

/// How much shorter a lease counts here than on the server: one percent for
/// clocks that run apart and ten milliseconds for the time it takes to notice.
/// A lease so short that this would eat it up keeps half.
pub(crate) fn margin(lease: Duration) -> Duration {
    (lease / 100 + Duration::from_millis(10)).min(lease / 2)
}

/// Where a hold is, and its token there if that is known.
pub(crate) struct Place {
    pub(crate) node: Arc<Node>,
    pub(crate) token: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Standing {
    valid_until: Instant,
    lost: Option<Lost>,
}

impl Standing {
    fn at(&self, now: Instant) -> Result<Duration, Lost> {
        match self.lost {
            Some(lost) => Err(lost),
            None if now >= self.valid_until => Err(Lost::Expired),
            None => Ok(self.valid_until - now),
        }
    }
}

/// A hold on one server, or on the majority of several.
pub(crate) struct Hold {
    pub(crate) key: Vec<u8>,
    pub(crate) owner: Vec<u8>,
    /// The greatest of its tokens.
    pub(crate) token: u64,
    /// The mode in which it was asked for.
    pub(crate) mode: Mode,
    /// The connection with which it ends, if it does.
    pub(crate) session: Option<Session>,
    places: Vec<Place>,
    lease_ms: AtomicU64,
    standing: watch::Sender<Standing>,
    /// One renewal at a time, so that the last one sent is the last one carried out.
    renewing: Mutex<()>,
    /// Whether a task renews it.
    pub(crate) is_renewed: AtomicBool,
    /// Servers that a majority did without, and that may still grant it.
    stragglers: std::sync::Mutex<JoinSet<Ask>>,
}

impl Hold {
    /// A hold that the server granted or renewed by a command sent at `sent_at`.
    pub(crate) fn new(
        (key, owner): (Vec<u8>, Vec<u8>),
        mode: Mode,
        session: Option<Session>,
        places: Vec<Place>,
        stragglers: JoinSet<Ask>,
        lease: Duration,
        sent_at: Instant,
    ) -> Self {
        let token = places.iter().filter_map(|place| place.token).max();
        let valid_until = sent_at + (lease - margin(lease));
        Self {
            key,
            owner,
            token: token.unwrap_or_default(),
            mode,
            session,
            places,
            lease_ms: AtomicU64::new(whole_ms(lease)),
            standing: watch::Sender::new(Standing {
                valid_until,
                lost: None,
            }),
            renewing: Mutex::default(),
            is_renewed: AtomicBool::new(false),
            stragglers: stragglers.into(),
        }
    }

    /// How long it can be relied upon from now, if it can.
    pub(crate) fn valid_for(&self) -> Result<Duration, Lost> {
        self.standing.borrow().at(Instant::now())
    }

    /// When it ends unless renewed.
    pub(crate) fn valid_until(&self) -> Instant {
        self.standing.borrow().valid_until
    }

    pub(crate) fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms.load(Ordering::SeqCst))
    }

    /// Renewals are for so long from now on, if that is longer. What one guard
    /// asked for is never cut short by another.
    pub(crate) fn lengthen_lease(&self, lease: Duration) {
        self.lease_ms.fetch_max(whole_ms(lease), Ordering::SeqCst);
    }

    /// Marks it as lost, if it is not yet.
    pub(crate) fn lose(&self, why: Lost) {
        self.standing.send_if_modified(|standing| {
            let first = standing.lost.is_none();
            standing.lost = standing.at(Instant::now()).err().or(Some(why));
            first
        });
    }

    /// Counts a lease from `sent_at`, unless the hold was lost meanwhile.
    fn extend(&self, sent_at: Instant, lease: Duration) -> Result<(), Lost> {
        let valid_until = sent_at + (lease - margin(lease));
        let mut outcome = Ok(());
        self.standing.send_if_modified(|standing| {
            match standing.at(Instant::now()) {
                Ok(_) => standing.valid_until = standing.valid_until.max(valid_until),
                Err(lost) => {
                    standing.lost = Some(lost);
                    outcome = Err(lost);
                }
            }
            true
        });
        outcome
    }

    /// Completes when the hold can no longer be relied upon.
    pub(crate) fn lost(&self) -> impl Future<Output = Lost> + Send + 'static + use<> {
        let mut standing = self.standing.subscribe();
        async move {
            loop {
                let now = *standing.borrow_and_update();
                if let Err(lost) = now.at(Instant::now()) {
                    return lost;
                }
                tokio::select! {
                    () = sleep_until(now.valid_until) => {}
                    changed = standing.changed() => if changed.is_err() {
                        return Lost::Released;
                    }
                }
            }
        }
    }

    /// Renews the lease where the hold is.
    pub(crate) async fn renew(&self) -> Result<(), Error> {
        let _turn = self.renewing.lock().await;
        self.valid_for().map_err(Error::Lost)?;
        let lease = self.lease();
        let sent_at = Instant::now();
        let renewed = match by(Some(self.valid_until()), self.ask_to_renew(lease)).await {
            Some(Ok(None)) => self.extend(sent_at, lease),
            Some(Ok(Some(lost))) => Err(lost),
            Some(Err(error)) => return Err(error),
            None => Err(Lost::Expired),
        };
        renewed.map_err(|why| {
            self.lose(why);
            Error::Lost(why)
        })
    }

    /// Asks the server, or all of them. Says why the hold is lost, if it is.
    async fn ask_to_renew(&self, lease: Duration) -> Result<Option<Lost>, Error> {
        let lease_ms = whole_ms(lease);
        if let Some(session) = &self.session {
            let cmd = commands::renew(&self.key, &self.owner, lease_ms, Some(self.token));
            return session.renew(&self.key, &cmd).await;
        }
        let is_held = self.ask_all_to_renew(lease_ms).await?;
        Ok((!is_held).then_some(Lost::Refused))
    }

    /// Asks all servers at once. Each goes on by itself, so that a slow one
    /// gets its renewal too.
    async fn ask_all_to_renew(&self, lease_ms: u64) -> Result<bool, Error> {
        let mut replies: FuturesUnordered<_> = self
            .places
            .iter()
            .map(|place| {
                let (node, key) = (Arc::clone(&place.node), self.key.clone());
                let cmd = commands::renew(&self.key, &self.owner, lease_ms, place.token);
                tokio::spawn(async move { commands::found(&node.call(&key, &cmd).await?.value) })
            })
            .collect();
        let mut votes = Votes::new(self.places.len());
        while let Some(reply) = replies.next().await {
            // A task can only fail to end where the runtime shuts down.
            votes.count(reply.unwrap_or_else(|_| Err(Error::timed_out())));
            if let Some(decided) = votes.decided() {
                return decided;
            }
        }
        votes.time_is_over()
    }

    /// What has to be done to release it.
    pub(crate) fn debts(&self) -> impl Iterator<Item = Debt> {
        let until = self.valid_until() + margin(self.lease());
        self.places.iter().map(move |place| Debt {
            node: Arc::clone(&place.node),
            key: self.key.clone(),
            release: commands::release(&self.key, &self.owner, place.token),
            session: self.session.as_ref().and_then(Session::take),
            waiting: Vec::new(),
            until,
        })
    }

    /// Begins to give the hold back everywhere. The first future does that: it
    /// ends when every server has released it or the lease is over. The second
    /// says whether it was a hold until then, as soon as a majority has answered.
    pub(crate) fn release(
        self: Arc<Self>,
    ) -> (
        impl Future<Output = ()> + Send + 'static,
        impl Future<Output = Result<(), Error>> + Send + 'static,
    ) {
        let before = self.valid_for();
        // No renewal may come after this.
        self.lose(Lost::Released);
        let mut votes = Votes::new(self.places.len());
        let mut outcomes = FuturesUnordered::new();
        let mut settling = Vec::new();
        for debt in self.debts() {
            let (first, outcome) = oneshot::channel();
            outcomes.push(outcome);
            settling.push(debt.settle(first));
        }
        let stragglers = self.stragglers.lock();
        let mut stragglers =
            std::mem::take(&mut *stragglers.unwrap_or_else(PoisonError::into_inner));
        let settled = async move {
            // None of them may come after the release.
            stragglers.shutdown().await;
            join_all(settling).await;
            // Until then the hold is there to be found by its owner's next acquire.
            drop(self);
        };
        let decided = async move {
            while let Some(outcome) = outcomes.next().await {
                votes.count(released(
                    outcome.unwrap_or_else(|_| Err(Error::timed_out())),
                ));
                if let Some(decided) = votes.decided() {
                    return match (before, decided?) {
                        (Err(why), _) => Err(Error::Lost(why)),
                        (Ok(_), false) => Err(Error::Lost(Lost::Refused)),
                        (Ok(_), true) => Ok(()),
                    };
                }
            }
            votes.time_is_over().map(drop)
        };
        (settled, decided)
    }
}

/// Whether a release found the hold. Where an earlier try may have ended it,
/// not finding it is no surprise.
fn released(outcome: Result<Reply, Error>) -> Result<bool, Error> {
    let reply = outcome?;
    Ok(commands::found(&reply.value)? || reply.resent)
}

/// Whole milliseconds, as the server counts.
pub(crate) fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
