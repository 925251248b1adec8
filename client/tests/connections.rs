//! A client that keeps more connections than it needs.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use redis_lock_client::LockClient;
use redis_lock_testing::{Client, Cluster, TestServer, tag};
use tokio::task::JoinSet;

use support::{connect, connect_blocking, eventually, soon};

/// How many connections may be open for a moment that nobody uses any more.
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
async fn a_thousand_waits_and_a_thousand_holds_take_one() {
    let server = TestServer::start();
    let mut observer = server.client();
    keys(1000).for_each(|key| take_away(&mut observer, &key));
    let before = observer.info("connected_clients");
    let most = Most::watch(&server);
    let client = connect(&server).await;
    let mut guards = Vec::new();
    for nth in 0..1000 {
        guards.push(client.lock(format!("held{nth}")).acquire().await.unwrap());
    }
    let waits = Waits::start(&client, keys(1000));
    eventually("all wait", || observer.info("lock_waiters") == 1000).await;
    let clients = observer.bulk("CLIENT LIST");
    let at_locks = clients.lines().filter(|line| line.contains("cmd=lock."));
    assert_eq!(at_locks.count(), 1, "{clients}");
    for key in keys(1000) {
        observer.int(&format!("LOCK.RELEASE {key} stranger"));
    }
    waits.end().await;
    drop(guards);
    client.flush().await;
    // One is the watcher's.
    assert_eq!(most.end(), before + 2 + server.subscribers());
    assert_eq!(observer.int("DBSIZE"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_subscribe_has_no_more_than_128_to_wait_with() {
    let server = TestServer::start();
    let client = connect_blocking(&server, LockClient::builder()).await;
    let mut stranger = server.client();
    keys(300).for_each(|key| take_away(&mut stranger, &key));
    let most = Most::watch(&server);
    let before = stranger.info("connected_clients");
    let waits = Waits::start(&client, keys(300));
    eventually("many wait", || stranger.info("lock_waiters") == 128).await;
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
    eventually("those are closed that waited", || {
        stranger.info("connected_clients") <= before + server.subscribers()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waits_in_a_cluster_take_one_for_all_of_a_node() {
    let cluster = Cluster::start();
    let nodes = cluster.nodes.iter().map(|node| node.addr().to_string());
    let nodes = nodes.collect::<Vec<_>>().join(",");
    let client = LockClient::connect(format!("redis-cluster://{nodes}")).await;
    let client = client.unwrap();
    let mut observers = [0, 1, 2].map(|node| cluster.client(node));
    // Whatever the client needs to know of each node.
    support::take(&client, "free")
        .await
        .release()
        .await
        .unwrap();
    let tags = [0, 1, 2, 3].map(|nth| tag(|slot| slot < 5461, nth));
    let keys = || keys(100).zip(tags.iter().cycle());
    let keys = || keys().map(|(key, tag)| format!("{{{tag}}}{key}"));
    keys().for_each(|key| take_away(&mut observers[0], &key));
    let mut connected = || {
        observers
            .each_mut()
            .map(|node| node.info("connected_clients"))
    };
    let before = connected();
    let waits = Waits::start(&client, keys());
    let waiting = || cluster.nodes[0].info("lock_waiters");
    eventually("all wait", || waiting() == 100).await;
    let after = connected();
    let more = [0, 1, 2].map(|node| after[node] - before[node]);
    assert_eq!(more, [1, 0, 0]);
    drop(waits);
    eventually("nobody waits", || waiting() == 0).await;
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
    let beside = server.subscribers();
    assert_eq!(observer.info("connected_clients"), before + 1 + beside);
    session.close().await;
    eventually("it is closed", || {
        observer.info("connected_clients") == before + beside
    })
    .await;
    eventually("its locks are gone", || observer.int("DBSIZE") == 0).await;
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
    let last = sessions.pop().unwrap();
    let _lock_of_it = last.lock("lock");
    last.close().await;
    let session = client.session().await.unwrap();
    session.close().await;
}
