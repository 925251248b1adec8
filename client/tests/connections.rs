//! A client that keeps more connections than it needs.

#[path = "support/counting.rs"]
mod counting;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use redis_lock_client::LockClient;
use redis_lock_testing::{Client, Cluster, TestServer, tag};
use tokio::task::JoinSet;

use support::{connect, eventually, soon};

/// Idle connections are closed after ten seconds.
const IDLE: Duration = Duration::from_secs(30);

/// How many connections may stay open that nobody uses.
const HANDFUL: i64 = 8;

/// Has somebody else take a lock.
fn take_away(stranger: &mut Client, key: &str) {
    stranger.int(&format!("LOCK.ACQUIRE {key} stranger LEASE 600000"));
}

fn keys(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|nth| format!("lock{nth}"))
}

/// Waits that succeed one after another, each for a lock of its own.
struct Waits(JoinSet<()>);

impl Waits {
    fn start(client: &LockClient, keys: impl Iterator<Item = String>) -> Self {
        let acquires = keys.map(|key| client.lock(key).acquire());
        let succeed = acquires.map(|acquire| async {
            let guard = acquire.await.unwrap();
            guard.release().await.unwrap();
        });
        Self(succeed.collect())
    }

    async fn end(self) {
        soon("all had their turns", self.0.join_all()).await;
    }
}

/// Sees how many connections a server had at most.
struct Most {
    seen: Arc<AtomicI64>,
    done: Arc<AtomicBool>,
}

impl Most {
    fn watch(server: &TestServer) -> Self {
        let (seen, done) = (
            Arc::new(AtomicI64::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let (mut observer, noted, stop) = (server.client(), Arc::clone(&seen), Arc::clone(&done));
        std::thread::spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                let Some(connected) = observer.try_info("connected_clients") else {
                    return;
                };
                noted.fetch_max(connected, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        Self { seen, done }
    }

    fn end(self) -> i64 {
        self.done.store(true, Ordering::SeqCst);
        self.seen.load(Ordering::SeqCst)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_ones_are_closed_soon_after_the_last_wait() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let mut stranger = server.client();
    let before = stranger.info("connected_clients");
    keys(60).for_each(|key| take_away(&mut stranger, &key));
    let waits = Waits::start(&client, keys(60));
    eventually("all wait", || stranger.info("lock_waiters") == 60).await;
    for key in keys(60) {
        stranger.int(&format!("LOCK.RELEASE {key} stranger"));
    }
    waits.end().await;
    eventually("but a handful are closed at once", || {
        stranger.info("connected_clients") <= before + HANDFUL
    })
    .await;
    let deadline = Instant::now() + IDLE;
    while stranger.info("connected_clients") > before {
        let open = stranger.info("connected_clients") - before;
        assert!(Instant::now() < deadline, "{open} idle ones are still open");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_has_no_more_than_128_to_wait_with_by_default() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let mut stranger = server.client();
    keys(300).for_each(|key| take_away(&mut stranger, &key));
    let most = Most::watch(&server);
    let before = stranger.info("connected_clients");
    let waits = Waits::start(&client, keys(300));
    eventually("many wait", || stranger.info("lock_waiters") >= 128).await;
    // Whoever does not wait there by now waits here.
    for _ in 0..100 {
        support::take(&client, "free")
            .await
            .release()
            .await
            .unwrap();
    }
    // From now on new ones may be open before the old ones are closed.
    let most = most.end() - before;
    assert!(most <= 128 + HANDFUL, "{most} connections");
    for key in keys(300) {
        stranger.int(&format!("LOCK.RELEASE {key} stranger"));
    }
    waits.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_in_a_cluster_takes_one() {
    let cluster = Cluster::start();
    let nodes = cluster.nodes.iter().map(|node| node.addr().to_string());
    let nodes = nodes.collect::<Vec<_>>().join(",");
    let client = LockClient::connect(format!("redis-cluster://{nodes}")).await;
    let client = client.unwrap();
    let mut observers = [0, 1, 2].map(|node| cluster.client(node));
    let tag = tag(|slot| slot < 5461, 0);
    let keys = || keys(20).map(|key| format!("{{{tag}}}{key}"));
    // Whatever the client needs to know of each node.
    support::take(&client, "free")
        .await
        .release()
        .await
        .unwrap();
    keys().for_each(|key| take_away(&mut observers[0], &key));
    let mut connected = || {
        observers
            .each_mut()
            .map(|node| node.info("connected_clients"))
    };
    let before = connected();
    let waits = Waits::start(&client, keys());
    let blocked = || cluster.nodes[0].info("lock_waiters");
    eventually("all wait", || blocked() == 20).await;
    let after = connected();
    let more = [0, 1, 2].map(|node| after[node] - before[node]);
    assert!(more[0] >= 20, "{more:?}");
    // The client may look where the slots are meanwhile.
    assert!(more[1] <= 2 && more[2] <= 2, "{more:?} connections");
    drop(waits);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_takes_one_for_all_its_locks() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let mut observer = server.client();
    let before = observer.info("connected_clients");
    let session = client.session().await.unwrap();
    let mut guards = Vec::new();
    for key in keys(30) {
        guards.push(session.lock(key).acquire().await.unwrap());
    }
    assert_eq!(observer.info("connected_clients"), before + 1);
    session.close().await;
    eventually("it is closed", || {
        observer.info("connected_clients") == before
    })
    .await;
    assert_eq!(observer.int("DBSIZE"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_are_bounded_and_the_next_is_told_so() {
    let server = TestServer::start();
    let client = connect(&server).await;
    let mut sessions = Vec::new();
    for _ in 0..64 {
        sessions.push(client.session().await.unwrap());
    }
    let error = client.session().await.unwrap_err();
    assert_eq!(error.code(), "INVALID", "{error:?}");
    assert!(error.to_string().contains("max_sessions"), "{error}");
    sessions.pop().unwrap().close().await;
    let session = client.session().await.unwrap();
    session.close().await;
}
