//! A loss is told before the lease ends as the server counts it.

mod support;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis_lock_client::{Error, LockClient, Lost};
use redis_lock_testing::{Control, TestServer};

use support::{take, url};

const LEASE: Duration = Duration::from_secs(1);

const THREADS: usize = 10;

/// Runs of a thread, again and again until enough of them could be judged.
const RUNS: usize = 10;

const ENOUGH: usize = 50;

/// How long that may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// Where a thread that only sleeps oversleeps by so much, nobody can be told
/// anything in time.
const LATE: Duration = Duration::from_millis(5);

fn wall_clock_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(now.as_millis()).unwrap()
}

/// Stops a server this many times for longer than a lease that was renewed until
/// then. Says how many ms before its end on the server each loss was told, if
/// the machine had time for it.
#[tokio::main(flavor = "current_thread")]
async fn stop_again_and_again(control: &Control) -> Vec<Option<i64>> {
    let server = TestServer::start();
    let builder = LockClient::builder().default_lease(LEASE);
    let client = builder.connect(url(&server)).await.unwrap();
    let mut observer = server.client();
    let mut margins = Vec::new();
    for run in 0..RUNS {
        let key = format!("lock{run}");
        let guard = take(&client, &key).await;
        let mut valid_for = guard.valid_for();
        // Until it is renewed: then the next renewal is far enough away.
        while guard.valid_for() <= valid_for {
            valid_for = guard.valid_for();
            tokio::time::sleep(LEASE / 100).await;
        }
        let ends_at = observer.int(&format!("PEXPIRETIME {key}"));
        server.stop();
        let ends_here = Instant::now() + guard.valid_for();
        let why = guard.lost().await;
        let (told_at, told_here) = (wall_clock_ms(), Instant::now());
        assert_eq!((why, guard.valid_for()), (Lost::Expired, Duration::ZERO));
        let had_time = control.stalled(ends_here, told_here) < LATE;
        margins.push(had_time.then_some(ends_at - told_at));
        server.go_on();
        let error = guard.release().await.unwrap_err();
        assert!(matches!(error, Error::Lost(Lost::Expired)), "{error:?}");
    }
    margins
}

#[test]
fn a_server_stopped_past_the_lease_is_told_before_its_end() {
    let control = Control::start();
    let begun = Instant::now();
    let (mut margins, mut not_judged) = (Vec::new(), 0);
    // A machine that has no time for that long shows nothing either way.
    while margins.len() < ENOUGH && begun.elapsed() < PATIENCE {
        let each = || stop_again_and_again(&control);
        std::thread::scope(|scope| {
            let runs = [(); THREADS].map(|()| scope.spawn(each));
            let told: Vec<_> = runs.map(|runs| runs.join().unwrap()).concat();
            not_judged += told.iter().filter(|margin| margin.is_none()).count();
            margins.extend(told.into_iter().flatten());
        });
    }
    margins.sort_unstable();
    eprintln!("{not_judged} not judged; told so many ms before the end: {margins:?}");
    assert!(
        margins.first().is_none_or(|&first| first >= 0),
        "{margins:?}"
    );
}
