//! Giving a hold back, again and again until that is done.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use redis::{Cmd, Value};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::backoff::Backoff;
use crate::clock::Moment;
use crate::commands;
use crate::error::Error;
use crate::holding::binding::Binding;
use crate::holding::server_hold::Trace;
use crate::servers::connection::ConnectionName;
use crate::servers::node::{Ask, Node, Reply};
use crate::validity::Lost;

/// Something to give back on one server.
pub(crate) struct PendingRelease {
    pub(crate) server: Arc<dyn Ask>,
    pub(crate) key: Vec<u8>,
    pub(crate) owner: Vec<u8>,
    /// Of which hold, if that is known. Without it, of whatever the owner has.
    pub(crate) token: Option<u64>,
    /// Where nothing was left there is nothing to do.
    pub(crate) trace: Trace,
    /// A connection that may still bring the hold, to be closed before.
    pub(crate) unanswered: Option<ConnectionName>,
    /// When the lease will have done it.
    pub(crate) lease_ends: Moment,
    /// Whether the lock is likely to go to the next one then.
    pub(crate) is_handed_off: bool,
    /// Whether other servers have the same hold, so that this one's failure is
    /// nothing to warn of.
    pub(crate) is_one_of_many: bool,
}

/// The first outcome on one server, once there is one.
pub(crate) type FirstOutcome = oneshot::Receiver<Result<Reply, Error>>;

/// How long to wait at most until an abandoned place is given up again: there may be many.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// A place in the queue that could not be given up. In its turn it would be granted the
/// lock, for nobody, until nobody has claimed it.
pub(crate) struct AbandonedPlace {
    pub(crate) node: Weak<Node>,
    pub(crate) key: Vec<u8>,
    pub(crate) owner: Vec<u8>,
    /// When the server keeps it no longer.
    pub(crate) ends: Moment,
}

impl AbandonedPlace {
    /// Gives it up, as long as the server may keep it and the client lives.
    pub(crate) async fn give_up(self) {
        let release = commands::release(&self.key, &self.owner, None);
        let mut backoff = Backoff::up_to(LONGEST_PAUSE);
        while backoff.pause_within(self.ends).await {
            let Some(node) = self.node.upgrade() else {
                return;
            };
            let answer = node.call(&self.key, &release).await;
            if answer.is_ok_and(|reply| commands::found(&reply.value).is_ok()) {
                return;
            }
        }
    }
}

/// Gives back everywhere. Returns the first outcomes, and the future that does it and
/// returns whether all servers have answered.
///
/// It begins by ending what may still be granted, which must not come after the
/// release. Where a server has not answered to the end, the session ends: else the
/// server would renew the hold as long as the session lives.
pub(crate) fn settle_all<V: Send + 'static>(
    pending: Vec<PendingRelease>,
    mut stragglers: JoinSet<V>,
    session: Option<Arc<Binding>>,
) -> (
    Vec<FirstOutcome>,
    impl Future<Output = bool> + Send + 'static,
) {
    let (outcomes, settling): (Vec<_>, Vec<_>) = pending
        .into_iter()
        .map(|release| {
            let (first, outcome) = oneshot::channel();
            (outcome, release.settle(first))
        })
        .unzip();
    let settled = async move {
        stragglers.shutdown().await;
        let is_settled = !join_all(settling).await.contains(&false);
        if let Some(session) = session
            && !is_settled
        {
            session.end(Lost::Expired);
        }
        is_settled
    };
    (outcomes, settled)
}

impl PendingRelease {
    /// Gives back, trying again after every error, until the server has
    /// answered or the lease is over. The first outcome goes to `first`.
    /// Returns whether the server has answered.
    pub(crate) async fn settle(self, first: oneshot::Sender<Result<Reply, Error>>) -> bool {
        let release = commands::release(&self.key, &self.owner, self.token);
        if !self.trace.may_be() {
            let _ = first.send(Ok(Reply {
                value: Value::Nil,
                sent_at: Moment::now(),
                resent: false,
            }));
            return true;
        }
        let mut first = Some(first);
        let mut backoff = Backoff::default();
        loop {
            let outcome = self.try_once(&release).await;
            if let (Some(_), Err(error)) = (&first, &outcome) {
                self.warn(error, "a hold could not be released yet");
            }
            let settled = outcome.is_ok();
            if let Some(first) = first.take() {
                // Nobody has to wait for it.
                let _ = first.send(outcome);
            }
            if settled {
                return true;
            }
            if !backoff.pause_within(self.lease_ends).await {
                self.warn(&Error::timed_out(), "a hold was left to its lease");
                return false;
            }
        }
    }

