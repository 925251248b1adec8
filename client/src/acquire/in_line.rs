//! Waiting for a lock by a place in the server's queue.
//!
//! The place is asked for on the connection that all commands share, and a message
//! tells how it ended. Messages may be lost, doubled or late. So a grant that is told
//! is claimed before it counts, and the same request is sent again, which keeps the
//! place, whenever something may have been told that nobody heard, and now and then
//! anyway. Whoever releases the lock here may have asked already, and then it is told
//! the reply.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::OptionFuture;
use tokio::time::{Instant, sleep, sleep_until};

use crate::acquire::taking::{Answer, Granted, Taking};
use crate::clock::Moment;
use crate::error::Error;
use crate::servers::node::Subscription;
use crate::servers::places::{Place, Told};
use crate::validity::whole_ms;

/// The longest that a server keeps a place, unless it is asked for again.
const PLACE_MS_MAX: u64 = 86_400_000;

/// After how many response time-outs the same is asked again: 30 to 60 seconds as it
/// comes. A message that is lost although its connection is well costs as much time at
/// most; of a thousand that wait, thirty ask in a second at most.
const AGAIN: RangeInclusive<u32> = 20..=40;

/// And after how long at the latest.
const AGAIN_MAX: Duration = Duration::from_secs(60);

impl Taking<'_> {
    /// Waits in the server's queue, and is told of its end by this subscription.
    pub(crate) async fn stand_in_line(
        &mut self,
        mut subscription: Subscription,
        deadline: Option<Instant>,
    ) -> Result<Answer, Error> {
        // Before it is asked, as it may be told before that is answered.
        let new = || self.node.expect(&self.request.key, &self.attempt.owner);
        let place = self.attempt.place.get_or_insert_with(new);
        // What it was granted may be on its way back, and must not meet the new request.
        place.answered().await;
        place.forget_what_was_told();
        let place_ms = self.place_ms(deadline);
        let ends = Moment::now() + Duration::from_millis(place_ms);
        self.attempt.place_kept = Some((Arc::downgrade(self.node), ends));
        let channel = &subscription.channel;
        match self.ask(Some((place_ms, channel))).await {
            Ok(Answer::InLine) => {}
            // Not even a place was to be had.
            Ok(Answer::Busy) => return Ok(Answer::Over),
            Err(error) if error.is_syntax_error() => {
                subscription.is_useless();
                return Ok(Answer::Over);
            }
            decided => return decided,
        }
        let again = self.node.timeouts().response * rand::random_range(AGAIN);
        let again = again.min(AGAIN_MAX);
        let told = tokio::select! {
            biased;
            told = self.told() => told?,
            () = subscription.interrupted() => return Ok(Answer::Over),
            () = sleep(again) => {
                return Ok(Answer::Over);
            }
            Some(()) = OptionFuture::from(deadline.map(sleep_until)) => return Ok(Answer::Busy),
        };
        match told {
            Told::Granted(token) => self.claim(token).await,
            Told::Replied(token, sent_at) => {
                self.attempt.answered(Ok(Some(token)))?;
                Ok(Answer::Granted(Granted { token, sent_at }))
            }
            Told::Gone => Ok(Answer::Over),
            Told::Refused(error) => Err(self.node.explain_told(error)),
        }
    }

    /// What is told of the place; or an error when the session that wants the hold
    /// has ended.
    async fn told(&mut self) -> Result<Told, Error> {
        let session_end = self.session.map(|session| session.end_of());
        let told = OptionFuture::from(self.attempt.place.as_mut().map(Place::told));
        tokio::select! {
            biased;
            Some(told) = told => Ok(told),
            Some(why) = OptionFuture::from(session_end) => Err(Error::Lost(why)),
        }
    }

    /// For how long the place is asked. Whoever waits gives it up before that.
    fn place_ms(&self, deadline: Option<Instant>) -> u64 {
        deadline.map_or(PLACE_MS_MAX, |deadline| {
            let left = deadline.saturating_duration_since(Instant::now());
            let longer = left.saturating_add(self.node.timeouts().response);
            whole_ms(longer).clamp(1, PLACE_MS_MAX)
        })
    }
}
