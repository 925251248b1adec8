//! Three nodes, and slots that move.

mod support;

use std::time::{Duration, Instant};

use redis_lock_client::{LockClient, Lost};
use redis_lock_testing::{Cluster, Fate, Proxy, TestServer, slot, status, tag};
use tokio::task::JoinSet;

use support::{eventually, soon, take};

async fn start() -> (Cluster, LockClient) {
    // By this thread: with it the servers end.
    let cluster = Cluster::start();
    let nodes = cluster.nodes.iter().map(|node| node.addr().to_string());
    let nodes: Vec<_> = nodes.collect();
    let client = LockClient::connect(format!("redis-cluster://{}", nodes.join(","))).await;
    (cluster, client.unwrap())
}

/// Somebody waits for a lock of this node, then gets it.
async fn somebody_waits(cluster: &Cluster, client: &LockClient, node: usize, key: &str) {
    let blocked = || cluster.nodes[node].info("lock_waiters");
    let guard = client.lock(key).acquire().await.unwrap();
    let waiting = tokio::spawn(client.lock(key).acquire());
    eventually("it waits there", || blocked() == 1).await;
    guard.release().await.unwrap();
    let granted = soon("its turn", waiting).await.unwrap().unwrap();
    assert!(granted.valid_for() > Duration::from_secs(20));
    let doomed = tokio::spawn(client.lock(key).acquire());
    eventually("another waits", || blocked() == 1).await;
    doomed.abort();
    eventually("it is gone", || blocked() == 0).await;
    granted.release().await.unwrap();
    client.flush().await;
    assert_eq!(cluster.client(node).int(&format!("EXISTS {key}")), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_live_on_the_nodes_of_their_slots_and_follow_them() {
    let (cluster, client) = start().await;
    for (node, range) in [0..5461, 5461..10923, 10923..16384].into_iter().enumerate() {
        let key = format!("{{{}}}lock", tag(|slot| range.contains(&slot), 0));
        somebody_waits(&cluster, &client, node, &key).await;
    }

    // Somebody waits for a lock whose slot moves away.
    let key = format!("{{{}}}lock", tag(|slot| slot < 50, 0));
    assert!(slot(&key) < 50);
    let guard = client.lock(&key).owner("alice").acquire().await.unwrap();
    let waiting = tokio::spawn(client.lock(&key).acquire());
    let blocked = |node: usize| cluster.nodes[node].info("lock_waiters");
    eventually("it waits", || blocked(0) == 1).await;
    tokio::task::block_in_place(|| cluster.reshard(0, 1, 100));
    eventually("it waits at the new node", || {
        (blocked(0), blocked(1)) == (0, 1)
    })
    .await;
    guard.renew().await.unwrap();
    guard.release().await.unwrap();
    drop(soon("its turn", waiting).await.unwrap().unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_stands_still_takes_no_locks_of_the_others() {
    let (cluster, client) = start().await;
    let guard = client.lock(key_of(0)).acquire().await.unwrap();
    cluster.nodes[2].stop();
    let silent = client.lock(key_of(2)).try_acquire().await;
    assert_eq!(silent.unwrap_err().code(), "UNAVAILABLE");
    let renewed = async { while guard.renew().await.is_err() {} };
    soon("the others answer", renewed).await;
    cluster.nodes[2].go_on();
    guard.release().await.unwrap();
}

/// A key of this node, by its number.
fn key_of(node: usize) -> String {
    let range = [0..5461, 5461..10923, 10923..16384][node].clone();
    format!("{{{}}}lock", tag(|slot| range.contains(&slot), 0))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_stands_still_and_is_asked_a_lot_ends_no_hold_on_the_others() {
    const TASKS: usize = 60;
    let (cluster, client) = start().await;
    let lease = Duration::from_secs(3);
    let held = client.lock(key_of(0)).lease(lease).acquire().await.unwrap();
    cluster.nodes[2].stop();
    let begun = Instant::now();
    let asked = (0..TASKS).map(|nth| {
        let lock = client.lock(format!("{}{nth}", key_of(2)));
        async move {
            while begun.elapsed() < 3 * lease {
                lock.try_acquire().await.unwrap_err();
            }
        }
    });
    let asked = asked.collect::<JoinSet<_>>();
    // Their ends are told to all nodes.
    while begun.elapsed() < 3 * lease {
        let session = client.session().await.unwrap();
        drop(session.lock(key_of(1)).try_acquire().await.unwrap());
        session.close().await;
    }
    asked.join_all().await;
    held.renew().await.unwrap();
    cluster.nodes[2].go_on();
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_stands_still_is_left_for_its_successor() {
    let (cluster, client) = start().await;
    let key = key_of(2);
    take(&client, &key).await.release().await.unwrap();
    cluster.nodes[2].stop();
    let id = cluster.client(1).bulk("CLUSTER MYID");
    for node in [0, 1] {
        let moved = format!("CLUSTER SETSLOT {} NODE {id}", slot(&key));
        assert_eq!(cluster.client(node).call(&moved), status("OK"));
    }
    let taken = soon("the lock", async {
        loop {
            if let Ok(Some(taken)) = client.lock(&key).try_acquire().await {
                return taken;
            }
        }
    });
    assert_eq!(taken.await.key(), key.as_bytes());
    cluster.nodes[2].go_on();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_is_told_when_the_connection_that_subscribes_was_killed() {
    let (cluster, client) = start().await;
    let key = format!("{{{}}}lock", tag(|slot| slot < 5461, 0));
    let session = client.session().await.unwrap();
    for lock in [client.lock(&key), session.lock(&key)] {
        let guard = client.lock(&key).acquire().await.unwrap();
        let waiting = tokio::spawn(lock.acquire());
        let waiters = || cluster.nodes[0].info("lock_waiters");
        eventually("it waits", || waiters() == 1).await;
        let mut observer = cluster.client(0);
        let asked = support::calls(&mut observer, "lock.acquire");
        assert_eq!(observer.int("CLIENT KILL TYPE pubsub"), 1);
        eventually("it asks again", || {
            support::calls(&mut observer, "lock.acquire") > asked
        })
        .await;
        assert_eq!(waiters(), 1);
        guard.release().await.unwrap();
        let granted = soon("its turn", waiting).await.unwrap().unwrap();
        granted.release().await.unwrap();
    }
}

/// A cluster of one node.
async fn one_node() -> TestServer {
    let node = Cluster::node();
    let mut observer = node.client();
    observer.call("CLUSTER ADDSLOTSRANGE 0 16383");
    eventually("it serves", || {
        observer.bulk("CLUSTER INFO").contains("cluster_state:ok")
    })
    .await;
    node
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_sent_again_within_the_cluster_leaves_no_more_than_is_relied_upon() {
    let node = one_node().await;
    let mut observer = node.client();
    let proxy = Proxy::to(node.addr()).unwrap();
    let port = proxy.addr().port();
    observer.call(&format!("CONFIG SET cluster-announce-port {port}"));
    let url = format!("redis-cluster://{}", proxy.addr());
    let client = LockClient::connect(url).await.unwrap();
    let lock = client.lock("lock").owner("alice").renew(false);
    let short = Duration::from_secs(10);
    let first = lock.clone().lease(short).acquire().await.unwrap();
    proxy.set(Fate::CommandsHeld);
    let renewal = tokio::spawn(async move { first.renew().await.map(|()| first) });
    eventually("it is on the way", || proxy.seen("LOCK.RENEW") == 1).await;
    proxy.hang_up();
    let _first = soon("it is sent again", renewal).await.unwrap().unwrap();
    let longer = lock.lease(10 * short).acquire().await.unwrap();
    let mut left = || Duration::from_millis(observer.int("PTTL lock") as u64);
    assert!(left() > short);
    proxy.set(Fate::Passes);
    eventually("the first one arrives", || left() <= short).await;
    let left = left();
    assert!(longer.valid_for() <= left, "{left:?} are left");
}

/// A node alone, which nobody has told its address, and one that tells none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_without_an_address_are_where_the_client_was_led() {
    let node = one_node().await;
    let mut observer = node.client();
    let url = format!("redis-cluster://{}", node.addr());
    for endpoint in ["ip", "unknown-endpoint"] {
        observer.call(&format!(
            "CONFIG SET cluster-preferred-endpoint-type {endpoint}"
        ));
        let client = LockClient::connect(&url).await.unwrap();
        let session = client.session().await.unwrap();
        for lock in [client.lock("lock"), session.lock("lock")] {
            let guard = client.lock("lock").acquire().await.unwrap();
            let waiting = tokio::spawn(lock.acquire());
            eventually("it waits", || node.info("lock_waiters") == 1).await;
            guard.release().await.unwrap();
            let granted = soon("its turn", waiting).await.unwrap().unwrap();
            granted.release().await.unwrap();
        }
        client.post_events().await.unwrap();
        let mut events = client.events().await.unwrap();
        let guard = client.lock("lock").acquire().await.unwrap();
        guard.release().await.unwrap();
        soon("an event", events.next()).await.unwrap();
    }
}

/// A session follows the connection to the node of its lock, and no other.
async fn a_session_ends_with_its_connection(cluster: &Cluster, client: &LockClient) {
    let key = format!("{{{}}}session", tag(|slot| slot > 10923, 0));
    let session = client.session().await.unwrap();
    let guard = session.lock(&key).acquire().await.unwrap();
    cluster.client(0).call("CLIENT KILL TYPE normal");
    guard.renew().await.unwrap();
    let mut observer = cluster.client(2);
    let bound = support::bound_client(&mut observer, &key);
    assert_eq!(observer.int(&format!("CLIENT KILL ID {bound}")), 1);
    let begun = Instant::now();
    soon("the loss", guard.lost()).await;
    let told = begun.elapsed();
    assert!(told < Duration::from_secs(5), "{told:?}: by a renewal");
    assert!(guard.release().await.is_err());
    let session = client.session().await.unwrap();
    let _next = session.lock(&key).acquire().await.unwrap();
    drop(session);
    eventually("it is free", || observer.int(&format!("EXISTS {key}")) == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_and_sessions_are_of_the_node_that_has_the_lock() {
    let (cluster, client) = start().await;
    let lock = client.lock("lock").replicas(0, Duration::from_millis(100));
    assert!(lock.acquire().await.is_ok());
    let lock = client.lock("other").replicas(1, Duration::from_millis(100));
    assert!(lock.acquire().await.is_err());
    a_session_ends_with_its_connection(&cluster, &client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_ends_when_the_slot_of_a_lock_of_it_moves() {
    let (cluster, client) = start().await;
    let key = format!("{{{}}}lock", tag(|slot| slot < 50, 0));
    let session = client.session().await.unwrap();
    let lock = session.lock(&key).lease(Duration::from_secs(6));
    let guard = lock.acquire().await.unwrap();
    tokio::task::block_in_place(|| cluster.reshard(0, 1, 100));
    assert_eq!(soon("it is told", session.lost()).await, Lost::Disconnected);
    assert_eq!(guard.valid_for(), Duration::ZERO);
    assert_eq!(guard.lost().await, Lost::Disconnected);
    assert_eq!(cluster.client(1).int(&format!("EXISTS {key}")), 1);
    drop(guard);
    client.flush().await;
    assert_eq!(cluster.client(1).int(&format!("EXISTS {key}")), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_goes_on_when_the_slot_of_a_lock_moves_that_it_has_given_back() {
    let (cluster, client) = start().await;
    let session = client.session().await.unwrap();
    let kept = format!("{{{}}}kept", tag(|slot| slot > 12_000, 0));
    let kept = session.lock(kept).acquire().await.unwrap();
    let moving = session.lock(format!("{{{}}}lock", tag(|slot| slot < 50, 0)));
    moving.acquire().await.unwrap().release().await.unwrap();
    client.flush().await;
    tokio::task::block_in_place(|| cluster.reshard(0, 1, 100));
    let again = soon("the lock at the new node", moving.acquire()).await;
    again.unwrap().release().await.unwrap();
    assert!(session.is_alive());
    kept.release().await.unwrap();
}
