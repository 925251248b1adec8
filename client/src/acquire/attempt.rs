//! An acquire that is under way, and what it may leave on the servers.
//!
//! Whatever ends it early - a failure, or the future that is dropped - goes
//! through the same door: the connection that may still bring the hold is closed,
//! and then one release gives up the place in the queue, or the hold.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use redis::Cmd;
use tokio::task::JoinSet;

use crate::clock::Moment;
use crate::commands;
use crate::error::Error;
use crate::holding::binding::{Binding, InUse};
use crate::holding::hold::Vote;
use crate::holding::owner::OwnerPermit;
use crate::holding::release::{AbandonedPlace, FirstOutcome, PendingRelease, settle_all};
use crate::holding::server_hold::{ServerHold, Trace};
use crate::request::Request;
use crate::servers::connection::ConnectionName;
use crate::servers::node::{Ask, Node};
use crate::servers::places::Place;
use crate::servers::waiting::WaitingConnection;
use crate::shared::as_asked;
use crate::tasks::Tasks;
use crate::validity::whole_ms;

/// An acquire that is under way.
pub(crate) struct Attempt {
    tasks: Tasks,
    servers: Vec<Arc<dyn Ask>>,
    pub(crate) owner: Vec<u8>,
    request: Request,
    /// Kept until nothing is left on the servers, so that the owner's next
    /// acquire does not meet what this one left.
    owner_permit: Option<OwnerPermit>,
    /// Whether a command is unanswered.
    in_flight: bool,
    /// Whether one will never be answered.
    in_doubt: bool,
    /// What it is told by while it is in line.
    pub(crate) place: Option<Place>,
    /// The server that may keep that place, and until when.
    pub(crate) place_kept: Option<(Weak<Node>, Moment)>,
    /// The hold that was granted.
    token: Option<u64>,
    /// The connection that waits.
    connection: Option<WaitingConnection>,
    /// A connection on which something will stay unanswered.
    unanswered: Option<ConnectionName>,
    /// How many renewals may yet be carried out.
    unanswered_renewals: usize,
    /// Unanswered acquires on several servers.
    pub(crate) votes: JoinSet<Vote>,
    /// What it leaves on each server.
    traces: Vec<Trace>,
    /// The session to which the hold is to be bound.
    session: Option<Arc<Binding>>,
    in_use: Option<InUse>,
}

/// What an attempt leaves to the hold that it got.
pub(crate) struct Handover {
    pub(crate) owner_permit: Option<OwnerPermit>,
    pub(crate) in_use: Option<InUse>,
    /// Acquires on several servers that are still unanswered.
    pub(crate) stragglers: JoinSet<Vote>,
}

impl Attempt {
    /// Begins one of this owner.
    pub(crate) fn new(
        tasks: &Tasks,
        servers: Vec<Arc<dyn Ask>>,
        request: &Request,
        owner: Vec<u8>,
        owner_permit: Option<OwnerPermit>,
    ) -> Self {
        Self {
            tasks: tasks.clone(),
            traces: servers.iter().map(|_| Trace::left()).collect(),
            servers,
            owner,
            request: request.clone(),
            owner_permit,
            in_flight: false,
            in_doubt: false,
            place: None,
            place_kept: None,
            token: None,
            connection: None,
            unanswered: None,
            unanswered_renewals: 0,
            votes: JoinSet::new(),
            session: None,
            in_use: None,
        }
    }

    /// Has the hold be bound to a session.
    pub(crate) fn within(mut self, session: Option<&Arc<Binding>>) -> Self {
        self.session = session.cloned();
        self.in_use = session.and_then(|session| session.in_use(&self.request.key));
        self
    }

    fn lease(&self) -> Duration {
        self.request.lease
    }

    /// What to send.
    pub(crate) fn command(&self) -> Cmd {
        let (key, mode) = (&self.request.key, self.request.mode);
        commands::acquire(key, &self.owner, whole_ms(self.lease()), mode)
    }

    /// What starts the lease of the granted hold anew.
    pub(crate) fn renewal(&mut self, token: u64) -> Cmd {
        self.unanswered_renewals += 1;
        let key = &self.request.key;
        commands::renew(key, &self.owner, whole_ms(self.lease()), Some(token))
    }

