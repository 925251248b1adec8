//! A cluster with hundreds of commands under way, whose connections are killed, whose
//! nodes die and come back, and whose slots move: all tasks go on, and nothing is left.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redis_lock_client::{Error, LockClient, LockGuard};
use redis_lock_testing::{Cluster, SOON, Server};
use tokio::task::{JoinSet, block_in_place};

use support::{cluster_url, within};

const TASKS: usize = 300;
const LOCKS: usize = 60;
const LEASE: Duration = Duration::from_secs(10);

/// How long a task may go without a section of its own while all is well again.
const PATIENCE: Duration = Duration::from_secs(20);

/// What all tasks of a scene know.
struct Scene {
    client: LockClient,
    /// How many sections each task has had.
    sections: Vec<AtomicUsize>,
    /// Whether somebody is inside, for each lock.
    inside: Vec<AtomicBool>,
    /// Whether holds may be lost, with the node that forgets them.
    may_lose: AtomicBool,
    is_over: AtomicBool,
}

impl Scene {
    /// Has the tasks begin, each with locks of all nodes.
    fn start(client: LockClient) -> (Arc<Self>, JoinSet<()>) {
        let scene = Arc::new(Self {
            client,
            sections: (0..TASKS).map(|_| AtomicUsize::new(0)).collect(),
            inside: (0..LOCKS).map(|_| AtomicBool::new(false)).collect(),
            may_lose: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        });
        let tasks = (0..TASKS).map(|task| Arc::clone(&scene).work(task));
        let tasks = tasks.collect();
        (scene, tasks)
    }

    async fn work(self: Arc<Self>, task: usize) {
        let job = self.client.job();
        for round in 0.. {
            if self.is_over.load(Ordering::SeqCst) {
                return;
            }
            let nth = (task * 7 + round * 13) % LOCKS;
            let lock = match task % 10 {
                0 => job.lock(format!("lock{nth}")),
                _ => self.client.lock(format!("lock{nth}")),
            };
            let guard = lock.acquire().await.unwrap();
            self.section(nth, guard).await;
            self.sections[task].fetch_add(1, Ordering::SeqCst);
        }
    }

    async fn section(&self, nth: usize, guard: LockGuard) {
        let was_inside = self.inside[nth].swap(true, Ordering::SeqCst);
        let may_lose = || self.may_lose.load(Ordering::SeqCst);
        assert!(!was_inside || may_lose(), "two hold lock{nth}");
        tokio::task::yield_now().await;
        self.inside[nth].store(false, Ordering::SeqCst);
        if nth.is_multiple_of(3) {
            return drop(guard);
        }
        match guard.release().await {
            Ok(()) | Err(Error::Unavailable { .. }) => {}
            Err(error) => assert!(may_lose() || error.is_retryable(), "{error:?}"),
        }
    }

    /// Waits until each task has had two sections more.
    async fn all_go_on(&self, what: &str, tasks: &mut JoinSet<()>) {
        eprintln!("after {what}");
        let counts = || self.sections.iter().map(|it| it.load(Ordering::SeqCst));
        let before: Vec<_> = counts().collect();
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(ended) = tasks.try_join_next() {
                ended.unwrap();
            }
            let stuck = counts().zip(&before).enumerate();
            let stuck = stuck.filter(|(_, (now, then))| *now < **then + 2);
            let stuck: Vec<_> = stuck.collect();
            if stuck.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "still {stuck:?} after {what}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn kill(node: &Server) {
    for kind in ["normal", "pubsub"] {
        node.client().call(&format!("CLIENT KILL TYPE {kind}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_tasks_go_on_through_kills_deaths_and_moves() {
    let mut cluster = Cluster::start();
    for node in &cluster.nodes {
        node.client().call("CONFIG SET lock.claim-timeout 10000");
    }
    let builder = LockClient::builder().default_lease(LEASE);
    let client = builder.connect(cluster_url(&cluster)).await.unwrap();
    let (scene, mut tasks) = Scene::start(client);
    scene.all_go_on("the start", &mut tasks).await;
    for round in 0..20 {
        kill(&cluster.nodes[round % 3]);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    scene.all_go_on("twenty kills", &mut tasks).await;

    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        block_in_place(|| cluster.reshard(from, to, 300));
        kill(&cluster.nodes[to]);
        scene.all_go_on("a move", &mut tasks).await;
    }

    // Stopped for longer than anybody waits for an answer, and not for a lease.
    cluster.nodes[1].stop().unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    cluster.nodes[1].go_on().unwrap();
    scene.all_go_on("a node that stood still", &mut tasks).await;

    // It forgets its locks.
    scene.may_lose.store(true, Ordering::SeqCst);
    for node in [2, 0] {
        block_in_place(|| cluster.nodes[node].restart().unwrap());
        block_in_place(|| cluster.await_agreement());
        scene.all_go_on("a death", &mut tasks).await;
    }
    tokio::time::sleep(LEASE).await;
    scene.may_lose.store(false, Ordering::SeqCst);
    kill(&cluster.nodes[2]);
    scene.all_go_on("the last kill", &mut tasks).await;

    scene.is_over.store(true, Ordering::SeqCst);
    while let Some(ended) = within(SOON, "all end", tasks.join_next()).await {
        ended.unwrap();
    }
    within(SOON, "all is done", scene.client.flush()).await;
    for node in &cluster.nodes {
        assert_eq!(node.client().int("DBSIZE"), 0);
        assert_eq!(node.info("lock_waiters"), 0);
    }
    cluster.nodes.iter().for_each(Server::assert_sound);
}
