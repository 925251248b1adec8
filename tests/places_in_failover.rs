//! Places when a server steps down, pauses, reloads or ends.

use std::time::{Duration, Instant};

use redis::Value;
use redis_lock_testing::scene::{await_replicas, await_role, waiting};
use redis_lock_testing::{
    Client, LONG, Subscriber, TestServer, eventually, int, nil, status, text, token,
};

/// A server, its replica, and the lock `k`, which `holder` holds.
struct Scene {
    server: TestServer,
    replica: TestServer,
    client: Client,
    ears: Subscriber,
}

impl Scene {
    fn held() -> Self {
        let server = TestServer::start();
        let replica = server.replica(true);
        let mut client = server.client();
        await_replicas(&mut client, 1);
        token(&client.call(&format!("LOCK.ACQUIRE k holder {LONG}")));
        let ears = server.subscriber("ch");
        Self {
            server,
            replica,
            client,
            ears,
        }
    }

    #[track_caller]
    fn place(&mut self, key: &str, owner: &str) {
        let command = format!("LOCK.ACQUIRE {key} {owner} {LONG} QUEUE 600000 ch");
        assert_eq!(self.ears.call(&command), int(0));
    }

    #[track_caller]
    fn assert_unblocked(&mut self, owner: &str) {
        let told = self.ears.told();
        assert_eq!(told.owner, owner);
        assert!(told.result.starts_with("-UNBLOCKED "), "{told:?}");
    }

    fn assert_sound(&self) {
        self.server.assert_sound();
        self.replica.assert_sound();
    }
}

#[test]
fn a_demotion_tells_the_places_so_and_forgets_them() {
    let mut scene = Scene::held();
    scene.place("k", "a");
    scene.place("k", "b");
    scene.server.assert_same_data(&scene.replica);
    assert_eq!(
        scene.replica.client().call("REPLICAOF NO ONE"),
        status("OK")
    );
    let port = scene.replica.addr().port();
    let demote = format!("REPLICAOF 127.0.0.1 {port}");
    assert_eq!(scene.client.call(&demote), status("OK"));
    scene.assert_unblocked("a");
    scene.assert_unblocked("b");
    assert_eq!(scene.client.info("lock_places"), 0);
    assert_eq!(scene.client.info("lock_waiters"), 0);
    eventually("it is in step with its new primary", || {
        let info = scene.client.bulk("INFO replication");
        info.contains("master_link_status:up")
    });
    // Promoted again, it has nobody in line.
    assert_eq!(scene.client.call("REPLICAOF NO ONE"), status("OK"));
    let released = scene.client.call("LOCK.RELEASE k holder");
    assert!(matches!(released, Value::Int(1)), "{released:?}");
    assert_eq!(scene.client.call("EXISTS k"), int(0));
    assert_eq!(scene.ears.told_so_far(), []);
    scene.assert_sound();
}

#[test]
fn a_demotion_tells_many_places_of_many_locks() {
    let mut scene = Scene::held();
    for i in 0..50 {
        token(
            &scene
                .client
                .call(&format!("LOCK.ACQUIRE k{i} holder {LONG}")),
        );
    }
    for i in 0..1000 {
        scene.place(&format!("k{}", i % 50), &format!("owner{i}"));
    }
    assert_eq!(
        scene.replica.client().call("REPLICAOF NO ONE"),
        status("OK")
    );
    let port = scene.replica.addr().port();
    scene.client.call(&format!("REPLICAOF 127.0.0.1 {port}"));
    let mut owners: Vec<String> = (0..1000)
        .map(|_| {
            let told = scene.ears.told();
            assert!(told.result.starts_with("-UNBLOCKED "), "{told:?}");
            told.owner
        })
        .collect();
    owners.sort();
    owners.dedup();
    assert_eq!(owners.len(), 1000);
    assert_eq!(scene.client.info("lock_places"), 0);
}

#[test]
fn a_planned_fail_over_tells_the_places_so_and_the_new_primary_serves_them() {
    let mut scene = Scene::held();
    scene.place("k", "a");
    assert_eq!(scene.client.call("FAILOVER"), status("OK"));
    scene.assert_unblocked("a");
    let mut there = scene.replica.subscriber("ch");
    await_role(&mut there, "master");
    let place = format!("LOCK.ACQUIRE k a {LONG} QUEUE 600000 ch");
    assert_eq!(there.call(&place), int(0));
    assert_eq!(there.call("LOCK.RELEASE k holder"), int(1));
    there.granted("a");
    scene.assert_sound();
}

#[test]
fn a_replica_gives_no_places() {
    let scene = Scene::held();
    let mut there = scene.replica.client();
    let place = "LOCK.ACQUIRE k a QUEUE 60000 ch";
    assert!(there.error(place).starts_with("READONLY "));
    there.call("CONFIG SET replica-read-only no");
    let error = there.error(place);
    assert!(error.starts_with("READONLY "), "{error}");
    assert!(
        error.contains("leave BLOCK, QUEUE and SESSION out"),
        "{error}"
    );
    assert_eq!(there.info("lock_places"), 0);
}

