//! Tasks of one client that pass a lock on among themselves.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis_lock_client::{Error, Lock, LockClient, LockGuard, Lost};
use redis_lock_testing::{Fate, Proxy, TestServer};
use tokio::task::{JoinHandle, yield_now};

use support::{Waiting, connect, eventually, queue, soon, take, url};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

/// A client whose tasks pass a hold on this often.
async fn connect_passing(server: &TestServer, at_most: u32) -> LockClient {
    let builder = LockClient::builder().pass_on(at_most, LONG);
    builder.connect(url(server)).await.unwrap()
}

/// Has this many tasks wait, in this order.
async fn wait_in_line(lock: &Lock, tasks: usize) -> Vec<Waiting> {
    let mut waiting = Vec::new();
    for _ in 0..tasks {
        waiting.push(tokio::spawn(lock.acquire()));
        // It comes to its line before it waits for anything.
        yield_now().await;
    }
    waiting
}

/// Waits for the turn of each. Returns their tokens in the order of their turns.
async fn take_turns(waiting: Vec<Waiting>) -> Vec<(usize, u64)> {
    let turns = Arc::new(Mutex::new(Vec::new()));
    let tasks = waiting.into_iter().enumerate().map(|(nth, waiting)| {
        let turns = Arc::clone(&turns);
        tokio::spawn(async move {
            let guard = waiting.await.unwrap().unwrap();
            turns.lock().unwrap().push((nth, guard.token()));
            guard.release().await.unwrap();
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        soon("its turn", task).await.unwrap();
    }
    Arc::into_inner(turns).unwrap().into_inner().unwrap()
}

/// How many turns in a row had the same token.
fn shares(turns: &[(usize, u64)]) -> Vec<usize> {
    assert!(turns.is_sorted_by_key(|(_, token)| *token), "{turns:?}");
    let grants = turns.chunk_by(|(_, one), (_, other)| one == other);
    grants.map(<[_]>::len).collect()
}

/// Waits for the grant of one that waits.
async fn granted(waiting: Waiting) -> LockGuard {
    soon("its turn", waiting).await.unwrap().unwrap()
}

#[tokio::test]
async fn tasks_share_grants_in_the_order_in_which_they_asked() {
    let server = TestServer::start();
    let client = connect_passing(&server, 4).await;
    let held = take(&connect(&server).await, "lock").await;
    let waiting = wait_in_line(&client.lock("lock"), 12).await;
    eventually("one waits for all", || server.info("lock_waiters") == 1).await;
    let before = held.token();
    held.release().await.unwrap();
    let turns = take_turns(waiting).await;
    assert!(turns.iter().map(|(nth, _)| *nth).eq(0..12), "{turns:?}");
    assert_eq!(shares(&turns), [5, 5, 2]);
    assert!(turns[0].1 > before);
    soon("all is given back", client.flush()).await;
    assert_eq!(server.client().int("EXISTS lock"), 0);
    assert_eq!(server.info("lock_waiters"), 0);
}

#[tokio::test]
async fn a_thousand_tasks_cost_the_server_one_place() {
    let server = TestServer::start();
    let client = connect_passing(&server, 1000).await;
    let held = take(&connect(&server).await, "lock").await;
    let waiting = wait_in_line(&client.lock("lock"), 1000).await;
    eventually("one waits for all", || server.info("lock_waiters") == 1).await;
    held.release().await.unwrap();
    let turns = take_turns(waiting).await;
    assert_eq!(shares(&turns), [1000]);
}

#[tokio::test]
async fn nothing_is_passed_on_once_the_time_is_over() {
    let server = TestServer::start();
    let builder = LockClient::builder().pass_on(1000, Duration::ZERO);
    let client = builder.connect(url(&server)).await.unwrap();
    let held = take(&client, "lock").await;
    let waiting = wait_in_line(&client.lock("lock"), 10).await;
    held.release().await.unwrap();
    assert_eq!(shares(&take_turns(waiting).await), [1; 10]);
}

#[tokio::test]
async fn the_time_to_pass_a_grant_on_counts_from_the_grant() {
    const WITHIN: Duration = Duration::from_millis(100);
    let server = TestServer::start();
    let builder = LockClient::builder().pass_on(1000, WITHIN);
    let client = builder.connect(url(&server)).await.unwrap();
    let held = take(&client, "lock").await;
    let waiting = wait_in_line(&client.lock("lock"), 1).await.remove(0);
    // It is the passing of time that is tested.
    tokio::time::sleep(WITHIN * 2).await;
    let token = held.token();
    held.release().await.unwrap();
    assert!(granted(waiting).await.token() > token);
}

#[tokio::test]
async fn another_process_waits_for_two_grants_at_most() {
    const PASSED: u32 = 3;
    let server = TestServer::start();
    let (client, other) = (
        connect_passing(&server, PASSED).await,
        connect(&server).await,
    );
    let held = take(&client, "lock").await;
    let waiting = wait_in_line(&client.lock("lock"), 20).await;
    eventually("one waits for all", || server.info("lock_waiters") == 1).await;
    let outsider = queue(&server, &other.lock("lock"), 1).await;
    let before = held.token();
    held.release().await.unwrap();
    let outside = tokio::spawn(async move {
        let guard = granted(outsider).await;
        let token = guard.token();
        guard.release().await.unwrap();
        token
    });
    let turns = take_turns(waiting).await;
    let outside = soon("the outsider's turn", outside).await.unwrap();
    let sooner = turns.iter().filter(|(_, token)| *token < outside);
    // The rest of the grant that there was, and the one that was waited for before.
    assert_eq!(sooner.count(), 3 + 4);
    assert_eq!(turns[0].1, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_and_their_tasks_exclude_each_other() {
    const SECTIONS: usize = 20;
    let server = TestServer::start();
    let mut clients = vec![connect(&server).await];
    for at_most in [2, 1000] {
        clients.push(connect_passing(&server, at_most).await);
    }
    let is_inside = Arc::new(AtomicBool::new(false));
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = tokio::task::JoinSet::new();
    for (nth, client) in clients.iter().enumerate() {
        for _ in 0..8 {
            let lock = client.lock("lock");
            let (is_inside, tokens) = (Arc::clone(&is_inside), Arc::clone(&tokens));
            let mut data = server.client();
            tasks.spawn(async move {
                for _ in 0..SECTIONS {
                    let guard = lock.acquire().await.unwrap();
                    assert!(!is_inside.swap(true, Ordering::SeqCst), "two at a time");
                    tokens.lock().unwrap().push((nth, guard.token()));
                    let count = data.call("GET counter");
                    let count: Option<u64> = redis::from_redis_value(count).unwrap();
                    yield_now().await;
                    data.call(&format!("SET counter {}", count.unwrap_or_default() + 1));
                    assert!(is_inside.swap(false, Ordering::SeqCst));
                    guard.release().await.unwrap();
                }
            });
        }
    }
    soon("all sections", tasks.join_all()).await;
    let sections = clients.len() * 8 * SECTIONS;
    assert_eq!(server.client().bulk("GET counter"), sections.to_string());
    let tokens = tokens.lock().unwrap();
    assert!(tokens.is_sorted_by_key(|(_, token)| *token));
    let grants = tokens.chunk_by(|(_, one), (_, other)| one == other);
    for grant in grants {
        assert!(grant.iter().all(|(nth, _)| *nth == grant[0].0), "{grant:?}");
        let most = [1, 3, 1001][grant[0].0];
        assert!(grant.len() <= most, "{} sections of a grant", grant.len());
    }
}

#[tokio::test]
async fn whoever_has_it_now_is_told_of_a_loss() {
    let server = TestServer::start();
    let client = connect_passing(&server, 1000).await;
    let first = take(&client, "lock").await;
    let mut waiting = wait_in_line(&client.lock("lock"), 3).await;
    eventually("one waits for all", || server.info("lock_waiters") == 1).await;
    let (first_lost, handle) = (first.lost(), first.handle());
    first.release().await.unwrap();
    assert_eq!(soon("the first is over", first_lost).await, Lost::Released);
    assert_eq!(handle.valid_for(), Duration::ZERO);
    assert!(matches!(
        handle.renew().await,
        Err(Error::Lost(Lost::Released))
    ));
    let second = granted(waiting.remove(0)).await;
    assert_eq!(second.token(), handle.token());
    second.renew().await.unwrap();
    let mut observer = server.client();
    assert_eq!(observer.int("LOCK.BREAK lock"), 1);
    // It hears of it when all holds are asked after.
    observer.call("CLIENT KILL TYPE pubsub");
    assert_eq!(soon("the loss", second.lost()).await, Lost::Refused);
    let token = second.token();
    let released = second.release().await;
    assert!(matches!(released, Err(Error::Lost(Lost::Refused))));
    // What is lost is passed on to nobody.
    for waiting in waiting {
        let guard = granted(waiting).await;
        assert!(guard.token() > token);
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_lease_near_its_end_is_not_passed_on() {
    const LEASE: Duration = Duration::from_secs(2);
    let server = TestServer::start();
    let client = connect_passing(&server, 1000).await;
    let lock = client.lock("lock").lease(LEASE);
    let first = lock.try_acquire().await.unwrap().unwrap();
    let mut waiting = wait_in_line(&lock, 2).await;
    eventually("one waits for all", || server.info("lock_waiters") == 1).await;
    server.stop();
    eventually("half of it is over", || first.valid_for() < LEASE / 2).await;
    let token = first.token();
    let releasing = tokio::spawn(first.release());
    yield_now().await;
    server.go_on();
    drop(soon("the release", releasing).await.unwrap());
    let second = granted(waiting.remove(0)).await;
    assert!(second.token() > token);
}

#[tokio::test]
async fn a_hold_that_is_passed_on_is_renewed() {
    const LEASE: Duration = Duration::from_millis(600);
    let server = TestServer::start();
    let client = connect_passing(&server, 1000).await;
    let lock = client.lock("lock").lease(LEASE);
    let first = lock.try_acquire().await.unwrap().unwrap();
    let waiting = wait_in_line(&lock, 1).await.remove(0);
    let token = first.token();
    first.release().await.unwrap();
    let second = granted(waiting).await;
    let mut observer = server.client();
    let renewals = support::calls(&mut observer, "lock.renew");
    eventually("it is renewed", || {
        support::calls(&mut observer, "lock.renew") > renewals + 3
    })
    .await;
    assert_eq!(second.token(), token);
    second.release().await.unwrap();
}

#[tokio::test]
async fn whoever_stops_waiting_lets_the_next_one_pass() {
    let server = TestServer::start();
    let client = connect_passing(&server, 1000).await;
    let held = take(&client, "lock").await;
    let mut waiting = wait_in_line(&client.lock("lock"), 4).await;
    waiting.remove(2).abort();
    waiting.remove(0).abort();
    let token = held.token();
    let released = held.release();
    // The next one is offered the hold, and goes.
    waiting.remove(0).abort();
    released.await.unwrap();
    let last = granted(waiting.remove(0)).await;
    assert_eq!(last.token(), token);
    drop(last);
    soon("all is given back", client.flush()).await;
    assert_eq!(server.client().int("EXISTS lock"), 0);
    assert_eq!(server.info("lock_waiters"), 0);
}

#[tokio::test]
async fn nobody_who_waits_leaves_no_place() {
    let server = TestServer::start();
    let client = connect_passing(&server, 1000).await;
    let held = take(&connect(&server).await, "lock").await;
    for _ in 0..5 {
        let waiting = wait_in_line(&client.lock("lock"), 10).await;
        eventually("one waits for all", || server.info("lock_waiters") == 1).await;
        waiting.iter().for_each(JoinHandle::abort);
        soon("all is done", async {
            for waiting in waiting {
                assert!(waiting.await.unwrap_err().is_cancelled());
            }
            client.flush().await;
        })
        .await;
        assert_eq!(server.info("lock_waiters"), 0);
    }
    held.release().await.unwrap();
}

#[tokio::test]
async fn a_task_that_is_not_polled_misses_its_turn() {
    let server = TestServer::start();
    let client = connect_passing(&server, 1000).await;
    let held = take(&client, "lock").await;
    let mut asleep = Box::pin(client.lock("lock").acquire());
    assert!(futures_util::poll!(&mut asleep).is_pending());
    let waiting = wait_in_line(&client.lock("lock"), 1).await.remove(0);
    let token = held.token();
    held.release().await.unwrap();
    let next = granted(waiting).await;
    assert_eq!(next.token(), token);
    assert!(futures_util::poll!(&mut asleep).is_pending());
    next.release().await.unwrap();
    let woken = soon("its turn", asleep).await.unwrap();
    assert_eq!(woken.token(), token);
    woken.release().await.unwrap();
}

#[tokio::test]
async fn a_wait_ends_in_its_time() {
    let server = TestServer::start();
    let proxy = Proxy::to(server.addr()).unwrap();
    let builder = LockClient::builder().pass_on(1000, LONG);
    let client = builder.connect(format!("redis://{}", proxy.addr()));
    let client = client.await.unwrap();
    let held = take(&client, "lock").await;
    let wait = Duration::from_millis(20);
    let taken = client.lock("lock").acquire_within(wait);
    assert!(soon("none", taken).await.unwrap().is_none());
    soon("all is given back", client.flush()).await;
    assert_eq!(server.info("lock_waiters"), 0);
    proxy.set(Fate::Down);
    for kind in ["pubsub", "normal"] {
        server.client().call(&format!("CLIENT KILL TYPE {kind}"));
    }
    let taken = client.lock("lock").acquire_within(wait);
    let error = soon("the failure", taken).await.unwrap_err();
    assert_eq!(error.code(), "UNAVAILABLE", "{error:?}");
    drop(held);
}

#[tokio::test]
async fn each_task_is_told_what_the_server_refuses() {
    let server = TestServer::start();
    let client = connect_passing(&server, 1000).await;
    server.client().call("SET lock something");
    for waiting in wait_in_line(&client.lock("lock"), 3).await {
        let error = soon("the error", waiting).await.unwrap().unwrap_err();
        assert_eq!(error.code(), "WRONGTYPE", "{error:?}");
    }
}

#[tokio::test]
async fn what_is_not_like_any_other_is_not_passed_on() {
    let server = TestServer::start();
    let client = connect_passing(&server, 1000).await;
    let session = client.session().await.unwrap();
    let locks = [
        client.lock("lock").owner("alice"),
        client.lock("lock").limit(1),
        client.lock("lock").renew(false),
        client.lock("lock").max_renewals(3),
        client.lock("lock").replicas(0, Duration::from_secs(1)),
        session.lock("lock"),
    ];
    for lock in &locks {
        let first = lock.try_acquire().await.unwrap().unwrap();
        let plain = queue(&server, &client.lock("lock"), 0).await;
        let same = match lock.try_acquire().await {
            // Guards of one owner share a hold, and go without waiting.
            Ok(Some(again)) => {
                drop(again);
                None
            }
            _ => Some(queue(&server, lock, 1).await),
        };
        let token = first.token();
        first.release().await.unwrap();
        let plain = granted(plain).await;
        let passed = plain.token();
        assert!(passed > token);
        plain.release().await.unwrap();
        if let Some(same) = same {
            let same = granted(same).await;
            assert!(same.token() > passed);
            same.release().await.unwrap();
        }
    }
}

#[tokio::test]
async fn only_those_with_the_same_lease_share_a_grant() {
    let server = TestServer::start();
    let client = connect_passing(&server, 1000).await;
    let (long, longer) = (
        client.lock("lock").lease(LONG),
        client.lock("lock").lease(LONG * 2),
    );
    let held = long.try_acquire().await.unwrap().unwrap();
    let other = queue(&server, &longer, 0).await;
    let same = queue(&server, &long, 1).await;
    let token = held.token();
    held.release().await.unwrap();
    let same = granted(same).await;
    assert_eq!(same.token(), token);
    same.release().await.unwrap();
    let other = granted(other).await;
    assert!(other.token() > token && other.valid_for() > LONG);
    other.release().await.unwrap();
}

#[test]
fn whoever_waits_when_the_runtime_of_the_client_ends_is_told() {
    let server = TestServer::start();
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let (clients, callers) = (runtime(), runtime());
    let client = clients.block_on(connect_passing(&server, 1000));
    let _held = clients.block_on(take(&client, "lock"));
    let waiting = callers.spawn(client.lock("lock").acquire());
    callers.block_on(eventually("it waits", || server.info("lock_waiters") == 1));
    drop(clients);
    let told = callers.block_on(soon("the end", waiting)).unwrap();
    assert!(matches!(told, Err(Error::Stopped)), "{told:?}");
    let told = callers.block_on(soon("the end", client.lock("lock").acquire()));
    assert!(matches!(told, Err(Error::Stopped)), "{told:?}");
}
