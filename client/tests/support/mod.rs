//! What the tests of several failure modes share.

#![allow(dead_code, reason = "no test uses all of it")]

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use redis_lock_client::{ClientBuilder, Error, Lock, LockClient, LockGuard};
use redis_lock_testing::{Client, Cluster, Proxy, SOON, Server, tag};
use tokio::task::JoinHandle;

/// What a random test is run with.
pub const SEEDS: [u64; 2] = [1, 2];

/// How long a client waits for an answer that soon takes another for lost.
pub const IMPATIENT: Duration = Duration::from_millis(100);

/// The address of a server.
pub fn url(server: &Server) -> String {
    format!("redis://{}", server.addr())
}

/// The address of a proxy.
pub fn way(proxy: &Proxy) -> String {
    format!("redis://{}", proxy.addr())
}

/// A client of a server.
pub async fn connect(server: &Server) -> LockClient {
    LockClient::connect(url(server)).await.unwrap()
}

/// A server and its client.
pub async fn start() -> (Server, LockClient) {
    let server = Server::start();
    let client = connect(&server).await;
    (server, client)
}

/// A server, a proxy before it, and a client behind that.
pub async fn start_behind_a_proxy() -> (Server, Proxy, LockClient) {
    let server = Server::start();
    let (proxy, client) = behind_a_proxy(&server).await;
    (server, proxy, client)
}

/// A client of a server whose leases are so long.
pub async fn connect_with_leases(server: &Server, lease: Duration) -> LockClient {
    let builder = LockClient::builder().default_lease(lease);
    builder.connect(url(server)).await.unwrap()
}

/// A client behind a proxy, which waits so long for an answer.
pub async fn connect_through(proxy: &Proxy, response: Duration) -> LockClient {
    let builder = LockClient::builder().response_timeout(response);
    builder.connect(way(proxy)).await.unwrap()
}

/// A client behind a new proxy.
pub async fn behind_a_proxy(server: &Server) -> (Proxy, LockClient) {
    let proxy = Proxy::to(server.addr()).unwrap();
    let client = LockClient::connect(way(&proxy)).await.unwrap();
    (proxy, client)
}

/// The address of a server for a user who may do all but what these rules take.
pub fn url_as(server: &Server, user: &str, rules: &str) -> String {
    let acl = format!("ACL SETUSER {user} on >secret ~* &* +@all {rules}");
    server.client().call(acl.trim());
    format!("redis://{user}:secret@{}", server.addr())
}

/// A client that may not subscribe, so that each of its waits blocks a connection.
pub async fn connect_blocking(server: &Server, builder: ClientBuilder) -> LockClient {
    let url = url_as(server, "blocking", "resetchannels");
    builder.connect(url).await.unwrap()
}

/// The address of a cluster.
pub fn cluster_url(cluster: &Cluster) -> String {
    let nodes = cluster.nodes.iter().map(|node| node.addr().to_string());
    format!("redis-cluster://{}", nodes.collect::<Vec<_>>().join(","))
}

/// A key of this node of a new cluster, by its number.
pub fn key_of(node: usize) -> String {
    let range = [0..5461, 5461..10923, 10923..16384][node].clone();
    format!("{{{}}}lock", tag(|slot| range.contains(&slot), 0))
}

/// Takes a lock that must be free.
pub async fn take(client: &LockClient, key: &str) -> LockGuard {
    client.lock(key).try_acquire().await.unwrap().unwrap()
}

