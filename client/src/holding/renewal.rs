//! The watchdog: one task renews all holds of a client, and looks after them
//! when a connection was closed or the machine was suspended.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::future::{BoxFuture, OptionFuture};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::clock::Moment;
use crate::error::Error;
use crate::holding::hold::Hold;
use crate::holding::wishes::Wish;
use crate::mutex::locked;
use crate::request::Renew;
use crate::validity::{Lost, margin};

/// A renewal that failed is tried again this much later, or sooner if the
/// hold has not that long.
const RETRY: Duration = Duration::from_millis(200);

/// But not sooner than this.
const SOONEST_RETRY: Duration = Duration::from_millis(10);

/// How often to look whether the machine was suspended: timers don't tell.
const CLOCK_CHECK: Duration = Duration::from_millis(500);

/// Clocks that differ by this much were not read at the same time.
const SUSPENSION: Duration = Duration::from_millis(100);

/// How many new holds wait for the task at most. Most are gone by then.
const NEW_MAX: usize = 64;

/// The way to the task. It ends with the client.
pub(crate) struct Renewals {
    new: Arc<New>,
}

/// What the task has not seen yet.
#[derive(Default)]
struct New {
    queue: Mutex<Queue>,
    wake: Notify,
}

#[derive(Default)]
struct Queue {
    holds: Vec<Weak<Hold>>,
    /// Whether the task looks here with every [`CLOCK_CHECK`].
    is_looked_at: bool,
    /// Whether the client is gone.
    is_closed: bool,
}

impl Renewals {
    /// Starts the task. `disconnected` tells it that a connection was closed.
    pub(crate) fn start(runtime: &Handle, disconnected: Arc<Notify>) -> Self {
        let new = Arc::new(New::default());
        runtime.spawn(run(Arc::clone(&new), disconnected));
        Self { new }
    }

    /// Looks after a hold until it is lost, and renews it as often as its guard wishes, as
    /// long as that is there.
    ///
    /// Where that has time, the task is not woken for it: most holds are short.
    pub(crate) fn add(&self, hold: &Arc<Hold>, renew: Renew) -> Wish {
        let wish = locked(&hold.wishes).add(renew);
        let has_time = due(hold) > Instant::now() + CLOCK_CHECK;
        let mut queue = locked(&self.new.queue);
        queue.holds.push(Arc::downgrade(hold));
        if !(has_time && queue.is_looked_at && queue.holds.len() < NEW_MAX) {
            self.new.wake.notify_one();
        }
        wish
    }
}

impl New {
    /// If nothing is here, the task has to be woken from now on. Returns whether
    /// that is so.
    fn may_rest(&self) -> bool {
        let mut queue = locked(&self.queue);
        queue.is_looked_at = !queue.holds.is_empty();
        !queue.is_looked_at
    }
}

impl Drop for Renewals {
    fn drop(&mut self) {
        locked(&self.new.queue).is_closed = true;
        self.new.wake.notify_one();
    }
}

/// A hold that is looked after.
struct Watched {
    hold: Weak<Hold>,
    /// When the next one is due.
    due: Option<Instant>,
    is_running: bool,
    /// Whether the one that runs may have been answered too early.
    again: bool,
    /// Whether the last one failed.
    is_failing: bool,
}

/// What came of a renewal.
struct Outcome {
    id: usize,
    result: Result<(), Error>,
    /// Whether it prolonged the lease.
    renewed: bool,
}

#[derive(Default)]
struct Watchdog {
    /// By the address of the hold, which a weak reference keeps from being
    /// another's.
    holds: HashMap<usize, Watched>,
    due: BTreeSet<(Instant, usize)>,
    running: FuturesUnordered<BoxFuture<'static, Outcome>>,
    /// Beyond this many, those that are gone are forgotten.
    sweep_at: usize,
}

