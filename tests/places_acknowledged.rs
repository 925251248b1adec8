//! `lock.min-replicas` and places: a grant is told when it is acknowledged, if anybody
//! hears it then.

use redis::Value;
use redis_lock_testing::scene::{await_replicas, await_role, configure, transaction, waiting};
use redis_lock_testing::{
    Client, LONG, Subscriber, TestServer, Told, eventually, int, nil, status, text, token,
};

/// A server whose one replica has to acknowledge, and the lock `k`, which `holder` holds.
struct Scene {
    server: TestServer,
    replica: TestServer,
    client: Client,
    ears: Subscriber,
}

impl Scene {
    fn new() -> Self {
        let server = TestServer::start();
        let replica = server.replica(true);
        let mut client = server.client();
        await_replicas(&mut client, 1);
        configure(&mut client, "min-replicas", 1);
        configure(&mut client, "replicas-timeout", 600_000);
        token(&client.call(&format!("LOCK.ACQUIRE k holder {LONG}")));
        let ears = server.subscriber("ch");
        Self {
            server,
            replica,
            client,
            ears,
        }
    }

    /// `a` has been granted the lock, and is not told as long as the replica stands still.
    #[track_caller]
    fn withheld() -> Self {
        let mut scene = Self::new();
        scene.place("a");
        scene.replica.stop();
        scene.release();
        scene.await_withheld(1);
        scene
    }

    /// Has the server follow another one.
    #[track_caller]
    fn demote(&mut self) -> TestServer {
        let primary = TestServer::start();
        let demote = format!("REPLICAOF 127.0.0.1 {}", primary.addr().port());
        assert_eq!(self.client.call(&demote), status("OK"));
        primary
    }

    #[track_caller]
    fn place(&mut self, owner: &str) {
        let command = format!("LOCK.ACQUIRE k {owner} {LONG} QUEUE 600000 ch");
        assert_eq!(self.ears.call(&command), int(0));
    }

    #[track_caller]
    fn release(&mut self) {
        assert_eq!(self.client.call("LOCK.RELEASE k holder"), int(1));
    }

    #[track_caller]
    fn await_withheld(&mut self, count: i64) {
        eventually(&format!("{count} are withheld"), || {
            self.client.info("lock_replies_withheld") == count
        });
    }

    #[track_caller]
    fn await_holds(&mut self, owner: &str, holds: &Value) {
        eventually(&format!("{owner} has {holds:?}"), || {
            self.client.call(&format!("HGET k {owner}")) == *holds
        });
    }

    #[track_caller]
    fn assert_over(mut self) {
        self.await_withheld(0);
        assert_eq!(self.ears.told_so_far(), []);
        self.server.assert_sound();
        self.replica.assert_sound();
        self.server.assert_same_data(&self.replica);
    }
}

#[track_caller]
fn assert_unsafe(told: &Told, owner: &str) {
    assert_eq!(told.owner, owner);
    assert!(told.result.starts_with("-NOREPLICAS "), "{told:?}");
}

#[test]
fn a_place_is_told_of_its_grant_after_a_replica_has_acknowledged_it() {
    let mut scene = Scene::new();
    scene.place("a");
    scene.replica.stop();
    scene.release();
    scene.await_holds("a", &text("1"));
    scene.await_withheld(1);
    assert_eq!(scene.client.call("LOCK.ACQUIRE k b"), nil());
    assert_eq!(scene.ears.told_so_far(), []);
    // The first lease is longer by what the replicas may take.
    assert!(scene.client.int("PTTL k") > 590_000);
    scene.replica.go_on();
    let told = scene.ears.told();
    assert_eq!(told.owner, "a");
    assert_eq!(scene.client.bulk("HGET k @fence"), told.token().to_string());
    let claim = format!("LOCK.RENEW k a {LONG} FENCE {}", told.token());
    assert_eq!(scene.client.call(&claim), int(1));
    assert_eq!(scene.client.info("lock_claims"), 1);
    scene.assert_over();
}

/// Whether it waits yet, or was granted the lock and is not told.
#[test]
fn a_place_is_taken_over_by_a_later_request_of_its_owner() {
    for (then, is_told) in [
        ("QUEUE 600000 ch", false),
        ("QUEUE 600000 other", true),
        ("", true),
    ] {
        for is_granted in [false, true] {
            let mut scene = if is_granted {
                Scene::withheld()
            } else {
                Scene::new()
            };
            let mut asks = scene.server.client();
            let again = format!("LOCK.ACQUIRE k a {LONG} {then}");
            if !is_granted {
                scene.place("a");
                scene.replica.stop();
                assert_eq!(scene.client.call("DEL k"), int(1));
                scene.await_withheld(1);
            }
            asks.send_and_block(&mut scene.client, again.trim_end());
            if is_told {
                let told = scene.ears.told();
                assert!(told.result.starts_with("-SUPERSEDED "), "{told:?}");
            }
            scene.await_withheld(1);
            scene.replica.go_on();
            token(&asks.reply());
            assert_eq!(scene.ears.told_so_far(), []);
            assert_eq!(scene.client.call("HGET k a"), text("1"));
            assert!(scene.client.int("PTTL k") > 500_000, "it was replied");
            scene.assert_over();
        }
    }
}

