//! One request at a time: a later one of the same owner takes the earlier one over.

use redis::Value;
use redis_lock_testing::scene::{
    await_gone, await_replicas, await_waiting, configure, settle, transaction, waiting,
};
use redis_lock_testing::{Client, LONG, Subscriber, TestServer, eventually, int, nil, text, token};

/// A server on which `holder` has the lock `k`, `a` waits for it by a client of its own,
/// and `b` behind it.
struct Scene {
    server: TestServer,
    observer: Client,
    earlier: Client,
    later: Client,
    behind: Client,
}

impl Scene {
    fn new() -> Self {
        let server = TestServer::start();
        let mut scene = Self {
            observer: server.client(),
            earlier: server.client(),
            later: server.client(),
            behind: server.client(),
            server,
        };
        let observer = &mut scene.observer;
        observer.int(&format!("LOCK.ACQUIRE k holder {LONG}"));
        scene
            .earlier
            .send_and_block(observer, &format!("LOCK.ACQUIRE k a {LONG} BLOCK 0"));
        scene
            .behind
            .send_and_block(observer, &format!("LOCK.ACQUIRE k b {LONG} BLOCK 0"));
        scene
    }

    fn ears(&self) -> Subscriber {
        self.server.subscriber("ch")
    }

    /// Whether the earlier request is told that it is superseded.
    #[track_caller]
    fn assert_superseded(&mut self) {
        let error = self.earlier.reply_error();
        assert!(error.starts_with("SUPERSEDED "), "{error}");
        assert_eq!(self.observer.info("lock_superseded"), 1);
    }

    /// The owner asks again, by another client.
    fn ask_again(&mut self, options: &str) {
        self.later
            .send(&format!("LOCK.ACQUIRE k a {LONG} {options}"));
    }

    fn release(&mut self) {
        assert_eq!(self.observer.call("LOCK.RELEASE k holder"), int(1));
    }

    /// The owner has this many holds, and its last release passes the lock on.
    #[track_caller]
    fn assert_held(&mut self, holds: i64) {
        let held = self.observer.call("HGET k a");
        assert_eq!(held, text(holds.to_string()));
        assert_eq!(waiting(&mut self.observer, "k"), 1);
        assert_eq!(self.observer.call("LOCK.RELEASE k a ALL"), int(1));
        token(&self.behind.reply());
    }
}

#[test]
fn a_later_wait_has_the_position_and_the_earlier_one_is_told() {
    let mut scene = Scene::new();
    scene.ask_again("BLOCK 0");
    scene.assert_superseded();
    assert_eq!(waiting(&mut scene.observer, "k"), 2);
    scene.release();
    token(&scene.later.reply());
    scene.assert_held(1);
}

#[test]
fn a_later_wait_in_another_mode_goes_to_the_end() {
    let mut scene = Scene::new();
    scene.ask_again("BLOCK 0 SHARED");
    scene.assert_superseded();
    scene.release();
    token(&scene.behind.reply());
    assert_eq!(scene.observer.call("LOCK.RELEASE k b"), int(1));
    token(&scene.later.reply());
}

#[test]
fn what_gets_no_token_at_once_leaves_the_earlier_one_as_it_is() {
    let mut scene = Scene::new();
    let tries = format!("LOCK.ACQUIRE k a {LONG}");
    assert_eq!(scene.later.call(&tries), nil());
    for misfit in ["BLOCK 0 HOLD 2", "QUEUE 1000 ch HOLD 2"] {
        let error = scene.later.error(&format!("{tries} {misfit}"));
        assert!(
            error.starts_with("HOLDCOUNT ") || error.starts_with("ERR "),
            "{error}"
        );
    }
    assert_eq!(waiting(&mut scene.observer, "k"), 2);
    assert_eq!(scene.observer.info("lock_superseded"), 0);
    scene.release();
    token(&scene.earlier.reply());
    scene.assert_held(1);
}

