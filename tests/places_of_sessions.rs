//! Places with `SESSION`: they end with the connection that asked last, and so do their
//! holds, which are kept up once they are claimed.

use redis::Value;
use redis_lock_testing::scene::{Held, await_gone, configure, field, waiting};
use redis_lock_testing::{Client, LONG, eventually, int, nil, status, text, token};

const PLACE: &str = "LOCK.ACQUIRE k a LEASE 600000 QUEUE 600000 ch SESSION";

/// `a` has a place, with the session of this client, and `b` the one behind it.
#[track_caller]
fn two_places() -> (Held, Client) {
    let mut scene = Held::start();
    let mut asks = scene.server.client();
    assert_eq!(asks.call(PLACE), int(0));
    scene.place("b", "");
    (scene, asks)
}

/// The connection to which the first holder is bound.
#[track_caller]
fn bound(client: &mut Client) -> Value {
    let info = client.call("LOCK.INFO k");
    let Value::Array(holders) = field(&info, "holders") else {
        panic!("{info:?}");
    };
    field(&holders[0], "client").clone()
}

#[track_caller]
fn end(observer: &mut Client, mut client: Client) {
    let id = client.int("CLIENT ID");
    drop(client);
    await_gone(observer, id);
}

/// This much time passes.
fn let_pass(client: &mut Client, seconds: &str) {
    assert_eq!(client.call(&format!("BLPOP none {seconds}")), nil());
}

#[test]
fn a_place_ends_with_the_connection_that_asked_for_it() {
    let mut scene = Held::start();
    let mut asks = scene.server.client();
    assert_eq!(asks.call(PLACE), int(0));
    end(&mut scene.client, asks);
    let told = scene.ears.told();
    assert_eq!((told.owner.as_str(), told.result.as_str()), ("a", "0"));
    assert_eq!(waiting(&mut scene.client, "k"), 0);
    assert_eq!(scene.client.info("lock_places"), 0);
    scene.release("holder");
    assert_eq!(scene.client.call("EXISTS k"), int(0));
}

#[test]
fn a_connection_that_ends_in_the_turn_of_the_release_is_passed_over() {
    for kills_first in [true, false] {
        let (mut scene, mut asks) = two_places();
        let kill = format!("CLIENT KILL ID {}", asks.int("CLIENT ID"));
        let release = "LOCK.RELEASE k holder".to_owned();
        let turn = match kills_first {
            true => [kill, release],
            false => [release, kill],
        };
        scene
            .client
            .send_bytes(format!("{}\r\n{}\r\n", turn[0], turn[1]).as_bytes());
        assert_eq!(
            [scene.client.reply(), scene.client.reply()],
            [int(1), int(1)]
        );
        // Where it was granted the lock before, that ends with its connection, too.
        eventually("the lock is the next one's", || {
            scene.client.call("HGET k b") == text("1")
        });
        let told = scene.ears.told_so_far();
        let of_b = told.iter().filter(|told| told.owner == "b").count();
        assert_eq!(of_b, 1, "{told:?}");
        scene.server.assert_sound();
    }
}

/// The server reads that the connection of the place is closed after that.
#[test]
fn who_is_told_by_another_connection_than_that_of_its_place_keeps_the_lock() {
    let (mut scene, asks) = two_places();
    scene.server.stop();
    scene.client.send("DEL k");
    scene.client.send(&format!("LOCK.ACQUIRE k a {LONG}"));
    drop(asks);
    scene.server.go_on();
    assert_eq!(scene.client.reply(), int(1));
    let fence = token(&scene.client.reply());
    let told = scene.ears.told();
    assert!(told.result.starts_with("-SUPERSEDED "), "{told:?}");
    assert_eq!(bound(&mut scene.client), nil());
    assert_eq!(scene.client.bulk("HGET k @fence"), fence.to_string());
    assert_eq!(scene.client.call("LOCK.RELEASE k a"), int(1));
    assert!(scene.ears.granted("b") > fence);
}

#[test]
fn a_place_without_a_session_outlives_its_connection() {
    let mut scene = Held::start();
    let mut asks = scene.server.client();
    let place = format!("LOCK.ACQUIRE k a {LONG} QUEUE 600000 ch");
    assert_eq!(asks.call(&place), int(0));
    end(&mut scene.client, asks);
    assert_eq!(waiting(&mut scene.client, "k"), 1);
    scene.release("holder");
    scene.ears.granted("a");
    assert_eq!(bound(&mut scene.client), nil());
}

