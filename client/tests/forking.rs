//! A process that forks. Its child has the memory of the client, but none of
//! its threads.

#![cfg(feature = "blocking")]

#[path = "support/alone.rs"]
mod alone;

use std::time::{Duration, Instant};

use redis_lock_client::blocking::LockClient;
use redis_lock_client::{Error, LockClient as AsyncClient};
use redis_lock_testing::TestServer;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// How long a call may take that can't succeed.
const AT_ONCE: Duration = Duration::from_secs(10);

/// Runs this in a forked child, and fails where it fails or hangs.
#[track_caller]
fn in_a_forked_child(what: impl FnOnce()) {
    // SAFETY: the child calls what a program calls that forks without thinking,
    // which is what is tested. It is killed if that hangs.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no fork");
    let Some(child) = Pid::from_raw(child) else {
        let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(what)).is_ok();
        // SAFETY: it ends the process, and runs nothing of it.
        unsafe { libc::_exit(i32::from(!passed)) };
    };
    let deadline = Instant::now() + AT_ONCE;
    loop {
        if let Some((_, status)) = waitpid(Some(child), WaitOptions::NOHANG).unwrap() {
            assert_eq!(status.exit_status(), Some(0), "the child failed");
            return;
        }
        if Instant::now() > deadline {
            kill_process(child, Signal::KILL).unwrap();
            waitpid(Some(child), WaitOptions::empty()).unwrap();
            panic!("the child hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_forked_child_is_told_that_the_client_is_not_its_own() {
    let server = TestServer::start();
    let url = format!("redis://{}", server.addr());
    alone::run("every_call_fails_in_a_child", &url, &[]);
}

#[test]
fn a_guard_that_a_forked_child_drops_stays_its_parents() {
    let server = TestServer::start();
    let url = format!("redis://{}", server.addr());
    alone::run("a_child_drops_what_it_got", &url, &[]);
}

#[test]
fn a_forked_child_is_told_by_an_asynchronous_client_too() {
    let server = TestServer::start();
    let url = format!("redis://{}", server.addr());
    alone::run("every_asynchronous_call_fails_in_a_child", &url, &[]);
}

#[track_caller]
fn assert_forked<T>(outcome: Result<T, Error>) {
    let error = outcome.err().expect("a child did something");
    assert_eq!(error.code(), "FORKED", "{error:?}");
}

#[test]
#[ignore = "needs a process of its own"]
fn every_call_fails_in_a_child() {
    let client = LockClient::connect(alone::told()).unwrap();
    let guard = client.lock("lock").acquire().unwrap();
    in_a_forked_child(|| assert_forked(client.lock("other").try_acquire()));
    in_a_forked_child(|| assert_forked(client.lock("other").acquire()));
    in_a_forked_child(|| assert_forked(guard.renew()));
    in_a_forked_child(|| {
        client.flush();
        assert_eq!(guard.valid_for(), Duration::ZERO);
    });
    // The parent goes on as if nothing had happened.
    guard.renew().unwrap();
}

#[test]
#[ignore = "needs a process of its own"]
fn a_child_drops_what_it_got() {
    let client = LockClient::connect(alone::told()).unwrap();
    let guard = client.lock("lock").acquire().unwrap();
    let mut both = Some((client, guard));
    // Each process has its own copy.
    in_a_forked_child(|| drop(both.take()));
    let (client, guard) = both.unwrap();
    assert!(client.lock("lock").try_acquire().unwrap().is_none());
    guard.release().unwrap();
}

#[test]
#[ignore = "needs a process of its own"]
fn every_asynchronous_call_fails_in_a_child() {
    let start = || tokio::runtime::Runtime::new().unwrap();
    let runtime = start();
    let client = runtime
        .block_on(AsyncClient::connect(alone::told()))
        .unwrap();
    let guard = runtime.block_on(client.lock("lock").acquire());
    let guard = guard.unwrap();
    let handle = guard.handle();
    in_a_forked_child(|| {
        start().block_on(async {
            let lock = client.lock("other");
            assert_forked(lock.try_acquire().await);
            assert_forked(lock.acquire_within(AT_ONCE).await);
            assert_forked(lock.run(|_| async {}).await);
            assert_forked(lock.info().await);
            assert_forked(lock.break_any().await);
            assert_forked(client.session().await);
            assert_forked(client.list(1).await);
            assert_forked(client.counters().await);
            assert_forked(guard.renew().await);
            assert_forked(handle.renew().await);
        });
        assert_eq!(guard.valid_for(), Duration::ZERO);
        assert_eq!(handle.valid_for(), Duration::ZERO);
    });
    runtime.block_on(guard.renew()).unwrap();
}
