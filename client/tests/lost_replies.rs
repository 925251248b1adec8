//! Replies that get lost, and commands that arrive late.

mod support;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use redis_lock_client::{Error, LockClient, LockGuard, Lost};
use redis_lock_testing::{Fate, Judge, Proxy, TestServer};
use tokio::task::JoinSet;

use support::{SEEDS, connect, eventually, soon, take};

const RESPONSE: Duration = Duration::from_secs(1);

async fn connect_through(proxy: &Proxy, response: Duration) -> LockClient {
    LockClient::builder()
        .response_timeout(response)
        .connect(format!("redis://{}", proxy.addr()))
        .await
        .unwrap()
}

/// Takes and gives back a lock through a lossy proxy, in turn with somebody
/// who has a good connection.
async fn nothing_leaks(fate: Fate, rounds: usize, seed: u64) {
    let server = TestServer::start();
    let proxy = Proxy::seeded(server.addr(), seed).unwrap();
    // Where too little it is only tried again.
    let client = connect_through(&proxy, RESPONSE / 10).await;
    let rival = connect(&server).await;
    proxy.set(fate);
    let rivals = tokio::spawn(async move {
        for _ in 0..rounds {
            let guard = rival.lock("lock").acquire().await.unwrap();
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
        let guard = lock.acquire().await.unwrap();
        assert!(guard.token() > last);
        last = guard.token();
        match guard.release().await {
            // Whether the lock is free could not be told in time.
            Ok(()) | Err(Error::Unavailable { .. }) => {}
            // A renewal that was answered late.
            Err(error) => panic!("{error:?}"),
        }
    }
    rivals.await.unwrap();
    soon("all is given back", client.flush()).await;
    assert_eq!(server.client().int("EXISTS lock"), 0);
    assert_eq!(server.info("lock_waiters"), 0);
    eprintln!("{} replies lost", proxy.lost());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_lost_with_its_connection_never_leaks_a_hold() {
    for seed in SEEDS {
        nothing_leaks(Fate::RepliesLost(15), 150, seed).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_that_never_comes_never_leaks_a_hold() {
    for seed in SEEDS {
        nothing_leaks(Fate::RepliesSwallowed(20), 20, seed).await;
    }
}

/// Takes locks by sessions through a lossy proxy, one session after another.
async fn no_session_leaks(fate: Fate, rounds: usize, seed: u64) {
    let server = TestServer::start();
    let proxy = Proxy::seeded(server.addr(), seed).unwrap();
    let client = LockClient::builder()
        .default_lease(2 * RESPONSE)
        .response_timeout(RESPONSE / 10)
        .connect(format!("redis://{}", proxy.addr()))
        .await
        .unwrap();
    let rival = connect(&server).await;
    proxy.set(fate);
    let mut last = 0;
    for round in 0.. {
        if round >= rounds && proxy.lost() > 3 {
            break;
        }
        // It ends with its connection, and that where a reply is lost.
        let Ok(session) = client.session().await else {
            continue;
        };
        for key in ["lock", "other", "lock"] {
            let taken = soon("a grant or an error", session.lock(key).acquire());
            if let Ok(guard) = taken.await {
                assert!(guard.token() > last);
                last = guard.token();
                if round % 2 == 0 {
                    let _ = guard.release().await;
                }
            }
        }
        // Nobody has it for longer than the session.
        drop(session);
        let turn = soon("a rival's turn", rival.lock("lock").acquire()).await;
        turn.unwrap().release().await.unwrap();
    }
    soon("all is given back", client.flush()).await;
    eventually("all is free", || {
        server.info("lock_sessions") == 0 && server.client().int("DBSIZE") == 0
    })
    .await;
    assert_eq!(server.info("lock_waiters"), 0);
    eprintln!("{} replies lost", proxy.lost());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_loses_replies_leaks_no_hold() {
    for seed in SEEDS {
        no_session_leaks(Fate::RepliesLost(10), 100, seed).await;
        no_session_leaks(Fate::RepliesSwallowed(10), 10, seed).await;
    }
}

#[tokio::test]
async fn a_command_that_arrives_after_it_was_given_up_takes_nothing() {
    let server = TestServer::start();
    for owner in [None, Some("alice")] {
        let proxy = Proxy::to(server.addr()).unwrap();
        let client = connect_through(&proxy, RESPONSE).await;
        proxy.set(Fate::CommandsHeld);
        let lock = client
            .lock("lock")
            .lease(Duration::from_secs(60))
            .renew(false);
        let lock = match owner {
            Some(owner) => lock.owner(owner),
            None => lock,
        };
        let error = lock.try_acquire().await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
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

/// A client of this user, who has one right more or less than all.
async fn connect_as(server: &TestServer, user: &str, right: &str) -> (Proxy, LockClient) {
    let acl = format!("ACL SETUSER {user} on >secret ~* &* +@all {right}");
    server.client().call(&acl);
    let proxy = Proxy::to(server.addr()).unwrap();
    let client = LockClient::builder()
        .response_timeout(RESPONSE)
        .connect(format!("redis://{user}:secret@{}", proxy.addr()))
        .await
        .unwrap();
    (proxy, client)
}

const WITHOUT_KILL: &str = "-client|kill";

/// A renewal for so long comes through, and the guard relies on no more than that leaves.
async fn assert_bounded(server: &TestServer, key: &str, short: Duration, longer: &LockGuard) {
    let left = || Duration::from_millis(server.client().int(&format!("PTTL {key}")) as u64);
    eventually("it arrives", || left() <= short).await;
    let left = left();
    assert!(longer.valid_for() <= left, "of {key}, {left:?} are left");
}

#[tokio::test]
async fn a_renewal_that_arrives_late_leaves_no_more_than_is_relied_upon() {
    let server = TestServer::start();
    for (user, right) in [("all", "+@all"), ("no-kill", WITHOUT_KILL)] {
        let (proxy, client) = connect_as(&server, user, right).await;
        let lock = client.lock(user).owner("alice").renew(false);
        let short = 10 * RESPONSE;
        let first = lock.clone().lease(short).acquire().await.unwrap();
        proxy.set(Fate::CommandsHeld);
        let error = first.renew().await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        // On another connection, while the renewal still lies in the proxy.
        let longer = lock.lease(10 * short).acquire().await.unwrap();
        proxy.set(Fate::Passes);
        if user == "all" {
            assert!(
                longer.valid_for() > short,
                "the first connection was closed"
            );
            assert_bounded(&server, user, Duration::MAX, &longer).await;
        } else {
            assert_bounded(&server, user, short, &longer).await;
        }
    }
}

#[tokio::test]
async fn a_claim_that_arrives_late_leaves_no_more_than_is_relied_upon() {
    let server = TestServer::start();
    server.client().call("CONFIG SET lock.claim-timeout 600000");
    let (proxy, client) = connect_as(&server, "no-kill", WITHOUT_KILL).await;
    let rival = connect(&server).await;
    let held = take(&rival, "lock").await;
    let short = 10 * RESPONSE;
    let lock = client.lock("lock").owner("alice").renew(false);
    let waiting = tokio::spawn(lock.clone().lease(short).acquire());
    eventually("it waits", || server.info("lock_waiters") == 1).await;
    proxy.set(Fate::CommandsHeld);
    held.release().await.unwrap();
    // It is told on another connection, while its claim still lies in the proxy.
    let _granted = soon("its grant", waiting).await.unwrap().unwrap();
    let longer = lock.lease(10 * short).acquire().await.unwrap();
    proxy.set(Fate::Passes);
    assert_bounded(&server, "lock", short, &longer).await;
}

#[tokio::test]
async fn a_renewal_of_a_forgotten_guard_that_arrives_late_leaves_no_more_than_is_relied_upon() {
    let server = TestServer::start();
    let (proxy, client) = connect_as(&server, "no-kill", WITHOUT_KILL).await;
    let lock = client.lock("lock").owner("alice").renew(false);
    let short = 10 * RESPONSE;
    let first = lock.clone().lease(short).acquire().await.unwrap();
    let token = first.token();
    proxy.set(Fate::CommandsHeld);
    first.renew().await.unwrap_err();
    first.forget();
    // The same hold, and another guard.
    let longer = lock.lease(10 * short).acquire().await.unwrap();
    assert_eq!(longer.token(), token);
    proxy.set(Fate::Passes);
    assert_bounded(&server, "lock", short, &longer).await;
}

#[tokio::test]
async fn a_holder_that_is_cut_off_is_told_and_then_gives_back() {
    let server = TestServer::start();
    let proxy = Proxy::to(server.addr()).unwrap();
    let client = LockClient::builder()
        .default_lease(3 * RESPONSE)
        .response_timeout(RESPONSE)
        .connect(format!("redis://{}", proxy.addr()))
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
    let proxy = Proxy::to(server.addr()).unwrap();
    let client = connect_through(&proxy, RESPONSE).await;
    let rival = connect(&server).await;
    let held = take(&rival, "lock").await;
    let waiting = tokio::spawn(client.lock("lock").owner("alice").acquire());
    eventually("it waits", || server.info("lock_waiters") == 1).await;
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
    let guard = soon("it is told", waiting).await.unwrap().unwrap();
    guard.renew().await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(server.client().int("EXISTS lock"), 0);
}

#[tokio::test]
async fn waits_begin_on_a_new_connection_where_the_old_one_is_silent() {
    let server = TestServer::start();
    let proxy = Proxy::to(server.addr()).unwrap();
    // Before anything was asked of it, and with a place asked for already.
    for subscribes_first in [false, true] {
        let client = connect_through(&proxy, RESPONSE).await;
        if subscribes_first {
            take(&client, "first").await.release().await.unwrap();
        }
        proxy.swallow_on(|| true);
        // Were they to try the old one in turn, they would take too long.
        let locks = (0..20).map(|nth| client.lock(format!("lock{nth}")));
        let acquires: JoinSet<_> = locks.map(|lock| lock.acquire()).collect();
        for guard in soon("all have their locks", acquires.join_all()).await {
            guard.unwrap().release().await.unwrap();
        }
        proxy.close_swallowing();
    }
}

/// The connections to a server, by their ids, but for who asks.
fn connections(server: &TestServer) -> BTreeSet<String> {
    let mut observer = server.client();
    let own = format!("id={}", observer.int("CLIENT ID"));
    let list = observer.bulk("CLIENT LIST");
    let ids = list.lines().filter_map(|line| line.split(' ').next());
    ids.filter(|id| **id != own).map(str::to_owned).collect()
}

#[tokio::test]
async fn a_connection_that_began_at_a_busy_server_is_closed_when_it_falls_silent() {
    let server = TestServer::start();
    let proxy = Proxy::to(server.addr()).unwrap();
    proxy.set(Fate::Refuses("CLIENT", "BUSY it runs a script"));
    let client = LockClient::builder().response_timeout(RESPONSE);
    let client = client.connect_lazy(format!("redis://{}", proxy.addr()));
    let acquire = tokio::spawn(client.unwrap().lock("lock").acquire());
    eventually("it has begun", || proxy.refused() > 0).await;
    proxy.set(Fate::Passes);
    let guard = soon("the lock", acquire).await.unwrap().unwrap();
    let silent = connections(&server);
    proxy.swallow_on(|| true);
    // What lingers there must not take effect later.
    drop(guard);
    eventually("the server has closed it", || {
        connections(&server).is_disjoint(&silent)
    })
    .await;
}

#[tokio::test]
async fn a_session_whose_connection_falls_silent_is_lost_and_closed() {
    let server = TestServer::start();
    let proxy = Proxy::to(server.addr()).unwrap();
    let client = LockClient::connect(format!("redis://{}", proxy.addr())).await;
    let lease = Duration::from_secs(2);
    let client = client.unwrap();
    // One renewal may have been answered just before.
    let mut judge = Judge::new("from a silence until the loss is told", lease * 2);
    while judge.wants_more() {
        let session = client.session().await.unwrap();
        let guard = session.lock("lock").lease(lease).acquire().await.unwrap();
        proxy.set(Fate::RepliesSwallowed(100));
        let begun = Instant::now();
        assert_eq!(soon("the loss", guard.lost()).await, Lost::Expired);
        judge.judge(begun, Instant::now());
        // The server renews for as long as the connection is there, so it is closed.
        eventually("it is free", || server.client().int("EXISTS lock") == 0).await;
        proxy.set(Fate::Passes);
    }
}