#[test]
fn the_connection_that_asked_last_counts() {
    let mut scene = Held::start();
    let (mut first, mut second) = (scene.server.client(), scene.server.client());
    assert_eq!(first.call(PLACE), int(0));
    assert_eq!(second.call(PLACE), int(0));
    end(&mut scene.client, first);
    assert_eq!(waiting(&mut scene.client, "k"), 1);
    assert_eq!(scene.ears.told_so_far(), []);
    scene.release("holder");
    scene.ears.granted("a");
    let id = second.int("CLIENT ID");
    assert_eq!(bound(&mut scene.client), int(id));
    end(&mut scene.client, second);
    token(&scene.client.call("LOCK.ACQUIRE k b"));
}

#[test]
fn a_request_without_session_unbinds_the_place() {
    let mut scene = Held::start();
    let mut asks = scene.server.client();
    assert_eq!(asks.call(PLACE), int(0));
    let plain = PLACE.strip_suffix(" SESSION").unwrap();
    assert_eq!(scene.ears.call(plain), int(0));
    end(&mut scene.client, asks);
    assert_eq!(waiting(&mut scene.client, "k"), 1);
    scene.release("holder");
    scene.ears.granted("a");
    assert_eq!(bound(&mut scene.client), nil());
}

#[test]
fn a_hold_ends_with_its_connection_unless_it_was_claimed_by_another() {
    for claimed_by in ["nobody", "its own", "another"] {
        let mut scene = Held::start();
        configure(&mut scene.client, "claim-timeout", "600000");
        let mut asks = scene.server.client();
        assert_eq!(asks.call(PLACE), int(0));
        let next = format!("LOCK.ACQUIRE k b {LONG} QUEUE 600000 ch");
        assert_eq!(scene.ears.call(&next), int(0));
        scene.release("holder");
        let fence = scene.ears.granted("a");
        let claim = format!("LOCK.RENEW k a {LONG} FENCE {fence}");
        match claimed_by {
            "its own" => assert_eq!(asks.call(&claim), int(1)),
            "another" => assert_eq!(scene.ears.call(&claim), int(1)),
            _ => {}
        }
        end(&mut scene.client, asks);
        if claimed_by == "another" {
            assert_eq!(scene.client.call("HGET k a"), text("1"));
            scene.release("a");
        }
        assert!(scene.ears.granted("b") > fence, "{claimed_by}");
        assert_eq!(scene.client.call("HGET k a"), nil());
        let by_session = i64::from(claimed_by != "another");
        assert_eq!(scene.client.info("lock_releases_session"), by_session);
        assert_eq!(scene.ears.call(&claim), int(0));
    }
}

#[test]
fn an_unclaimed_hold_is_not_kept_up_and_its_connection_lives() {
    let mut scene = Held::start();
    configure(&mut scene.client, "claim-timeout", "200");
    let mut asks = scene.server.client();
    // The connection has a session on another lock, which is kept up.
    token(&asks.call("LOCK.ACQUIRE other a LEASE 1000 SESSION"));
    assert_eq!(asks.call(PLACE), int(0));
    scene.release("holder");
    scene.ears.granted("a");
    eventually("the grant is over", || {
        scene.client.call("EXISTS k") == int(0)
    });
    // The server may expire it before the module looks.
    eventually("it counts", || {
        scene.client.info("lock_grants_unclaimed") == 1
    });
    let_pass(&mut scene.client, "1.5");
    assert_eq!(asks.call("PING"), status("PONG"));
    assert_eq!(asks.call("HGET other a"), text("1"));
    assert_eq!(scene.client.info("lock_sessions"), 1);
    // And it can have the lock again.
    token(&asks.call(PLACE));
}

#[test]
fn a_claimed_hold_is_kept_up_while_the_connection_lives() {
    let mut scene = Held::start();
    configure(&mut scene.client, "claim-timeout", "3000");
    let mut asks = scene.server.client();
    let place = "LOCK.ACQUIRE k a LEASE 1500 QUEUE 600000 ch SESSION";
    assert_eq!(asks.call(place), int(0));
    scene.release("holder");
    let fence = scene.ears.granted("a");
    let claim = format!("LOCK.RENEW k a LEASE 1500 FENCE {fence}");
    assert_eq!(asks.call(&claim), int(1));
    let_pass(&mut scene.client, "3");
    assert_eq!(scene.client.bulk("HGET k @fence"), fence.to_string());
    assert_eq!(scene.client.call("HGET k a"), text("1"));
    end(&mut scene.client, asks);
    assert_eq!(scene.client.call("LOCK.RENEW k a"), int(0));
}

