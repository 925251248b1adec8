//! Locks that end with a connection.

mod support;

use std::time::{Duration, Instant};

use redis_lock_client::{Error, LockClient, LockGuard, Lost, Session};
use redis_lock_testing::{Fate, Judge, Proxy, TestServer};

use support::{bound_client, calls, connect, eventually, soon, take, url};

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

/// Has somebody wait for the lock until `end` has ended who holds it.
async fn judge_the_hand_off<T>(
    judge: &mut Judge,
    server: &TestServer,
    end: impl AsyncFnOnce() -> T,
) -> T {
    let next = connect(server).await;
    let waiting = tokio::spawn(async move {
        let granted = next.lock("lock").acquire().await;
        (granted, Instant::now())
    });
    eventually("it waits", || server.info("lock_waiters") == 1).await;
    let begun = Instant::now();
    let ended = end().await;
    let (granted, at) = soon("its turn", waiting).await.unwrap();
    judge.judge(begun, at);
    granted.unwrap().release().await.unwrap();
    ended
}

#[tokio::test]
async fn many_locks_are_held_by_one_connection_and_end_with_it() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let before = server.info("connected_clients");
    let session = client.session().await.unwrap();
    let mut guards = Vec::new();
    for n in 0..MANY {
        let lock = session.lock(format!("lock{n}"));
        guards.push(lock.acquire().await.unwrap());
    }
    let beside = server.subscribers();
    assert!((before + 1..=before + 1 + beside).contains(&server.info("connected_clients")));
    assert_eq!(server.info("lock_sessions"), MANY);
    guards.remove(0).release().await.unwrap();
    assert_eq!(server.info("lock_sessions"), MANY - 1);
    assert!(session.is_alive());
    assert_eq!(server.client().int("EXISTS lock0"), 0);

    let bound = bound_client(&mut server.client(), "lock1");
    server.client().int(&format!("CLIENT KILL ID {bound}"));
    assert_eq!(soon("the loss", session.lost()).await, Lost::Disconnected);
    assert!(!session.is_alive());
    for guard in guards {
        assert_eq!(soon("the loss", guard.lost()).await, Lost::Disconnected);
        assert_eq!(guard.valid_for(), Duration::ZERO);
    }
    // They have ended, and their keys go a few at a time.
    let mut observer = server.client();
    eventually("their keys are gone", || observer.int("DBSIZE") == 0).await;
    assert!(session.lock("lock").acquire().await.is_err());
}

#[tokio::test]
async fn it_ends_when_it_is_dropped_whatever_guards_there_are() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let before = server.info("connected_clients");
    let mut judge = Judge::new("from a drop to the next holder", AT_ONCE);
    while judge.wants_more() {
        let (session, guard) = hold(&client).await;
        judge_the_hand_off(&mut judge, &server, async || drop(session)).await;
        assert_eq!(server.info("lock_sessions"), 0);
        soon("the loss", guard.lost()).await;
        assert_eq!(guard.valid_for(), Duration::ZERO);
    }
    eventually("its connections are closed", || {
        server.info("connected_clients") <= before + server.subscribers()
    })
    .await;
}

#[tokio::test]
async fn a_guard_that_goes_after_its_session_tells_that_the_session_ended_it() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let (session, guard) = hold(&client).await;
    let lost = guard.lost();
    soon("its end", session.close()).await;
    let released = guard.release().await;
    assert!(matches!(released, Err(Error::Lost(Lost::Disconnected))));
    assert_eq!(soon("the loss", lost).await, Lost::Disconnected);
}

#[tokio::test]
async fn it_has_ended_when_it_is_closed() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let (session, guard) = hold(&client).await;
    soon("its end", session.close()).await;
    assert!(server.client().int("LOCK.ACQUIRE lock other") > 0);
    assert_eq!(guard.valid_for(), Duration::ZERO);
    assert!(guard.release().await.is_err());
}

#[tokio::test]
async fn a_dropped_guard_gives_its_lock_back_and_no_other() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let (session, guard) = hold(&client).await;
    let other = session.lock("other").acquire().await.unwrap();
    let mut judge = Judge::new("from a drop to the next holder", AT_ONCE);
    judge_the_hand_off(&mut judge, &server, async || drop(guard)).await;
    while judge.wants_more() {
        let guard = session.lock("lock").acquire().await.unwrap();
        judge_the_hand_off(&mut judge, &server, async || drop(guard)).await;
    }
    assert_eq!(server.info("lock_sessions"), 1);
    other.renew().await.unwrap();
}

