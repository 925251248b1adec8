//! Asking the server again and again.

use std::time::{Duration, Instant};

use redis_lock_client::LockClient;
use serde::Serialize;

use crate::arguments::TopOptions;
use crate::failure::Failure;
use crate::view::{self, LockView};
use crate::which_server::WhichServer;

/// What was seen at one time.
#[derive(Serialize)]
pub struct Sample {
    /// How many clients wait for the locks that are shown.
    pub waiting: u64,
    pub longest_wait_ms: u64,
    /// Since the sample before, if the server counts them.
    pub grants_per_second: Option<f64>,
    pub releases_per_second: Option<f64>,
    pub locks: Vec<LockView>,
}

/// Takes samples. Where the connection has failed, the client makes a new one.
pub struct Sampler {
    client: LockClient,
    count: u32,
    stuck_after: Duration,
    before: Option<Counters>,
}

/// What the server has counted since it started.
#[derive(Clone, Copy)]
struct Counters {
    read_at: Instant,
    grants: Option<u64>,
    releases: Option<u64>,
}

impl Sampler {
    /// Connects.
    pub async fn connect(server: &WhichServer, options: &TopOptions) -> Result<Self, Failure> {
        Ok(Self {
            client: server.connect().await?,
            count: options.count,
            stuck_after: options.stuck.after,
            before: None,
        })
    }

    /// Looks once.
    pub async fn sample(&mut self) -> Result<Sample, Failure> {
        let locks = view::contended(&self.client, self.count, self.stuck_after).await?;
        let now = Counters::read(&self.client).await?;
        let before = self.before.replace(now);
        let longest = locks.iter().filter_map(LockView::longest_wait).max();
        Ok(Sample {
            waiting: locks.iter().map(|lock| lock.waiting).sum(),
            longest_wait_ms: longest.map_or(0, |wait| wait.as_millis() as u64),
            grants_per_second: now.rate(before, |counters| counters.grants),
            releases_per_second: now.rate(before, |counters| counters.releases),
            locks,
        })
    }
}

impl Counters {
    async fn read(client: &LockClient) -> Result<Self, Failure> {
        let counters = client.counters().await?;
        let immediate = counters.get("lock_grants_immediate");
        let after_wait = counters.get("lock_grants_after_wait");
        Ok(Self {
            read_at: Instant::now(),
            grants: immediate
                .zip(after_wait)
                .map(|(these, those)| these + those),
            releases: counters.get("lock_releases"),
        })
    }

    /// How much a counter has grown each second. A server that was started
    /// anew has none to compare with.
    fn rate(self, before: Option<Self>, counter: fn(&Self) -> Option<u64>) -> Option<f64> {
        let before = before?;
        let grown = counter(&self)?.checked_sub(counter(&before)?)?;
        let seconds = self.read_at.duration_since(before.read_at).as_secs_f64();
        (seconds > 0.0).then(|| (grown as f64 / seconds * 10.0).round() / 10.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_by_the_second_and_start_anew_with_the_server() {
        let counters = |grants, after| Counters {
            read_at: Instant::now() + Duration::from_secs(after),
            grants: Some(grants),
            releases: None,
        };
        let (first, later) = (counters(10, 0), counters(40, 2));
        let rate = later.rate(Some(first), |counters| counters.grants);
        assert_eq!(rate, Some(15.0));
        assert_eq!(later.rate(Some(first), |counters| counters.releases), None);
        assert_eq!(later.rate(None, |counters| counters.grants), None);
        let restarted = counters(1, 4).rate(Some(later), |counters| counters.grants);
        assert_eq!(restarted, None);
    }
}