async fn run(new: Arc<New>, disconnected: Arc<Notify>) {
    let mut watchdog = Watchdog::default();
    // Where nothing has come for a while, nobody looks at the clock.
    let mut clock = None;
    loop {
        let is_open = watchdog.add_all(&new);
        // Guards may outlive the client.
        if !is_open && watchdog.holds.is_empty() {
            return;
        }
        let next = watchdog.due.first().map(|(at, _)| *at);
        tokio::select! {
            () = new.wake.notified() => {
                clock = clock.or_else(|| Some((Instant::now(), Moment::now())));
                locked(&new.queue).is_looked_at = true;
            }
            Some(()) = OptionFuture::from(next.map(sleep_until)) => {
                // All that are due go out together, on one connection.
                let later = watchdog.due.split_off(&(Instant::now(), usize::MAX));
                let due = std::mem::replace(&mut watchdog.due, later);
                for (_, id) in due {
                    watchdog.start(id);
                }
            }
            Some(outcome) = watchdog.running.next(), if !watchdog.running.is_empty() => {
                watchdog.ended(outcome);
            }
            () = disconnected.notified() => {
                // Those first that were granted before the connection was closed.
                watchdog.add_all(&new);
                watchdog.look_after_all();
            }
            Some(before) = OptionFuture::from(clock.map(checked)) => {
                let now = (Instant::now(), Moment::now());
                let passed = before.1.until(now.1);
                let is_idle = watchdog.holds.is_empty() && new.may_rest();
                if passed > now.0 - before.0 + SUSPENSION {
                    watchdog.add_all(&new);
                    watchdog.look_at_the_clock();
                    watchdog.look_after_all();
                }
                clock = (!is_idle).then_some(now);
                // Nobody adds a hold any more, by which those that are gone are found.
                if !is_open {
                    watchdog.sweep();
                }
            }
        }
    }
}

/// Completes when the clock is to be looked at again.
async fn checked(clock: (Instant, Moment)) -> (Instant, Moment) {
    sleep_until(clock.0 + CLOCK_CHECK).await;
    clock
}

impl Watchdog {
    fn add(&mut self, hold: Weak<Hold>) {
        if self.holds.len() >= self.sweep_at {
            self.sweep();
        }
        let is_released = |hold: &Arc<Hold>| hold.valid_for() == Err(Lost::Released);
        let Some(present) = hold.upgrade().filter(|hold| !is_released(hold)) else {
            return;
        };
        let id = Arc::as_ptr(&present).addr();
        let watched = self.holds.entry(id).or_insert(Watched {
            hold,
            due: None,
            is_running: false,
            again: false,
            is_failing: false,
        });
        if is_to_be_renewed(&present) && watched.due.is_none() && !watched.is_running {
            self.plan(id, due(&present));
        }
    }

    /// Returns whether more may come.
    fn add_all(&mut self, new: &New) -> bool {
        loop {
            let mut queue = locked(&new.queue);
            if queue.holds.is_empty() {
                return !queue.is_closed;
            }
            let holds = std::mem::take(&mut queue.holds);
            drop(queue);
            for hold in holds {
                self.add(hold);
            }
        }
    }

    /// Forgets holds that are gone. Each is looked at twice at most.
    fn sweep(&mut self) {
        self.holds
            .retain(|_, watched| watched.is_running || watched.hold.strong_count() > 0);
        self.due.retain(|(_, id)| self.holds.contains_key(id));
        self.sweep_at = self.holds.len() * 2 + 64;
    }

    fn plan(&mut self, id: usize, at: Instant) {
        if let Some(watched) = self.holds.get_mut(&id) {
            watched.due = Some(at);
            self.due.insert((at, id));
        }
    }

    /// Renews a hold; or only finds out whether it is still there, where it is
    /// not to be renewed any more.
    fn start(&mut self, id: usize) {
        let Some(watched) = self.holds.get_mut(&id) else {
            return;
        };
        if let Some(at) = watched.due.take() {
            self.due.remove(&(at, id));
        }
        if watched.is_running {
            watched.again = true;
            return;
        }
        let Some(hold) = watched
            .hold
            .upgrade()
            .filter(|hold| hold.valid_for().is_ok())
        else {
            self.forget(id);
            return;
        };
        watched.is_running = true;
        let renewed = is_to_be_renewed(&hold);
        self.running.push(Box::pin(async move {
            let result = match renewed {
                true => hold.renew_now(hold.lease()).await,
                false => hold.check().await,
            };
            Outcome {
                id,
                result,
                renewed,
            }
        }));
    }

