//! Many tasks on one lock.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use redis_lock_testing::TestServer;

use support::connect;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_tasks_each_get_it_with_one_connection() {
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
    // One is the watcher's.
    assert!(most <= 2 + server.subscribers(), "{most} connections");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_get_it_in_the_order_in_which_they_asked() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let holder = support::take(&client, "lock").await;
    // The first one of a client that waits has it subscribe.
    let first = client.lock("lock").acquire_within(Duration::from_millis(1));
    assert!(first.await.unwrap().is_none());
    let mut observer = server.client();
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for nth in 0..50 {
        let acquire = client.lock("lock").acquire();
        let order = Arc::clone(&order);
        tasks.push(tokio::spawn(async move {
            let guard = acquire.await.unwrap();
            order.lock().unwrap().push(nth);
            guard.release().await.unwrap();
        }));
        support::eventually("it waits", || observer.info("lock_waiters") == nth + 1).await;
    }
    holder.release().await.unwrap();
    for task in tasks {
        support::soon("every task's turn", task).await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), (0..50).collect::<Vec<_>>());
}
