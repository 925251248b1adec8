//! Taking a lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::background::Backoff;
use crate::commands;
use crate::error::Error;
use crate::guard::{Holding, LockGuard};
use crate::hold::{Hold, Place, whole_ms};
use crate::keyed::Turn;
use crate::link::{Link, ServerSideName};
use crate::lock::{Lock, Wait};
use crate::majority;
use crate::node::{Node, WaitLink, by};
use crate::pending::{OwnerTurn, Pending};
use crate::session::{self, Session};

/// How often somebody who waits looks whether that still has a point.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The turn of one task of this client.
pub(crate) type PlaceInQueue = Turn<Vec<u8>, ()>;

/// A hold that was granted.
pub(crate) struct Taken {
    pub(crate) pending: Pending,
    pub(crate) places: Vec<Place>,
    /// The lease counts from here.
    pub(crate) sent_at: Instant,
}

/// Takes a lock as asked.
pub(crate) async fn acquire(lock: Lock, wait: Wait) -> Result<Option<LockGuard>, Error> {
    let mut turn = None;
    if let Some(owner) = &lock.owner {
        let id = (lock.key.clone(), owner.clone());
        // The acquires of one owner come one after another.
        let deadline = wait.deadline(lock.inner.nodes[0].patience().response);
        let Some(its_turn) = by(deadline, lock.inner.owners.lock(&id)).await else {
            return Ok(None);
        };
        if let Some(guard) = re_enter_within(&lock, wait, &its_turn).await? {
            return Ok(Some(guard));
        }
        turn = Some(its_turn);
    }
    let taken = match lock.inner.redlock {
        true => majority::take(&lock, wait, turn).await?,
        false => take(&lock, wait, turn).await?,
    };
    taken.map(|taken| hand_out(&lock, taken)).transpose()
}

impl Wait {
    /// When to stop waiting for something local. Who does not wait for the
    /// lock has so much patience for that.
    fn deadline(self, patience: Duration) -> Option<Instant> {
        match self {
            Self::No => Some(Instant::now() + patience),
            Self::Until(deadline) => deadline,
        }
    }
}

/// Tries to re-enter, again and again within the wait where a fail-over or a
/// lost connection comes between.
async fn re_enter_within(
    lock: &Lock,
    wait: Wait,
    turn: &OwnerTurn,
) -> Result<Option<LockGuard>, Error> {
    let mut backoff = Backoff::default();
    loop {
        match (re_enter(lock, turn).await, wait) {
            (Err(error), Wait::Until(deadline)) if error.may_pass() => {
                if !backoff.sleep(deadline).await {
                    return Err(error);
                }
            }
            (decided, _) => return decided,
        }
    }
}

