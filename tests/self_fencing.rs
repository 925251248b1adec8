//! A primary that its replicas may have left grants nothing, by no road.
//!
//! The server counts its good replicas once a second, in its own clockwork. A server
//! that was stopped and goes on serves what lies in its sockets before that turns. So
//! in that moment its own count is as old as the pause.

use std::time::Duration;

use redis::Value;
use redis_lock_testing::scene::{assert_all_granted, assert_none_granted, await_replicas, waiting};
use redis_lock_testing::{Client, LONG, TestServer, eventually, info_field, int, nil};
use redis_lock_testing::{reply_text, status};

/// A primary that demands one replica, and that replica.
struct Scene {
    primary: TestServer,
    replica: TestServer,
    observer: Client,
    waiters: Vec<(&'static str, Client)>,
}

impl Scene {
    fn set() -> Self {
        let primary = TestServer::start();
        let replica = primary.replica(true);
        let mut observer = primary.client();
        await_replicas(&mut observer, 1);
        let demand = "CONFIG SET min-replicas-to-write 1 min-replicas-max-lag 1";
        assert_eq!(observer.call(demand), status("OK"));
        eventually("the server counts it", || own_count(&mut observer) == 1);
        Self {
            primary,
            replica,
            observer,
            waiters: Vec::new(),
        }
    }

    /// Somebody holds the lock, and somebody waits for it.
    fn hold_and_wait(&mut self, key: &'static str, lease: &str) {
        let hold = format!("LOCK.ACQUIRE {key} holder {lease}");
        // A machine that stalls is a pause, too.
        eventually("it is held", || {
            matches!(self.observer.call(&hold), Value::Int(_))
        });
        let wait = format!("LOCK.ACQUIRE {key} waiter {LONG} BLOCK 0");
        let mut waiter = self.primary.client();
        waiter.send(&wait);
        eventually("somebody waits", || {
            if waiter.has_reply() {
                assert_refused(&waiter.reply());
                waiter.send(&wait);
            }
            waiting(&mut self.observer, key) == 1
        });
        self.waiters.push((key, waiter));
    }

    /// Stops the primary for longer than a replica may lag, and lets it find these
    /// commands when it goes on. Returns their replies.
    fn pause_primary(&mut self, commands: &[&str], meanwhile: impl FnOnce(&Self)) -> Vec<Value> {
        self.primary.stop();
        for command in commands {
            self.observer.send(command);
        }
        meanwhile(self);
        // It is the passing of time that is tested.
        std::thread::sleep(Duration::from_millis(3000));
        self.primary.go_on();
        commands.iter().map(|_| self.observer.reply()).collect()
    }

    #[track_caller]
    fn assert_nothing_is_granted(&mut self) {
        assert_none_granted(&mut self.observer, &self.waiters);
    }

    #[track_caller]
    fn await_grant_of(&mut self, key: &str) {
        eventually("grants go on", || {
            let reply = self.observer.call(&format!("LOCK.ACQUIRE {key} holder"));
            matches!(reply, Value::Int(_))
        });
    }