    async fn try_once(&self, release: &Cmd) -> Result<Reply, Error> {
        if let Some(name) = &self.unanswered {
            self.server.close(&self.key, name).await?;
        }
        let reply = match self.is_handed_off {
            true => self.server.hand_off(&self.key, release).await?,
            false => self.server.ask(&self.key, release).await?,
        };
        // Anything else is not the answer of a server that releases.
        commands::found(&reply.value)?;
        Ok(reply)
    }

    fn warn(&self, error: &Error, message: &str) {
        let key = String::from_utf8_lossy(&self.key);
        let owner = String::from_utf8_lossy(&self.owner);
        if self.is_one_of_many {
            tracing::debug!(%key, %owner, %error, "{message}");
        } else {
            tracing::warn!(%key, %owner, %error, "{message}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_server::{Answer, FakeServer};

    fn refused(code: &str) -> Answer {
        Answer::Fails(Error::Server {
            code: code.into(),
            message: "not now".into(),
        })
    }

    fn release(server: &Arc<FakeServer>, lease: Duration) -> PendingRelease {
        PendingRelease {
            server: Arc::new(Arc::clone(server)),
            key: b"k".to_vec(),
            owner: b"o".to_vec(),
            token: Some(7),
            trace: Trace::left(),
            unanswered: None,
            lease_ends: Moment::now() + lease,
            is_handed_off: true,
            is_one_of_many: false,
        }
    }

    /// Settles a release, and returns the first outcome and whether it was done.
    async fn settled(release: PendingRelease) -> (Result<Reply, Error>, bool) {
        let (first, outcome) = oneshot::channel();
        let settled = release.settle(first).await;
        (outcome.await.unwrap(), settled)
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_sent_once_if_it_is_answered() {
        let server = FakeServer::new();
        let (first, settled) = settled(release(&server, Duration::from_secs(30))).await;
        assert!(first.is_ok() && settled);
        let asked = server.asked();
        assert_eq!(asked.len(), 1);
        assert_eq!(asked[0].1, "LOCK.RELEASE k o FENCE 7 ALL");
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_sent_again_after_every_error() {
        let server = FakeServer::new();
        let codes = ["BUSY", "MISCONF", "NOAUTH", "NOPERM", "LOADING", "READONLY"];
        server.will(codes.map(refused));
        server.will([
            Answer::Fails(Error::timed_out()),
            Answer::Fails(Error::NoModule),
            Answer::Says(99),
        ]);
        let (first, settled) = settled(release(&server, Duration::from_secs(30))).await;
        assert_eq!(
            first.unwrap_err().code(),
            "BUSY",
            "the first outcome is told"
        );
        assert!(settled);
        assert_eq!(server.count("LOCK.RELEASE"), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_left_to_the_lease_at_last() {
        let server = FakeServer::new();
        server.will((0..1000).map(|_| refused("NOPERM")));
        let begun = tokio::time::Instant::now();
        let (_, settled) = settled(release(&server, Duration::from_secs(10))).await;
        assert!(!settled);
        let took = begun.elapsed();
        // A timer is exact to the millisecond.
        let longest = Duration::from_millis(10_001);
        assert!(took > Duration::from_secs(9) && took <= longest, "{took:?}");
        let tries = server.count("LOCK.RELEASE");
        assert!((20..120).contains(&tries), "{tries} tries in ten seconds");
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_still_bring_the_hold_is_closed_before() {
        let server = FakeServer::new();
        let mut release = release(&server, Duration::from_secs(30));
        release.token = None;
        let name = ConnectionName::parse("id=5 addr=a:1 laddr=b:2").unwrap();
        release.unanswered = Some(name);
        settled(release).await.0.unwrap();
        let asked = server.commands();
        assert_eq!(asked, ["close 5", "LOCK.RELEASE k o ALL"]);
    }
}