#[test]
fn it_ends_with_the_runtime() {
    let server = TestServer::start();
    let start = || tokio::runtime::Runtime::new().unwrap();
    let mut judge = Judge::new("from a runtime's end to the next holder", AT_ONCE);
    while judge.wants_more() {
        let runtime = start();
        let held = runtime.block_on(async { hold(&connect(&server).await).await });
        start().block_on(judge_the_hand_off(&mut judge, &server, async || {
            tokio::task::spawn_blocking(move || drop(runtime))
                .await
                .unwrap();
        }));
        drop(held);
    }
}

#[tokio::test]
async fn a_killed_connection_loses_it_at_once_and_its_holder_is_told() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let mut observer = server.client();
    let mut handed_on = Judge::new("from a kill to the next holder", AT_ONCE);
    let mut told = Judge::new("from a kill until its holder is told", AT_ONCE);
    while handed_on.wants_more() || told.wants_more() {
        let (_session, guard) = hold(&client).await;
        let bound = bound_client(&mut observer, "lock");
        let (begun, why, ended) = judge_the_hand_off(&mut handed_on, &server, async || {
            let begun = Instant::now();
            observer.int(&format!("CLIENT KILL ID {bound}"));
            let why = soon("the loss", guard.lost()).await;
            (begun, why, Instant::now())
        })
        .await;
        told.judge(begun, ended);
        assert_eq!(why, Lost::Disconnected);
        assert_eq!(guard.valid_for(), Duration::ZERO);
        let error = guard.release().await.unwrap_err();
        assert!(
            matches!(error, Error::Lost(Lost::Disconnected)),
            "{error:?}"
        );
    }
    // The client and its other connections are none the worse.
    hold(&client).await.1.release().await.unwrap();
}

#[tokio::test]
async fn a_server_that_dies_takes_it_along() {
    let mut server = TestServer::start();
    let client = connect(&server).await;
    let (session, guard) = hold(&client).await;
    server.crash();
    assert_eq!(soon("the loss", guard.lost()).await, Lost::Disconnected);
    assert_eq!(soon("the loss", session.lost()).await, Lost::Disconnected);
}

#[tokio::test]
async fn a_server_stopped_past_the_lease_does_not_keep_it_up_later() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let mut judge = Judge::new("from a lease's end here to the end there", LEASE / 100);
    while judge.wants_more() {
        let session = client.session().await.unwrap();
        let guard = session.lock("lock").lease(LEASE).acquire().await.unwrap();
        server.stop();
        assert!(guard.valid_for() > Duration::ZERO);
        let ends_here = Instant::now() + guard.valid_for();
        assert_eq!(soon("the loss", guard.lost()).await, Lost::Expired);
        judge.judge(ends_here, Instant::now());
        server.go_on();
        // The guard and its session are still there, but their hold is not.
        let next = connect(&server).await;
        let granted = soon("another's turn", next.lock("lock").acquire()).await;
        let granted = granted.unwrap();
        assert!(granted.token() > guard.token());
        assert!(guard.release().await.is_err());
        granted.release().await.unwrap();
    }
}

#[tokio::test]
async fn it_ends_where_a_lock_of_it_can_not_be_given_back_within_its_lease() {
    let server = TestServer::start();
    let mut admin = server.client();
    admin.call("ACL SETUSER locks on >secret ~* &* +@all -lock.release");
    let client = LockClient::connect(format!("redis://locks:secret@{}", server.addr()));
    let client = client.await.unwrap();
    let session = client.session().await.unwrap();
    let guard = session.lock("lock").lease(LEASE).acquire().await.unwrap();
    assert_eq!(guard.release().await.unwrap_err().code(), "NOPERM");
    assert_eq!(soon("its end", session.lost()).await, Lost::Expired);
    eventually("it is free", || admin.int("EXISTS lock") == 0).await;
}

/// A client that is soon impatient, and whose sessions end after a silence of this lease.
async fn impatient(server: &TestServer, lease: Duration) -> LockClient {
    let builder = LockClient::builder().default_lease(lease);
    let builder = builder.response_timeout(LEASE / 10);
    builder.connect(url(server)).await.unwrap()
}

#[tokio::test]
async fn without_holds_it_ends_when_nothing_is_answered_for_a_lease() {
    let server = TestServer::start();
    let session = impatient(&server, LEASE).await.session().await.unwrap();
    server.stop();
    // What one of these may have taken is given back for longer.
    let lock = session.lock("lock").lease(LEASE * 100);
    let asking = async {
        while session.is_alive() {
            lock.try_acquire().await.unwrap_err();
        }
    };
    soon("its end", asking).await;
    assert_eq!(session.lost().await, Lost::Expired);
    server.go_on();
}