    /// That was answered, and is not carried out again.
    pub(crate) fn renewal_answered(&mut self) {
        self.unanswered_renewals -= 1;
    }

    /// The hold on the one server that granted it. What lingers of an earlier hold of the
    /// same token is this one's.
    pub(crate) async fn hold_at(&self, node: &Arc<Node>, token: u64) -> ServerHold {
        let owner = self.owner_permit.as_ref();
        let forgotten = owner.and_then(|owner| owner.forgotten()?.hold_of(token));
        let held = forgotten
            .unwrap_or_else(|| ServerHold::new(as_asked(node), Some(token), Trace::left()));
        if self.unanswered_renewals > 0 {
            held.note_lingering(whole_ms(self.lease())).await;
        }
        held
    }

    /// A command goes out that may bring the hold.
    pub(crate) fn sent(&mut self) {
        self.in_flight = true;
    }

    /// Notes the answer to what was sent.
    pub(crate) fn answered(
        &mut self,
        answer: Result<Option<u64>, Error>,
    ) -> Result<Option<u64>, Error> {
        self.in_flight = false;
        match &answer {
            Ok(Some(token)) => self.token = Some(*token),
            Ok(None) => {}
            Err(error) => self.in_doubt |= error.leaves_doubt(),
        }
        answer
    }

    /// What it leaves on this server.
    pub(crate) fn trace(&self, nth: usize) -> Trace {
        self.traces.get(nth).cloned().unwrap_or_else(Trace::left)
    }

    /// Notes the answer of one of several servers.
    pub(crate) fn voted(&mut self, vote: &Vote) {
        if !vote.leaves_something() {
            self.trace(vote.nth).set(false);
        }
    }

    /// It has a place in the queue, and may be granted the lock at any time. Others may
    /// ask for it by this request.
    pub(crate) fn is_in_line(&mut self, request: Option<Cmd>) {
        (self.in_flight, self.in_doubt) = (false, true);
        if let (Some(place), Some(request)) = (&self.place, request) {
            place.may_be_asked_for(request, self.lease());
        }
    }

    /// It is in line no more. What others have asked for it is answered then.
    pub(crate) async fn leave_place(&mut self) {
        if let Some(place) = &mut self.place {
            place.leave().await;
            self.place = None;
        }
    }

    /// Forgets the hold that was granted, which is over.
    pub(crate) fn forget_hold(&mut self) {
        self.token = None;
    }

    /// Returns whether a hold was granted that nobody has yet.
    pub(crate) fn has_hold(&self) -> bool {
        self.token.is_some()
    }

    /// From now on this connection may bring the hold.
    pub(crate) fn wait_on(&mut self, connection: WaitingConnection) {
        self.connection = Some(connection);
    }

    /// The connection that waits.
    pub(crate) fn connection(&self) -> Option<&WaitingConnection> {
        self.connection.as_ref()
    }

    /// Closes the connection: nothing on it is unanswered.
    pub(crate) fn leave_connection(&mut self) {
        self.connection = None;
    }

