//! A release that asks for the next task of the same client in the same write.

mod support;

use std::pin::Pin;
use std::time::Duration;

use redis_lock_client::{Error, Lock, LockClient, LockGuard};
use redis_lock_testing::{Client, Fate, Proxy, TestServer};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use support::{Waiting, calls, connect, eventually, queue, soon, take};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

/// An acquire that is polled no more.
type Asleep = Pin<Box<dyn Future<Output = Result<LockGuard, Error>> + Send>>;

/// How many tasks wait for one lock.
const TASKS: usize = 20;

/// Has a client wait this often for the lock, in this order.
async fn wait_for(server: &TestServer, client: &LockClient, times: usize) -> Vec<Waiting> {
    let before = server.info("lock_waiters");
    let mut waiting = Vec::new();
    for nth in 0..times {
        let lock = client.lock("lock");
        waiting.push(queue(server, &lock, before + nth as i64).await);
    }
    waiting
}

/// Takes each turn as it comes and ends it. Returns in which order they came.
async fn take_turns(waiting: Vec<Waiting>) -> Vec<usize> {
    let (note, mut turns): (_, UnboundedReceiver<usize>) = unbounded_channel();
    let tasks = waiting.into_iter().enumerate().map(|(nth, waiting)| {
        let note = note.clone();
        tokio::spawn(async move {
            let guard = waiting.await.unwrap().unwrap();
            note.send(nth).unwrap();
            guard.release().await.unwrap();
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        soon("its turn", task).await.unwrap();
    }
    std::iter::from_fn(|| turns.try_recv().ok()).collect()
}

/// How often each command of a lock was called.
fn asked(observer: &mut Client) -> [u64; 3] {
    ["lock.acquire", "lock.renew", "lock.release"].map(|command| calls(observer, command))
}

#[tokio::test]
async fn a_hold_within_the_client_is_neither_told_nor_claimed_apart() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let mut observer = server.client();
    let held = take(&client, "lock").await;
    let waiting = wait_for(&server, &client, TASKS).await;
    let before = asked(&mut observer);
    held.release().await.unwrap();
    let turns = take_turns(waiting).await;
    assert_eq!(turns, (0..TASKS).collect::<Vec<_>>());
    let after = asked(&mut observer);
    let [acquires, renewals, releases] = [0, 1, 2].map(|nth| after[nth] - before[nth]);
    let tasks = TASKS as u64;
    assert_eq!((acquires, renewals, releases), (tasks, 0, tasks + 1));
    assert_eq!(observer.int("EXISTS lock"), 0);
}

#[tokio::test]
async fn a_grant_that_was_asked_for_has_a_token_of_its_own_and_all_of_its_lease() {
    const LEASE: Duration = Duration::from_secs(60);
    let server = TestServer::start();
    let client = connect(&server).await;
    let held = take(&client, "lock").await;
    let before = held.token();
    let waiting = queue(&server, &client.lock("lock").lease(LEASE), 0).await;
    held.release().await.unwrap();
    let guard = soon("the grant", waiting).await.unwrap().unwrap();
    assert!(guard.token() > before);
    assert!(guard.valid_for() > LEASE * 9 / 10);
    let left = server.client().int("PTTL lock");
    assert!(Duration::from_millis(left.unsigned_abs()) > guard.valid_for());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn the_order_of_the_server_is_kept_among_processes() {
    let server = TestServer::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    let held = take(&one, "lock").await;
    let mut waiting = Vec::new();
    for _ in 0..TASKS / 2 {
        for client in [&other, &one] {
            waiting.extend(wait_for(&server, client, 1).await);
        }
    }
    held.release().await.unwrap();
    let turns = take_turns(waiting).await;
    assert_eq!(turns, (0..TASKS).collect::<Vec<_>>());
    assert_eq!(server.client().int("EXISTS lock"), 0);
}

#[tokio::test]
async fn whoever_is_first_here_may_be_any_of_all_kinds() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let session = client.session().await.unwrap();
    let locks = [
        session.lock("lock"),
        client.lock("lock").shared(),
        client.lock("lock").owner("alice"),
        session.lock("lock").limit(2),
        client.lock("lock").limit(2),
        client.lock("lock").limit(2),
        client.lock("lock").lease(Duration::from_secs(1)),
    ];
    let held = take(&client, "lock").await;
    let mut waiting = Vec::new();
    for (nth, lock) in (0..).zip(&locks) {
        waiting.push(queue(&server, lock, nth).await);
    }
    held.release().await.unwrap();
    take_turns(waiting).await;
    assert_eq!(server.client().int("EXISTS lock"), 0);
    assert_eq!(server.info("lock_waiters"), 0);
}

/// A client, a proxy between it and its server, a hold, and one that waits for it.
async fn one_waits(server: &TestServer) -> (LockClient, Proxy, LockGuard, Waiting) {
    let proxy = Proxy::to(server.addr()).unwrap();
    let client = LockClient::connect(format!("redis://{}", proxy.addr()));
    let client = client.await.unwrap();
    let held = take(&client, "lock").await;
    let waiting = queue(server, &client.lock("lock"), 0).await;
    (client, proxy, held, waiting)
}

#[tokio::test]
async fn a_waiter_that_goes_while_it_is_asked_for_leaves_nothing() {
    for polls in 0..3 {
        let server = TestServer::start();
        let (client, proxy, held, waiting) = one_waits(&server).await;
        proxy.set(Fate::Delayed(Duration::from_millis(20)));
        let releasing = tokio::spawn(held.release());
        for _ in 0..polls {
            tokio::task::yield_now().await;
        }
        waiting.abort();
        soon("the release", releasing).await.unwrap().unwrap();
        proxy.set(Fate::Passes);
        soon("all is given back", client.flush()).await;
        assert_eq!(server.info("lock_waiters"), 0);
        assert_eq!(server.client().int("EXISTS lock"), 0);
    }
}

#[tokio::test]
async fn a_named_owner_that_comes_back_keeps_its_new_hold() {
    let server = TestServer::start();
    let (client, proxy, held, waiting) = one_waits(&server).await;
    let alice = client.lock("lock").owner("alice");
    let first = queue(&server, &alice, 1).await;
    waiting.abort();
    eventually("alice is next", || server.info("lock_waiters") == 1).await;
    proxy.set(Fate::Delayed(Duration::from_millis(20)));
    let releasing = tokio::spawn(held.release());
    tokio::task::yield_now().await;
    first.abort();
    let guard = soon("the second try", alice.acquire()).await.unwrap();
    soon("the release", releasing).await.unwrap().unwrap();
    proxy.set(Fate::Passes);
    soon("all is given back", client.flush()).await;
    assert_eq!(server.client().bulk("HGET lock alice"), "1");
    guard.renew().await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(server.client().int("EXISTS lock"), 0);
}

#[tokio::test]
async fn a_connection_that_ends_between_the_release_and_the_reply_costs_nobody_its_turn() {
    let server = TestServer::start();
    let (client, proxy, held, waiting) = one_waits(&server).await;
    proxy.set(Fate::Delayed(Duration::from_millis(20)));
    let releasing = tokio::spawn(held.release());
    tokio::task::yield_now().await;
    server.client().call("CLIENT KILL TYPE pubsub");
    proxy.set(Fate::Passes);
    let _ = soon("the release", releasing).await.unwrap();
    let guard = soon("the grant", waiting).await.unwrap().unwrap();
    guard.release().await.unwrap();
    soon("all is given back", client.flush()).await;
    assert_eq!(server.client().int("EXISTS lock"), 0);
}

/// Has an acquire wait behind nobody, and returns it as one that is not polled any more.
async fn fall_asleep(server: &TestServer, lock: &Lock) -> Asleep {
    let mut asleep: Asleep = Box::pin(lock.acquire());
    let mut observer = server.client();
    let mut is_in_line = || observer.info("lock_waiters") == 1;
    soon("it waits", async {
        while !is_in_line() {
            assert!(futures_util::poll!(&mut asleep).is_pending());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        // Whoever asks later has been answered, so the reply to it is there.
        drop(lock.info().await.unwrap());
        assert!(futures_util::poll!(&mut asleep).is_pending());
    })
    .await;
    asleep
}

#[tokio::test]
async fn a_task_that_is_not_polled_misses_its_turn() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let lock = client.lock("lock").lease(LONG);
    let held = lock.try_acquire().await.unwrap().unwrap();
    let asleep = fall_asleep(&server, &lock).await;
    held.release().await.unwrap();
    let mut token = 0;
    for _ in 0..3 {
        let next = soon("the next one's turn", lock.acquire()).await.unwrap();
        assert!(next.token() > token);
        token = next.token();
        next.release().await.unwrap();
    }
    let woken = soon("its turn", asleep).await.unwrap();
    assert!(woken.token() > token && woken.valid_for() > LONG * 9 / 10);
    woken.renew().await.unwrap();
    woken.release().await.unwrap();
    assert_eq!(server.client().int("EXISTS lock"), 0);
}

#[tokio::test]
async fn what_a_task_that_is_not_polled_was_granted_is_not_asked_for_again() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let lock = client.lock("lock").lease(LONG).limit(2);
    let (one, other) = (lock.try_acquire().await, lock.try_acquire().await);
    let (one, other) = (one.unwrap().unwrap(), other.unwrap().unwrap());
    let asleep = fall_asleep(&server, &lock).await;
    one.release().await.unwrap();
    let mut observer = server.client();
    let before = calls(&mut observer, "lock.acquire");
    other.release().await.unwrap();
    assert_eq!(calls(&mut observer, "lock.acquire"), before);
    eventually("it has missed its turn", || {
        observer.int("EXISTS lock") == 0
    })
    .await;
    drop(asleep);
}
