//! Taking a lock on one server.

use std::sync::Arc;

use futures_util::future::OptionFuture;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::attempt::Attempt;
use crate::backoff::Backoff;
use crate::binding::Binding;
use crate::clock::Moment;
use crate::commands;
use crate::error::Error;
use crate::keyed::Permit;
use crate::node::{Ask, Node, by};
use crate::owner::OwnerPermit;
use crate::request::{Replicas, Request, Wait};
use crate::shared::{Shared, as_asked};
use crate::validity::whole_ms;
use crate::waiting::{WaitingConnection, Waits};

/// A grant, and when the command was sent from which its lease counts.
pub(crate) struct Granted {
    pub(crate) token: u64,
    pub(crate) sent_at: Moment,
}

/// What came of asking once.
enum Answer {
    Granted(Granted),
    /// Another owner has the lock, or the wait is over.
    Busy,
    /// It was granted, but the lease was over before that could be used.
    Over,
}

/// Why an acquire that waits is not in the server's queue.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outage {
    /// There is no server that answers and is the primary.
    Gone,
    /// The server is there, and grants nothing for now.
    Refuses,
}

impl Outage {
    fn by(error: &Error) -> Self {
        match error.code() {
            "NOREPLICAS" | "QUEUEFULL" => Self::Refuses,
            _ => Self::Gone,
        }
    }

    const fn begins(self) -> &'static str {
        match self {
            Self::Gone => "waiting on without the server",
            Self::Refuses => "waiting on while the server refuses",
        }
    }

    const fn ends(self) -> &'static str {
        match self {
            Self::Gone => "the server is back",
            Self::Refuses => "the server refuses no more",
        }
    }
}

/// One lock being taken on one server.
struct Taking<'a> {
    node: &'a Arc<Node>,
    waits: &'a Arc<Waits>,
    request: &'a Request,
    session: Option<&'a Arc<Binding>>,
    attempt: Attempt,
}

/// Takes a lock. What was granted is the attempt's until a guard has it.
pub(crate) async fn take(
    client: &Shared,
    (node, waits): (&Arc<Node>, &Arc<Waits>),
    request: &Request,
    wait: Wait,
    session: Option<&Arc<Binding>>,
    owner_permit: Option<OwnerPermit>,
) -> Result<Option<(Attempt, Granted)>, Error> {
    let named = request.owner.clone();
    let owner = named.unwrap_or_else(|| client.new_owner());
    let server: Arc<dyn Ask> = match session {
        Some(session) => Arc::new(Arc::clone(session)),
        None => as_asked(node),
    };
    let mut taking = Taking {
        node,
        waits,
        request,
        session,
        attempt: Attempt::new(&client.tasks, vec![server], request, owner, owner_permit)
            .within(session),
    };
    let taken = match wait {
        Wait::No => taking.once().await,
        Wait::Until(deadline) => taking.until(client, deadline).await,
    };
    match taken {
        Ok(Answer::Granted(granted)) => Ok(Some((taking.attempt, granted))),
        Ok(Answer::Busy | Answer::Over) => Ok(None),
        Err(error) => {
            if taking.attempt.has_hold() {
                taking.attempt.give_back().await;
            }
            Err(error)
        }
    }
}

/// Waits for this client's permit to ask for the lock. Returns whether it came at
/// once, or none if the deadline came first.
pub(crate) async fn queue(
    client: &Shared,
    key: &Vec<u8>,
    deadline: Option<Instant>,
) -> Option<(Permit<Vec<u8>, ()>, bool)> {
    if let Some(permit) = client.queues.try_lock(key) {
        return Some((permit, true));
    }
    let permit = by(deadline, client.queues.lock(key)).await?;
    Some((permit, false))
}