    /// Closes the connection, with something unanswered on it.
    pub(crate) fn close_connection(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.unanswered = connection.name().cloned();
        }
    }

    /// Sees to it that what is unanswered can't bring the hold any more.
    pub(crate) async fn close_what_is_unanswered(&mut self) -> Result<(), Error> {
        if let (Some(name), Some(server)) = (&self.unanswered, self.servers.first()) {
            server.close(&self.request.key, name).await?;
            self.unanswered = None;
        }
        Ok(())
    }

    /// The hold is a guard's now.
    pub(crate) fn granted(mut self) -> Handover {
        (self.in_flight, self.in_doubt, self.token) = (false, false, None);
        self.leave_connection();
        Handover {
            owner_permit: self.owner_permit.take(),
            in_use: self.in_use.take(),
            stragglers: std::mem::take(&mut self.votes),
        }
    }

    /// Gives the owner's permit to the next attempt, which has another owner on
    /// the wire.
    pub(crate) fn give_up(mut self) -> Option<OwnerPermit> {
        let owner_permit = self.owner_permit.take();
        self.in_doubt = true;
        self.clean();
        owner_permit
    }

    /// Leaves nothing behind, and waits until that is so or a server did not
    /// answer; then it goes on in the background.
    pub(crate) async fn give_back(&mut self) {
        join_all(self.clean()).await;
    }

    fn clean(&mut self) -> Vec<FirstOutcome> {
        let is_clean = !self.in_flight && !self.in_doubt && self.token.is_none();
        if is_clean || !self.tasks.process().is_this() {
            return Vec::new();
        }
        self.close_connection();
        // Only where all is answered is it known which hold there is.
        let token = self
            .token
            .take()
            .filter(|_| !self.in_flight && !self.in_doubt);
        (self.in_flight, self.in_doubt) = (false, false);
        while let Some(Ok(vote)) = self.votes.try_join_next() {
            self.voted(&vote);
        }
        let mut pending = Vec::new();
        for (nth, server) in self.servers.iter().enumerate() {
            pending.push(PendingRelease {
                server: Arc::clone(server),
                key: self.request.key.clone(),
                owner: self.owner.clone(),
                token,
                trace: self.trace(nth),
                unanswered: self.unanswered.take(),
                lease_ends: Moment::now() + self.lease(),
                is_handed_off: token.is_some(),
                is_one_of_many: self.servers.len() > 1,
            });
        }
        let votes = std::mem::take(&mut self.votes);
        let (outcomes, settle) = settle_all(pending, votes, self.session.clone());
        let (owner_permit, place) = (self.owner_permit.take(), self.place.take());
        let in_use = self.in_use.take();
        let abandoned = self.abandoned();
        self.tasks.spawn(async move {
            // What others ask for it must not come after the release.
            if let Some(mut place) = place {
                place.leave().await;
            }
            let is_settled = settle.await;
            drop((owner_permit, in_use));
            if let Some(place) = abandoned.filter(|_| !is_settled) {
                // Nobody waits for it.
                tokio::spawn(place.give_up());
            }
        });
        outcomes
    }

    /// The place that is abandoned if it can't be given up while the lease lasts. That of
    /// an owner with a name may be wanted again by then.
    fn abandoned(&mut self) -> Option<AbandonedPlace> {
        let kept = self.place_kept.take();
        let (node, ends) = kept.filter(|_| self.request.owner.is_none())?;
        Some(AbandonedPlace {
            node,
            key: self.request.key.clone(),
            owner: self.owner.clone(),
            ends,
        })
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.clean();
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Handle;

    use super::*;
    use crate::fake_server::FakeServer;
    use crate::request::{Mode, Renew};

    const GRANTED: Result<Option<u64>, Error> = Ok(Some(7));

    /// What is asked of the server when an attempt ends early to which this was answered.
    async fn left_by(answers: impl IntoIterator<Item = Result<Option<u64>, Error>>) -> Vec<String> {
        let server = FakeServer::new();
        let tasks = Tasks::new(Handle::current());
        let request = Request {
            key: b"k".to_vec(),
            owner: None,
            mode: Mode::Exclusive,
            lease: Duration::from_secs(30),
            renew: Renew::Always,
            replicas: None,
            pass_on: None,
        };
        let servers: Vec<Arc<dyn Ask>> = vec![Arc::new(Arc::clone(&server))];
        let mut attempt = Attempt::new(&tasks, servers, &request, b"o".to_vec(), None);
        for answer in answers {
            attempt.sent();
            let _ = attempt.answered(answer);
        }
        drop(attempt);
        tasks.idle().await;
        server.commands()
    }

    fn refused() -> Result<Option<u64>, Error> {
        Err(Error::from_line("NOPERM not you"))
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_granted_is_released_and_nothing_where_nothing_was() {
        assert_eq!(left_by([GRANTED]).await, ["LOCK.RELEASE k o FENCE 7 ALL"]);
        assert!(left_by([Ok(None), refused()]).await.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_never_answered_is_released_whatever_is_answered_later() {
        for later in [Ok(None), refused(), GRANTED] {
            let left = left_by([Err(Error::timed_out()), later]).await;
            // Which hold that is nobody knows.
            assert_eq!(left, ["LOCK.RELEASE k o ALL"]);
        }
    }
}
