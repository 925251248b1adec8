//! Pauses between tries.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Random pauses, each twice as long on average as the one before.
pub(crate) struct Backoff {
    longest: Duration,
    /// What that grows to.
    limit: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::up_to(Duration::from_millis(500))
    }
}

impl Backoff {
    /// Pauses that grow to this.
    pub(crate) fn up_to(limit: Duration) -> Self {
        Self {
            longest: Duration::from_millis(20).min(limit),
            limit,
        }
    }

    /// The next pause.
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = rand::random_range(self.longest / 4..=self.longest);
        self.longest = (self.longest * 2).min(self.limit);
        pause
    }

    /// Pauses. Returns false at once where that would take past the deadline.
    pub(crate) async fn pause_before(&mut self, deadline: Option<Instant>) -> bool {
        let pause = self.pause();
        if deadline.is_some_and(|deadline| Instant::now() + pause >= deadline) {
            return false;
        }
        sleep(pause).await;
        true
    }
}
