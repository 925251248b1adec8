//! The same for threads.

#![cfg(feature = "blocking")]

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use redis_lock_client::blocking::{LockClient, Redlock};
use redis_lock_client::{Error, Lost};
use redis_lock_testing::{SOON, TestServer};

fn connect(server: &TestServer) -> LockClient {
    LockClient::connect(format!("redis://{}", server.addr())).unwrap()
}

#[test]
fn threads_exclude_each_other_and_wait_for_each_other() {
    let server = TestServer::start();
    let client = connect(&server);
    let counter = std::sync::Mutex::new(0);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..25 {
                    let guard = client.lock("lock").acquire().unwrap();
                    *counter.try_lock().expect("two at a time") += 1;
                    guard.release().unwrap();
                }
            });
        }
    });
    assert_eq!(*counter.lock().unwrap(), 200);
}

#[test]
fn a_wait_ends_with_none() {
    let server = TestServer::start();
    let client = connect(&server);
    let guard = client.lock("lock").try_acquire().unwrap().unwrap();
    let begun = Instant::now();
    let wait = Duration::from_millis(200);
    assert!(client.lock("lock").acquire_within(wait).unwrap().is_none());
    assert!(begun.elapsed() >= wait);
    assert!(guard.wait_lost(Duration::ZERO).is_none());
    guard.release().unwrap();
}

#[test]
fn a_loss_is_told_to_threads_too() {
    let server = TestServer::start();
    let client = connect(&server);
    let lock = client
        .lock("lock")
        .lease(Duration::from_secs(2))
        .renew(false);
    let guard = lock.acquire().unwrap();
    let (tell, told) = mpsc::channel();
    guard.on_lost(move |why| tell.send(why).unwrap());
    assert_eq!(guard.wait_lost(SOON), Some(Lost::Expired));
    assert_eq!(told.recv_timeout(SOON), Ok(Lost::Expired));
    assert!(matches!(guard.release(), Err(Error::Lost(Lost::Expired))));
}

#[test]
fn what_is_dropped_last_is_given_back_before_the_end() {
    let server = TestServer::start();
    let client = connect(&server);
    let guard = client.lock("lock").acquire().unwrap();
    drop(client);
    assert_eq!(server.client().int("EXISTS lock"), 1);
    drop(guard);
    assert_eq!(server.client().int("EXISTS lock"), 0);
}

#[test]
fn threads_hold_together_and_have_sessions_too() {
    let server = TestServer::start();
    let client = connect(&server);
    let reader = client.lock("lock").shared();
    let one = reader.acquire().unwrap();
    let session = client.session().unwrap();
    let two = session.lock("lock").shared().acquire().unwrap();
    assert!(client.lock("lock").try_acquire().unwrap().is_none());
    assert!(
        client
            .lock("lock")
            .limit(2)
            .try_acquire()
            .unwrap()
            .is_none()
    );
    assert_eq!(server.info("lock_sessions"), 1);
    drop(one);
    server.client().call("CLIENT KILL TYPE normal");
    assert_eq!(two.wait_lost(SOON), Some(Lost::Disconnected));
    drop(two);
    client.flush();
    let permit = client.lock("lock").limit(2);
    let _first = permit.acquire().unwrap();
    let _second = permit.acquire().unwrap();
    assert!(permit.try_acquire().unwrap().is_none());
}

#[test]
fn a_redlock_blocks_as_well() {
    let servers: Vec<_> = (0..3).map(|_| TestServer::start()).collect();
    let urls = servers
        .iter()
        .map(|server| format!("redis://{}", server.addr()));
    // The machine that tests may be busy with others.
    let builder = redis_lock_client::LockClient::builder();
    let patient = builder.response_timeout(Duration::from_secs(2));
    let client = Redlock::connect_with(patient, urls).unwrap();
    let guard = client.lock("lock").acquire().unwrap();
    assert!(client.lock("lock").try_acquire().unwrap().is_none());
    guard.release().unwrap();
    client.flush();
    assert!(client.lock("lock").acquire().is_ok());
}