/// Renews a hold that stands, as soon as the server does that.
pub async fn renewed(guard: &LockGuard) {
    while let Err(error) = guard.renew().await {
        assert!(!guard.valid_for().is_zero(), "{error:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Has a stranger take a lock.
#[track_caller]
pub fn take_away(stranger: &mut Client, key: &str) {
    let taken = stranger.int(&format!("LOCK.ACQUIRE {key} stranger LEASE 600000"));
    assert!(taken > 0, "{key}");
}

/// Has that stranger give it back.
#[track_caller]
pub fn give_back(stranger: &mut Client, key: &str) {
    assert_eq!(stranger.int(&format!("LOCK.RELEASE {key} stranger")), 1);
}

/// An acquire that waits.
pub type Waiting = JoinHandle<Result<LockGuard, Error>>;

/// Has an acquire wait on the server, behind this many others.
pub async fn queue(server: &Server, lock: &Lock, behind: i64) -> Waiting {
    let waiting = tokio::spawn(lock.acquire());
    waiters(server, behind + 1).await;
    waiting
}

/// What somebody is granted who waits.
#[track_caller]
pub fn granted(waiting: Waiting) -> impl Future<Output = LockGuard> {
    let granted = soon("the grant", waiting);
    async move { granted.await.unwrap().unwrap() }
}

/// Waits until this many wait on the server.
#[track_caller]
pub fn waiters(server: &Server, count: i64) -> impl Future<Output = ()> {
    eventually(&format!("{count} wait"), move || {
        server.connect().unwrap().info("lock_waiters").ok() == Some(count)
    })
}

/// How many connections a client has beside the one that all its commands share: one that
/// hears, where the server blocks none that has subscribed.
pub fn subscribers(server: &Server) -> i64 {
    i64::from(server.valkey_version() >= Some((8, 1)))
}

/// Waits until a lock is free.
#[track_caller]
pub fn free(server: &Server, key: &str) -> impl Future<Output = ()> {
    let mut observer = server.client();
    let exists = format!("EXISTS {key}");
    eventually(&format!("{key} is free"), move || {
        observer.int(&exists) == 0
    })
}

/// Checks that a client has left nothing once all is done in the background.
pub async fn assert_nothing_left(server: &Server, client: &LockClient) {
    soon("all is done in the background", client.flush()).await;
    let mut observer = server.client();
    let keys = observer.call("KEYS *");
    assert_eq!(observer.int("DBSIZE"), 0, "{keys:?}");
    assert_eq!(observer.info("lock_waiters"), 0);
}

/// Waits for something that should happen soon.
#[track_caller]
pub fn soon<T>(what: &str, future: impl Future<Output = T>) -> impl Future<Output = T> {
    within(SOON, what, future)
}

/// As [`soon`], for what takes its time.
#[track_caller]
pub fn within<T>(
    patience: Duration,
    what: &str,
    future: impl Future<Output = T>,
) -> impl Future<Output = T> {
    let caller = std::panic::Location::caller();
    async move {
        tokio::time::timeout(patience, future)
            .await
            .unwrap_or_else(|_| panic!("still not so: {what} ({caller})"))
    }
}

/// As [`redis_lock_testing::eventually`], without blocking the runtime.
#[track_caller]
pub fn eventually<R: FnMut() -> bool>(
    what: &str,
    mut ready: R,
) -> impl Future<Output = ()> + use<R> {
    let caller = std::panic::Location::caller();
    let what = what.to_owned();
    async move {
        let deadline = Instant::now() + SOON;
        while !ready() {
            assert!(Instant::now() < deadline, "still not so: {what} ({caller})");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// How often each command was called, as the server writes its name in small letters.
fn calls_by_name(observer: &mut Client) -> Vec<(String, u64)> {
    let info = observer.bulk("INFO commandstats");
    let of = |line: &str| {
        let (name, stats) = line.strip_prefix("cmdstat_")?.split_once(':')?;
        let calls = stats.strip_prefix("calls=")?.split(',').next()?;
        Some((name.to_lowercase(), calls.parse().ok()?))
    };
    info.lines().filter_map(of).collect()
}

/// How often this command was called, a subcommand as `client|list`.
pub fn calls(observer: &mut Client, command: &str) -> u64 {
    let all = calls_by_name(observer);
    let of = |(name, calls): (String, u64)| (name == command).then_some(calls);
    all.into_iter().find_map(of).unwrap_or_default()
}

/// How often any command was called but `PING`, and `INFO`, with which this counts.
pub fn calls_but_pings(observer: &mut Client) -> u64 {
    let all = calls_by_name(observer);
    let is_other = |(name, _): &(String, u64)| !["info", "ping"].contains(&name.as_str());
    all.into_iter()
        .filter(is_other)
        .map(|(_, calls)| calls)
        .sum()
}

/// The connection to which the only hold on a lock is bound.
pub async fn bound_client(client: &LockClient, key: &str) -> u64 {
    let info = client.lock(key).info().await.unwrap();
    info.holders[0].client.expect("a session's hold")
}

/// Polls a future once.
pub async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx))).await
}
