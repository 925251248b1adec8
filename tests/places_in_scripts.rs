//! Places in transactions, scripts and pipelines, where no client can block.

use redis::Value;
use redis_lock_testing::scene::{Held, transaction, waiting};
use redis_lock_testing::{Client, LONG, Told, int, nil, status, text, token};

#[track_caller]
fn eval(client: &mut Client, script: &str) -> Value {
    client.words(&[b"EVAL", script.as_bytes(), b"1", b"k", b"ch"])
}

#[test]
fn a_transaction_takes_places_and_what_it_frees_is_told() {
    let mut scene = Held::start();
    let replica = scene.server.replica(true);
    let replies = transaction(
        &mut scene.client,
        &[
            "LOCK.ACQUIRE k a QUEUE 60000 ch",
            "LOCK.ACQUIRE k b QUEUE 60000 ch BLOCK 0",
            "LOCK.ACQUIRE k b QUEUE 60000 ch",
            "LOCK.RELEASE k holder",
            "LOCK.RELEASE k a",
            "LOCK.ACQUIRE k c QUEUE 60000 ch",
            "LOCK.ACQUIRE l c QUEUE 60000 ch",
        ],
    );
    assert_eq!(replies[0], int(0));
    assert!(matches!(replies[1], Value::ServerError(_)), "{replies:?}");
    assert_eq!(replies[2..6], [int(0), int(1), int(1), int(0)]);
    token(&replies[6]);
    let first = scene.ears.granted("a");
    assert!(scene.ears.granted("b") > first);
    assert_eq!(scene.ears.told_so_far(), []);
    assert_eq!(waiting(&mut scene.client, "k"), 1);
    scene.server.assert_same_data(&replica);
}

#[test]
fn a_script_takes_a_place_and_what_it_frees_is_told() {
    let mut scene = Held::start();
    let place = "return redis.call('LOCK.ACQUIRE', KEYS[1], 'a', 'QUEUE', 60000, ARGV[1])";
    assert_eq!(eval(&mut scene.client, place), int(0));
    let release = "return redis.call('LOCK.RELEASE', KEYS[1], 'holder')";
    assert_eq!(eval(&mut scene.client, release), int(1));
    let fence = scene.ears.granted("a");
    let confirmed = eval(&mut scene.client, place);
    assert_eq!(confirmed, int(fence));
    let session = "return redis.pcall('LOCK.ACQUIRE', KEYS[1], 'b', 'QUEUE', 60000, 'ch', \
                   'SESSION')";
    let error = eval(&mut scene.client, session);
    assert!(matches!(error, Value::ServerError(_)), "{error:?}");
    assert_eq!(waiting(&mut scene.client, "k"), 0);
}

#[test]
fn a_place_that_a_script_took_outlives_the_connection_that_called_it() {
    let mut scene = Held::start();
    let place = "return redis.call('LOCK.ACQUIRE', KEYS[1], 'a', 'QUEUE', 60000, ARGV[1])";
    let mut caller = scene.server.client();
    let taken = caller.words(&[b"EVAL", place.as_bytes(), b"1", b"k", b"ch"]);
    assert_eq!(taken, int(0));
    drop(caller);
    assert_eq!(scene.client.call("LOCK.RELEASE k holder"), int(1));
    scene.ears.granted("a");
}

/// All that comes until the reply to a `PING`, arrays taken apart.
#[track_caller]
fn until_pong(client: &mut Client) -> Vec<Value> {
    client.send("PING");
    let mut all = Vec::new();
    loop {
        match client.reply() {
            pong if pong == status("PONG") => return all,
            Value::Array(parts) => all.extend(parts),
            other => all.push(other),
        }
    }
}