#[tokio::test]
async fn with_a_hold_of_a_longer_lease_it_outlasts_a_silence_of_the_clients() {
    let server = TestServer::start();
    let session = impatient(&server, LEASE).await.session().await.unwrap();
    let lock = |key| session.lock(key).lease(LEASE * 100);
    let guard = lock("lock").acquire().await.unwrap();
    server.stop();
    let begun = Instant::now();
    while begun.elapsed() < LEASE * 3 / 2 {
        guard.renew().await.unwrap_err();
        lock("other").try_acquire().await.unwrap_err();
    }
    assert!(session.is_alive());
    server.go_on();
    soon("a renewal", async { while guard.renew().await.is_err() {} }).await;
    guard.release().await.unwrap();
}

#[tokio::test]
async fn the_shortest_lease_of_its_locks_ends_it_in_a_silence() {
    let server = TestServer::start();
    let session = impatient(&server, LEASE * 100).await.session().await;
    let session = session.unwrap();
    let long = session.lock("long").acquire().await.unwrap();
    let lock = session.lock("short").lease(LEASE);
    let short = lock.acquire().await.unwrap();
    server.stop();
    assert_eq!(soon("its end", session.lost()).await, Lost::Expired);
    assert_eq!(short.valid_for(), Duration::ZERO);
    assert_eq!(long.valid_for(), Duration::ZERO);
    server.go_on();
}

#[tokio::test]
async fn a_hold_that_has_ended_does_not_keep_it_up_in_a_silence() {
    let server = TestServer::start();
    let session = impatient(&server, LEASE).await.session().await.unwrap();
    let lock = session.lock("lock").lease(LEASE * 100);
    let guard = lock.acquire().await.unwrap();
    assert_eq!(server.client().int("LOCK.BREAK lock"), 1);
    guard.renew().await.unwrap_err();
    server.stop();
    let asking = async {
        while session.is_alive() {
            lock.try_acquire().await.unwrap_err();
        }
    };
    soon("its end", asking).await;
    assert_eq!(session.lost().await, Lost::Expired);
    server.go_on();
}

#[tokio::test]
async fn a_silence_counts_from_the_last_answer() {
    let server = TestServer::start();
    // Far longer than a stop.
    let lease = LEASE * 2;
    let session = impatient(&server, lease).await.session().await.unwrap();
    let begun = Instant::now();
    while begun.elapsed() < lease * 3 / 2 {
        server.stop();
        session.lock("lock").try_acquire().await.unwrap_err();
        server.go_on();
        let answered = async {
            while session.lock("lock").try_acquire().await.is_err() {
                assert!(session.is_alive());
            }
        };
        soon("an answer", answered).await;
    }
}

#[tokio::test]
async fn it_is_kept_up_even_if_its_lock_is_not_to_be_renewed() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let session = client.session().await.unwrap();
    let lock = session.lock("lock").lease(LEASE).renew(false);
    let guard = lock.acquire().await.unwrap();
    let lost = tokio::time::timeout(LEASE * 3 / 2, guard.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn it_outlasts_its_lease_many_times() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let session = client.session().await.unwrap();
    let guard = session.lock("lock").lease(LEASE).acquire().await.unwrap();
    let lost = tokio::time::timeout(LEASE * 3, guard.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    assert!(guard.valid_for() > Duration::ZERO && guard.valid_for() < LEASE);
    guard.release().await.unwrap();
    assert_eq!(server.client().int("EXISTS lock"), 0);
}

#[tokio::test]
async fn one_that_somebody_took_away_is_told_by_the_next_renewal() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let session = client.session().await.unwrap();
    let guard = session.lock("lock").lease(LEASE).acquire().await.unwrap();
    let other = session.lock("other").acquire().await.unwrap();
    assert_eq!(server.client().int("LOCK.BREAK lock"), 1);
    assert_eq!(soon("the loss", guard.lost()).await, Lost::Refused);
    assert!(session.is_alive());
    other.renew().await.unwrap();
}

#[tokio::test]
async fn who_waits_for_one_has_it_bound_to_the_sessions_connection() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let guard = take(&client, "lock").await;
    let session = client.session().await.unwrap();
    let other = session.lock("other").acquire().await.unwrap();
    let lock = session.lock("lock");
    assert!(lock.try_acquire().await.unwrap().is_none());
    let waiting = support::queue(&server, &lock, 0).await;
    // Who waits does not keep the session from anything else.
    other.renew().await.unwrap();
    guard.release().await.unwrap();
    let guard = soon("its turn", waiting).await.unwrap().unwrap();
    assert_eq!(server.info("lock_sessions"), 2);
    assert!(guard.valid_for() > Duration::from_secs(20));
    let doomed = support::queue(&server, &lock, 0).await;
    doomed.abort();
    eventually("nobody waits", || server.info("lock_waiters") == 0).await;
    let mut observer = server.client();
    assert_eq!(
        bound_client(&mut observer, "lock"),
        bound_client(&mut observer, "other")
    );
    guard.renew().await.unwrap();
    guard.release().await.unwrap();
    other.release().await.unwrap();
}