impl Taking<'_> {
    /// Asks without waiting.
    async fn once(&mut self) -> Result<Answer, Error> {
        match self.ask().await? {
            Answer::Granted(granted) => self.replicate(granted, Wait::No).await,
            other => Ok(other),
        }
    }

    /// Waits, beginning anew where a fail-over or a lost connection comes
    /// between.
    async fn until(&mut self, client: &Shared, deadline: Option<Instant>) -> Result<Answer, Error> {
        let (_permit, mut asks_first) = match self.request.owner {
            // The server has to see who waits for whom, or it could find no deadlock.
            Some(_) => (None, true),
            None => match queue(client, &self.request.key, deadline).await {
                Some((permit, at_once)) => (Some(permit), at_once),
                None => return Ok(Answer::Busy),
            },
        };
        let mut backoff = Backoff::default();
        let mut outage = None;
        loop {
            let answer = self.round(asks_first, deadline, &mut outage).await;
            // A caller that had to queue here would be told to queue there; after
            // that, asking is how to find the server again.
            asks_first = true;
            match answer {
                Ok(Answer::Over) => {
                    if !backoff.pause_before(deadline).await {
                        return Ok(Answer::Over);
                    }
                }
                Err(error) if error.may_pass() => {
                    let now = Outage::by(&error);
                    if outage.replace(now) != Some(now) {
                        let key = String::from_utf8_lossy(&self.request.key);
                        tracing::warn!(%key, %error, "{}", now.begins());
                    }
                    if !backoff.pause_before(deadline).await {
                        return Err(error);
                    }
                }
                decided => return decided,
            }
        }
    }

    /// Asks, and waits in the server's queue if another owner has the lock.
    async fn round(
        &mut self,
        asks_first: bool,
        deadline: Option<Instant>,
        outage: &mut Option<Outage>,
    ) -> Result<Answer, Error> {
        if asks_first {
            let answer = self.ask().await?;
            if let Some(outage) = outage.take() {
                let key = String::from_utf8_lossy(&self.request.key);
                tracing::info!(%key, "{}", outage.ends());
            }
            if let Answer::Granted(granted) = answer {
                return self.replicate(granted, Wait::Until(deadline)).await;
            }
        }
        let Some(permit) = by(deadline, self.permit_or_grant()).await else {
            return Ok(Answer::Busy);
        };
        match permit? {
            Ok(permit) => match self.wait_in_line(permit, deadline).await? {
                Answer::Granted(granted) => self.replicate(granted, Wait::Until(deadline)).await,
                other => Ok(other),
            },
            Err(granted) => self.replicate(granted, Wait::Until(deadline)).await,
        }
    }

    /// Asks without waiting, on a connection that others share. The grant is
    /// this command's, so the lease counts from when it was sent.
    async fn ask(&mut self) -> Result<Answer, Error> {
        let mut cmd = self.attempt.command();
        let key = &self.request.key;
        if self.session.is_none() {
            // Without a connection nothing is sent, so nothing has to be released.
            let connected = self.node.connection().await;
            connected.map_err(|error| self.node.explain(error))?;
        }
        let mut sent_at = Moment::now();
        self.attempt.sent();
        let reply = match self.session {
            None => self.node.call(key, &cmd).await.map(|reply| {
                sent_at = reply.sent_at;
                reply.value
            }),
            Some(session) => {
                commands::bind(&mut cmd);
                session.ask(key, &cmd).await
            }
        };
        let answer = reply.and_then(|reply| commands::token(&reply));
        Ok(match self.attempt.answered(answer)? {
            Some(token) => Answer::Granted(Granted { token, sent_at }),
            None => Answer::Busy,
        })
    }

    /// Waits for a permit to wait in the server, and asks for the lock now and
    /// then meanwhile.
    async fn permit_or_grant(&mut self) -> Result<Result<OwnedSemaphorePermit, Granted>, Error> {
        if let Some(permit) = self.waits.try_permit() {
            return Ok(Ok(permit));
        }
        let waits = Arc::clone(self.waits);
        let mut permit = std::pin::pin!(waits.permit());
        let mut backoff = Backoff::default();
        loop {
            let its_time = async {
                backoff.pause_before(None).await;
                waits.time_to_ask().await;
            };
            tokio::select! {
                biased;
                permit = &mut permit => return permit.map(Ok),
                () = its_time => {}
            }
            if let Answer::Granted(granted) = self.ask().await? {
                return Ok(Err(granted));
            }
        }
    }

    /// Waits in the server, as long as is left.
    async fn wait_in_line(
        &mut self,
        permit: OwnedSemaphorePermit,
        deadline: Option<Instant>,
    ) -> Result<Answer, Error> {
        let key = &self.request.key;
        let connection = match by(deadline, self.waits.connection(key, permit)).await {
            Some(connection) => connection?,
            None => return Ok(Answer::Busy),
        };
        let (block_ms, give_up_at) = match deadline {
            None => (commands::BLOCK_WITHOUT_END, None),
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    connection.keep();
                    return Ok(Answer::Busy);
                }
                // Rounded up: zero would be without end.
                let block_ms = whole_ms(left).saturating_add(1);
                (
                    block_ms,
                    deadline.checked_add(self.node.timeouts().response),
                )
            }
        };
        let mut cmd = self.attempt.command();
        commands::block(&mut cmd, block_ms);
        if self.session.is_some() {
            commands::bind(&mut cmd);
        }
        self.attempt.wait_on(connection);
        self.attempt.sent();
        let answer = match by(give_up_at, self.reply(&cmd)).await {
            Some(reply) => reply.and_then(|reply| commands::token(&reply)),
            None => Err(Error::timed_out()),
        };
        let answer = match self.attempt.answered(answer) {
            Ok(Some(token)) => self.date(token).await,
            Ok(None) => Ok(Answer::Busy),
            Err(error) => Err(error),
        };
        match &answer {
            // Whether replicas have it is asked on the same connection.
            Ok(Answer::Granted(_)) => {}
            Ok(Answer::Busy | Answer::Over) => self.attempt.keep_connection(),
            Err(error) => {
                let is_clean = !error.leaves_doubt() && !error.calls_for_new_connection();
                if is_clean && !self.attempt.has_hold() {
                    self.attempt.keep_connection();
                } else {
                    self.attempt.close_connection();
                }
            }
        }
        answer
    }

    /// The reply to a wait; or an error when the session that wants the hold has
    /// ended.
    async fn reply(&self, cmd: &redis::Cmd) -> Result<redis::Value, Error> {
        let Some(connection) = self.attempt.connection() else {
            return Err(Error::timed_out());
        };
        let session_end = self.session.map(|session| session.end_of());
        let session_end = OptionFuture::from(session_end);
        tokio::select! {
            reply = connection.wait(&self.request.key, cmd) => reply,
            Some(why) = session_end => Err(Error::Lost(why)),
        }
    }

    /// Dates a grant that was queued: nobody knows when it was made, so the lease
    /// is renewed at once and counts from there. It is renewed where others ask:
    /// a server that is no primary any more may have granted it. In a session that
    /// is also when the hold moves from the connection that waited to the
    /// session's.
    async fn date(&mut self, token: u64) -> Result<Answer, Error> {
        if self.session.is_some() {
            // If it is another token, the hold was over and was taken anew.
            if let granted @ Answer::Granted(_) = self.ask().await? {
                return Ok(granted);
            }
        } else {
            let renewal = self.attempt.renewal();
            let reply = self.node.call(&self.request.key, &renewal).await?;
            if commands::found(&reply.value)? {
                let sent_at = reply.sent_at;
                return Ok(Answer::Granted(Granted { token, sent_at }));
            }
        }
        self.attempt.forget_hold();
        Ok(Answer::Over)
    }

    async fn renew_where_it_waited(&mut self) -> Result<bool, Error> {
        let cmd = self.attempt.renewal();
        let within = self.node.timeouts().response;
        let Some(connection) = self.attempt.connection() else {
            return Err(Error::timed_out());
        };
        let renewed = connection.ask_within(within, &self.request.key, &cmd);
        commands::found(&renewed.await?)
    }

    /// Sees that replicas have a grant, if that was asked for.
    async fn replicate(&mut self, granted: Granted, wait: Wait) -> Result<Answer, Error> {
        let Some(replicas) = self.request.replicas else {
            self.attempt.keep_connection();
            return Ok(Answer::Granted(granted));
        };
        let answer = self.ask_replicas(granted, replicas, wait).await;
        match &answer {
            Ok(_) => self.attempt.keep_connection(),
            Err(_) => self.attempt.close_connection(),
        }
        answer
    }

    /// Replicas are asked about what a connection wrote itself, so it renews the
    /// lease first.
    async fn ask_replicas(
        &mut self,
        granted: Granted,
        replicas: Replicas,
        wait: Wait,
    ) -> Result<Answer, Error> {
        if self.attempt.connection().is_none() {
            let response = self.node.timeouts().response;
            let opened = by(wait.deadline_or(response), self.open_to_confirm()).await;
            let connection = opened.unwrap_or_else(|| Err(Error::timed_out()))?;
            self.attempt.wait_on(connection);
        }
        let sent_at = Moment::now();
        if !self.renew_where_it_waited().await? {
            self.attempt.forget_hold();
            return Ok(Answer::Over);
        }
        let response = self.node.timeouts().response;
        // Longer than the lease it would be of no use.
        let within = replicas.within.min(self.request.lease);
        let cmd = commands::wait_for_replicas(replicas.wanted, whole_ms(within).max(1));
        let Some(connection) = self.attempt.connection() else {
            return Err(Error::timed_out());
        };
        let asked = connection.ask_within(within.saturating_add(response), &self.request.key, &cmd);
        let reached = commands::count(&asked.await?)?;
        if reached < replicas.wanted {
            return Err(Error::NotReplicated {
                wanted: replicas.wanted,
                reached,
            });
        }
        Ok(Answer::Granted(Granted { sent_at, ..granted }))
    }

    async fn open_to_confirm(&self) -> Result<WaitingConnection, Error> {
        let permit = self.waits.permit_to_confirm().await?;
        self.waits.connection(&self.request.key, permit).await
    }
}