    #[track_caller]
    fn assert_granted(mut self) {
        assert_all_granted(&mut self.observer, std::mem::take(&mut self.waiters));
        self.primary.assert_sound();
    }
}

/// How many good replicas the server counts by itself.
fn own_count(observer: &mut Client) -> i64 {
    own_count_in(observer.call("INFO replication"))
}

fn own_count_in(info: Value) -> i64 {
    let info = reply_text(info).unwrap();
    let count = info_field(&info, "min_slaves_good_slaves").unwrap();
    count.trim().parse().unwrap()
}

#[track_caller]
fn assert_refused(reply: &Value) {
    let Value::ServerError(error) = reply else {
        panic!("{reply:?} is no refusal");
    };
    assert_eq!(error.code(), "NOREPLICAS", "{error:?}");
}

#[test]
fn a_primary_whose_replica_has_fallen_silent_hands_nothing_on_whatever_its_own_count() {
    let mut scene = Scene::set();
    for key in ["released", "deleted", "broken", "ended"] {
        let lease = if key == "ended" { "LEASE 1500" } else { LONG };
        scene.hold_and_wait(key, lease);
    }
    scene.replica.stop();
    let turn = [
        "INFO replication",
        "LOCK.RELEASE released holder",
        "DEL deleted",
        "LOCK.BREAK broken",
        "LOCK.ACQUIRE free holder",
        "INFO replication",
    ];
    let replies = scene.pause_primary(&turn, |_| {});
    for info in [&replies[0], &replies[5]] {
        assert_eq!(own_count_in(info.clone()), 1, "its own count is an old one");
    }
    assert_eq!(replies[1..4], [int(1), int(1), int(1)]);
    assert_refused(&replies[4]);
    scene.assert_nothing_is_granted();
    scene.replica.go_on();
    scene.assert_granted();
}

#[test]
fn a_primary_whose_replica_has_fallen_silent_renews_nothing() {
    let mut scene = Scene::set();
    scene.hold_and_wait("held", LONG);
    let ends = scene.observer.int("PEXPIRETIME held");
    scene.replica.stop();
    let turn = [
        "INFO replication",
        "LOCK.RENEW held holder LEASE 900000",
        "LOCK.ACQUIRE held holder LEASE 900000",
        "LOCK.ACQUIRE held holder LEASE 900000 HOLD 1",
        "PEXPIRETIME held",
    ];
    let replies = scene.pause_primary(&turn, |_| {});
    assert_eq!(own_count_in(replies[0].clone()), 1);
    replies[1..4].iter().for_each(assert_refused);
    assert_eq!(replies[4], int(ends));
    scene.replica.go_on();
    eventually("it is renewed again", || {
        scene.observer.call("LOCK.RENEW held holder LEASE 600000") == int(1)
    });
    assert_eq!(scene.observer.int("LOCK.RELEASE held holder"), 1);
    scene.assert_granted();
}

#[test]
fn a_primary_whose_replica_has_fallen_silent_guards_nothing() {
    let mut scene = Scene::set();
    scene.hold_and_wait("held", LONG);
    let token = scene.observer.bulk("HGET held @fence");
    let guarded = format!("LOCK.GUARD held {token} GET x");
    eventually("it is guarded", || scene.observer.call(&guarded) == nil());
    scene.replica.stop();
    let replies = scene.pause_primary(&["INFO replication", &guarded], |_| {});
    assert_eq!(own_count_in(replies[0].clone()), 1);
    assert_refused(&replies[1]);
    scene.replica.go_on();
    eventually("it is guarded again", || {
        scene.observer.call(&guarded) == nil()
    });
    assert_eq!(scene.observer.int("LOCK.RELEASE held holder"), 1);
    scene.assert_granted();
}

#[test]
fn acknowledgements_that_lay_in_the_socket_during_a_pause_are_no_new_ones() {
    let mut scene = Scene::set();
    scene.hold_and_wait("ended", "LEASE 1500");
    let promote = |scene: &Scene| {
        // It has acknowledged meanwhile what it had.
        std::thread::sleep(Duration::from_millis(1500));
        let mut replica = scene.replica.client();
        assert_eq!(replica.call("REPLICAOF NO ONE"), status("OK"));
    };
    let replies = scene.pause_primary(&["LOCK.ACQUIRE free holder", "PING"], promote);
    assert_refused(&replies[0]);
    scene.assert_nothing_is_granted();
    let demand = "CONFIG SET min-replicas-to-write 0";
    assert_eq!(scene.observer.call(demand), status("OK"));
    scene.assert_granted();
}

#[test]
fn after_a_pause_a_replica_that_stays_is_asked_and_grants_go_on() {
    let mut scene = Scene::set();
    scene.hold_and_wait("ended", "LEASE 1500");
    let replies = scene.pause_primary(&["LOCK.ACQUIRE free holder"], |_| {});
    assert_refused(&replies[0]);
    scene.await_grant_of("free");
    scene.assert_granted();
}

/// Enough that the server does not read what came after them before it has run them.
const MANY: usize = 500;

#[test]
fn what_a_replica_that_left_in_a_pause_had_acknowledged_counts_for_no_command_after_it() {
    let mut scene = Scene::set();
    scene.hold_and_wait("held", LONG);
    // The observer took the lock, so it is this that is waited for.
    assert_eq!(scene.observer.int("WAIT 1 0"), 1);
    let mut client = scene.primary.client();
    let leave_and_ask = |scene: &Scene| {
        // It acknowledges once a second what it has.
        std::thread::sleep(Duration::from_millis(1500));
        let mut replica = scene.replica.client();
        assert_eq!(replica.call("REPLICAOF NO ONE"), status("OK"));
        let batch = "LOCK.ACQUIRE free holder\r\n".repeat(MANY);
        client.send_bytes(batch.as_bytes());
    };
    scene.pause_primary(&[], leave_and_ask);
    for _ in 0..MANY {
        assert_refused(&client.reply());
    }
    scene.assert_nothing_is_granted();
}

#[test]
fn after_a_pause_in_which_nothing_was_written_a_replica_that_stays_is_asked() {
    let mut scene = Scene::set();
    // The server would write to it by itself.
    let pings = "CONFIG SET repl-ping-replica-period 3600";
    assert_eq!(scene.observer.call(pings), status("OK"));
    let replies = scene.pause_primary(&["LOCK.ACQUIRE free holder"], |_| {});
    assert_refused(&replies[0]);
    scene.await_grant_of("free");
}

/// This much time passes on the server, while nobody asks for a lock.
fn let_pass(observer: &mut Client, seconds: &str) {
    assert_eq!(observer.call(&format!("BLPOP none {seconds}")), nil());
}

#[test]
fn a_server_at_which_nobody_has_asked_for_a_while_was_not_paused() {
    let mut scene = Scene::set();
    // A machine that stalls is a pause, too.
    eventually("the first one after a while is granted", || {
        let_pass(&mut scene.observer, "1");
        let reply = scene.observer.call("LOCK.ACQUIRE k holder");
        matches!(reply, Value::Int(_))
    });
}

#[test]
fn a_server_whose_clockwork_turns_slowly_was_not_paused() {
    let mut scene = Scene::set();
    let slow = "CONFIG SET hz 1 repl-ping-replica-period 3600";
    assert_eq!(scene.observer.call(slow), status("OK"));
    let mut written = || {
        let info = scene.observer.bulk("INFO replication");
        info_field(&info, "master_repl_offset").unwrap().to_owned()
    };
    // Where there was a pause, replicas are asked. A machine that stalls is one, too.
    let mut observer = scene.primary.client();
    eventually("no replica is asked for a while", || {
        let before = written();
        let_pass(&mut observer, "2.5");
        written() == before
    });
}

#[test]
fn a_server_that_was_stopped_while_writes_are_paused_asks_after_that() {
    let mut scene = Scene::set();
    let pause = "CLIENT PAUSE 600000 WRITE";
    assert_eq!(scene.observer.call(pause), status("OK"));
    scene.pause_primary(&["PING"], |_| {});
    let up_s = scene.observer.info("uptime_in_seconds");
    eventually("its clockwork has turned", || {
        scene.observer.info("uptime_in_seconds") >= up_s + 2
    });
    assert_eq!(scene.observer.call("CLIENT UNPAUSE"), status("OK"));
    scene.await_grant_of("k");
    scene.primary.assert_sound();
}

#[test]
fn without_a_replica_left_a_lock_is_not_handed_on_at_the_end_of_its_lease() {
    let mut scene = Scene::set();
    scene.hold_and_wait("ended", "LEASE 2500");
    scene.replica.crash();
    eventually("it is refused", || {
        let reply = scene.observer.call("LOCK.ACQUIRE another holder LEASE 1");
        matches!(reply, Value::ServerError(error) if error.code() == "NOREPLICAS")
    });
    eventually("the lease is over", || {
        scene.observer.call("HGET ended holder") == nil()
    });
    scene.assert_nothing_is_granted();
    scene.replica.restart();
    scene.assert_granted();
}

#[test]
fn a_holder_is_confirmed_or_refused_at_the_moment_when_its_replica_falls_silent() {
    let mut scene = Scene::set();
    // It takes a while to read them, between the beginning of a command and its answer.
    let holders: Vec<String> = (0..400)
        .map(|n| format!("LOCK.ACQUIRE k holder{n} {LONG} LIMIT 400 HOLD 1"))
        .collect();
    for take in &holders {
        eventually("it is held", || {
            matches!(scene.observer.call(take), Value::Int(_))
        });
    }
    let confirm = &holders[0];
    let batch = format!("{confirm}\r\n").repeat(200);
    for _ in 0..3 {
        scene.replica.stop();
        let mut is_refused = false;
        while !is_refused {
            scene.observer.send_bytes(batch.as_bytes());
            for _ in 0..200 {
                match scene.observer.reply() {
                    Value::Int(_) => {}
                    reply => {
                        assert_refused(&reply);
                        is_refused = true;
                    }
                }
            }
        }
        scene.replica.go_on();
        eventually("the server takes writes again", || {
            matches!(scene.observer.call(confirm), Value::Int(_))
        });
    }
}