#[test]
fn a_later_request_is_granted_in_the_stead_of_the_one_that_waits() {
    let mut scene = Scene::new();
    // The server tells the module of it in the same turn.
    let tries = format!("LOCK.ACQUIRE k a {LONG}");
    let replies = transaction(&mut scene.later, &["DEL k", &tries]);
    token(&replies[1]);
    scene.assert_superseded();
    scene.assert_held(1);
}

/// On Redis 7.4 and later the earlier client is told at the end of the turn. Before, its
/// token is in its output buffer by then, and the later request is a re-entry.
#[test]
fn what_was_granted_in_the_same_turn_is_told_once_or_counts_twice() {
    for (options, told_twice) in [("", 2), (" HOLD 1", 1)] {
        let mut scene = Scene::new();
        let again = format!("LOCK.ACQUIRE k a {LONG}{options}");
        let turn = ["LOCK.RELEASE k holder", &again];
        let replies = transaction(&mut scene.later, &turn);
        let told = token(&replies[1]);
        let holds = match scene.earlier.reply() {
            Value::Int(first) => {
                assert_eq!(first, told);
                told_twice
            }
            Value::ServerError(error) => {
                assert_eq!(error.code(), "SUPERSEDED");
                1
            }
            other => panic!("{other:?}"),
        };
        scene.assert_held(holds);
    }
}

#[test]
fn the_end_of_an_earlier_client_takes_nothing_from_the_later_one() {
    for options in ["", " SESSION"] {
        let mut scene = Scene::new();
        scene.ask_again(&format!("BLOCK 0{options}"));
        scene.assert_superseded();
        scene.release();
        token(&scene.later.reply());
        drop(std::mem::replace(&mut scene.earlier, scene.server.client()));
        settle(&scene.server);
        scene.assert_held(1);
    }
}

#[test]
fn a_place_is_told_on_its_old_channel_unless_that_is_the_new_one() {
    for (then, is_told) in [
        ("QUEUE 600000 ch", false),
        ("QUEUE 600000 other", true),
        ("BLOCK 0", true),
    ] {
        let scene = Scene::new();
        let mut ears = scene.ears();
        let mut others = scene.server.subscriber("other");
        let (mut later, mut observer) = (scene.later, scene.observer);
        let asks = |options: &str| format!("LOCK.ACQUIRE k c {LONG} {options}");
        assert_eq!(observer.call(&asks("QUEUE 600000 ch")), int(0));
        later.send(&asks(then));
        if then != "BLOCK 0" {
            assert_eq!(later.reply(), int(0));
        }
        if is_told {
            let told = ears.told();
            assert!(told.result.starts_with("-SUPERSEDED "), "{told:?}");
        }
        await_waiting(&mut observer, "k", 3);
        for owner in ["holder", "a", "b"] {
            assert_eq!(observer.call(&format!("LOCK.RELEASE k {owner}")), int(1));
        }
        match then {
            "BLOCK 0" => _ = token(&later.reply()),
            "QUEUE 600000 ch" => _ = ears.granted("c"),
            _ => _ = others.granted("c"),
        }
    }
}

#[test]
fn a_place_takes_a_blocked_wait_over() {
    let mut scene = Scene::new();
    let mut ears = scene.ears();
    let place = format!("LOCK.ACQUIRE k a {LONG} QUEUE 600000 ch");
    assert_eq!(scene.later.call(&place), int(0));
    scene.assert_superseded();
    scene.release();
    let fence = ears.granted("a");
    let claim = format!("LOCK.RENEW k a {LONG} FENCE {fence}");
    assert_eq!(ears.call(&claim), int(1));
    scene.assert_held(1);
}

