//! One lock being taken on one server: what is asked, and what came of it.

use std::sync::Arc;

use redis::{Cmd, Value};

use crate::acquire::attempt::Attempt;
use crate::clock::Moment;
use crate::commands;
use crate::error::Error;
use crate::holding::binding::Binding;
use crate::request::Request;
use crate::servers::node::{Node, Reply};
use crate::servers::waiting::Waits;

/// A grant, and when the command was sent from which its lease counts.
pub(crate) struct Granted {
    pub(crate) token: u64,
    pub(crate) sent_at: Moment,
}

/// What came of asking once.
pub(crate) enum Answer {
    Granted(Granted),
    /// It has a place in the queue.
    InLine,
    /// Another owner has the lock, or the wait is over.
    Busy,
    /// There was a place or a grant, and whether there still is one is to be asked.
    Over,
}

/// Why an acquire that waits is not in the server's queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outage {
    /// There is no server that answers and is the primary.
    Gone,
    /// The server is there, and grants nothing for now.
    Refuses,
}

impl Outage {
    pub(crate) fn by(error: &Error) -> Self {
        match error.code() {
            "NOREPLICAS" | "QUEUEFULL" => Self::Refuses,
            _ => Self::Gone,
        }
    }

    pub(crate) const fn begins(self) -> &'static str {
        match self {
            Self::Gone => "waiting on without the server",
            Self::Refuses => "waiting on while the server refuses",
        }
    }

    pub(crate) const fn ends(self) -> &'static str {
        match self {
            Self::Gone => "the server is back",
            Self::Refuses => "the server refuses no more",
        }
    }
}

/// One lock being taken on one server.
pub(crate) struct Taking<'a> {
    pub(crate) node: &'a Arc<Node>,
    pub(crate) waits: &'a Arc<Waits>,
    pub(crate) request: &'a Request,
    pub(crate) session: Option<&'a Arc<Binding>>,
    pub(crate) attempt: Attempt,
    /// Why it is not in line, if it should be.
    pub(crate) outage: Option<Outage>,
}

impl Taking<'_> {
    /// Asks for the lock, and for a place in its queue where that is added, on a
    /// connection that others share. A grant that is replied is this command's, so
    /// the lease counts from when it was sent.
    pub(crate) async fn ask(&mut self, place: Option<(u64, &[u8])>) -> Result<Answer, Error> {
        self.attempt.close_what_is_unanswered().await?;
        if self.session.is_none() {
            // Without a connection nothing is sent, so nothing has to be released.
            let connected = self.node.connection().await;
            connected.map_err(|error| self.node.explain(error))?;
        }
        let mut cmd = self.attempt.command();
        if let Some((place_ms, channel)) = place {
            commands::queue(&mut cmd, place_ms, channel);
        }
        if self.session.is_some() {
            commands::bind(&mut cmd);
        }
        self.attempt.sent();
        let reply = self.send(&cmd).await;
        let (reply, sent_at) = match reply {
            Ok(reply) => (Ok(reply.value), reply.sent_at),
            Err(error) => (Err(error), Moment::now()),
        };
        let answer = match reply {
            Ok(Value::Int(0)) if place.is_some() => {
                // A session's hold is bound to the connection that asks for it.
                self.attempt
                    .is_in_line(self.session.is_none().then_some(cmd));
                Ok(Answer::InLine)
            }
            reply => {
                let answer = reply.and_then(|reply| commands::token(&reply));
                self.attempt.answered(answer).map(|token| match token {
                    Some(token) => Answer::Granted(Granted { token, sent_at }),
                    None => Answer::Busy,
                })
            }
        };
        if answer.is_ok()
            && let Some(outage) = self.outage.take()
        {
            let key = String::from_utf8_lossy(&self.request.key);
            tracing::info!(%key, "{}", outage.ends());
        }
        answer
    }

    /// Starts the lease of this grant anew, so that it counts from there. Nobody
    /// knows when a grant was made that was not replied at once.
    pub(crate) async fn claim(&mut self, token: u64) -> Result<Answer, Error> {
        let renewal = self.attempt.renewal(token);
        let reply = self.send(&renewal).await?;
        if !reply.resent {
            self.attempt.renewal_answered();
        }
        if !commands::found(&reply.value)? {
            return Ok(Answer::Over);
        }
        self.attempt.answered(Ok(Some(token)))?;
        let sent_at = reply.sent_at;
        Ok(Answer::Granted(Granted { token, sent_at }))
    }

    /// Sends a command where holds of this kind are asked for.
    async fn send(&self, cmd: &Cmd) -> Result<Reply, Error> {
        let key = &self.request.key;
        let Some(session) = self.session else {
            return self.node.call(key, cmd).await;
        };
        let sent_at = Moment::now();
        Ok(Reply {
            value: session.ask(key, cmd).await?,
            sent_at,
            resent: false,
        })
    }
}
