//! Three nodes, and slots that move.

mod support;

use std::time::{Duration, Instant};

use redis_lock_client::{LockClient, Lost};
use redis_lock_testing::scene::{BEGIN_MOVE, END_MOVE, MIGRATE_KEY};
use redis_lock_testing::{Cluster, Okay, Play, slot, tag};
use tokio::task::block_in_place;

use support::{cluster_url, free, granted, key_of, queue, renewed, soon, take, url, waiters};

async fn start() -> (Cluster, LockClient) {
    // By this thread: with it the servers end.
    let cluster = Cluster::start();
    let client = LockClient::connect(cluster_url(&cluster)).await;
    (cluster, client.unwrap())
}

/// A lock whose slot `Cluster::reshard` moves from node 0 to node 1.
fn moving_key() -> String {
    format!("{{{}}}lock", tag(|slot| slot < 50, 0))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_live_on_the_nodes_of_their_slots_and_follow_them() {
    let (cluster, client) = start().await;
    let (job, session) = (client.job(), client.session().await.unwrap());
    for node in 0..3 {
        let (server, key) = (&cluster.nodes[node], key_of(node));
        for lock in [client.lock(&key), job.lock(&key), session.lock(&key)] {
            let guard = take(&client, &key).await;
            let waiting = queue(server, &lock, 0).await;
            guard.release().await.unwrap();
            let guard = granted(waiting).await;
            guard.renew().await.unwrap();
            assert!(guard.valid_for() > Duration::from_secs(20));
            let doomed = queue(server, &client.lock(&key), 0).await;
            doomed.abort();
            waiters(server, 0).await;
            guard.release().await.unwrap();
            client.flush().await;
            assert_eq!(cluster.nodes[node].client().int("DBSIZE"), 0);
        }
    }

    let key = moving_key();
    let guard = take(&client, &key).await;
    let waiting = queue(&cluster.nodes[0], &client.lock(&key), 0).await;
    block_in_place(|| cluster.reshard(0, 1, 100));
    waiters(&cluster.nodes[0], 0).await;
    waiters(&cluster.nodes[1], 1).await;
    guard.renew().await.unwrap();
    guard.release().await.unwrap();
    drop(granted(waiting).await);
}

/// While it moves, the lock is on neither node for sure.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_key_by_key_loses_no_hold_and_no_wait() {
    let mut moving = Play::moving();
    let client = LockClient::connect(format!("redis-cluster://{}", moving.addr())).await;
    let (client, key) = (client.unwrap(), moving.with_names("$key"));
    let guard = take(&client, &key).await;
    let waiting = queue(&moving, &client.lock(&key), 0).await;
    moving.run(BEGIN_MOVE);
    soon("a renewal", renewed(&guard)).await;
    let fresh = format!("{key}:fresh");
    let fresh = tokio::spawn(client.lock(fresh).acquire());
    moving.run(MIGRATE_KEY);
    soon("a renewal at the new node", renewed(&guard)).await;
    moving.run(END_MOVE);
    granted(fresh).await.release().await.unwrap();
    waiters(&moving.others["n1"], 1).await;
    guard.release().await.unwrap();
    granted(waiting).await.release().await.unwrap();
    soon("all is done", client.flush()).await;
    moving.run("each o o@n1: # > CLUSTER COUNTKEYSINSLOT $slot -> 0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_stands_still_is_left_for_its_successor() {
    let (cluster, client) = start().await;
    let key = key_of(2);
    take(&client, &key).await.release().await.unwrap();
    let waiting = client.lock(&key);
    cluster.nodes[2].stop().unwrap();
    let waiting = tokio::spawn(waiting.acquire());
    for node in [0, 1] {
        let moved = format!("CLUSTER SETSLOT {} NODE {}", slot(&key), cluster.ids[0]);
        assert_eq!(cluster.nodes[node].client().call(&moved), Okay);
    }
    assert_eq!(granted(waiting).await.key(), key.as_bytes());
    cluster.nodes[2].go_on().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_has_left_the_cluster_is_left_for_its_successor() {
    let (cluster, client) = start().await;
    take(&client, &key_of(2)).await.release().await.unwrap();
    let [mut a, mut b, mut leaves] = [0, 1, 2].map(|node| cluster.nodes[node].client());
    assert_eq!(leaves.call("CLUSTER RESET SOFT"), Okay);
    for stays in [&mut a, &mut b] {
        assert_eq!(
            stays.call(&format!("CLUSTER FORGET {}", cluster.ids[2])),
            Okay
        );
    }
    assert_eq!(a.call("CLUSTER ADDSLOTSRANGE 10923 16383"), Okay);
    let taken = soon("the lock at another node", client.lock(key_of(2)).acquire());
    taken.await.unwrap().release().await.unwrap();
}

/// A node alone, which nobody has told its address, and one that tells none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_without_an_address_are_where_the_client_was_led() {
    let node = Cluster::of_one_node();
    let mut observer = node.client();
    for endpoint in ["ip", "unknown-endpoint"] {
        let set = format!("CONFIG SET cluster-preferred-endpoint-type {endpoint}");
        assert_eq!(observer.call(&set), Okay);
        let url = url(&node).replace("redis://", "redis-cluster://");
        let client = LockClient::connect(url).await.unwrap();
        let session = client.session().await.unwrap();
        for lock in [client.lock("lock"), session.lock("lock")] {
            let guard = take(&client, "lock").await;
            let waiting = queue(&node, &lock, 0).await;
            guard.release().await.unwrap();
            granted(waiting).await.release().await.unwrap();
        }
    }
}

/// A session follows its connection to the node of its lock, and no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_ends_with_the_connection_to_the_node_of_its_lock() {
    let (cluster, client) = start().await;
    let key = key_of(2);
    let session = client.session().await.unwrap();
    let guard = session.lock(&key).acquire().await.unwrap();
    cluster.nodes[0].client().call("CLIENT KILL TYPE normal");
    soon("a renewal", renewed(&guard)).await;
    let mut observer = cluster.nodes[2].client();
    let bound = support::bound_client(&client, &key).await;
    assert_eq!(observer.int(&format!("CLIENT KILL ID {bound}")), 1);
    let begun = Instant::now();
    soon("the loss", guard.lost()).await;
    let told = begun.elapsed();
    assert!(told < Duration::from_secs(5), "{told:?}: by a renewal");
    assert!(guard.release().await.is_err());
    let session = client.session().await.unwrap();
    let _next = session.lock(&key).acquire().await.unwrap();
    drop(session);
    free(&cluster.nodes[2], &key).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_ends_when_the_slot_of_a_lock_moves_that_it_holds() {
    for is_given_back in [false, true] {
        let (cluster, client) = start().await;
        let session = client.session().await.unwrap();
        let kept = session.lock(key_of(2)).acquire().await.unwrap();
        let moving = session.lock(moving_key()).lease(Duration::from_secs(6));
        let guard = moving.acquire().await.unwrap();
        if is_given_back {
            guard.release().await.unwrap();
            block_in_place(|| cluster.reshard(0, 1, 100));
            let again = soon("the lock at the new node", moving.acquire()).await;
            again.unwrap().release().await.unwrap();
            assert!(session.is_alive());
            kept.release().await.unwrap();
        } else {
            block_in_place(|| cluster.reshard(0, 1, 100));
            soon("it is told", session.lost()).await;
            assert!(matches!(
                guard.lost().await,
                Lost::Disconnected | Lost::Expired
            ));
            drop(guard);
            soon("it is given back", client.flush()).await;
            free(&cluster.nodes[1], &moving_key()).await;
        }
    }
}