    fn ended(&mut self, outcome: Outcome) {
        let id = outcome.id;
        let Some(watched) = self.holds.get_mut(&id) else {
            return;
        };
        watched.is_running = false;
        let again = std::mem::take(&mut watched.again);
        let Some(hold) = watched.hold.upgrade() else {
            self.holds.remove(&id);
            return;
        };
        let next = match outcome.result {
            Ok(()) => {
                watched.is_failing = false;
                if outcome.renewed {
                    locked(&hold.wishes).renewed();
                    tracing::trace!(token = hold.token, "a lease was renewed");
                }
                is_to_be_renewed(&hold).then(|| due(&hold))
            }
            Err(Error::Lost(why)) => {
                if why != Lost::Released {
                    hold.warn(&Error::Lost(why), "a hold was lost");
                }
                drop(hold);
                self.forget(id);
                return;
            }
            // Whether it is still there is not for this user to know.
            Err(error) if !outcome.renewed && error.code() == "NOPERM" => None,
            Err(error) => {
                if !std::mem::replace(&mut watched.is_failing, true) {
                    hold.warn(&error, "a lease was not renewed");
                }
                let left = hold.valid_for().unwrap_or_default();
                Some(Instant::now() + RETRY.min(left / 4).max(SOONEST_RETRY))
            }
        };
        // One that failed is tried again after a pause, whatever happened.
        if again && !watched.is_failing {
            self.start(id);
        } else if let Some(at) = next {
            self.plan(id, at);
        }
    }

    /// Forgets a hold that is over. A session is over with any of its holds:
    /// the server would keep up what nobody relies on.
    fn forget(&mut self, id: usize) {
        let Some(watched) = self.holds.remove(&id) else {
            return;
        };
        if let Some(hold) = watched.hold.upgrade()
            && hold.valid_for() == Err(Lost::Expired)
            && let Some(session) = &hold.session
        {
            session.end(Lost::Expired);
        }
    }

    /// Asks after all holds at once.
    fn look_after_all(&mut self) {
        let holds = self.holds.iter();
        let all = holds.filter(|(_, watched)| !watched.is_failing);
        let all: Vec<_> = all.map(|(id, _)| *id).collect();
        for id in all {
            self.start(id);
        }
    }

    fn look_at_the_clock(&self) {
        for watched in self.holds.values() {
            if let Some(hold) = watched.hold.upgrade() {
                hold.look_at_the_clock();
            }
        }
    }
}

/// When the next renewal is due: when a third of the time is over for which the
/// last one was good.
fn due(hold: &Hold) -> Instant {
    let (good_for, left) = (hold.good_for(), hold.valid_for().unwrap_or_default());
    let whole = good_for.saturating_sub(margin(good_for));
    Instant::now() + left.saturating_sub(whole * 2 / 3)
}

fn is_to_be_renewed(hold: &Hold) -> bool {
    locked(&hold.wishes).want_more()
}

#[cfg(test)]
mod tests {
    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::clock::suspend;
    use crate::fake_server::{Answer, FakeServer};
    use crate::tasks::Tasks;

    const LEASE: Duration = Duration::from_secs(30);

    fn start() -> (Renewals, Arc<Notify>) {
        let disconnected = Arc::new(Notify::new());
        let renewals = Renewals::start(&Handle::current(), Arc::clone(&disconnected));
        (renewals, disconnected)
    }

    /// A hold that is looked after, as long as the last of these is there.
    fn watched(
        lease: Duration,
        renew: Renew,
    ) -> (Arc<FakeServer>, Arc<Hold>, (Renewals, Arc<Notify>)) {
        let server = FakeServer::new();
        let hold = server.hold(lease);
        let (renewals, disconnected) = start();
        renewals.add(&hold, renew);
        (server, hold, (renewals, disconnected))
    }

