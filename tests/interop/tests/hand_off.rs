//! How soon a waiter of one side hears of a release by the other.

use std::time::{Duration, Instant};

use redis_lock_chaos::clock;
use redis_lock_chaos::history::Nanos;
use redis_lock_interop::{NOBODY_LISTENS, Redisson, Scene, versions};
use redis_lock_testing::Control;

/// How many hand-offs let the JVM compile what they need.
const WARM_UP: usize = 2000;

/// How many are measured in a round.
const MEASURED: usize = 1000;

/// How many rounds there are. Their median counts.
const ROUNDS: usize = 5;

/// Hands a lock on, again and again. 99 of 100 hand-offs have to take no longer
/// than `limit`, from before the release was sent until the waiter was told.
///
/// `hand_off` also measures a plain round trip of Redisson's. Where that takes
/// long, the machine is busy with other things, and a hand-off may take as much
/// longer. What was late while a processor stalled does not count.
#[track_caller]
fn assert_p99(what: &str, limit: Duration, mut hand_off: impl FnMut() -> (Span, Span)) {
    let control = Control::start();
    for _ in 0..WARM_UP {
        hand_off();
    }
    let rounds = [(); ROUNDS].map(|()| {
        let (hand_offs, round_trips): (Vec<_>, Vec<_>) = (0..MEASURED).map(|_| hand_off()).unzip();
        let judged = |spans: Vec<Span>| {
            let counts = |&(from, to): &Span| {
                Duration::from_nanos(to - from) <= limit
                    || control.stalled(moment(from), moment(to)) < limit / 2
            };
            let counted = spans.into_iter().filter(counts);
            let mut taken: Vec<_> = counted.map(|(from, to)| to - from).collect();
            taken.sort_unstable();
            taken
        };
        let (hand_offs, round_trips) = (judged(hand_offs), judged(round_trips));
        let percentile = |sorted: &[Nanos], percent| {
            Duration::from_nanos(sorted[sorted.len() * percent / 100 - 1])
        };
        let p99 = percentile(&hand_offs, 99);
        let floor = percentile(&round_trips, 99);
        let (p50, max) = (percentile(&hand_offs, 50), percentile(&hand_offs, 100));
        let count = hand_offs.len();
        if count < MEASURED / 2 {
            println!("{what}: the machine had no time");
            return None;
        }
        println!("{what}, {count} judged: p50 {p50:?}, p99 {p99:?}, max {max:?}");
        println!("p99 of a round trip {floor:?}");
        Some(p99.saturating_sub(floor))
    });
    let mut judged: Vec<_> = rounds.into_iter().flatten().collect();
    judged.sort();
    let median = judged.get(judged.len() / 2);
    let is_fast = median.is_none_or(|&median| median <= limit);
    assert!(is_fast, "{what}: {judged:?}");
}

/// From when to when something took place.
type Span = (Nanos, Nanos);

/// A moment by the clock that Redisson's processes read as well.
fn moment(time: Nanos) -> Instant {
    Instant::now() - Duration::from_nanos(clock::now().saturating_sub(time))
}

/// From when to when Redisson asked the server something.
fn round_trip(redisson: &mut Redisson) -> Span {
    redisson.send("a", "is-locked k");
    let answer = redisson.answer("a");
    (answer.sent, answer.answered)
}

#[test]
#[ignore = "needs Redisson: make interop"]
fn a_waiter_of_redissons_is_woken_by_a_native_release() {
    for version in versions() {
        let mut scene = Scene::set(version);
        let what = format!("from a native release to Redisson {version}");
        assert_p99(&what, Duration::from_millis(5), || {
            scene.run("n > LOCK.ACQUIRE k n -> token \n a: lock k -> ..");
            let sent = clock::now();
            scene.run("n > LOCK.RELEASE k n -> 1");
            let locked = scene.redisson.answer("a");
            assert_eq!(locked.result, "ok");
            scene.run("a: unlock k -> ok").run(NOBODY_LISTENS);
            ((sent, locked.answered), round_trip(&mut scene.redisson))
        });
    }
}

#[test]
#[ignore = "needs Redisson: make interop"]
fn a_native_waiter_is_woken_by_redissons_unlock() {
    for version in versions() {
        let mut scene = Scene::set(version);
        let what = format!("from Redisson {version} to a native waiter");
        assert_p99(&what, Duration::from_millis(2), || {
            scene.run("a: lock k -> ok \n n > LOCK.ACQUIRE k n BLOCK 0 -> ..");
            scene.redisson.send("a", "unlock k");
            scene.run("n < token");
            let granted = clock::now();
            let unlocked = scene.redisson.answer("a");
            assert_eq!(unlocked.result, "ok");
            scene.run("n > LOCK.RELEASE k n -> 1");
            let floor = round_trip(&mut scene.redisson);
            ((unlocked.sent, granted), floor)
        });
    }
}