#[test]
fn the_first_lease_is_longer_by_what_the_replicas_may_take() {
    let mut scene = Scene::new();
    configure(&mut scene.client, "claim-timeout", 20_000);
    configure(&mut scene.client, "replicas-timeout", 30_000);
    scene.place("a");
    scene.release();
    let told = scene.ears.told();
    told.token();
    assert_eq!(told.lease_ms, 50_000);
    let left = scene.client.int("PTTL k");
    assert!((20_001..=50_000).contains(&left), "{left}");
    scene.assert_over();
}

#[test]
fn what_is_not_acknowledged_in_time_is_given_back_and_the_lock_goes_on() {
    let mut scene = Scene::new();
    for owner in ["a", "b"] {
        scene.place(owner);
    }
    configure(&mut scene.client, "replicas-timeout", 300);
    scene.replica.stop();
    scene.release();
    scene.await_withheld(1);
    configure(&mut scene.client, "replicas-timeout", 600_000);
    assert_unsafe(&scene.ears.told(), "a");
    scene.await_holds("b", &text("1"));
    assert_eq!(scene.client.call("HGET k a"), nil());
    assert_eq!(waiting(&mut scene.client, "k"), 0);
    assert_eq!(scene.client.info("lock_replies_unacknowledged"), 1);
    scene.replica.go_on();
    scene.ears.granted("b");
    scene.assert_over();
}

#[test]
fn a_crowd_whose_lock_was_touched_meanwhile_is_told_in_time() {
    const CROWD: usize = 1000;
    let mut scene = Scene::new();
    configure(&mut scene.client, "claim-timeout", 600_000);
    let asks =
        (0..CROWD).map(|nth| format!("LOCK.ACQUIRE k r{nth} {LONG} QUEUE 600000 ch SHARED\r\n"));
    scene.client.send_bytes(asks.collect::<String>().as_bytes());
    for _ in 0..CROWD {
        assert_eq!(scene.client.reply(), int(0));
    }
    configure(&mut scene.client, "replicas-timeout", 5000);
    scene.replica.stop();
    scene.release();
    eventually("all are withheld", || {
        scene.client.info("lock_replies_withheld") == i64::try_from(CROWD).unwrap()
    });
    assert_eq!(scene.client.call("PEXPIRE k 600000"), int(1));
    scene.replica.go_on();
    for _ in 0..CROWD {
        scene.ears.told().token();
    }
    assert_eq!(scene.client.info("lock_replies_unacknowledged"), 0);
}

#[test]
fn what_nobody_hears_when_it_is_told_is_given_back_and_the_next_is_asked() {
    let mut scene = Scene::new();
    let first = format!("LOCK.ACQUIRE k a {LONG} QUEUE 600000 gone");
    assert_eq!(scene.ears.call(&first), int(0));
    scene.place("b");
    let gone = scene.server.subscriber("gone");
    scene.replica.stop();
    scene.release();
    scene.await_holds("a", &text("1"));
    drop(gone);
    eventually("nobody hears", || {
        scene.client.call("PUBSUB NUMSUB gone") == Value::Array(vec![text("gone"), int(0)])
    });
    scene.replica.go_on();
    scene.ears.granted("b");
    assert_eq!(scene.client.call("HGET k a"), nil());
    scene.assert_over();
}

#[test]
fn while_too_few_replicas_are_connected_nobody_is_granted_and_all_wait_on() {
    let mut scene = Scene::new();
    for owner in ["a", "b"] {
        scene.place(owner);
    }
    let mut there = scene.replica.client();
    assert_eq!(there.call("REPLICAOF NO ONE"), status("OK"));
    eventually("no replica is there", || {
        scene.client.info("connected_slaves") == 0
    });
    scene.release();
    assert_eq!(scene.client.call("EXISTS k"), int(0));
    assert_eq!(waiting(&mut scene.client, "k"), 2);
    assert_eq!(scene.ears.told_so_far(), []);
    let port = scene.server.addr().port();
    there.call(&format!("REPLICAOF 127.0.0.1 {port}"));
    scene.ears.granted("a");
    assert_eq!(waiting(&mut scene.client, "k"), 1);
    scene.assert_over();
}