    #[tokio::test(start_paused = true)]
    async fn a_hold_is_renewed_every_third_of_its_lease() {
        let (server, hold, _renewals) = watched(LEASE, Renew::Always);
        sleep(LEASE * 10).await;
        assert!(hold.valid_for().is_ok());
        let asked = server.asked();
        assert!((29..=31).contains(&asked.len()), "{} renewals", asked.len());
        assert_eq!(asked[0].1, "LOCK.RENEW k o LEASE 30000 FENCE 7");
        let first = asked[0].0.as_millis();
        assert!((9_600..10_100).contains(&first), "after {first} ms");
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_renewed_as_often_as_asked_and_then_ends() {
        let (server, hold, _renewals) = watched(LEASE, Renew::AtMost(2));
        let begun = Instant::now();
        assert_eq!(hold.lost().await, Lost::Expired);
        assert_eq!(server.count("LOCK.RENEW"), 2);
        let took = begun.elapsed();
        assert!(took > LEASE * 3 / 2 && took < LEASE * 2, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_renewed_beyond_that_while_another_guard_wants_it() {
        let (server, hold, (renewals, _disconnected)) = watched(LEASE, Renew::AtMost(1));
        let wish = renewals.add(&hold, Renew::Always);
        sleep(LEASE * 10).await;
        let renewed = server.count("LOCK.RENEW");
        assert!(renewed >= 29, "{renewed} renewals");
        locked(&hold.wishes).remove(wish);
        assert_eq!(hold.lost().await, Lost::Expired);
        assert_eq!(server.count("LOCK.RENEW"), renewed);
    }

    #[tokio::test(start_paused = true)]
    async fn a_hold_that_outlives_its_client_is_renewed() {
        let (_, hold, (renewals, _disconnected)) = watched(LEASE, Renew::Always);
        drop(renewals);
        sleep(LEASE * 10).await;
        assert!(hold.valid_for().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn the_task_ends_with_the_client_and_its_last_hold() {
        let server = FakeServer::new();
        let tasks = Handle::current().metrics();
        let (renewals, _disconnected) = start();
        let holds = [server.hold(LEASE), server.hold(LEASE)];
        for hold in &holds {
            renewals.add(hold, Renew::Always);
        }
        let [first, last] = holds;
        drop(first);
        sleep(LEASE).await;
        assert_eq!(tasks.num_alive_tasks(), 1, "the client is there");
        drop(renewals);
        sleep(LEASE).await;
        assert_eq!(tasks.num_alive_tasks(), 1, "a hold is there");
        drop(last);
        sleep(CLOCK_CHECK * 2).await;
        assert_eq!(tasks.num_alive_tasks(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_hold_is_renewed_in_time_when_others_are_not_due_for_long() {
        let (renewals, _disconnected) = start();
        let other = FakeServer::new().hold(LEASE * 100);
        renewals.add(&other, Renew::Always);
        for lease in [LEASE, Duration::from_millis(40)] {
            sleep(Duration::from_secs(1)).await;
            let server = FakeServer::new();
            let hold = server.hold(lease);
            renewals.add(&hold, Renew::Always);
            sleep(lease * 10).await;
            assert!(hold.valid_for().is_ok());
            let asked = server.count("LOCK.RENEW");
            assert!(asked >= 29, "{asked} renewals of {lease:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_hold_is_renewed_as_often_as_the_shortest_lease_needs_that_may_yet_count() {
        let server = FakeServer::new();
        server.lets_linger();
        let (renewals, _disconnected) = start();
        let hold = server.hold(LEASE);
        server.will([Answer::IsSilent(Duration::from_secs(1))]);
        hold.renew(LEASE).await.unwrap_err();
        hold.renew(LEASE * 20).await.unwrap();
        renewals.add(&hold, Renew::Always);
        sleep(LEASE * 10).await;
        assert!(hold.valid_for().is_ok());
        let asked = server.count("LOCK.RENEW");
        assert!((29..=34).contains(&asked), "{asked} renewals");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_fails_is_not_asked_without_a_pause() {
        let (server, _hold, (_renewals, disconnected)) = watched(LEASE, Renew::Always);
        server.will((0..100_000).map(|_| Answer::Fails(Error::timed_out())));
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(10) {
            disconnected.notify_one();
            sleep(Duration::from_millis(1)).await;
        }
        let asked = server.count("LOCK.RENEW");
        assert!(asked < 60, "{asked} renewals in ten seconds");
    }

    #[tokio::test(start_paused = true)]
    async fn the_shortest_leases_are_renewed_with_pauses() {
        for lease_ms in [5, 20, 40] {
            let (server, hold, _renewals) = watched(Duration::from_millis(lease_ms), Renew::Always);
            sleep(Duration::from_millis(lease_ms * 100)).await;
            assert!(hold.valid_for().is_ok(), "of {lease_ms} ms");
            let asked = server.count("LOCK.RENEW");
            assert!(asked < 1000, "{asked} renewals of {lease_ms} ms");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_renewal_is_tried_again_until_the_lease_is_over() {
        let (server, hold, _renewals) = watched(LEASE, Renew::Always);
        server.will((0..50).map(|_| Answer::Fails(Error::timed_out())));
        sleep(LEASE * 2).await;
        assert!(hold.valid_for().is_ok(), "it came back in time");
        server.will((0..1000).map(|_| Answer::IsSilent(Duration::from_secs(1))));
        let begun = Instant::now();
        assert_eq!(hold.lost().await, Lost::Expired);
        assert!(begun.elapsed() <= LEASE);
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_server_refuses_is_lost_at_once() {
        let (server, hold, _renewals) = watched(LEASE, Renew::Always);
        server.will([Answer::Says(0)]);
        assert_eq!(hold.lost().await, Lost::Refused);
        sleep(LEASE).await;
        assert_eq!(server.count("LOCK.RENEW"), 1, "what is lost is not renewed");
    }

    #[tokio::test(start_paused = true)]
    async fn all_holds_are_asked_after_when_a_connection_was_closed() {
        let server = FakeServer::new();
        let (renewals, disconnected) = start();
        let holds = [server.hold(LEASE), server.hold(LEASE)];
        renewals.add(&holds[0], Renew::Always);
        renewals.add(&holds[1], Renew::Never);
        sleep(Duration::from_secs(1)).await;
        assert_eq!(server.count("LOCK.RENEW"), 0);
        server.will([Answer::Says(0), Answer::Says(0)]);
        disconnected.notify_one();
        let lost = futures_util::future::join(holds[0].lost(), holds[1].lost());
        let lost = timeout(Duration::from_millis(1), lost).await;
        assert_eq!(lost, Ok((Lost::Refused, Lost::Refused)));
        assert_eq!(server.count("LOCK.RENEW"), 1);
        assert_eq!(server.count("LOCK.INFO"), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_hold_that_is_not_renewed_is_not_prolonged_by_that() {
        let (server, hold, (_renewals, disconnected)) = watched(LEASE, Renew::Never);
        let begun = Instant::now();
        for _ in 0..20 {
            sleep(Duration::from_secs(1)).await;
            disconnected.notify_one();
        }
        assert_eq!(hold.lost().await, Lost::Expired);
        let took = begun.elapsed();
        assert!(took > LEASE * 9 / 10 && took <= LEASE, "{took:?}");
        assert_eq!(server.count("LOCK.INFO"), 20);
        assert_eq!(server.count("LOCK.RENEW"), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_user_who_may_not_look_is_not_asked_to_again() {
        let (server, hold, (_renewals, disconnected)) = watched(LEASE, Renew::Never);
        let refused = Error::Server {
            code: "NOPERM".into(),
            message: "no".into(),
        };
        server.will([Answer::Fails(refused)]);
        disconnected.notify_one();
        sleep(Duration::from_secs(20)).await;
        assert_eq!(server.count("LOCK.INFO"), 1);
        assert!(hold.valid_for().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspended_machine_does_not_believe_in_its_lock() {
        let (_, hold, _renewals) = watched(LEASE, Renew::Always);
        let lost = tokio::spawn(hold.lost());
        sleep(Duration::from_secs(5)).await;
        suspend(LEASE);
        assert_eq!(hold.valid_for(), Err(Lost::Expired));
        let told = timeout(Duration::from_secs(1), lost).await;
        assert_eq!(told.unwrap().unwrap(), Lost::Expired);
    }

    #[tokio::test(start_paused = true)]
    async fn holds_that_are_gone_take_no_room() {
        let server = FakeServer::new();
        let mut watchdog = Watchdog::default();
        let kept = server.hold(LEASE);
        watchdog.add(Arc::downgrade(&kept));
        for _ in 0..10_000 {
            watchdog.add(Arc::downgrade(&server.hold(LEASE)));
            let gone = server.hold(LEASE);
            locked(&gone.wishes).add(Renew::Always);
            watchdog.add(Arc::downgrade(&gone));
            drop(gone);
        }
        assert!(watchdog.holds.len() < 100, "{} holds", watchdog.holds.len());
        assert!(watchdog.due.len() <= watchdog.holds.len());
        assert!(watchdog.holds.contains_key(&Arc::as_ptr(&kept).addr()));
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_suspension_the_server_is_asked_at_once() {
        let (server, _hold, _renewals) = watched(LEASE, Renew::Always);
        sleep(Duration::from_secs(1)).await;
        suspend(LEASE / 10);
        sleep(CLOCK_CHECK * 2).await;
        assert_eq!(server.count("LOCK.RENEW"), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_guard_that_wants_no_renewals_takes_none_from_the_others_of_its_hold() {
        let (_, hold, (renewals, _disconnected)) = watched(LEASE, Renew::Always);
        sleep(Duration::from_secs(1)).await;
        renewals.add(&hold, Renew::Never);
        sleep(LEASE * 3).await;
        assert!(hold.valid_for().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_lease_is_tried_again_often_enough() {
        let (server, hold, _renewals) = watched(Duration::from_millis(300), Renew::Always);
        server.will((0..3).map(|_| Answer::Fails(Error::timed_out())));
        sleep(Duration::from_secs(1)).await;
        assert!(hold.valid_for().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_asked_before_a_connection_was_closed_is_asked_again() {
        let (server, hold, (_renewals, disconnected)) = watched(LEASE, Renew::Always);
        server.will([
            Answer::SaysAfter(Duration::from_secs(2), 1),
            Answer::Says(0),
        ]);
        sleep(LEASE / 3 + Duration::from_secs(1)).await;
        assert_eq!(server.count("LOCK.RENEW"), 1);
        disconnected.notify_one();
        let lost = timeout(Duration::from_secs(2), hold.lost()).await;
        assert_eq!(lost, Ok(Lost::Refused));
    }

    #[tokio::test(start_paused = true)]
    async fn a_hold_granted_just_before_a_connection_was_closed_is_asked_after() {
        let server = FakeServer::new();
        let (renewals, disconnected) = start();
        let other = server.hold(LEASE);
        renewals.add(&other, Renew::Never);
        sleep(Duration::from_millis(1)).await;
        let hold = server.hold(LEASE);
        renewals.add(&hold, Renew::Never);
        disconnected.notify_one();
        sleep(Duration::from_millis(1)).await;
        assert_eq!(server.count("LOCK.INFO"), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_that_is_not_answered_until_the_lease_is_over_tells_the_loss() {
        let server = FakeServer::new();
        let hold = server.hold(LEASE);
        server.will([Answer::IsSilent(LEASE * 2)]);
        let renewed = hold.renew(LEASE).await;
        assert!(matches!(renewed, Err(Error::Lost(Lost::Expired))));
    }

    #[tokio::test(start_paused = true)]
    async fn no_renewal_cuts_the_lease_short_that_another_asked_for() {
        let server = FakeServer::new();
        let hold = server.hold(LEASE);
        for lease in [LEASE * 2, LEASE / 10, LEASE] {
            hold.renew(lease).await.unwrap();
        }
        let asked = server.asked();
        assert_eq!(asked.len(), 3);
        for (_, asked) in asked {
            assert_eq!(asked, "LOCK.RENEW k o LEASE 60000 FENCE 7");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_is_sent_when_the_one_before_is_answered() {
        const SLOW: Duration = Duration::from_secs(1);
        let server = FakeServer::new();
        let hold = server.hold(LEASE);
        server.will([Answer::SaysAfter(SLOW, 1)]);
        let (first, second) = tokio::join!(hold.renew(LEASE), hold.renew(LEASE));
        first.and(second).unwrap();
        let sent_at = server.asked().into_iter().map(|(at, _)| at);
        let sent_at: Vec<Duration> = sent_at.collect();
        assert_eq!(sent_at.len(), 2);
        assert!(sent_at[1] - sent_at[0] >= SLOW, "{sent_at:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_is_tried_again_until_the_last_lease_that_was_asked_for_is_over() {
        let server = FakeServer::new();
        let hold = server.hold(LEASE);
        sleep(LEASE / 2).await;
        hold.renew(LEASE).await.unwrap();
        sleep(LEASE * 3 / 4).await;
        server.will((0..3).map(|_| Answer::Fails(Error::timed_out())));
        let (settled, is_settled) = tokio::sync::oneshot::channel();
        hold.begin_release(&Tasks::new(Handle::current()), || settled.send(()).unwrap());
        is_settled.await.unwrap();
        assert_eq!(server.count("LOCK.RELEASE"), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_released_hold_is_forgotten() {
        let (server, hold, _renewals) = watched(LEASE, Renew::Always);
        hold.begin_release(&Tasks::new(Handle::current()), || {});
        hold.released().await.unwrap();
        assert_eq!(hold.lost().await, Lost::Released);
        sleep(LEASE * 3).await;
        assert_eq!(server.count("LOCK.RENEW"), 0);
    }
}
