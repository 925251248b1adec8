//! Taking a lock on one server.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::OptionFuture;
use tokio::time::{Instant, sleep_until};

use crate::acquire::attempt::Attempt;
use crate::acquire::handing_out::Taken;
use crate::acquire::taking::{Answer, Granted, Outage, Taking};
use crate::backoff::Backoff;
use crate::clock::Moment;
use crate::commands;
use crate::error::Error;
use crate::holding::binding::Binding;
use crate::holding::owner::OwnerPermit;
use crate::request::{Replicas, Request, Wait};
use crate::servers::node::{Ask, Node, Subscription, by};
use crate::servers::places::{Place, Told};
use crate::servers::waiting::Waits;
use crate::shared::{Shared, as_asked};
use crate::validity::whole_ms;

/// A wait that lasted this long was no failure, so the next pause is short again.
const LASTED: Duration = Duration::from_secs(1);

/// Takes a lock. What was granted is the attempt's until a guard has it.
pub(crate) async fn take(
    client: &Shared,
    (node, waits): (&Arc<Node>, &Arc<Waits>),
    request: &Request,
    wait: Wait,
    session: Option<&Arc<Binding>>,
    owner_permit: Option<OwnerPermit>,
) -> Result<Option<(Attempt, Taken)>, Error> {
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
        outage: None,
    };
    let taken = match wait {
        Wait::No => taking.once().await,
        Wait::Until(deadline) => taking.until(deadline).await,
    };
    match taken {
        Ok(Answer::Granted(granted)) => {
            // What was asked for it must not come after it has released the lock.
            taking.attempt.leave_place().await;
            let held = taking.attempt.hold_at(node, granted.token).await;
            let good_for_ms = held.good_for_ms(whole_ms(request.lease)).await;
            let taken = Taken {
                server_holds: vec![held],
                sent_at: granted.sent_at,
                good_for: Duration::from_millis(good_for_ms),
            };
            Ok(Some((taking.attempt, taken)))
        }
        Ok(_) => {
            // It may have a place until now.
            taking.attempt.give_back().await;
            Ok(None)
        }
        Err(error) => {
            if taking.attempt.has_hold() {
                taking.attempt.give_back().await;
            }
            Err(error)
        }
    }
}

impl Taking<'_> {
    /// Asks without waiting.
    async fn once(&mut self) -> Result<Answer, Error> {
        match self.ask(None).await? {
            Answer::Granted(granted) => self.replicate(granted, Wait::No).await,
            other => Ok(other),
        }
    }

    /// Waits, beginning anew where a fail-over or a lost connection comes
    /// between.
    async fn until(&mut self, deadline: Option<Instant>) -> Result<Answer, Error> {
        let mut backoff = Backoff::default();
        let mut is_first = true;
        loop {
            let begun = Instant::now();
            let answer = self.round(std::mem::take(&mut is_first), deadline).await;
            if begun.elapsed() > LASTED {
                backoff = Backoff::default();
            }
            match answer {
                Ok(Answer::Over) => {
                    if !self.pause(&mut backoff, deadline).await {
                        // A wait is not over before its time.
                        OptionFuture::from(deadline.map(sleep_until)).await;
                        return Ok(Answer::Over);
                    }
                }
                Err(error) if error.may_pass() => {
                    let now = Outage::by(&error);
                    if self.outage.replace(now) != Some(now) {
                        let key = String::from_utf8_lossy(&self.request.key);
                        tracing::warn!(%key, %error, "{}", now.begins());
                    }
                    if !self.pause(&mut backoff, deadline).await {
                        return Err(error);
                    }
                }
                decided => return decided,
            }
        }
    }

    /// As [`Backoff::pause_before`], or until a grant is told, which is to be claimed soon.
    async fn pause(&mut self, backoff: &mut Backoff, deadline: Option<Instant>) -> bool {
        let granted = async {
            let place = self.attempt.place.as_mut();
            match OptionFuture::from(place.map(Place::told)).await {
                Some(Told::Granted(_) | Told::Replied(..)) => {}
                Some(Told::Gone | Told::Refused(_)) | None => pending().await,
            }
        };
        tokio::select! {
            biased;
            () = granted => true,
            goes_on = backoff.pause_before(deadline) => goes_on,
        }
    }

    /// Asks, and waits if another owner has the lock.
    async fn round(&mut self, is_first: bool, deadline: Option<Instant>) -> Result<Answer, Error> {
        if !is_first {
            self.waits.turn().await;
        }
        let answer = match self.subscribe().await? {
            Some(subscription) => self.stand_in_line(subscription, deadline).await?,
            None => {
                self.attempt.leave_place().await;
                Box::pin(self.block(deadline)).await?
            }
        };
        match answer {
            Answer::Granted(granted) => self.replicate(granted, Wait::Until(deadline)).await,
            other => Ok(other),
        }
    }

    /// Subscribes where it will ask for its place.
    async fn subscribe(&self) -> Result<Option<Subscription>, Error> {
        let key = &self.request.key;
        let subscription = self.node.subscribe(key).await?;
        if let (Some(session), Some(subscription)) = (self.session, &subscription)
            && session
                .has_moved_on_from(key, &subscription.connection)
                .await?
        {
            self.node.give_up_subscriber(&subscription.connection).await;
            return Err(Error::unavailable("another server is the primary now"));
        }
        Ok(subscription)
    }

    /// Sees that replicas have a grant, if that was asked for.
    async fn replicate(&mut self, granted: Granted, wait: Wait) -> Result<Answer, Error> {
        let Some(replicas) = self.request.replicas else {
            self.attempt.leave_connection();
            return Ok(Answer::Granted(granted));
        };
        let answer = Box::pin(self.ask_replicas(granted, replicas, wait)).await;
        match &answer {
            Ok(_) => self.attempt.leave_connection(),
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
        let (key, response) = (&self.request.key, self.node.timeouts().response);
        let opened = by(wait.deadline_or(response), self.waits.to_confirm(key)).await;
        let opened = opened.unwrap_or_else(|| Err(Error::timed_out()));
        self.attempt.wait_on(opened?);
        let sent_at = Moment::now();
        if !self.renew_where_it_waits(granted.token).await? {
            self.attempt.forget_hold();
            return Ok(Answer::Over);
        }
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

    async fn renew_where_it_waits(&mut self, token: u64) -> Result<bool, Error> {
        let cmd = self.attempt.renewal(token);
        let within = self.node.timeouts().response;
        let Some(connection) = self.attempt.connection() else {
            return Err(Error::timed_out());
        };
        let renewed = connection
            .ask_within(within, &self.request.key, &cmd)
            .await?;
        self.attempt.renewal_answered();
        commands::found(&renewed)
    }
}
