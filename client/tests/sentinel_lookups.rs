//! Sentinels that are far away.

use std::time::{Duration, Instant};

use redis_lock_client::LockClient;
use redis_lock_testing::{Fate, Proxy, Sentinels};

/// How long what is said to a sentinel is on its way.
const FAR: Duration = Duration::from_millis(50);

const WAITERS: i64 = 1000;

/// How often a client may ask who is the primary, once for each sentinel and
/// again where it is in doubt.
const FEW: usize = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_look_up_is_for_all_who_wait() {
    let group = Sentinels::start();
    let ways = group.addrs().map(|addr| Proxy::to(addr).unwrap());
    ways.iter().for_each(|way| way.set(Fate::Delayed(FAR)));
    let sentinels = ways.iter().map(|way| way.addr().to_string());
    let sentinels = sentinels.collect::<Vec<_>>().join(",");
    let url = format!("redis-sentinel://{sentinels}/locks");
    let builder = LockClient::builder().connect_timeout(Duration::from_secs(60));
    let client = builder.connect(url).await.unwrap();
    let mut stranger = group.primary.client();
    let begun = Instant::now();
    for nth in 0..WAITERS {
        stranger.int(&format!("LOCK.ACQUIRE lock{nth} stranger LEASE 600000"));
        tokio::spawn(client.lock(format!("lock{nth}")).acquire());
    }
    let asked = || ways.iter().map(|way| way.seen("SENTINEL")).sum::<usize>();
    loop {
        let waiting = stranger.info("lock_waiters");
        let questions = asked();
        assert!(
            questions <= FEW,
            "{questions} questions for {waiting} who wait, after {:?}",
            begun.elapsed()
        );
        if waiting == WAITERS {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{waiting} wait");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(asked() > 0, "nobody was asked");
}
