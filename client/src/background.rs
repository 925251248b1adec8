//! What goes on after a call has returned: giving holds back.

use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};
use tokio_util::task::TaskTracker;

use crate::error::Error;
use crate::link::{Link, ServerSideName};
use crate::node::{Node, Reply};

/// The tasks that outlive a call.
pub(crate) struct Background {
    tasks: TaskTracker,
    runtime: Handle,
}

impl Background {
    /// Tasks for the runtime of the caller.
    pub(crate) fn here() -> Self {
        let tasks = TaskTracker::new();
        // A closed tracker takes tasks all the same, and says when there are none.
        tasks.close();
        Self {
            tasks,
            runtime: Handle::current(),
        }
    }

    /// Starts a task. Where the runtime has shut down, nothing happens.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let runtime = Handle::try_current().unwrap_or_else(|_| self.runtime.clone());
        self.tasks.spawn_on(task, &runtime);
    }

    /// Waits until no task is left.
    pub(crate) async fn idle(&self) {
        self.tasks.wait().await;
    }
}

/// Something to give back on one server.
pub(crate) struct Debt {
    pub(crate) node: Arc<Node>,
    pub(crate) key: Vec<u8>,
    pub(crate) release: Cmd,
    /// The connection that the hold is tied to. It is closed after the first try,
    /// and that gives back as well.
    pub(crate) session: Option<Link>,
    /// Connections that may still bring the hold, to be closed before.
    pub(crate) waiting: Vec<ServerSideName>,
    /// When the lease will have done it.
    pub(crate) until: Instant,
}

impl Debt {
    /// Gives back, again and again until it is done or the lease has done it.
    /// The first outcome goes to `first`.
    pub(crate) async fn settle(mut self, first: oneshot::Sender<Result<Reply, Error>>) {
        let mut first = Some(first);
        let mut backoff = Backoff::default();
        loop {
            let outcome = match self.node.close_all(&self.key, &self.waiting).await {
                Ok(()) => self.node.call(&self.key, &self.release).await,
                Err(error) => Err(error),
            };
            let again = outcome.as_ref().is_err_and(Error::is_retryable);
            if let Err(error) = &outcome {
                tracing::debug!(%error, again, "a hold could not be released");
            }
            self.session = None;
            if let Some(first) = first.take() {
                // Nobody has to wait for it.
                let _ = first.send(outcome);
            }
            if !again || !backoff.sleep(Some(self.until)).await {
                return;
            }
        }
    }
}

/// Pauses between tries: random, and twice as long on average each time.
pub(crate) struct Backoff {
    longest: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            longest: Duration::from_millis(20),
        }
    }
}

impl Backoff {
    const LONGEST: Duration = Duration::from_millis(500);

    /// Sleeps, but says no where that would take past the deadline.
    pub(crate) async fn sleep(&mut self, deadline: Option<Instant>) -> bool {
        let pause = rand::random_range(self.longest / 4..=self.longest);
        self.longest = (self.longest * 2).min(Self::LONGEST);
        if deadline.is_some_and(|deadline| Instant::now() + pause >= deadline) {
            return false;
        }
        sleep(pause).await;
        true
    }
}
