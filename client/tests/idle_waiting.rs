//! Those who wait let the server do the work.

#[path = "support/counting.rs"]
mod counting;
mod support;

use std::time::{Duration, Instant};

use redis_lock_client::LockClient;
use redis_lock_testing::TestServer;

use counting::{all_calls, calls};
use support::{eventually, url};

const WAITERS: i64 = 500;

/// How often a client may ask the server who is connected.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// How often a client may ask for locks on behalf of all who don't wait there.
const ASK_EVERY: Duration = Duration::from_millis(50);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_in_vain_sends_nothing_but_a_look_for_all() {
    let server = TestServer::start();
    let mut observer = server.client();
    let builder = LockClient::builder().max_waiting_connections(WAITERS as usize);
    let client = builder.connect(url(&server)).await.unwrap();
    for nth in 0..WAITERS {
        observer.int(&format!("LOCK.ACQUIRE lock{nth} stranger LEASE 600000"));
        tokio::spawn(client.lock(format!("lock{nth}")).acquire());
    }
    eventually("all wait", || observer.info("lock_waiters") == WAITERS).await;
    let (begun, before) = (Instant::now(), all_calls(&mut observer));
    let looks_before = calls(&mut observer, "client|list");
    let mut looks = 0;
    while looks < 3 {
        looks = calls(&mut observer, "client|list") - looks_before;
        let sent = all_calls(&mut observer) - before;
        // One may have been sent between the two questions.
        assert!(
            sent <= looks + 1,
            "those who wait sent {sent} commands, of which {looks} were looks"
        );
        assert!(begun.elapsed() < 20 * LOOK_EVERY, "nobody looks");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let due = begun.elapsed().div_duration_f64(LOOK_EVERY);
    assert!(looks as f64 <= due + 2.0, "{looks} looks, {due} are due");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_beyond_the_limit_asks_now_and_then() {
    let server = TestServer::start();
    let mut observer = server.client();
    let client = support::connect(&server).await;
    for nth in 0..WAITERS {
        observer.int(&format!("LOCK.ACQUIRE lock{nth} stranger LEASE 600000"));
        tokio::spawn(client.lock(format!("lock{nth}")).acquire());
    }
    // Each has asked once, and those that wait there twice.
    eventually("all wait, here or there", || {
        let asked = calls(&mut observer, "lock.acquire");
        observer.info("lock_waiters") == 128 && asked >= 2 * WAITERS as u64 + 128
    })
    .await;
    let (begun, before) = (Instant::now(), all_calls(&mut observer));
    let looks_before = calls(&mut observer, "client|list");
    while calls(&mut observer, "client|list") < looks_before + 3 {
        let sent = all_calls(&mut observer) - before;
        let due = begun.elapsed().div_duration_f64(ASK_EVERY);
        assert!(sent as f64 <= due + 10.0, "{sent} commands, {due} are due");
        assert!(begun.elapsed() < 20 * LOOK_EVERY, "nobody looks");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
