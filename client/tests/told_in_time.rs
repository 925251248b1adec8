//! A loss is told before the lease ends as the server counts it.

mod support;

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis_lock_client::{Error, LockClient, LockGuard, Lost, Session};
use redis_lock_testing::{Control, Fate, Proxy, Server};

use support::{soon, way};

const LEASES_MS: [u64; 3] = [300, 1000, 3000];

/// How often a combination is tried at once, and has to be judged before it counts. So many
/// of the 36 have to count.
const RUNS: usize = 3;
const ENOUGH: usize = 12;

/// How long that may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// Where a thread that only sleeps oversleeps by so much, nobody can be told
/// anything in time.
const LATE: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, Debug)]
enum Fault {
    Stopped,
    Killed,
    CutOff,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Plain,
    Shared,
    Job,
    Session,
}

fn wall_clock_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(now.as_millis()).unwrap()
}

/// A hold, unless its lease was over before the machine had time for it.
async fn hold(client: &LockClient, kind: Kind) -> Option<(Session, LockGuard)> {
    let session = client.session().await.unwrap();
    let lock = match kind {
        Kind::Plain => client.lock("lock"),
        Kind::Shared => client.lock("lock").shared(),
        Kind::Job => client.job().lock("lock"),
        Kind::Session => session.lock("lock"),
    };
    match lock.acquire().await {
        Err(Error::Lost(_)) => None,
        taken => Some((session, taken.unwrap())),
    }
}

/// How many ms before its end on the server the loss was told of a hold that was renewed
/// until then, if the machine had time for it.
#[tokio::main(flavor = "current_thread")]
async fn margin(control: &Control, lease: Duration, fault: Fault, kind: Kind) -> Option<i64> {
    let mut server = Server::start();
    let proxy = Proxy::to(server.addr()).unwrap();
    let builder = LockClient::builder().default_lease(lease);
    let client = builder.connect(way(&proxy)).await.unwrap();
    let mut observer = server.client();
    let (_session, guard) = hold(&client, kind).await?;
    // Until it is renewed: then the next renewal is far enough away.
    let mut valid_for = guard.valid_for();
    while guard.valid_for() <= valid_for {
        valid_for = guard.valid_for();
        if valid_for.is_zero() {
            // The machine had no time to renew it.
            return None;
        }
        tokio::time::sleep(lease / 100).await;
    }
    let ends_at = observer.int("PEXPIRETIME lock");
    if ends_at < 0 {
        // Nor to look before it was over.
        return None;
    }
    match fault {
        Fault::Stopped => server.stop().unwrap(),
        Fault::Killed => server.crash(),
        Fault::CutOff => proxy.set(Fate::Swallowed),
    }
    let ends_here = Instant::now() + guard.valid_for();
    let why = soon("the loss", guard.lost()).await;
    let (told_at, told_here) = (wall_clock_ms(), Instant::now());
    assert_eq!(guard.valid_for(), Duration::ZERO);
    let by_its_end = matches!((kind, fault), (Kind::Session, Fault::Killed));
    assert!(
        why == Lost::Expired || by_its_end,
        "{why:?}: {fault:?}, {kind:?}"
    );
    let had_time = control.stalled(ends_here, told_here) < LATE;
    had_time.then_some(ends_at - told_at)
}

#[test]
fn whatever_fails_a_loss_is_told_before_the_end_of_the_lease() {
    let control = Control::start();
    let begun = Instant::now();
    let mut judged = BTreeMap::<String, Vec<i64>>::new();
    let counts = |margins: &Vec<i64>| margins.len() >= RUNS;
    let is_late = |margins: &Vec<i64>| {
        let late = margins.iter().filter(|margin| **margin < 0).count();
        late > margins.len() / 2
    };
    // A machine that has no time for that long shows nothing either way. What is late in a
    // few runs is judged by more of them.
    let few = |margins: &Vec<i64>| margins.len() < 3 * RUNS;
    while (judged.values().filter(|one| counts(one)).count() < ENOUGH
        || judged.values().any(|one| is_late(one) && few(one)))
        && begun.elapsed() < PATIENCE
    {
        for lease in LEASES_MS.map(Duration::from_millis) {
            thread::scope(|scope| {
                let mut runs = Vec::new();
                for fault in [Fault::Stopped, Fault::Killed, Fault::CutOff] {
                    for kind in [Kind::Plain, Kind::Shared, Kind::Job, Kind::Session] {
                        let control = &control;
                        let run = move || [(); RUNS].map(|()| margin(control, lease, fault, kind));
                        runs.push((scope.spawn(run), (lease, fault, kind)));
                    }
                }
                for (run, scene) in runs {
                    let margins = run.join().unwrap().into_iter().flatten();
                    let scene = format!("{scene:?}");
                    judged.entry(scene).or_default().extend(margins);
                }
            });
        }
    }
    // A stall that the control did not see makes some of them late. A client that is late
    // is late most of the time.
    for (scene, margins) in judged.into_iter().filter(|(_, one)| counts(one)) {
        assert!(!is_late(&margins), "{scene}: {margins:?}");
    }
}
