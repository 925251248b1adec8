//! Locks that end with a connection.

mod support;

use std::net::Shutdown;
use std::time::{Duration, Instant};

use redis_lock_client::{Error, LockClient, LockGuard, Lost, Session};
use redis_lock_testing::{Fate, Judge, Proxy, Server};

use support::{
    IMPATIENT, assert_nothing_left, behind_a_proxy, bound_client, connect, connect_through,
    eventually, free, granted, queue, soon, start, subscribers, take, url_as, waiters,
};

/// The server does it in 5 ms.
const AT_ONCE: Duration = Duration::from_millis(100);

const LEASE: Duration = Duration::from_secs(2);

/// How many locks one session has.
const MANY: i64 = 100;

/// Takes the lock with a new session.
async fn hold(client: &LockClient) -> (Session, LockGuard) {
    let session = client.session().await.unwrap();
    let guard = session.lock("lock").acquire().await.unwrap();
    (session, guard)
}

async fn kill(server: &Server, client: &LockClient, key: &str) {
    let bound = bound_client(client, key).await;
    let kill = format!("CLIENT KILL ID {bound}");
    assert_eq!(server.client().int(&kill), 1);
}

#[tokio::test]
async fn many_locks_are_held_by_one_connection_and_end_with_it() {
    let (server, client) = start().await;
    let before = server.info("connected_clients");
    let session = client.session().await.unwrap();
    let mut guards = Vec::new();
    for n in 0..MANY {
        let lock = session.lock(format!("lock{n}"));
        guards.push(lock.acquire().await.unwrap());
    }
    let most = before + 1 + subscribers(&server);
    assert!((before + 1..=most).contains(&server.info("connected_clients")));
    assert_eq!(server.info("lock_sessions"), MANY);
    guards.remove(0).release().await.unwrap();
    assert_eq!(server.info("lock_sessions"), MANY - 1);
    assert!(session.is_alive());
    assert_eq!(server.client().int("EXISTS lock0"), 0);

    kill(&server, &client, "lock1").await;
    assert_eq!(soon("the loss", session.lost()).await, Lost::Disconnected);
    assert!(!session.is_alive());
    for guard in guards {
        assert_eq!(soon("the loss", guard.lost()).await, Lost::Disconnected);
        assert_eq!(guard.valid_for(), Duration::ZERO);
    }
    // They have ended, and their keys go a few at a time.
    let mut observer = server.client();
    eventually("their keys are gone", || observer.int("DBSIZE") == 0).await;
    for outcome in [
        soon("an answer", session.lock("lock").acquire())
            .await
            .err(),
        soon("an answer", session.lock("lock").try_acquire())
            .await
            .err(),
    ] {
        let error = outcome.expect("it has ended");
        assert!(
            matches!(error, Error::Lost(Lost::Disconnected)),
            "{error:?}"
        );
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Killed,
    Dropped,
    Closed,
    GuardDropped,
}

#[tokio::test]
async fn however_it_ends_the_next_holder_has_the_lock_at_once() {
    let (server, client) = start().await;
    let before = server.info("connected_clients");
    for end in [End::Killed, End::Dropped, End::Closed, End::GuardDropped] {
        let mut judge = Judge::new("from its end to the next holder", AT_ONCE);
        while judge.wants_more() {
            let (session, guard) = hold(&client).await;
            let other = session.lock("other").acquire().await.unwrap();
            let next = queue(&server, &client.lock("lock"), 0).await;
            let next = tokio::spawn(async move { (granted(next).await, Instant::now()) });
            let bound = bound_client(&client, "lock").await;
            let lost = guard.lost();
            let (mut session, mut guard) = (Some(session), Some(guard));
            let begun = Instant::now();
            match end {
                End::Killed => {
                    server.client().int(&format!("CLIENT KILL ID {bound}"));
                }
                End::Dropped => drop(session.take()),
                End::Closed => session.take().unwrap().close().await,
                End::GuardDropped => drop(guard.take()),
            }
            let why = soon("the loss", lost).await;
            let told = Instant::now();
            let (next, at) = soon("its turn", next).await.unwrap();
            judge.judge(begun, at);
            judge.judge(begun, told);
            if end == End::GuardDropped {
                assert_eq!(why, Lost::Released);
                other.renew().await.unwrap();
            } else {
                assert_eq!(why, Lost::Disconnected, "{end:?}");
                assert_eq!(soon("the loss", other.lost()).await, why);
            }
            if let Some(guard) = guard {
                assert_eq!(guard.valid_for(), Duration::ZERO);
                let released = guard.release().await;
                assert!(matches!(released, Err(Error::Lost(Lost::Disconnected))));
            }
            drop((session, other));
            next.release().await.unwrap();
            free(&server, "other").await;
        }
    }
    eventually("its connections are closed", || {
        server.info("connected_clients") <= before + subscribers(&server)
    })
    .await;
    assert_nothing_left(&server, &client).await;
}

#[tokio::test]
async fn a_server_stopped_past_the_lease_does_not_keep_it_up_later() {
    let (server, client) = start().await;
    let session = client.session().await.unwrap();
    let long = session.lock("long").lease(LEASE * 100);
    let long = long.acquire().await.unwrap();
    let guard = session.lock("lock").lease(LEASE).acquire().await.unwrap();
    server.stop().unwrap();
    assert!(guard.valid_for() > Duration::ZERO);
    assert_eq!(soon("the loss", guard.lost()).await, Lost::Expired);
    server.go_on().unwrap();
    // With one of its holds the session ends.
    soon("its end", session.lost()).await;
    assert!(!session.is_alive() && long.valid_for().is_zero());
    // The guard and its session are still there, but their holds are not.
    let next = connect(&server).await;
    for key in ["lock", "long"] {
        let next = soon("another's turn", next.lock(key).acquire()).await;
        let next = next.unwrap();
        assert!(next.token() > guard.token());
        next.release().await.unwrap();
    }
    assert!(guard.release().await.is_err());
}

#[tokio::test]
async fn it_ends_where_a_lock_of_it_can_not_be_given_back_within_its_lease() {
    let server = Server::start();
    let url = url_as(&server, "locks", "-lock.release");
    let client = LockClient::connect(url).await.unwrap();
    let session = client.session().await.unwrap();
    let guard = session.lock("lock").lease(LEASE).acquire().await.unwrap();
    assert_eq!(guard.release().await.unwrap_err().code(), "NOPERM");
    soon("its end", session.lost()).await;
    free(&server, "lock").await;
}

#[tokio::test]
async fn work_that_was_done_in_time_keeps_its_result_where_the_session_ends_in_its_release() {
    let server = Server::start();
    let (proxy, client) = behind_a_proxy(&server).await;
    let session = client.session().await.unwrap();
    let lock = session.lock("lock");
    let work = lock.run(async |_| proxy.set(Fate::RepliesSwallowed(100)));
    let cut = async {
        eventually("the reply is lost", || proxy.affected() > 0).await;
        proxy.hang_up(Shutdown::Both);
    };
    let (done, ()) = soon("its end", async { tokio::join!(work, cut) }).await;
    done.unwrap();
}

#[tokio::test]
async fn who_waits_for_one_has_it_bound_to_the_sessions_connection() {
    let (server, client) = start().await;
    let guard = take(&client, "lock").await;
    let session = client.session().await.unwrap();
    let other = session.lock("other").acquire().await.unwrap();
    let lock = session.lock("lock");
    assert!(lock.try_acquire().await.unwrap().is_none());
    let waiting = queue(&server, &lock, 0).await;
    // Who waits does not keep the session from anything else.
    other.renew().await.unwrap();
    guard.release().await.unwrap();
    let guard = granted(waiting).await;
    guard.renew().await.unwrap();
    assert_eq!(server.info("lock_sessions"), 2);
    let doomed = queue(&server, &lock, 0).await;
    doomed.abort();
    waiters(&server, 0).await;
    let bound = bound_client(&client, "lock").await;
    assert_eq!(bound, bound_client(&client, "other").await);
    // Its waits end with it, too.
    let waiting = queue(&server, &lock, 0).await;
    kill(&server, &client, "lock").await;
    let ended = soon("its end", waiting).await.unwrap().unwrap_err();
    assert!(
        matches!(ended, Error::Lost(Lost::Disconnected)),
        "{ended:?}"
    );
    drop((guard, other, session));
    assert_nothing_left(&server, &client).await;
}

/// The server has not seen the end of their connections.
#[tokio::test]
async fn sessions_that_ended_in_an_outage_end_on_the_server_after_it() {
    let server = Server::start();
    let proxy = Proxy::to(server.addr()).unwrap();
    let client = connect_through(&proxy, IMPATIENT).await;
    let [closed, dropped] = [client.session().await, client.session().await];
    let (closed, dropped) = (closed.unwrap(), dropped.unwrap());
    let _guard = closed.lock("lock").acquire().await.unwrap();
    let _other = dropped.lock("other").acquire().await.unwrap();
    assert_eq!(server.info("lock_sessions"), 2);
    proxy.swallow_on(|| true);
    proxy.set(Fate::Down);
    drop(dropped);
    soon("it is tried", closed.close()).await;
    assert_eq!(server.info("lock_sessions"), 2);
    proxy.set(Fate::Passes);
    eventually("they end", || server.info("lock_sessions") == 0).await;
    assert_eq!(server.client().int("EXISTS lock other"), 0);
}
