//! A loss is told before the lease ends as the server counts it.

mod support;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis_lock_client::{Error, LockClient, Lost};
use redis_lock_testing::TestServer;

use support::{take, url};

const LEASE: Duration = Duration::from_secs(1);

const RUNS: usize = 100;

const THREADS: usize = 10;

/// A timer that rings so much later says that the machine is too busy.
const LATE: Duration = Duration::from_millis(5);

fn wall_clock_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(now.as_millis()).unwrap()
}

/// Whether a thread that sleeps until then wakes up at about that time. On a
/// machine that has no time for it, nobody can be told anything in time.
fn wakes_up_in_time(at: Instant) -> bool {
    std::thread::sleep(at.saturating_duration_since(Instant::now()));
    at.elapsed() < LATE
}

/// Stops a server so many times for longer than a lease that was renewed until
/// then. Says how many ms before its end on the server each loss was told, if
/// the machine had time for it.
#[tokio::main(flavor = "current_thread")]
async fn stop_again_and_again(runs: usize) -> Vec<Option<i64>> {
    let server = TestServer::start();
    let builder = LockClient::builder().default_lease(LEASE);
    let client = builder.connect(url(&server)).await.unwrap();
    let mut observer = server.client();
    let mut margins = Vec::new();
    for run in 0..runs {
        let key = format!("lock{run}");
        let guard = take(&client, &key).await;
        let mut valid_for = guard.valid_for();
        // Until it is renewed: then the next renewal is far enough away.
        while guard.valid_for() <= valid_for {
            valid_for = guard.valid_for();
            tokio::time::sleep(LEASE / 100).await;
        }
        let ends_at = observer.int(&format!("PEXPIRETIME {key}"));
        server.signal("STOP");
        let ends_here = Instant::now() + guard.valid_for();
        let control = std::thread::spawn(move || wakes_up_in_time(ends_here));
        let (told, timer_was_late_by) =
            tokio::join!(async { (guard.lost().await, wall_clock_ms()) }, async {
                tokio::time::sleep_until(ends_here.into()).await;
                ends_here.elapsed()
            });
        let (why, told_at) = told;
        assert_eq!((why, guard.valid_for()), (Lost::Expired, Duration::ZERO));
        let had_time = control.join().unwrap() && timer_was_late_by < LATE;
        margins.push(had_time.then_some(ends_at - told_at));
        server.signal("CONT");
        let error = guard.release().await.unwrap_err();
        assert!(matches!(error, Error::Lost(Lost::Expired)), "{error:?}");
    }
    margins
}

#[test]
fn a_server_stopped_for_longer_than_the_lease_is_told_before_its_end_there() {
    let mut margins = Vec::new();
    let mut rounds = 0;
    while margins.len() < RUNS {
        rounds += 1;
        assert!(rounds < 4, "this machine is too busy for this test");
        let each = (RUNS - margins.len()).div_ceil(THREADS);
        let runs = [(); THREADS].map(|()| std::thread::spawn(move || stop_again_and_again(each)));
        for run in runs {
            margins.extend(run.join().unwrap().into_iter().flatten());
        }
    }
    margins.sort_unstable();
    eprintln!("told so many ms before the end: {margins:?}");
    assert!(margins[0] >= 0, "{margins:?}");
}
