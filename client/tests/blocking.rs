//! The same for threads.

#![cfg(feature = "blocking")]

#[path = "support/alone.rs"]
mod alone;

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use redis_lock_client::blocking::LockClient;
use redis_lock_client::{Error, LockClient as AsyncClient, Lost};
use redis_lock_testing::{SOON, Server, eventually};

fn connect(server: &Server) -> LockClient {
    LockClient::connect(format!("redis://{}", server.addr())).unwrap()
}

fn await_free(server: &Server) {
    let mut observer = server.client();
    eventually("the lock is free", || observer.int("EXISTS lock") == 0);
}

#[test]
fn threads_exclude_each_other_and_wait_for_each_other() {
    let server = Server::start();
    let client = connect(&server);
    let counter = Mutex::new(0);
    thread::scope(|scope| {
        for nth in 0..8 {
            let (client, counter) = (client.clone(), &counter);
            scope.spawn(move || {
                for _ in 0..25 {
                    let count = || *counter.try_lock().expect("two at a time") += 1;
                    match nth % 2 {
                        0 => client.lock("lock").run(|_| count()).unwrap(),
                        _ => {
                            let guard = client.lock("lock").acquire().unwrap();
                            count();
                            guard.release().unwrap();
                        }
                    }
                }
            });
        }
    });
    assert_eq!(*counter.lock().unwrap(), 200);
    assert_eq!(server.client().int("EXISTS lock"), 0);
}

#[test]
fn a_wait_ends_with_none_and_a_loss_is_told() {
    let server = Server::start();
    let builder = AsyncClient::builder().default_lease(Duration::from_secs(2));
    let url = format!("redis://{}", server.addr());
    let client = LockClient::connect_with(builder, url).unwrap();
    let guard = client
        .lock("lock")
        .with(|lock| lock.renew(false))
        .try_acquire()
        .unwrap();
    let guard = guard.unwrap();
    assert_eq!(guard.key(), b"lock");
    let (begun, wait) = (Instant::now(), Duration::from_millis(200));
    assert!(client.lock("lock").acquire_within(wait).unwrap().is_none());
    assert!(begun.elapsed() >= wait && client.lock("lock").try_acquire().unwrap().is_none());
    guard.renew().unwrap();
    assert!(guard.valid_for() > Duration::ZERO);
    eventually("it is lost", || guard.valid_for() == Duration::ZERO);
    assert!(matches!(guard.release(), Err(Error::Lost(Lost::Expired))));
    let permit = client.lock("pool").with(|lock| lock.limit(2).lease(SOON));
    let permits = [permit.acquire().unwrap(), permit.acquire().unwrap()];
    assert!(permits[0].token() < permits[1].token());
    assert!(permit.try_acquire().unwrap().is_none());
    let reader = client.lock("read").with(|lock| lock.shared());
    let _readers = (reader.acquire().unwrap(), reader.acquire().unwrap());
}

#[test]
fn what_is_dropped_last_is_given_back_before_the_end() {
    let server = Server::start();
    let client = connect(&server);
    let guard = client.lock("lock").acquire().unwrap();
    drop(client);
    assert_eq!(server.client().int("EXISTS lock"), 1);
    drop(guard);
    assert_eq!(server.client().int("EXISTS lock"), 0);
}

#[test]
fn a_program_that_ends_in_spawn_blocking_gives_back() {
    let server = Server::start();
    let url = format!("redis://{}", server.addr());
    alone::run("a_guard_is_dropped_last", &url, &[]);
    await_free(&server);
}

#[tokio::test]
#[ignore = "needs a process of its own"]
async fn a_guard_is_dropped_last() {
    let last = tokio::task::spawn_blocking(|| {
        let client = LockClient::connect(alone::told()).unwrap();
        let guard = client.lock("lock").try_acquire().unwrap().unwrap();
        drop(client);
        drop(guard);
    });
    last.await.unwrap();
}
