//! Many tasks on one lock.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redis_lock_testing::TestServer;

use support::{calls, connect};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_tasks_each_get_it_with_a_few_connections() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let done = Arc::new(AtomicBool::new(false));
    let most = Arc::new(AtomicI64::new(0));
    let watching = {
        let (mut observer, done, most) = (server.client(), Arc::clone(&done), Arc::clone(&most));
        std::thread::spawn(move || {
            while !done.load(Ordering::SeqCst) {
                most.fetch_max(observer.info("connected_clients"), Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(2));
            }
        })
    };
    let inside = Arc::new(AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..1000 {
        let (lock, inside) = (client.lock("lock"), Arc::clone(&inside));
        tasks.spawn(async move {
            let guard = lock.acquire().await.unwrap();
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at a time");
            tokio::task::yield_now().await;
            inside.fetch_sub(1, Ordering::SeqCst);
            let token = guard.token();
            guard.release().await.unwrap();
            token
        });
    }
    let mut tokens: Vec<_> = tasks.join_all().await;
    done.store(true, Ordering::SeqCst);
    watching.join().unwrap();
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 1000);
    let most = most.load(Ordering::SeqCst);
    eprintln!("at most {most} connections");
    assert!(most <= 4, "{most} connections");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_get_it_in_the_order_in_which_they_asked() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let holder = support::take(&client, "lock").await;
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for nth in 0..50 {
        let mut acquire = Box::pin(client.lock("lock").acquire());
        // It has queued when it has been polled once.
        assert!(futures_util::poll!(&mut acquire).is_pending());
        let order = Arc::clone(&order);
        tasks.push(tokio::spawn(async move {
            let guard = acquire.await.unwrap();
            order.lock().unwrap().push(nth);
            guard.release().await.unwrap();
        }));
    }
    holder.release().await.unwrap();
    for task in tasks {
        support::soon("every task's turn", task).await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), (0..50).collect::<Vec<_>>());
}

#[tokio::test]
async fn waits_beyond_the_limit_of_connections_queue_locally() {
    let server = TestServer::start();
    let builder = redis_lock_client::LockClient::builder().max_waiting_connections(2);
    let client = builder.connect(support::url(&server)).await.unwrap();
    let mut guards = Vec::new();
    let mut waiting = Vec::new();
    for n in 0..6 {
        guards.push(support::take(&client, &format!("lock{n}")).await);
        waiting.push(tokio::spawn(client.lock(format!("lock{n}")).acquire()));
    }
    support::eventually("two wait", || server.info("lock_waiters") == 2).await;
    assert!(server.info("connected_clients") <= 4);
    drop(guards);
    for waiting in waiting {
        drop(support::soon("its turn", waiting).await.unwrap().unwrap());
    }
}

#[tokio::test]
async fn a_free_lock_is_had_while_all_connections_wait_for_others() {
    let server = TestServer::start();
    let builder = redis_lock_client::LockClient::builder().max_waiting_connections(1);
    let client = builder.connect(support::url(&server)).await.unwrap();
    let mut holder = server.client();
    holder.int("LOCK.ACQUIRE busy holder LEASE 600000");
    holder.int("LOCK.ACQUIRE soon-free holder LEASE 600000");
    let waiting = support::queue(&server, &client.lock("busy"), 0).await;
    let asked = calls(&mut holder, "lock.acquire");
    let next = tokio::spawn(client.lock("soon-free").acquire());
    support::eventually("it has asked", || {
        calls(&mut holder, "lock.acquire") > asked
    })
    .await;
    assert_eq!(holder.int("LOCK.RELEASE soon-free holder"), 1);
    let guard = support::soon("its turn", next).await.unwrap().unwrap();
    guard.release().await.unwrap();
    assert!(!waiting.is_finished());
    assert_eq!(holder.int("LOCK.RELEASE busy holder"), 1);
    let guard = support::soon("the other's turn", waiting).await.unwrap();
    assert!(guard.is_ok());
}

#[tokio::test]
async fn all_waits_look_again_by_one_question() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let mut observer = server.client();
    let mut waiting = Vec::new();
    for n in 0..20 {
        observer.int(&format!("LOCK.ACQUIRE lock{n} holder LEASE 600000"));
        let lock = client.lock(format!("lock{n}"));
        waiting.push(support::queue(&server, &lock, n).await);
    }
    let begun = Instant::now();
    let asked = calls(&mut observer, "lock.acquire");
    let looked = calls(&mut observer, "client|list");
    let mut looks = 0;
    support::eventually("it has looked three times", || {
        looks = calls(&mut observer, "client|list") - looked;
        looks >= 3
    })
    .await;
    // One every two seconds.
    let most = begun.elapsed().as_secs() / 2 + 1;
    assert!(looks <= most, "{looks} looks and not {most}");
    assert_eq!(calls(&mut observer, "lock.acquire"), asked);
    assert_eq!(observer.int("LOCK.RELEASE lock7 holder"), 1);
    let granted = support::soon("its turn", waiting.remove(7)).await.unwrap();
    assert_eq!(granted.unwrap().key(), b"lock7");
    for waiting in waiting {
        assert!(!waiting.is_finished());
        waiting.abort();
    }
}
