//! A process that forks. Its child has the memory of the client, but none of its threads.

#![cfg(feature = "blocking")]

#[path = "support/alone.rs"]
mod alone;

use std::time::{Duration, Instant};

use redis_lock_client::blocking::LockClient;
use redis_lock_client::{Error, LockClient as AsyncClient};
use redis_lock_testing::Server;
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
    for test in [
        "every_call_fails_in_a_child",
        "every_asynchronous_call_fails_in_a_child",
    ] {
        let server = Server::start();
        let url = format!("redis://{}", server.addr());
        alone::run(test, &url, &[]);
    }
}

#[track_caller]
fn assert_forked<T>(outcome: Result<T, Error>) {
    let error = outcome.err().expect("a child did something");
    assert!(matches!(error, Error::Forked), "{error:?}");
}

#[test]
#[ignore = "needs a process of its own"]
fn every_call_fails_in_a_child() {
    let client = LockClient::connect(alone::told()).unwrap();
    let guard = client.lock("lock").acquire().unwrap();
    in_a_forked_child(|| {
        assert_forked(client.lock("other").try_acquire());
        assert_forked(client.lock("other").acquire());
        assert_forked(guard.renew());
        assert_eq!(guard.valid_for(), Duration::ZERO);
    });
    let mut both = Some((client, guard));
    // Each process has its own copy.
    in_a_forked_child(|| drop(both.take()));
    // The parent goes on as if nothing had happened.
    let (client, guard) = both.unwrap();
    assert!(client.lock("lock").try_acquire().unwrap().is_none());
    guard.renew().unwrap();
    guard.release().unwrap();
}

#[test]
#[ignore = "needs a process of its own"]
fn every_asynchronous_call_fails_in_a_child() {
    let start = || tokio::runtime::Runtime::new().unwrap();
    let runtime = start();
    let client = runtime.block_on(AsyncClient::connect(alone::told()));
    let client = client.unwrap();
    let guard = runtime.block_on(client.lock("lock").acquire()).unwrap();
    let session = runtime.block_on(client.session()).unwrap();
    in_a_forked_child(|| {
        start().block_on(async {
            for lock in [client.lock("a"), client.job().lock("a"), session.lock("a")] {
                assert_forked(lock.try_acquire().await);
                assert_forked(lock.acquire_within(AT_ONCE).await);
                assert_forked(lock.run(|_| async {}).await);
            }
            assert_forked(client.lock("a").info().await);
            assert_forked(client.lock("a").break_lock(None).await);
            assert_forked(client.session().await);
            assert_forked(guard.renew().await);
        });
        assert_eq!(guard.valid_for(), Duration::ZERO);
        assert!(!session.is_alive());
    });
    runtime.block_on(guard.renew()).unwrap();
    assert!(session.is_alive());
}