#[test]
fn a_grant_that_was_released_meanwhile_is_told_as_none() {
    let mut scene = Scene::withheld();
    assert_eq!(scene.client.call("LOCK.RELEASE k a"), int(1));
    scene.replica.go_on();
    let told = scene.ears.told();
    assert_eq!((told.owner.as_str(), told.result.as_str()), ("a", "0"));
    assert_eq!(scene.client.call("EXISTS k"), int(0));
    scene.assert_over();
}

#[test]
fn a_transaction_takes_a_place_and_it_is_told_when_it_is_safe() {
    let mut scene = Scene::new();
    let replies = transaction(
        &mut scene.client,
        &[
            "LOCK.ACQUIRE k a LEASE 600000 QUEUE 600000 ch",
            "LOCK.RELEASE k holder",
            "LOCK.ACQUIRE free a LEASE 600000",
        ],
    );
    assert_eq!(replies[..2], [int(0), int(1)]);
    assert!(format!("{:?}", replies[2]).contains("NOREPLICAS"));
    scene.ears.granted("a");
    scene.assert_over();
}

#[test]
fn a_place_of_a_session_whose_connection_ends_while_it_is_withheld_ends_and_is_told_so() {
    let mut scene = Scene::new();
    let mut asks = scene.server.client();
    let place = format!("LOCK.ACQUIRE k a {LONG} QUEUE 600000 ch SESSION");
    assert_eq!(asks.call(&place), int(0));
    scene.place("b");
    scene.replica.stop();
    scene.release();
    scene.await_holds("a", &text("1"));
    drop(asks);
    let told = scene.ears.told();
    assert_eq!((told.owner.as_str(), told.result.as_str()), ("a", "0"));
    scene.await_holds("b", &text("1"));
    scene.replica.go_on();
    scene.ears.granted("b");
    scene.assert_over();
}

#[test]
fn a_demotion_tells_a_place_so_whose_grant_is_withheld() {
    let mut scene = Scene::new();
    for owner in ["a", "b"] {
        scene.place(owner);
    }
    scene.replica.stop();
    scene.release();
    scene.await_withheld(1);
    let _primary = scene.demote();
    for owner in ["a", "b"] {
        let told = scene.ears.told();
        assert_eq!(told.owner, owner);
        assert!(told.result.starts_with("-UNBLOCKED "), "{told:?}");
    }
    scene.await_withheld(0);
    assert_eq!(scene.client.info("lock_places"), 0);
    scene.replica.go_on();
    scene.server.assert_sound();
}

#[test]
fn a_demotion_tells_a_place_so_whose_grant_is_withheld_where_nobody_else_waits() {
    let mut scene = Scene::withheld();
    let _primary = scene.demote();
    // Replicas have ten minutes.
    let told = scene.ears.told();
    assert_eq!(told.owner, "a");
    assert!(told.result.starts_with("-UNBLOCKED "), "{told:?}");
    scene.await_withheld(0);
    scene.replica.go_on();
    scene.server.assert_sound();
}

#[test]
fn a_planned_fail_over_brings_nobody_down_while_the_grant_of_a_place_is_withheld() {
    let mut scene = Scene::withheld();
    assert_eq!(scene.client.call("FAILOVER"), status("OK"));
    scene.replica.go_on();
    // It is told its token, if that was acknowledged before the end.
    let told = scene.ears.told();
    assert_eq!(told.owner, "a");
    let is_either = told.result.parse::<i64>().is_ok() || told.result.starts_with("-UNBLOCKED ");
    assert!(is_either, "{told:?}");
    await_role(&mut scene.replica.client(), "master");
    scene.server.assert_sound();
    scene.replica.assert_sound();
}

#[test]
fn a_claim_is_told_when_it_is_acknowledged() {
    let mut scene = Scene::new();
    scene.place("a");
    scene.release();
    let fence = scene.ears.told().token();
    scene.replica.stop();
    let mut claims = scene.server.client();
    claims.send(&format!("LOCK.RENEW k a {LONG} FENCE {fence}"));
    scene.await_withheld(1);
    assert_eq!(scene.client.info("lock_claims"), 1);
    scene.replica.go_on();
    assert_eq!(claims.reply(), int(1));
    scene.assert_over();
}

#[test]
fn the_module_is_not_unloaded_while_the_grant_of_a_place_is_withheld() {
    let mut scene = Scene::withheld();
    let error = scene.client.error("MODULE UNLOAD lock");
    assert!(error.starts_with("ERR "), "{error}");
    scene.replica.go_on();
    scene.ears.told().token();
    scene.assert_over();
}