/// One guard more for an owner that has the lock. Its lease starts anew, which
/// also shows that the hold is still there. Only then is it an error to ask for
/// more than that hold is.
async fn re_enter(lock: &Lock, turn: &OwnerTurn) -> Result<Option<LockGuard>, Error> {
    if let Some(holding) = turn.shared() {
        let hold = &holding.hold;
        let beyond = beyond(lock, hold);
        if beyond.is_none() {
            hold.lengthen_lease(lock.lease_or_default());
        }
        match (hold.renew().await, beyond) {
            (Ok(()), Some(error)) => return Err(error),
            (Ok(()), None) => {
                if lock.is_renewed() {
                    lock.inner.renewals.add(hold, lock.renewals());
                }
                return Ok(Some(LockGuard::new(holding)));
            }
            // It was lost: this is a new hold.
            (Err(Error::Lost(_)), _) => {}
            (Err(error), _) => return Err(error),
        }
    }
    if let Some(last) = turn.unreleased() {
        // Its release may still be on the way, and must not meet the new hold.
        let (settled, decided) = last.release();
        lock.inner.background.spawn(settled);
        match decided.await {
            Ok(()) | Err(Error::Lost(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// What is asked for that this hold is not.
fn beyond(lock: &Lock, hold: &Hold) -> Option<Error> {
    if lock.mode.is_stricter_than(hold.mode) {
        return Some(Error::Upgrade {
            message: "the owner holds this lock in a looser mode; release it before asking for a \
                      stricter one"
                .into(),
        });
    }
    (lock.session && hold.session.is_none()).then_some(Error::Invalid(
        "the owner holds this lock without a session; release it before asking for one",
    ))
}

fn hand_out(lock: &Lock, taken: Taken) -> Result<LockGuard, Error> {
    let Taken {
        mut pending,
        places,
        sent_at,
    } = taken;
    let names = (pending.key.clone(), pending.owner.clone());
    let lease = pending.lease;
    let connection = match lock.session {
        true => pending.keep_connection(),
        false => None,
    };
    let response = lock.inner.nodes[0].patience().response;
    let session = connection.map(|(link, name)| Session::new(link, name, response));
    let (turn, stragglers) = pending.granted();
    let hold = Hold::new(
        names, lock.mode, session, places, stragglers, lease, sent_at,
    );
    let hold = Arc::new(hold);
    let holding = Holding::new(Arc::clone(&hold), Arc::clone(&lock.inner), turn.is_some());
    let holding = Arc::new(holding);
    if let Some(mut turn) = turn {
        turn.set(&holding);
    }
    // An answer may take longer than the lease.
    hold.valid_for().map_err(Error::Lost)?;
    if lock.is_renewed() {
        lock.inner.renewals.add(&hold, lock.renewals());
    }
    session::watch(&hold);
    tracing::debug!(token = hold.token, "a lock was taken");
    Ok(LockGuard::new(holding))
}

/// Waits for this client's turn to ask for the lock. Says whether it came at once.
pub(crate) async fn queue(lock: &Lock, deadline: Option<Instant>) -> Option<(PlaceInQueue, bool)> {
    let queues = &lock.inner.queues;
    if let Some(place) = queues.try_lock(&lock.key) {
        return Some((place, true));
    }
    let place = by(deadline, queues.lock(&lock.key)).await?;
    Some((place, false))
}

/// What a server said.
enum Answer {
    /// The owner has the lock; the lease counts from here.
    Granted(u64, Instant),
    /// Another owner has it.
    Busy,
    /// It was granted, but the lease was over before that could be used.
    Over,
}

/// Takes a lock on one server.
async fn take(lock: &Lock, wait: Wait, turn: Option<OwnerTurn>) -> Result<Option<Taken>, Error> {
    let mut pending = Pending::new(lock, turn);
    let node = &lock.inner.nodes[0];
    let answer = match wait {
        Wait::Until(deadline) => wait_for(lock, node, &mut pending, deadline).await?,
        Wait::No if !lock.is_asked_alone() => ask_shared(node, &mut pending).await?,
        Wait::No => ask_alone(lock, node, &mut pending, wait).await?,
    };
    match answer {
        Answer::Granted(token, sent_at) => Ok(Some(Taken {
            pending,
            places: vec![Place {
                node: Arc::clone(node),
                token: Some(token),
            }],
            sent_at,
        })),
        Answer::Busy | Answer::Over => Ok(None),
    }
}

/// Waits, beginning anew where a fail-over or a lost connection comes between.
async fn wait_for(
    lock: &Lock,
    node: &Arc<Node>,
    pending: &mut Pending,
    deadline: Option<Instant>,
) -> Result<Answer, Error> {
    let (_place, mut is_first) = match lock.owner {
        // The server has to see who waits for whom, or it could find no deadlock.
        Some(_) => (None, true),
        None => match queue(lock, deadline).await {
            Some((place, is_first)) => (Some(place), is_first),
            None => return Ok(Answer::Busy),
        },
    };
    let mut backoff = Backoff::default();
    loop {
        // Who had to queue here would be told to queue there.
        let mut answer = match is_first && !lock.is_asked_alone() {
            true => ask_shared(node, pending).await,
            false => Ok(Answer::Busy),
        };
        if let Ok(Answer::Busy) = answer {
            answer = ask_alone(lock, node, pending, Wait::Until(deadline)).await;
        }
        is_first = true;
        match answer {
            Ok(Answer::Over) => {}
            Err(error) if error.may_pass() => {
                tracing::debug!(%error, "waiting anew");
                if !backoff.sleep(deadline).await {
                    return Err(error);
                }
            }
            decided => return decided,
        }
    }
}

/// Asks without waiting, on the connection that all share. The grant is this
/// command's, so the lease counts from when it was sent.
async fn ask_shared(node: &Arc<Node>, pending: &mut Pending) -> Result<Answer, Error> {
    let cmd = pending.command();
    pending.sent();
    let reply = node.call(&pending.key, &cmd).await;
    let answer = reply.and_then(|reply| Ok((commands::token(&reply.value)?, reply.sent_at)));
    match answer {
        Ok((Some(token), sent_at)) => Ok(Answer::Granted(token, sent_at)),
        Ok((None, _)) => {
            pending.refused();
            Ok(Answer::Busy)
        }
        Err(error) => {
            pending.failed(&error);
            Err(error)
        }
    }
}

/// Asks on a connection of its own, waiting as long as is left.
async fn ask_alone(
    lock: &Lock,
    node: &Arc<Node>,
    pending: &mut Pending,
    wait: Wait,
) -> Result<Answer, Error> {
    let response = node.patience().response;
    let link = match (by(wait.deadline(response), node.wait_link()).await, wait) {
        (Some(link), _) => link?,
        (None, Wait::Until(_)) => return Ok(Answer::Busy),
        (None, Wait::No) => return Err(Error::timed_out()),
    };
    let name = match link.name_at(response, &pending.key).await {
        Ok(name) => name,
        Err(error) => {
            drop(WaitLink::take(link));
            return Err(error);
        }
    };
    let now = Instant::now();
    let (block_ms, give_up_at) = match wait {
        Wait::No => (None, Some(now + response)),
        Wait::Until(None) => (Some(commands::BLOCK_WITHOUT_END), None),
        Wait::Until(Some(deadline)) if deadline <= now => return Ok(Answer::Busy),
        Wait::Until(Some(deadline)) => {
            // Rounded up: zero would be without end.
            let left_ms = whole_ms(deadline - now).saturating_add(1);
            (Some(left_ms), deadline.checked_add(response))
        }
    };
    let mut cmd = pending.command();
    if let Some(block_ms) = block_ms {
        commands::block(&mut cmd, block_ms);
    }
    if lock.session {
        commands::tie(&mut cmd);
    }
    let link = pending.sent_on(link, name.clone());
    let looks = AtomicBool::new(false);
    let reply = tokio::select! {
        reply = by(give_up_at, link.ask(&pending.key, &cmd)) => match reply {
            Some(reply) => reply.map_err(Error::from).and_then(|reply| commands::token(&reply)),
            None => Err(Error::timed_out()),
        },
        found = look_again(node, pending, name.as_ref(), &looks) => Err(found),
    };
    if looks.load(Ordering::SeqCst) {
        // It may bring the lock after the wait was over.
        pending.doubted();
    }
    let answer = match reply {
        Ok(Some(token)) => confirm(lock, &link, response, pending, token).await,
        Ok(None) => Ok(Answer::Busy),
        Err(error) => Err(error),
    };
    match &answer {
        Ok(Answer::Granted(..)) => {}
        Ok(Answer::Busy | Answer::Over) => pending.refused(),
        Err(Error::NotReplicated { .. }) => pending.take_back().await,
        Err(error) => pending.failed(error),
    }
    answer
}

/// Completes, with a reason to ask anew, when waiting on has no point: when
/// the owner has the lock, so that the reply must have been lost, or when the
/// server of this lock is another one than that of the connection that waits.
/// Nothing else would tell of a connection that has fallen silent.
///
/// `looks` says whether a look is or will stay unanswered.
async fn look_again(
    node: &Arc<Node>,
    pending: &Pending,
    name: Option<&ServerSideName>,
    looks: &AtomicBool,
) -> Error {
    let cmd = pending.command();
    loop {
        sleep(LOOK_EVERY).await;
        let in_doubt = looks.swap(true, Ordering::SeqCst);
        // Somebody else's lock is not had by asking for it: those who queue come first.
        let reply = node.call(&pending.key, &cmd).await;
        match reply.and_then(|reply| commands::token(&reply.value)) {
            Ok(Some(_)) => {
                // The reply may be on its way right now.
                sleep(node.patience().response).await;
                return Error::timed_out();
            }
            Err(error) if error.leaves_doubt() => {}
            Ok(None) | Err(_) => looks.store(in_doubt, Ordering::SeqCst),
        }
        if let Some(name) = name
            && let Ok(reply) = node.call(&pending.key, &ServerSideName::ask()).await
            && let Some(now) = ServerSideName::read(reply.value)
            && now.server_addr != name.server_addr
        {
            return Error::timed_out();
        }
    }
}

/// Dates a grant, and sees that replicas have it if that was asked for.
///
/// A grant that was queued can't be dated, so the lease is renewed at once and
/// counts from there. For replicas that is also the write that they are asked
/// about: this connection's own, and not before the grant.
async fn confirm(
    lock: &Lock,
    link: &Link,
    response: Duration,
    pending: &Pending,
    token: u64,
) -> Result<Answer, Error> {
    let (key, owner) = (&pending.key, &pending.owner);
    let sent_at = Instant::now();
    let cmd = commands::renew(key, owner, whole_ms(pending.lease), Some(token));
    if !commands::found(&link.ask_within(response, key, &cmd).await?)? {
        return Ok(Answer::Over);
    }
    if let Some(replicas) = lock.replicas {
        let timeout_ms = whole_ms(replicas.within).max(1);
        let cmd = commands::wait_for_replicas(replicas.wanted, timeout_ms);
        let within = replicas.within.saturating_add(response);
        let reached = commands::count(&link.ask_within(within, key, &cmd).await?)?;
        if reached < replicas.wanted {
            return Err(Error::NotReplicated {
                wanted: replicas.wanted,
                reached,
            });
        }
    }
    Ok(Answer::Granted(token, sent_at))
}
