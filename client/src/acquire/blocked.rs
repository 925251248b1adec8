//! Waiting for a lock by a blocked connection, for servers whose module knows no
//! places, or whose user may not subscribe.
//!
//! Each wait has a connection of its own, up to a limit. A wait beyond it is in no
//! queue, and asks for its lock now and then.

use std::future::pending;
use std::ops::RangeInclusive;
use std::time::Duration;

use futures_util::future::OptionFuture;
use tokio::time::{Instant, sleep, sleep_until};

use crate::acquire::taking::{Answer, Taking};
use crate::commands::{self, text};
use crate::error::Error;
use crate::servers::node::by;
use crate::servers::waiting::WaitingConnection;
use crate::validity::whole_ms;

/// How long, in milliseconds, a wait beyond the limit pauses before it asks.
const ASK_MS: RangeInclusive<u64> = 200..=500;

/// After how many milliseconds a wait looks whether the server still knows of it: a
/// connection that falls silent says nothing by itself.
const LOOK_MS: RangeInclusive<u64> = 5_000..=10_000;

impl Taking<'_> {
    /// Asks, and waits on a connection of its own if another owner has the lock.
    pub(crate) async fn block(&mut self, deadline: Option<Instant>) -> Result<Answer, Error> {
        // A grant that is replied at once can be dated.
        match self.ask(None).await? {
            Answer::Busy => {}
            decided => return Ok(decided),
        }
        let its_turn = async {
            sleep(Duration::from_millis(rand::random_range(ASK_MS))).await;
            self.waits.turn_to_ask().await;
        };
        let permit = tokio::select! {
            biased;
            permit = self.waits.permit_to_block() => permit?,
            () = its_turn => return Ok(Answer::Over),
            Some(()) = OptionFuture::from(deadline.map(sleep_until)) => return Ok(Answer::Busy),
        };
        // However long that takes: who gave it up to ask would never be in line.
        let connection = tokio::select! {
            biased;
            opened = self.waits.open(&self.request.key, permit) => opened?,
            Some(()) = OptionFuture::from(deadline.map(sleep_until)) => return Ok(Answer::Busy),
        };
        self.attempt.wait_on(connection);
        let answer = self.wait_on_connection(deadline).await;
        match &answer {
            Err(error) if error.leaves_doubt() || error.calls_for_new_connection() => {
                self.attempt.close_connection();
            }
            _ => self.attempt.leave_connection(),
        }
        match answer? {
            // In a session the hold moves from this connection to the session's. If it
            // is another token, the hold was over and was taken anew.
            Some(_) if self.session.is_some() => match self.ask(None).await? {
                Answer::Busy => Ok(Answer::Over),
                decided => Ok(decided),
            },
            Some(token) => self.claim(token).await,
            None => Ok(Answer::Busy),
        }
    }

    async fn wait_on_connection(
        &mut self,
        deadline: Option<Instant>,
    ) -> Result<Option<u64>, Error> {
        let (block_ms, give_up_at) = match deadline {
            None => (commands::BLOCK_WITHOUT_END, None),
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                // Rounded up: zero would be without end.
                let block_ms = whole_ms(left).saturating_add(1);
                let response = self.node.timeouts().response;
                (block_ms, deadline.checked_add(response))
            }
        };
        let mut cmd = self.attempt.command();
        commands::block(&mut cmd, block_ms);
        if self.session.is_some() {
            commands::bind(&mut cmd);
        }
        self.attempt.sent();
        let reply = by(give_up_at, self.reply(&cmd)).await;
        let reply = reply.unwrap_or_else(|| Err(Error::timed_out()));
        let answer = reply.and_then(|reply| commands::token(&reply));
        self.attempt.answered(answer)
    }

    /// The reply to a wait; or an error when the server does not know of it, or the
    /// session that wants the hold has ended.
    async fn reply(&self, cmd: &redis::Cmd) -> Result<redis::Value, Error> {
        let Some(connection) = self.attempt.connection() else {
            return Err(Error::timed_out());
        };
        let session_end = self.session.map(|session| session.end_of());
        tokio::select! {
            biased;
            reply = connection.ask(&self.request.key, cmd) => reply,
            Some(why) = OptionFuture::from(session_end) => Err(Error::Lost(why)),
            error = self.unknown(connection) => Err(error),
        }
    }

    /// Completes when the server does not know of this wait. Where nobody may ask, it
    /// does not.
    async fn unknown(&self, connection: &WaitingConnection) -> Error {
        let name = OptionFuture::from(connection.name().map(async |name| {
            loop {
                sleep(Duration::from_millis(rand::random_range(LOOK_MS))).await;
                let look = self.node.call(&self.request.key, &name.look()).await;
                let line = look.ok().and_then(|reply| text(reply.value));
                if line.is_some_and(|line| !name.is_blocked(&line)) {
                    return;
                }
            }
        }));
        match name.await {
            Some(()) => Error::unavailable("the server does not know of the wait"),
            None => pending().await,
        }
    }
}