/// Its own message may come before the reply of the command that caused it, on Redis 7.0
/// even within the reply of `EXEC`. So only what comes in all is looked at.
#[test]
fn a_connection_that_hears_what_its_own_transaction_caused_hears_it_once() {
    let mut scene = Held::start();
    let place = format!("LOCK.ACQUIRE k a {LONG} QUEUE 60000 ch");
    assert_eq!(scene.ears.call(&place), int(0));
    for (command, reply) in [
        ("MULTI", status("OK")),
        ("LOCK.RELEASE k holder", status("QUEUED")),
        ("ECHO after", status("QUEUED")),
    ] {
        assert_eq!(scene.ears.call(command), reply);
    }
    scene.ears.send("EXEC");
    let all = until_pong(&mut scene.ears);
    assert_eq!(all.len(), 3, "{all:?}");
    let mut told = None;
    for value in all {
        match value {
            Value::Push { data, .. } => {
                let [Value::BulkString(channel), Value::BulkString(message)] = &data[..] else {
                    panic!("{data:?}");
                };
                assert_eq!(told.replace(Told::read(channel, message)), None);
            }
            reply => assert!(reply == int(1) || reply == text("after"), "{reply:?}"),
        }
    }
    let fence = told.unwrap().token();
    assert_eq!(scene.client.bulk("HGET k @fence"), fence.to_string());
}

#[test]
fn a_connection_hears_the_message_of_its_own_release_beside_the_reply() {
    let mut scene = Held::start();
    let place = format!("LOCK.ACQUIRE k a {LONG} QUEUE 60000 ch");
    assert_eq!(scene.ears.call(&place), int(0));
    assert_eq!(scene.ears.call("LOCK.RELEASE k holder"), int(1));
    let fence = scene.ears.granted("a");
    let claim = format!("LOCK.RENEW k a {LONG} FENCE {fence}");
    assert_eq!(scene.ears.call(&claim), int(1));
}

#[test]
fn a_pipeline_of_places_is_replied_in_order_on_one_connection() {
    let mut scene = Held::start();
    let owners: Vec<String> = (0..1000).map(|i| format!("owner{i}")).collect();
    let lines: Vec<Vec<&str>> = owners
        .iter()
        .map(|owner| vec!["LOCK.ACQUIRE", "k", owner, "QUEUE", "600000", "ch"])
        .collect();
    scene.ears.send_all(&lines).unwrap();
    for _ in &owners {
        assert_eq!(scene.ears.reply(), int(0));
    }
    let releases: Vec<Vec<&str>> = ["holder"]
        .into_iter()
        .chain(owners.iter().map(String::as_str))
        .map(|owner| vec!["LOCK.RELEASE", "k", owner])
        .collect();
    scene.client.send_all(&releases).unwrap();
    for release in &releases {
        assert_eq!(scene.client.reply(), int(1), "{release:?}");
    }
    let mut last = 0;
    for owner in &owners {
        let fence = scene.ears.granted(owner);
        assert!(fence > last);
        last = fence;
    }
    assert_eq!(scene.ears.told_so_far(), []);
    assert_eq!(scene.client.call("LOCK.RELEASE k owner999"), nil());
}

/// A script has no connection, and its client no address.
#[test]
fn a_place_that_a_script_asked_for_and_another_script_finds_slow_is_logged() {
    let mut scene = Held::start();
    scene.client.call("CONFIG SET lock.log-slow-wait 20");
    let place = |owner: &str| {
        format!("return redis.call('LOCK.ACQUIRE', KEYS[1], '{owner}', 'QUEUE', 60000, ARGV[1])")
    };
    assert_eq!(eval(&mut scene.client, &place("a")), int(0));
    // One turn of the event loop: nothing looks at the lock in between.
    let other = place("b");
    let eval = format!("EVAL \"{other}\" 1 k ch");
    let bytes = format!("DEBUG SLEEP 0.05\r\n{eval}\r\n");
    scene.client.send_bytes(bytes.as_bytes());
    assert_eq!(scene.client.reply(), status("OK"));
    assert_eq!(scene.client.reply(), int(0));
    assert!(scene.server.log().contains("slow wait: 'a' (client id="));
}