#[test]
fn a_grant_that_a_demotion_left_unclaimed_ends_with_its_lease() {
    let mut scene = Scene::held();
    scene.client.call("CONFIG SET lock.claim-timeout 300");
    scene.place("k", "a");
    assert_eq!(scene.client.call("LOCK.RELEASE k holder"), int(1));
    scene.ears.granted("a");
    scene.server.assert_same_data(&scene.replica);
    let mut there = scene.replica.client();
    assert_eq!(there.call("REPLICAOF NO ONE"), status("OK"));
    eventually("the lease is over", || there.call("EXISTS k") == int(0));
    token(&there.call("LOCK.ACQUIRE k b"));
}

#[test]
fn a_lease_that_ends_in_a_pause_is_handed_on_after_it() {
    for mode in ["WRITE", "ALL"] {
        let mut scene = Scene::held();
        scene.place("k", "a");
        let start = Instant::now();
        let turn = format!("LOCK.RENEW k holder LEASE 100\r\nCLIENT PAUSE 700 {mode}\r\n");
        scene.client.send_bytes(turn.as_bytes());
        let replies = [scene.client.reply(), scene.client.reply()];
        assert_eq!(replies, [int(1), status("OK")]);
        scene.ears.granted("a");
        assert!(start.elapsed() >= Duration::from_millis(699), "{mode}");
        scene.assert_sound();
    }
}

#[test]
fn a_place_whose_time_is_over_in_a_pause_is_told_so() {
    let mut scene = Scene::held();
    let place = "LOCK.ACQUIRE k a QUEUE 100 ch";
    assert_eq!(scene.ears.call(place), int(0));
    assert_eq!(scene.client.call("CLIENT PAUSE 600 WRITE"), status("OK"));
    let told = scene.ears.told();
    assert_eq!((told.owner.as_str(), told.result.as_str()), ("a", "0"));
    scene.assert_sound();
}

#[test]
fn who_has_a_place_in_the_grace_period_is_served_in_order_when_it_ends() {
    let mut server = TestServer::start_with(&["--lock.grace-period", "600000"]);
    let (mut client, mut ears) = (server.client(), server.subscriber("ch"));
    for owner in ["a", "b"] {
        let place = format!("LOCK.ACQUIRE k {owner} {LONG} QUEUE 600000 ch");
        assert_eq!(ears.call(&place), int(0));
    }
    assert_eq!(ears.told_so_far(), []);
    assert_eq!(waiting(&mut client, "k"), 2);
    client.call("CONFIG SET lock.grace-period 0");
    assert_eq!(ears.told().owner, "a");
    assert_eq!(client.call("LOCK.RELEASE k a"), int(1));
    assert_eq!(ears.told().owner, "b");
    // A restart forgets them.
    let place = format!("LOCK.ACQUIRE k c {LONG} QUEUE 600000 ch");
    assert_eq!(ears.call(&place), int(0));
    server.crash_and_restart();
    assert_eq!(server.info("lock_places"), 0);
}

#[test]
fn a_primary_with_too_few_replicas_grants_no_place_until_it_has_enough() {
    let mut scene = Scene::held();
    scene.place("k", "a");
    scene.client.call("CONFIG SET min-replicas-max-lag 10");
    scene.client.call("CONFIG SET min-replicas-to-write 2");
    // A lease ends, which needs no write of ours.
    let mut there = scene.replica.client();
    let before = there.call("HGET k a");
    assert_eq!(before, nil());
    let error = scene.ears.error("LOCK.ACQUIRE k b QUEUE 60000 ch");
    assert!(error.starts_with("NOREPLICAS "), "{error}");
    assert_eq!(waiting(&mut scene.client, "k"), 1);
    scene.client.call("CONFIG SET min-replicas-to-write 1");
    assert_eq!(scene.client.call("LOCK.RELEASE k holder"), int(1));
    scene.ears.granted("a");
}

#[test]
fn a_reload_keeps_the_places() {
    let mut scene = Scene::held();
    scene.place("k", "a");
    assert_eq!(scene.client.call("DEBUG RELOAD"), status("OK"));
    assert_eq!(waiting(&mut scene.client, "k"), 1);
    assert_eq!(scene.client.call("LOCK.RELEASE k holder"), int(1));
    scene.ears.granted("a");
    assert_eq!(scene.client.call("HGET k a"), text("1"));
}

#[test]
fn swapped_databases_serve_each_place_in_its_own() {
    let mut scene = Scene::held();
    let mut one = scene.server.client();
    one.call("SELECT 1");
    token(&one.call(&format!("LOCK.ACQUIRE only1 holder {LONG}")));
    assert_eq!(scene.ears.call("SELECT 1"), status("OK"));
    scene.place("only1", "x");
    assert_eq!(scene.ears.call("SELECT 0"), status("OK"));
    scene.place("k", "y");
    assert_eq!(scene.client.call("SWAPDB 0 1"), status("OK"));
    let mut told = [scene.ears.told(), scene.ears.told()].map(|told| {
        told.token();
        (told.db, told.owner)
    });
    told.sort();
    assert_eq!(told, [(0, "y".to_owned()), (1, "x".to_owned())]);
    assert_eq!(one.call("HGET only1 x"), text("1"));
    assert_eq!(scene.client.call("HGET k y"), text("1"));
}

#[test]
fn a_server_with_places_ends_cleanly() {
    let mut scene = Scene::held();
    for i in 0..100 {
        scene.place("k", &format!("owner{i}"));
    }
    scene.client.send("SHUTDOWN NOSAVE");
    let ended = scene.server.await_end();
    assert!(ended.success(), "{ended}\n{}", scene.server.log());
}
