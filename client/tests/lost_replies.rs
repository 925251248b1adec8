//! Replies that get lost, and commands that arrive late.

#[path = "support/proxy.rs"]
mod proxy;
mod support;

use std::time::{Duration, Instant};

use proxy::{Fate, Proxy};
use redis_lock_client::{Error, LockClient, Lost};
use redis_lock_testing::TestServer;

use support::{connect, eventually, seeds, soon, take};

const RESPONSE: Duration = Duration::from_secs(1);

async fn connect_through(proxy: &Proxy, response: Duration) -> LockClient {
    LockClient::builder()
        .response_timeout(response)
        .connect(format!("redis://{}", proxy.addr))
        .await
        .unwrap()
}

/// Takes and gives back a lock through a lossy proxy, in turn with somebody
/// who has a good connection.
async fn nothing_leaks(fate: Fate, rounds: usize, seed: u64) {
    let server = TestServer::start();
    let proxy = Proxy::start(server.addr(), seed).await;
    // Where too little it is only tried again.
    let client = connect_through(&proxy, RESPONSE / 10).await;
    let rival = connect(&server).await;
    proxy.set(fate);
    let rivals = tokio::spawn(async move {
        for _ in 0..rounds {
            let guard = rival.lock("lock").acquire().await.unwrap().unwrap();
            guard.release().await.unwrap();
            tokio::task::yield_now().await;
        }
    });
    let mut last = 0;
    for round in 0.. {
        if round >= rounds && proxy.lost() > 3 {
            break;
        }
        let lock = client.lock("lock");
        let lock = if round % 2 == 0 {
            lock.owner("alice")
        } else {
            lock
        };
        let guard = lock.acquire().await.unwrap().unwrap();
        assert!(guard.token() > last);
        last = guard.token();
        match guard.release().await {
            // Whether the lock is free could not be told in time.
            Ok(()) | Err(Error::Unavailable(_)) => {}
            // A renewal that was answered late.
            Err(error) => panic!("{error:?}"),
        }
    }
    rivals.await.unwrap();
    soon("all is given back", client.flush()).await;
    assert_eq!(server.client().int("EXISTS lock"), 0);
    assert_eq!(server.info("blocked_clients"), 0);
    eprintln!("{} replies lost", proxy.lost());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_lost_with_its_connection_never_leaks_a_hold() {
    for seed in seeds() {
        nothing_leaks(Fate::RepliesLost(15), 150, seed).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_that_never_comes_never_leaks_a_hold() {
    for seed in seeds() {
        nothing_leaks(Fate::RepliesSwallowed(20), 20, seed).await;
    }
}

#[tokio::test]
async fn a_command_that_arrives_after_it_was_given_up_takes_nothing() {
    let server = TestServer::start();
    for owner in [None, Some("alice")] {
        let proxy = Proxy::start(server.addr(), 1).await;
        let client = connect_through(&proxy, RESPONSE).await;
        proxy.set(Fate::CommandsHeld);
        let lock = client.lock("lock").lease(Duration::from_secs(60));
        let lock = match owner {
            Some(owner) => lock.owner(owner),
            None => lock,
        };
        let error = lock.try_acquire().await.unwrap_err();
        assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
        // On another connection, while the command still lies in the proxy.
        soon("it is given back", client.flush()).await;
        proxy.set(Fate::Passes);
        eventually("the old connection is gone", || {
            server.info("connected_clients") <= 2
        })
        .await;
        assert_eq!(server.client().int("EXISTS lock"), 0);
    }
}

#[tokio::test]
async fn a_holder_that_is_cut_off_is_told_and_then_gives_back() {
    let server = TestServer::start();
    let proxy = Proxy::start(server.addr(), 1).await;
    let client = LockClient::builder()
        .default_lease(3 * RESPONSE)
        .response_timeout(RESPONSE)
        .connect(format!("redis://{}", proxy.addr))
        .await
        .unwrap();
    let guard = take(&client, "lock").await;
    proxy.set(Fate::RepliesSwallowed(100));
    assert_eq!(soon("the loss", guard.lost()).await, Lost::Expired);
    proxy.set(Fate::Passes);
    drop(guard);
    client.flush().await;
    eventually("the lock is free", || {
        server.client().int("EXISTS lock") == 0
    })
    .await;
}

#[tokio::test]
async fn a_wait_without_end_survives_a_connection_that_falls_silent() {
    let server = TestServer::start();
    let proxy = Proxy::start(server.addr(), 1).await;
    let client = connect_through(&proxy, RESPONSE).await;
    let rival = connect(&server).await;
    let held = take(&rival, "lock").await;
    let waiting = tokio::spawn(client.lock("lock").owner("alice").acquire());
    eventually("it waits", || server.info("blocked_clients") == 1).await;
    proxy.set(Fate::RepliesSwallowed(100));
    held.release().await.unwrap();
    // The reply to this grant never comes.
    eventually("it was granted", || {
        proxy.lost() > 0
            && server
                .client()
                .hash("lock")
                .iter()
                .any(|(name, _)| name == "alice")
    })
    .await;
    proxy.set(Fate::Passes);
    let guard = soon("it is told", waiting).await.unwrap().unwrap().unwrap();
    guard.renew().await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(server.client().int("EXISTS lock"), 0);
}

#[tokio::test]
async fn a_session_whose_connection_falls_silent_is_lost_and_closed() {
    let server = TestServer::start();
    let proxy = Proxy::start(server.addr(), 1).await;
    let client = LockClient::connect(format!("redis://{}", proxy.addr)).await;
    let lock = client.unwrap().lock("lock").session();
    let lease = Duration::from_secs(2);
    let guard = lock.lease(lease).acquire().await.unwrap().unwrap();
    proxy.set(Fate::RepliesSwallowed(100));
    let begun = Instant::now();
    assert_eq!(soon("the loss", guard.lost()).await, Lost::Expired);
    // One renewal may have been answered just before.
    assert!(begun.elapsed() < lease * 2, "{:?}", begun.elapsed());
    // The server renews for as long as the connection is there, so it is closed.
    eventually("it is free", || server.client().int("EXISTS lock") == 0).await;
}
