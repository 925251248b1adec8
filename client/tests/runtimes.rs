//! A client that lives longer than a runtime in which it is used.

#[path = "support/alone.rs"]
mod alone;
#[path = "support/counting.rs"]
mod counting;
mod support;

use std::time::Duration;

use redis_lock_client::{Error, LockClient, Lost};
use redis_lock_testing::{TestServer, eventually};
use tokio::runtime::{Builder, Runtime};

use support::{connect, soon, take, url};

/// Renewed after two seconds, and over after six.
const LEASE: Duration = Duration::from_secs(6);

/// A runtime that runs nothing unless it is told to.
fn idle_runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn await_free(server: &TestServer) {
    let mut observer = server.client();
    eventually("the lock is free", || observer.int("EXISTS lock") == 0);
}

#[test]
fn what_a_runtime_drops_before_it_ends_is_given_back() {
    let server = TestServer::start();
    let lasting = Runtime::new().unwrap();
    let client = lasting.block_on(connect(&server));
    let brief = idle_runtime();
    brief.block_on(async {
        drop(take(&client, "lock").await);
    });
    drop(brief);
    await_free(&server);
}

#[test]
fn an_acquire_that_ends_with_its_runtime_leaves_nothing() {
    let server = TestServer::start();
    let lasting = Runtime::new().unwrap();
    let client = lasting.block_on(connect(&server));
    let mut stranger = server.client();
    stranger.int("LOCK.ACQUIRE lock stranger LEASE 600000");
    let brief = Runtime::new().unwrap();
    brief.spawn(client.lock("lock").acquire());
    server.await_waiters(1);
    drop(brief);
    server.await_waiters(0);
    assert_eq!(stranger.int("LOCK.RELEASE lock stranger"), 1);
    await_free(&server);
}

#[test]
fn a_hold_is_renewed_whichever_runtime_took_the_first() {
    let server = TestServer::start();
    let lasting = Runtime::new().unwrap();
    let builder = LockClient::builder().default_lease(LEASE);
    let client = lasting.block_on(builder.connect(url(&server))).unwrap();
    // It lives, but nobody runs it any more.
    let idle = idle_runtime();
    let first = idle.block_on(take(&client, "first"));
    lasting.block_on(async {
        let second = take(&client, "second").await;
        let mut observer = server.client();
        let renewed = support::eventually("both are renewed", || {
            counting::calls(&mut observer, "lock.renew") >= 2
        });
        tokio::select! {
            () = renewed => {}
            why = second.lost() => panic!("{why}"),
        }
        second.release().await.unwrap();
        first.release().await.unwrap();
    });
}

#[test]
fn a_client_whose_runtime_has_ended_says_so() {
    let server = TestServer::start();
    let (brief, lasting) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let client = brief.block_on(connect(&server));
    let guard = brief.block_on(take(&client, "lock"));
    drop(brief);
    lasting.block_on(async {
        let lock = client.lock("other");
        let told = [
            soon("an answer", lock.try_acquire()).await.err(),
            soon("an answer", lock.acquire()).await.err(),
            soon("an answer", guard.renew()).await.err(),
            soon("an answer", client.session()).await.err(),
        ];
        for error in told {
            assert!(matches!(error, Some(Error::Stopped)), "{error:?}");
        }
    });
}

#[test]
fn the_holds_of_a_session_are_lost_with_the_runtime_of_its_client() {
    let server = TestServer::start();
    let (brief, lasting) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let client = brief.block_on(connect(&server));
    let session = brief.block_on(client.session()).unwrap();
    let held = brief.block_on(session.lock("lock").acquire()).unwrap();
    drop(brief);
    lasting.block_on(async {
        assert_eq!(held.valid_for(), Duration::ZERO);
        assert!(!session.is_alive());
        assert_eq!(soon("the loss", held.lost()).await, Lost::Disconnected);
        assert_eq!(soon("the end", session.lost()).await, Lost::Disconnected);
        let other = connect(&server).await;
        let next = soon("the next grant", other.lock("lock").acquire());
        next.await.unwrap().release().await.unwrap();
    });
}

#[test]
fn whoever_waits_is_told_that_the_runtime_of_its_client_has_ended() {
    let server = TestServer::start();
    let (brief, lasting) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let client = brief.block_on(connect(&server));
    let _held = brief.block_on(take(&client, "lock"));
    let waiting = lasting.spawn(client.lock("lock").acquire());
    server.await_waiters(1);
    drop(brief);
    let told = lasting.block_on(soon("the end", waiting)).unwrap();
    assert!(matches!(told, Err(Error::Stopped)), "{told:?}");
}

#[cfg(feature = "blocking")]
#[test]
fn a_program_that_ends_in_spawn_blocking_gives_back() {
    let server = TestServer::start();
    alone::run("a_guard_is_dropped_last", &url(&server), &[]);
    await_free(&server);
}

#[cfg(feature = "blocking")]
#[tokio::test]
#[ignore = "needs a process of its own"]
async fn a_guard_is_dropped_last() {
    let last = tokio::task::spawn_blocking(|| {
        let client = redis_lock_client::blocking::LockClient::connect(alone::told()).unwrap();
        let guard = client.lock("lock").try_acquire().unwrap().unwrap();
        drop(client);
        drop(guard);
    });
    last.await.unwrap();
}
