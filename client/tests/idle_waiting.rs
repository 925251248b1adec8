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

/// How often a client may ask whether its connection still answers.
const PING_EVERY: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_in_vain_sends_nothing_but_a_ping_for_all() {
    let server = TestServer::start();
    let mut observer = server.client();
    let client = LockClient::connect(url(&server)).await.unwrap();
    for nth in 0..WAITERS {
        observer.int(&format!("LOCK.ACQUIRE lock{nth} stranger LEASE 600000"));
        tokio::spawn(client.lock(format!("lock{nth}")).acquire());
    }
    eventually("all wait", || observer.info("lock_waiters") == WAITERS).await;
    let (begun, before) = (Instant::now(), all_calls(&mut observer));
    let pings_before = calls(&mut observer, "ping");
    let mut pings = 0;
    while pings < 3 {
        pings = calls(&mut observer, "ping") - pings_before;
        let sent = all_calls(&mut observer) - before;
        // One may have been sent between the two questions.
        assert!(
            sent <= pings + 1,
            "those who wait sent {sent} commands, of which {pings} were pings"
        );
        assert!(begun.elapsed() < 20 * PING_EVERY, "nobody looks");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let connections = 1 + server.subscribers();
    let due = connections as f64 * begun.elapsed().div_duration_f64(PING_EVERY);
    assert!(pings as f64 <= due + 2.0, "{pings} pings, {due} are due");
}

#[tokio::test]
async fn who_does_not_wait_sends_nothing() {
    let server = TestServer::start();
    let mut observer = server.client();
    let client = LockClient::connect(url(&server)).await.unwrap();
    let lock = client.lock("lock");
    let guard = lock.acquire().await.unwrap();
    // It has waited once.
    let wait = Duration::from_millis(10);
    assert!(lock.acquire_within(wait).await.unwrap().is_none());
    let before = calls(&mut observer, "ping");
    let another = LockClient::connect(url(&server)).await.unwrap();
    observer.int("LOCK.ACQUIRE other stranger LEASE 600000");
    let waiting = tokio::spawn(another.lock("other").acquire());
    eventually("others ping", || calls(&mut observer, "ping") > before + 1).await;
    waiting.abort();
    let pings = calls(&mut observer, "ping") - before;
    assert!(pings <= 3, "{pings} pings of one who waits");
    guard.release().await.unwrap();
}
