//! What the tests of several failure modes share.

#![allow(dead_code, reason = "no test uses all of it")]

use std::time::{Duration, Instant};

use redis::Value;
use redis_lock_client::{ClientBuilder, Error, Lock, LockClient, LockGuard};
use redis_lock_testing::{Client, SOON, TestServer, text};
use tokio::task::JoinHandle;

/// The address of a server.
pub fn url(server: &TestServer) -> String {
    format!("redis://{}", server.addr())
}

/// A client of a server.
pub async fn connect(server: &TestServer) -> LockClient {
    LockClient::connect(url(server)).await.unwrap()
}

/// A client that may not subscribe, so that each of its waits blocks a connection.
pub async fn connect_blocking(server: &TestServer, builder: ClientBuilder) -> LockClient {
    let user = "ACL SETUSER blocking on >secret ~* resetchannels +@all";
    server.client().call(user);
    let url = format!("redis://blocking:secret@{}", server.addr());
    builder.connect(url).await.unwrap()
}

/// Takes a lock that must be free.
pub async fn take(client: &LockClient, key: &str) -> LockGuard {
    client.lock(key).try_acquire().await.unwrap().unwrap()
}

/// An acquire that waits.
pub type Waiting = JoinHandle<Result<LockGuard, Error>>;

/// Has an acquire wait on the server, behind this many others.
pub async fn queue(server: &TestServer, lock: &Lock, behind: i64) -> Waiting {
    let waiting = tokio::spawn(lock.acquire());
    eventually("it waits", || server.info("lock_waiters") == behind + 1).await;
    waiting
}

/// What a random test is run with.
pub const SEEDS: [u64; 2] = [1, 2];

/// Waits for something that should happen soon.
#[track_caller]
pub fn soon<T>(what: &str, future: impl Future<Output = T>) -> impl Future<Output = T> {
    let caller = std::panic::Location::caller();
    async move {
        tokio::time::timeout(SOON, future)
            .await
            .unwrap_or_else(|_| panic!("still not so: {what} ({caller})"))
    }
}

/// As [`redis_lock_testing::eventually`], without blocking the runtime.
#[track_caller]
pub fn eventually(what: &str, mut ready: impl FnMut() -> bool) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let deadline = Instant::now() + SOON;
        while !ready() {
            assert!(Instant::now() < deadline, "still not so: {what} ({caller})");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// Checks something with a short lease. On a machine that stands still for so long that the
/// lease is over, it returns false, and is checked with a longer one.
pub async fn with_longer_leases(check: impl AsyncFn(Duration) -> bool) {
    for lease_s in [2, 8, 32] {
        if check(Duration::from_secs(lease_s)).await {
            return;
        }
    }
    panic!("not so with the longest lease either");
}

/// How often the server has carried out a command.
pub fn calls(observer: &mut Client, command: &str) -> u64 {
    let stats = observer.bulk("INFO commandstats");
    let prefix = format!("cmdstat_{command}:calls=");
    let line = stats.lines().find_map(|line| line.strip_prefix(&prefix));
    line.and_then(|line| line.split(',').next()?.parse().ok())
        .unwrap_or(0)
}

/// The connection to which the only hold on a lock is bound.
pub fn bound_client(observer: &mut Client, key: &str) -> i64 {
    fn field<'r>(map: &'r Value, name: &str) -> &'r Value {
        let Value::Array(words) = map else {
            panic!("{map:?} is no map");
        };
        let mut pairs = words.chunks(2);
        &pairs.find(|pair| pair[0] == text(name)).unwrap()[1]
    }
    let info = observer.call(&format!("LOCK.INFO {key}"));
    let Value::Array(holders) = field(&info, "holders") else {
        panic!("{info:?} has no holders");
    };
    match field(&holders[0], "client") {
        Value::Int(id) => *id,
        other => panic!("{other:?} is no connection"),
    }
}
