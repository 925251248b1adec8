//! The watchdog: one task renews all holds of a client that have no lease of
//! their own.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep_until};

use crate::hold::Hold;

/// A renewal that failed is tried again this much later, or sooner if the
/// hold has not that long.
const RETRY: Duration = Duration::from_millis(200);

/// But not sooner than this.
const SOONEST_RETRY: Duration = Duration::from_millis(10);

/// A hold that is to be renewed.
struct Renewal {
    hold: Weak<Hold>,
    /// How often, if not for ever.
    left: Option<u32>,
}

/// The way to the task. It ends with the client.
#[derive(Default)]
pub(crate) struct Renewals {
    task: Mutex<Option<UnboundedSender<Renewal>>>,
}

impl Renewals {
    /// Renews a hold until it is lost, at most so many times.
    pub(crate) fn add(&self, hold: &Arc<Hold>, max_renewals: Option<u32>) {
        if hold.is_renewed.swap(true, Ordering::SeqCst) {
            return;
        }
        let mut renewal = Renewal {
            hold: Arc::downgrade(hold),
            left: max_renewals,
        };
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(task) = &*task {
            match task.send(renewal) {
                Ok(()) => return,
                // The runtime that it ran on has shut down.
                Err(unsent) => renewal = unsent.0,
            }
        }
        let (sender, receiver) = unbounded_channel();
        tokio::spawn(run(receiver));
        // The receiver is there.
        let _ = sender.send(renewal);
        *task = Some(sender);
    }
}

/// When the next renewal is due: a third of the lease after the last one.
fn due(hold: &Hold) -> Instant {
    let lease = hold.lease();
    Instant::now()
        + hold
            .valid_for()
            .unwrap_or_default()
            .saturating_sub(lease * 2 / 3)
}

async fn run(mut new: UnboundedReceiver<Renewal>) {
    let mut serial = 0_u64;
    let mut waiting: BTreeMap<(Instant, u64), Renewal> = BTreeMap::new();
    let mut running: FuturesUnordered<BoxFuture<'static, Option<(Instant, Renewal)>>> =
        FuturesUnordered::new();
    loop {
        let next = waiting.keys().next().map(|(at, _)| *at);
        let planned = tokio::select! {
            added = new.recv() => match added {
                Some(renewal) => renewal.hold.upgrade().map(|hold| (due(&hold), renewal)),
                None => return,
            },
            () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {
                // All that are due go out together, on one connection.
                let later = waiting.split_off(&(Instant::now(), u64::MAX));
                let due = std::mem::replace(&mut waiting, later);
                running.extend(due.into_values().map(|renewal| -> BoxFuture<_> {
                    Box::pin(renew(renewal))
                }));
                None
            }
            Some(planned) = running.next(), if !running.is_empty() => planned,
        };
        let Some((at, renewal)) = planned else {
            continue;
        };
        if renewal.left == Some(0) {
            if let Some(hold) = renewal.hold.upgrade() {
                hold.is_renewed.store(false, Ordering::SeqCst);
            }
            continue;
        }
        serial += 1;
        waiting.insert((at, serial), renewal);
    }
}

/// Renews once. Says when to do so again, unless the hold is over.
async fn renew(mut renewal: Renewal) -> Option<(Instant, Renewal)> {
    let hold = renewal.hold.upgrade()?;
    hold.valid_for().ok()?;
    match hold.renew().await {
        Ok(()) => {
            renewal.left = renewal.left.map(|left| left - 1);
            tracing::trace!(token = hold.token, "a lease was renewed");
            Some((due(&hold), renewal))
        }
        Err(error) => {
            let left = hold.valid_for().ok();
            tracing::warn!(token = hold.token, %error, ?left, "a lease was not renewed");
            let pause = RETRY.min(left? / 4).max(SOONEST_RETRY);
            Some((Instant::now() + pause, renewal))
        }
    }
}