/// The server has not seen the end of their connections.
#[tokio::test]
async fn sessions_that_ended_in_an_outage_end_on_the_server_after_it() {
    let server = TestServer::start();
    let proxy = Proxy::to(server.addr()).unwrap();
    let builder = LockClient::builder().response_timeout(Duration::from_millis(100));
    let client = builder.connect(format!("redis://{}", proxy.addr()));
    let client = client.await.unwrap();
    let (closed, dropped) = (client.session().await, client.session().await);
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

#[tokio::test]
async fn guards_of_one_owner_share_a_hold_of_their_session() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let session = client.session().await.unwrap();
    let lock = session.lock("lock").owner("alice");
    let outer = lock.acquire().await.unwrap();
    let inner = lock.acquire().await.unwrap();
    assert_eq!(outer.token(), inner.token());
    drop(outer);
    client.flush().await;
    assert_eq!(server.info("lock_sessions"), 1);
    inner.release().await.unwrap();
    assert_eq!(server.info("lock_sessions"), 0);
    assert_eq!(server.client().int("EXISTS lock"), 0);
}

#[tokio::test]
async fn an_owner_that_comes_again_at_once_gets_a_new_one_each_time() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let session = client.session().await.unwrap();
    let lock = session.lock("lock").owner("alice");
    let mut last = 0;
    for _ in 0..100 {
        // The release of the last one may still be on its way.
        let guard = lock.acquire().await.unwrap();
        assert!(guard.token() > last);
        last = guard.token();
    }
    client.flush().await;
    assert_eq!(server.client().int("EXISTS lock"), 0);
}

#[tokio::test]
async fn readers_have_sessions_too_and_a_forgotten_one_ends_with_it() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let (one, other) = (client.session().await, client.session().await);
    let (one, other) = (one.unwrap(), other.unwrap());
    let forgotten = one.lock("lock").shared().acquire().await.unwrap();
    let kept = other.lock("lock").shared().acquire().await.unwrap();
    assert_eq!(server.info("lock_sessions"), 2);
    forgotten.forget();
    client.flush().await;
    assert_eq!(server.info("lock_sessions"), 2);
    drop(one);
    eventually("it ends", || server.info("lock_sessions") == 1).await;
    kept.renew().await.unwrap();
}

/// What a dropped acquire has sent may come later than what is sent after it on
/// another connection.
#[tokio::test]
async fn a_dropped_acquire_leaves_nothing_with_the_session() {
    let server = TestServer::start();
    let mut observer = server.client();
    let proxy = Proxy::to(server.addr()).unwrap();
    let client = LockClient::connect(format!("redis://{}", proxy.addr()));
    let client = client.await.unwrap();
    let (session, guard) = hold(&client).await;
    let bound = bound_client(&mut observer, "lock");
    guard.release().await.unwrap();
    // What is sent on this connection is late from now on, and the client opens
    // others.
    proxy.set(Fate::CommandsHeld);
    let own = observer.int("CLIENT ID");
    let clients = observer.bulk("CLIENT LIST");
    for client in clients.lines() {
        let id = client.strip_prefix("id=").unwrap();
        let id: i64 = id.split(' ').next().unwrap().parse().unwrap();
        if id != own && id != bound {
            observer.int(&format!("CLIENT KILL ID {id}"));
        }
    }
    let released = calls(&mut observer, "lock.release");
    let acquire = session.lock("lock").acquire();
    assert!(tokio::time::timeout(AT_ONCE, acquire).await.is_err());
    // If it is released on another connection, that is before it is granted.
    let _ = tokio::time::timeout(AT_ONCE * 5, async {
        while calls(&mut observer, "lock.release") == released {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    proxy.set(Fate::Passes);
    soon("all is given back", client.flush()).await;
    eventually("the lock is free", || observer.int("EXISTS lock") == 0).await;
    assert!(session.is_alive());
    let guard = session.lock("lock").acquire().await.unwrap();
    guard.release().await.unwrap();
}

/// An address that leads to another server from now on, as after a fail-over.
#[tokio::test]
async fn who_waits_in_a_session_is_told_by_the_server_of_the_session() {
    let (before, now) = (TestServer::start(), TestServer::start());
    let proxy = Proxy::to(before.addr()).unwrap();
    let client = LockClient::connect(format!("redis://{}", proxy.addr()));
    let client = client.await.unwrap();
    take(&client, "lock").await.release().await.unwrap();
    proxy.lead_to(now.addr());
    let session = client.session().await.unwrap();
    let held = take(&connect(&now).await, "lock").await;
    let waiting = tokio::spawn(session.lock("lock").acquire());
    eventually("it waits", || now.info("lock_waiters") == 1).await;
    held.release().await.unwrap();
    let granted = soon("the grant", waiting).await.unwrap().unwrap();
    granted.release().await.unwrap();
}