#[test]
fn a_hold_that_is_claimed_by_asking_again_is_kept_up_with_the_lease_asked_for() {
    let mut scene = Held::start();
    configure(&mut scene.client, "claim-timeout", "600000");
    let mut asks = scene.server.client();
    assert_eq!(asks.call(PLACE), int(0));
    scene.release("holder");
    let fence = scene.ears.granted("a");
    assert_eq!(asks.call(PLACE), int(fence));
    assert_eq!(scene.client.info("lock_claims"), 1);
    let id = asks.int("CLIENT ID");
    assert_eq!(bound(&mut scene.client), int(id));
    end(&mut scene.client, asks);
    assert_eq!(scene.client.call("LOCK.RENEW k a"), int(0));
}

#[test]
fn a_killed_connection_ends_many_places_at_once_and_the_others_stay_in_order() {
    let mut scene = Held::start();
    let mut asks = scene.server.client();
    for i in 0..1000 {
        let session = format!("LOCK.ACQUIRE k s{i} {LONG} QUEUE 600000 ch SESSION");
        assert_eq!(asks.call(&session), int(0));
        if i % 100 == 0 {
            let plain = format!("LOCK.ACQUIRE k p{i} {LONG} QUEUE 600000 ch");
            assert_eq!(scene.ears.call(&plain), int(0));
        }
    }
    let id = asks.int("CLIENT ID");
    let turn = format!("CLIENT KILL ID {id}\r\nLOCK.RELEASE k holder\r\n");
    scene.client.send_bytes(turn.as_bytes());
    assert_eq!(
        [scene.client.reply(), scene.client.reply()],
        [int(1), int(1)]
    );
    let (mut over, mut granted) = (0, Vec::new());
    while over < 1000 || granted.len() < 10 {
        let told = scene.ears.told();
        match told.result.as_str() {
            "0" => over += 1,
            _ => {
                told.token();
                let release = format!("LOCK.RELEASE k {}", told.owner);
                granted.push(told.owner);
                assert_eq!(scene.client.call(&release), int(1));
            }
        }
    }
    let plain: Vec<String> = (0..1000).step_by(100).map(|i| format!("p{i}")).collect();
    assert_eq!(granted, plain);
    assert_eq!(scene.ears.told_so_far(), []);
    assert_eq!(scene.client.info("lock_places"), 0);
}

/// A connection is killed, and with nothing in between, this is asked.
#[track_caller]
fn kill_and_ask(client: &mut Client, killed: i64, ask: &str) -> Value {
    client.call("MULTI");
    client.call(&format!("CLIENT KILL ID {killed}"));
    client.call(ask);
    let Value::Array(mut replies) = client.call("EXEC") else {
        panic!("EXEC replies no array");
    };
    replies.pop().unwrap()
}

#[test]
fn a_place_of_a_killed_connection_closes_no_cycle() {
    let mut scene = Held::start();
    token(&scene.client.call(&format!("LOCK.ACQUIRE other a {LONG}")));
    let mut asks = scene.server.client();
    assert_eq!(asks.call(PLACE), int(0));
    let id = asks.int("CLIENT ID");
    let ask = format!("LOCK.ACQUIRE other holder {LONG} QUEUE 600000 ch");
    assert_eq!(kill_and_ask(&mut scene.client, id, &ask), int(0));
    let told = scene.ears.told();
    assert_eq!((told.owner.as_str(), told.result.as_str()), ("a", "0"));
    assert_eq!(waiting(&mut scene.client, "other"), 1);
}

#[test]
fn places_of_a_killed_connection_take_no_room() {
    let mut scene = Held::start();
    configure(&mut scene.client, "max-places", "200");
    let mut asks = scene.server.client();
    for i in 0..200 {
        let session = format!("LOCK.ACQUIRE k s{i} {LONG} QUEUE 600000 ch SESSION");
        assert_eq!(asks.call(&session), int(0));
    }
    let id = asks.int("CLIENT ID");
    let ask = format!("LOCK.ACQUIRE k b {LONG} QUEUE 600000 ch");
    assert_eq!(kill_and_ask(&mut scene.client, id, &ask), int(0));
    scene.release("holder");
    eventually("the lock is the next one's", || {
        scene.client.call("HGET k b") == text("1")
    });
}