#[test]
fn a_release_of_an_owner_that_holds_nothing_gives_its_wait_up() {
    for (options, reply) in [("", nil()), (" ALL", nil()), (" HOLD 1", int(1))] {
        let mut scene = Scene::new();
        let release = format!("LOCK.RELEASE k a{options}");
        // Who names a token speaks of a hold.
        if options.is_empty() {
            assert_eq!(scene.later.call("LOCK.RELEASE k a FENCE 1"), nil());
        }
        assert_eq!(waiting(&mut scene.observer, "k"), 2);
        assert_eq!(scene.later.call(&release), reply);
        assert_eq!(scene.earlier.reply(), nil());
        assert_eq!(waiting(&mut scene.observer, "k"), 1);
        scene.release();
        token(&scene.behind.reply());
    }
}

/// What replicas have not acknowledged is not told, so a later request has it.
#[test]
fn a_grant_that_is_withheld_passes_with_its_token() {
    let server = TestServer::start();
    let replica = server.replica(true);
    let (mut observer, mut earlier, mut later) =
        (server.client(), server.client(), server.client());
    await_replicas(&mut observer, 1);
    configure(&mut observer, "min-replicas", 1);
    configure(&mut observer, "replicas-timeout", 600_000);
    for (options, holds) in [("", 1), (" HOLD 1", 1)] {
        let asks = format!("LOCK.ACQUIRE k a {LONG}{options}");
        replica.stop();
        earlier.send_and_block(&mut observer, &asks);
        let written = observer.call("HGET k @fence");
        let superseded = observer.info("lock_superseded");
        later.send(&asks);
        eventually("the later request to be taken", || {
            observer.info("lock_superseded") == superseded + 1
        });
        assert!(earlier.reply_error().starts_with("SUPERSEDED "));
        // The end of the earlier one's connection takes nothing from the later one.
        let id = earlier.int("CLIENT ID");
        drop(std::mem::replace(&mut earlier, server.client()));
        await_gone(&mut observer, id);
        replica.go_on();
        assert_eq!(text(token(&later.reply()).to_string()), written);
        assert_eq!(observer.call("HGET k a"), text(i64::to_string(&holds)));
        later.send("LOCK.RELEASE k a ALL");
        assert_eq!(later.reply(), int(1));
    }
}

/// Neither of them was told, so nothing is left of them.
#[test]
fn a_later_request_that_is_not_acknowledged_gives_back_what_it_took_over() {
    let server = TestServer::start();
    let replica = server.replica(true);
    let (mut observer, mut earlier, mut later) =
        (server.client(), server.client(), server.client());
    await_replicas(&mut observer, 1);
    configure(&mut observer, "min-replicas", 1);
    configure(&mut observer, "replicas-timeout", 600_000);
    let id = later.int("CLIENT ID");
    replica.stop();
    let asks = format!("LOCK.ACQUIRE k a {LONG}");
    earlier.send_and_block(&mut observer, &asks);
    later.send(&asks);
    assert!(earlier.reply_error().starts_with("SUPERSEDED "));
    assert_eq!(observer.int(&format!("CLIENT UNBLOCK {id}")), 1);
    assert!(later.reply_error().starts_with("NOREPLICAS "));
    replica.go_on();
    settle(&server);
    assert_eq!(observer.call("EXISTS k"), int(0));
}

/// Whether the release ends the hold, or its lease has ended it.
#[test]
fn a_release_answers_a_grant_that_is_withheld() {
    let server = TestServer::start();
    let replica = server.replica(true);
    let (mut observer, mut asks) = (server.client(), server.client());
    await_replicas(&mut observer, 1);
    configure(&mut observer, "min-replicas", 1);
    configure(&mut observer, "replicas-timeout", 600_000);
    replica.stop();
    for (lease, reply) in [("600000", int(1)), ("1", nil())] {
        let acquire = format!("LOCK.ACQUIRE k a LEASE {lease}");
        asks.send_and_block(&mut observer, &acquire);
        if lease == "1" {
            eventually("its lease is over", || observer.int("EXISTS k") == 0);
        }
        assert_eq!(observer.call("LOCK.RELEASE k a"), reply);
        assert_eq!(asks.reply(), nil());
    }
    replica.go_on();
}
