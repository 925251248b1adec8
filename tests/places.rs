//! `QUEUE`: places in the queue, told of their end by messages.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use redis::Value;
use redis_lock_testing::scene::{Held, configure, field, transaction, waiting};
use redis_lock_testing::{
    Client, LONG, Subscriber, TestServer, Told, eventually, int, need_files, nil, status,
    stay_on_one_processor, text, token,
};

/// The owners that wait, in order.
#[track_caller]
fn line(client: &mut Client) -> Vec<String> {
    let info = client.call("LOCK.INFO k");
    let Value::Array(waiters) = field(&info, "waiters") else {
        panic!("{info:?}");
    };
    let owner = |waiter| match field(waiter, "owner") {
        Value::BulkString(owner) => String::from_utf8_lossy(owner).into_owned(),
        other => panic!("{other:?}"),
    };
    waiters.iter().map(owner).collect()
}

fn ended(owner: &str, result: &str) -> Told {
    Told {
        channel: "ch".into(),
        db: 0,
        key: b"k".to_vec(),
        owner: owner.into(),
        result: result.into(),
        lease_ms: 0,
    }
}

#[test]
fn a_place_is_told_of_its_grant_and_the_claim_makes_its_lease_a_full_one() {
    let mut scene = Held::start();
    scene.place("a", "");
    assert_eq!(scene.ears.told_so_far(), []);
    scene.release("holder");
    let told = scene.ears.told();
    let fence = told.token();
    assert_eq!((told.owner.as_str(), told.lease_ms), ("a", 2000));
    let stored = [
        ("@fence".into(), fence.to_string()),
        ("a".into(), "1".into()),
    ];
    assert_eq!(scene.client.hash("k"), stored);
    let left = scene.client.int("PTTL k");
    assert!((1..=2000).contains(&left), "{left}");
    let claim = format!("LOCK.RENEW k a {LONG} FENCE {fence}");
    assert_eq!(scene.ears.call(&claim), int(1));
    assert!(scene.client.int("PTTL k") > 500_000);
    assert_eq!(scene.client.info("lock_claims"), 1);
    scene.release("a");
    assert_eq!(scene.ears.told_so_far(), []);
    assert_eq!(scene.client.call("EXISTS k"), int(0));
}

#[test]
fn a_free_lock_is_had_at_once_with_its_full_lease_and_without_a_message() {
    let server = TestServer::start();
    let mut ears = server.subscriber("ch");
    token(&ears.call(&format!("LOCK.ACQUIRE k a {LONG} QUEUE 1000 ch")));
    assert!(server.client().int("PTTL k") > 500_000);
    assert_eq!(ears.told_so_far(), []);
}

#[test]
fn a_message_names_the_database_and_any_bytes_of_the_key() {
    let server = TestServer::start();
    let mut ears = server.subscriber("ch");
    assert_eq!(ears.call("SELECT 3"), status("OK"));
    let key = b"3:a,\r\n\0\xff";
    ears.send_words(&[b"LOCK.ACQUIRE", key, b"holder"]);
    token(&ears.reply());
    ears.send_words(&[b"LOCK.ACQUIRE", key, b"1:b,", b"QUEUE", b"60000", b"ch"]);
    assert_eq!(ears.reply(), int(0));
    ears.send_words(&[b"LOCK.RELEASE", key, b"holder"]);
    assert_eq!(ears.reply(), int(1));
    let told = ears.told();
    assert_eq!((told.db, told.owner.as_str()), (3, "1:b,"));
    assert_eq!(told.key, key);
    told.token();
}

#[test]
fn a_message_is_five_netstrings() {
    let mut scene = Held::start();
    scene.place("a", "");
    scene.place("bob", "");
    assert_eq!(scene.ears.call("LOCK.RELEASE k bob"), nil());
    scene.release("holder");
    let fence = scene.client.bulk("HGET k @fence");
    for message in [
        "1:0,1:k,3:bob,1:0,1:0,".to_owned(),
        format!("1:0,1:k,1:a,{}:{fence},4:2000,", fence.len()),
    ] {
        let (_, data) = scene.ears.pushed();
        assert_eq!(data, [text("ch"), text(&message)]);
    }
}

#[test]
fn a_connection_of_resp2_hears_on_a_second_one() {
    let server = TestServer::start();
    let (mut commands, mut ears) = (server.client(), server.client());
    ears.call("SUBSCRIBE ch");
    token(&commands.call("LOCK.ACQUIRE k holder"));
    assert_eq!(commands.call("LOCK.ACQUIRE k a QUEUE 60000 ch"), int(0));
    assert_eq!(commands.call("LOCK.RELEASE k holder"), int(1));
    let Value::Array(words) = ears.reply() else {
        panic!("no message");
    };
    let [kind, Value::BulkString(channel), Value::BulkString(message)] = &words[..] else {
        panic!("{words:?}");
    };
    assert_eq!(*kind, text("message"));
    let fence = Told::read(channel, message).token();
    let claim = format!("LOCK.RENEW k a FENCE {fence}");
    assert_eq!(commands.call(&claim), int(1));
}

#[test]
fn blocked_clients_and_places_are_served_in_the_order_of_their_requests() {
    let mut scene = Held::start();
    let mut blocked = Vec::new();
    for i in 0..5 {
        let mut client = scene.server.client();
        let block = format!("LOCK.ACQUIRE k blocked{i} {LONG} BLOCK 0");
        client.send_and_block(&mut scene.client, &block);
        blocked.push(client);
        scene.place(&format!("place{i}"), "");
    }
    assert_eq!(scene.client.call("LOCK.ACQUIRE k newcomer"), nil());
    let mut last = 0;
    scene.release("holder");
    for (i, client) in blocked.iter_mut().enumerate() {
        let fence = token(&client.reply());
        assert!(fence > last);
        assert_eq!(scene.ears.told_so_far(), []);
        scene.release(&format!("blocked{i}"));
        last = scene.ears.granted(&format!("place{i}"));
        assert!(last > fence);
        assert_eq!(scene.ears.told_so_far(), []);
        scene.release(&format!("place{i}"));
    }
    assert_eq!(scene.client.call("EXISTS k"), int(0));
}

#[test]
fn ten_thousand_of_both_kinds_are_served_in_exactly_the_order_of_their_requests() {
    const ALL: usize = 10_000;
    need_files(1_200);
    stay_on_one_processor();
    let server = TestServer::start_with(&["--maxclients", "2000"]);
    let mut ears = server.subscriber("ch");
    token(&ears.call(&format!("LOCK.ACQUIRE k holder {LONG}")));
    let mut blocked: BTreeMap<usize, Client> =
        (3..ALL).step_by(10).map(|i| (i, server.client())).collect();
    for client in blocked.values_mut() {
        assert_eq!(client.call("PING"), status("PONG"));
    }
    for i in 0..ALL {
        if let Some(client) = blocked.get_mut(&i) {
            client.send(&format!("LOCK.ACQUIRE k {i} {LONG} BLOCK 0"));
            // Its reply comes in the turn in which the server reads what came before.
            assert_eq!(ears.call("PING"), status("PONG"));
        } else {
            let place = format!("LOCK.ACQUIRE k {i} {LONG} QUEUE 600000 ch");
            assert_eq!(ears.call(&place), int(0));
        }
    }
    assert_eq!(server.info("lock_waiters"), 10_000);
    assert_eq!(server.info("lock_places"), 9_000);
    let mut last = 0;
    assert_eq!(ears.call("LOCK.RELEASE k holder"), int(1));
    for i in 0..ALL {
        let fence = match blocked.get_mut(&i) {
            Some(client) => token(&client.reply()),
            None => {
                let told = ears.told();
                assert_eq!(told.owner, i.to_string());
                told.token()
            }
        };
        assert!(fence > last, "{i}");
        last = fence;
        let release = format!("LOCK.RELEASE k {i} FENCE {fence}");
        assert_eq!(ears.call(&release), int(1));
    }
    assert_eq!(ears.told_so_far(), []);
    assert_eq!(server.client().call("EXISTS k"), int(0));
    server.assert_sound();
}

/// What one more place takes on average: as many as this, on as many locks, so that each is
/// the only one, or all on one. The names are as long as those of UUIDs.
#[track_caller]
fn check_memory_of_places(places: usize, locks: usize) {
    let mut scene = Held::start();
    scene.place("first", "");
    let key = |at: usize| format!("lock:{:027}", at % locks);
    let all = |command: &dyn Fn(usize) -> String, count: usize, client: &mut Subscriber| {
        for at in (0..count).step_by(500) {
            let lines: Vec<String> = (at..count.min(at + 500)).map(command).collect();
            let lines: Vec<Vec<&str>> =
                lines.iter().map(|line| line.split(' ').collect()).collect();
            client.send_all(&lines).unwrap();
            for _ in lines {
                client.reply();
            }
        }
    };
    let hold = |at| format!("LOCK.ACQUIRE {} holder:{at:029} {LONG}", key(at));
    all(&hold, locks, &mut scene.ears);
    let before = scene.client.used_memory();
    let wait = |at| {
        format!(
            "LOCK.ACQUIRE {} waiter:{at:029} {LONG} QUEUE 600000 ch",
            key(at)
        )
    };
    all(&wait, places, &mut scene.ears);
    assert_eq!(scene.client.info("lock_places"), 1 + places as i64);
    let cost = (scene.client.used_memory() - before) / places as i64;
    assert!(cost < 1000, "{cost} bytes");
}

#[test]
fn a_place_behind_others_costs_less_than_a_kilobyte() {
    check_memory_of_places(10_000, 1);
}

/// All tables have just grown, and are half empty.
#[test]
fn the_only_place_of_a_lock_costs_less_than_a_kilobyte() {
    check_memory_of_places(16_000, 16_000);
}

#[test]
fn readers_with_places_come_in_together_and_a_writer_after_them() {
    let mut scene = Held::start();
    for reader in ["r1", "r2", "r3"] {
        scene.place(reader, "SHARED");
    }
    scene.place("w", "");
    scene.place("r4", "SHARED");
    scene.release("holder");
    for reader in ["r1", "r2", "r3"] {
        scene.ears.granted(reader);
    }
    assert_eq!(scene.ears.told_so_far(), []);
    for reader in ["r2", "r1", "r3"] {
        assert_eq!(scene.ears.told_so_far(), []);
        scene.release(reader);
    }
    scene.ears.granted("w");
    assert_eq!(scene.ears.told_so_far(), []);
    scene.release("w");
    scene.ears.granted("r4");
}

#[test]
fn permits_go_to_places_as_they_come_free() {
    let mut scene = Held::in_mode("LIMIT 2");
    token(&scene.client.call("LOCK.ACQUIRE k other LIMIT 2"));
    for place in ["a", "b", "c"] {
        scene.place(place, "LIMIT 2");
    }
    scene.release("other");
    scene.ears.granted("a");
    assert_eq!(scene.ears.told_so_far(), []);
    scene.release("holder");
    scene.ears.granted("b");
    scene.release("a");
    scene.ears.granted("c");
    assert_eq!(scene.client.call("LOCK.ACQUIRE k d LIMIT 2"), nil());
}

#[test]
fn a_place_without_hold_is_for_the_first_hold() {
    let mut scene = Held::start();
    // The owner of the lock confirms what it has.
    let own = format!("LOCK.ACQUIRE k holder {LONG} QUEUE 60000 ch");
    let fence = token(&scene.ears.call(&own));
    assert_eq!(scene.client.call("HGET k holder"), text("1"));
    let second = format!("LOCK.ACQUIRE k holder {LONG} QUEUE 60000 ch HOLD 2");
    assert_eq!(scene.ears.call(&second), int(fence));
    assert_eq!(scene.client.call("HGET k holder"), text("2"));
    assert!(scene.ears.error(&own).starts_with("HOLDCOUNT "));
    assert_eq!(scene.client.info("lock_places"), 0);
    assert_eq!(scene.ears.told_so_far(), []);
}

#[test]
fn a_grant_that_nobody_claims_ends_and_the_lock_passes_on() {
    let mut scene = Held::start();
    configure(&mut scene.client, "claim-timeout", "200");
    scene.place("a", "");
    scene.place("b", "");
    scene.release("holder");
    let (first, start) = (scene.ears.granted("a"), Instant::now());
    let second = scene.ears.granted("b");
    assert!(second > first);
    // The lease began before the message came.
    assert!(start.elapsed() > Duration::from_millis(100));
    let late = format!("LOCK.RENEW k a {LONG} FENCE {first}");
    assert_eq!(scene.ears.call(&late), int(0));
    assert_eq!(
        scene
            .ears
            .call(&format!("LOCK.RENEW k b {LONG} FENCE {second}")),
        int(1)
    );
    assert_eq!(scene.client.info("lock_claims"), 1);
    assert_eq!(scene.client.info("lock_grants_unclaimed"), 1);
}

#[test]
fn a_first_lease_is_no_longer_than_the_one_that_was_asked_for() {
    let mut scene = Held::start();
    configure(&mut scene.client, "claim-timeout", "600000");
    let place = "LOCK.ACQUIRE k a LEASE 5000 QUEUE 60000 ch";
    assert_eq!(scene.ears.call(place), int(0));
    scene.release("holder");
    assert_eq!(scene.ears.told().lease_ms, 5000);
    assert!(scene.client.int("PTTL k") <= 5000);
}

#[test]
fn a_message_tells_the_lease_of_now_and_not_that_of_the_request() {
    let mut scene = Held::start();
    let place = "LOCK.ACQUIRE k a LEASE 5000 QUEUE 60000 ch";
    assert_eq!(scene.ears.call(place), int(0));
    for (setting, ms) in [("claim-timeout", "4000"), ("max-lease", "3000")] {
        configure(&mut scene.client, setting, ms);
    }
    scene.release("holder");
    assert_eq!(scene.ears.told().lease_ms, 3000);
    assert!(scene.client.int("PTTL k") <= 3000);
}

#[test]
fn a_token_that_is_replied_needs_no_claim() {
    let mut scene = Held::start();
    configure(&mut scene.client, "claim-timeout", "100");
    scene.place("a", "");
    scene.release("holder");
    let fence = scene.ears.granted("a");
    // As if the message had been lost.
    let again = format!("LOCK.ACQUIRE k a {LONG} QUEUE 600000 ch");
    assert_eq!(scene.ears.call(&again), int(fence));
    assert_eq!(scene.client.call("HGET k a"), text("1"));
    assert!(scene.client.int("PTTL k") > 500_000);
    assert_eq!(scene.client.info("lock_claims"), 1);
}

#[test]
fn a_renewal_without_the_token_claims_too_and_one_with_another_does_not() {
    let mut scene = Held::start();
    scene.place("a", "");
    scene.release("holder");
    let fence = scene.ears.granted("a");
    let wrong = format!("LOCK.RENEW k a {LONG} FENCE {}", fence - 1);
    assert_eq!(scene.ears.call(&wrong), int(0));
    assert_eq!(scene.client.info("lock_claims"), 0);
    assert!(scene.client.int("PTTL k") <= 2000);
    assert_eq!(scene.ears.call(&format!("LOCK.RENEW k a {LONG}")), int(1));
    assert_eq!(scene.client.info("lock_claims"), 1);
}

#[test]
fn a_grant_to_a_place_is_claimed_by_any_reply_of_its_token() {
    let mut scene = Held::start();
    configure(&mut scene.client, "claim-timeout", "100");
    scene.place("a", "SESSION");
    scene.release("holder");
    let fence = scene.ears.granted("a");
    let again = format!("LOCK.ACQUIRE k a {LONG} HOLD 1");
    assert_eq!(scene.client.call(&again), int(fence));
    let mut sleeper = scene.server.client();
    assert_eq!(sleeper.call("BLPOP none 0.3"), nil());
    assert_eq!(scene.client.call("HGET k a"), text("1"));
    assert_eq!(scene.client.info("lock_claims"), 1);
    assert_eq!(scene.client.info("lock_grants_unclaimed"), 0);
    assert_eq!(scene.client.info("lock_sessions"), 1);
}

#[test]
fn an_owner_that_comes_to_hold_the_lock_otherwise_gets_no_hold_more() {
    let mut scene = Held::start();
    scene.place("b", "");
    scene.place("a", "");
    // As Redisson's script takes it.
    let takes = ["DEL k", "HSET k a 1", "PEXPIRE k 600000"];
    transaction(&mut scene.client, &takes);
    let told = scene.ears.told();
    assert_eq!((told.owner.as_str(), told.lease_ms), ("a", 2000));
    assert_eq!(scene.client.bulk("HGET k @fence"), told.result);
    assert_eq!(scene.client.call("HGET k a"), text("1"));
    assert!(scene.client.int("PTTL k") > 500_000, "nothing is shortened");
    assert_eq!(line(&mut scene.client), ["b"]);
    scene.release("a");
    scene.ears.granted("b");
}

#[test]
fn the_same_request_again_keeps_the_place_and_takes_over_its_options() {
    let mut scene = Held::start();
    let mut other = scene.server.subscriber("other");
    scene.place("a", "");
    scene.place("b", "");
    let again = "LOCK.ACQUIRE k a LEASE 500 QUEUE 70000 other";
    assert_eq!(other.call(again), int(0));
    let told = scene.ears.told();
    assert!(told.result.starts_with("-SUPERSEDED "), "{told:?}");
    assert_eq!(line(&mut scene.client), ["a", "b"]);
    assert_eq!(scene.client.info("lock_places"), 2);
    let info = scene.client.call("LOCK.INFO k");
    let Value::Array(waiters) = field(&info, "waiters") else {
        panic!("{info:?}");
    };
    assert_eq!(field(&waiters[0], "channel"), &text("other"));
    let Value::Int(left) = field(&waiters[0], "timeout") else {
        panic!("{waiters:?}");
    };
    assert!((1..=70_000).contains(left), "{left}");
    scene.release("holder");
    let told = other.told();
    assert_eq!((told.owner.as_str(), told.channel.as_str()), ("a", "other"));
    told.token();
    assert!(scene.client.int("PTTL k") <= 500);
    scene.ears.granted("b");
}

#[test]
fn a_shorter_time_and_a_longer_one_count_from_the_last_request() {
    let mut scene = Held::start();
    let again = |ms: u32| format!("LOCK.ACQUIRE k a {LONG} QUEUE {ms} ch");
    assert_eq!(scene.ears.call(&again(50)), int(0));
    assert_eq!(scene.ears.call(&again(600_000)), int(0));
    let mut sleeper = scene.server.client();
    assert_eq!(sleeper.call("BLPOP none 0.2"), nil());
    assert_eq!(scene.ears.told_so_far(), []);
    assert_eq!(scene.ears.call(&again(50)), int(0));
    assert_eq!(scene.ears.told(), ended("a", "0"));
}

#[test]
fn the_same_request_in_another_mode_is_a_new_place_at_the_end() {
    let mut scene = Held::start();
    scene.place("a", "");
    scene.place("b", "");
    scene.place("a", "SHARED");
    assert_eq!(line(&mut scene.client), ["b", "a"]);
    assert_eq!(scene.ears.told_so_far(), []);
    scene.release("holder");
    scene.ears.granted("b");
    scene.release("b");
    scene.ears.granted("a");
    let mode = field(&scene.client.call("LOCK.INFO k"), "mode").clone();
    assert_eq!(mode, text("shared"));
}

#[test]
fn an_unclaimed_permit_passes_on_and_the_claimed_ones_stay() {
    let mut scene = Held::start();
    configure(&mut scene.client, "claim-timeout", "300");
    for place in ["a", "b", "c"] {
        scene.place(place, "LIMIT 2");
    }
    scene.release("holder");
    let first = scene.ears.granted("a");
    let second = scene.ears.granted("b");
    // Before its first lease is over, or after: then it was too late, and `c` is told.
    let claim = format!("LOCK.RENEW k b {LONG} FENCE {second}");
    let claimed = scene.ears.call(&claim);
    let third = scene.ears.granted("c");
    assert!(first < second && second < third);
    assert_eq!(scene.client.call("HGET k a"), nil());
    if claimed == int(1) {
        assert_eq!(scene.client.call("HGET k b"), text("1"));
    }
}

#[test]
fn a_hundred_readers_with_places_are_all_told() {
    let mut scene = Held::start();
    for i in 0..100 {
        scene.place(&format!("r{i}"), "SHARED");
    }
    scene.release("holder");
    for i in 0..100 {
        scene.ears.granted(&format!("r{i}"));
    }
    assert_eq!(scene.client.call("HLEN k"), int(201));
}

#[test]
fn an_owner_that_a_script_of_redissons_makes_the_holder_is_told_its_token() {
    let mut scene = Held::start();
    scene.place("a", "");
    scene.place("b", "");
    let script = "redis.call('DEL','k') redis.call('HSET','k','b',2) \
                  return redis.call('PEXPIRE','k',600000)";
    let taken = scene.client.words(&[b"EVAL", script.as_bytes(), b"0"]);
    assert_eq!(taken, int(1));
    let fence = scene.ears.granted("b");
    assert_eq!(
        scene.client.bulk("HGET k @fence"),
        fence.to_string(),
        "a hold of Redisson's gets its token then"
    );
    assert_eq!(scene.client.call("HGET k b"), text("2"));
    assert_eq!(scene.ears.told_so_far(), []);
    assert_eq!(line(&mut scene.client), ["a"]);
}

#[test]
fn a_release_without_a_token_gives_the_place_up() {
    for options in ["", "ALL"] {
        let mut scene = Held::start();
        scene.place("a", "");
        scene.place("b", "");
        let release = format!("LOCK.RELEASE k a {options}");
        assert_eq!(scene.client.call(release.trim()), nil(), "{options}");
        assert_eq!(scene.ears.told(), ended("a", "0"));
        assert_eq!(line(&mut scene.client), ["b"]);
        assert_eq!(scene.client.call("HGET k holder"), text("1"));
    }
    let mut scene = Held::start();
    scene.place("a", "");
    // As ever for who holds nothing.
    assert_eq!(scene.client.call("LOCK.RELEASE k a HOLD 1"), int(1));
    assert_eq!(scene.ears.told(), ended("a", "0"));
}

#[test]
fn a_release_with_a_token_leaves_the_place() {
    let mut scene = Held::start();
    scene.place("a", "");
    let fence = scene.client.bulk("HGET k @fence");
    assert_eq!(
        scene
            .client
            .call(&format!("LOCK.RELEASE k a FENCE {fence}")),
        nil()
    );
    assert_eq!(line(&mut scene.client), ["a"]);
    assert_eq!(scene.ears.told_so_far(), []);
}

#[test]
fn a_release_that_ends_in_an_error_leaves_the_place() {
    let mut scene = Held::start();
    scene.place("a", "");
    let error = scene.client.error("LOCK.RELEASE k a HOLD 2");
    assert!(error.starts_with("HOLDCOUNT "), "{error}");
    assert_eq!(line(&mut scene.client), ["a"]);
    assert_eq!(scene.ears.told_so_far(), []);
}

#[test]
fn whoever_has_no_place_gives_none_up() {
    let mut scene = Held::start();
    scene.place("a", "");
    assert_eq!(scene.client.call("LOCK.RELEASE k b"), nil());
    assert_eq!(scene.ears.told_so_far(), []);
    assert_eq!(line(&mut scene.client), ["a"]);
}

#[test]
fn a_place_whose_time_is_over_is_told_so_and_passed_over() {
    let mut scene = Held::start();
    let short = format!("LOCK.ACQUIRE k a {LONG} QUEUE 50 ch");
    assert_eq!(scene.ears.call(&short), int(0));
    scene.place("b", "");
    assert_eq!(scene.ears.told(), ended("a", "0"));
    assert_eq!(scene.client.info("lock_wait_timeouts"), 1);
    assert_eq!(line(&mut scene.client), ["b"]);
    scene.release("holder");
    scene.ears.granted("b");
}

#[test]
fn many_places_whose_time_is_over_at_once_are_all_told_so() {
    let mut scene = Held::start();
    for i in 0..1000 {
        let short = format!("LOCK.ACQUIRE k {i} QUEUE 500 ch");
        assert_eq!(scene.ears.call(&short), int(0));
    }
    for i in 0..1000 {
        assert_eq!(scene.ears.told(), ended(&i.to_string(), "0"));
    }
    assert_eq!(scene.client.info("lock_wait_timeouts"), 1000);
    assert_eq!(scene.client.info("lock_waiters"), 0);
}

#[test]
fn a_place_that_closes_a_cycle_is_refused_at_once() {
    let mut scene = Held::start();
    token(&scene.client.call(&format!("LOCK.ACQUIRE l a {LONG}")));
    scene.place("a", "");
    let place = "LOCK.ACQUIRE l holder QUEUE 60000 ch";
    let error = scene.ears.error(place);
    assert!(error.starts_with("DEADLOCK "), "{error}");
    assert_eq!(waiting(&mut scene.client, "l"), 0);
    assert_eq!(scene.ears.told_so_far(), []);
    assert_eq!(line(&mut scene.client), ["a"]);
}

#[test]
fn places_count_as_waiters_of_the_lock_and_as_places_of_the_server() {
    let mut scene = Held::start();
    token(&scene.client.call("LOCK.ACQUIRE l holder"));
    configure(&mut scene.client, "max-waiters", "2");
    scene.place("a", "");
    let mut blocked = scene.server.client();
    blocked.send_and_block(&mut scene.client, "LOCK.ACQUIRE k b BLOCK 0");
    for command in [
        "LOCK.ACQUIRE k c QUEUE 60000 ch",
        "LOCK.ACQUIRE k c BLOCK 0",
    ] {
        let error = scene.ears.error(command);
        assert!(error.starts_with("QUEUEFULL "), "{error}");
    }
    configure(&mut scene.client, "max-waiters", "100");
    configure(&mut scene.client, "max-places", "2");
    scene.place("c", "");
    let error = scene.ears.error("LOCK.ACQUIRE l d QUEUE 60000 ch");
    assert!(error.starts_with("QUEUEFULL "), "{error}");
    // Who has one keeps it, in any mode.
    scene.place("a", "");
    scene.place("a", "SHARED");
    assert_eq!(line(&mut scene.client), ["b", "c", "a"]);
    assert_eq!(scene.client.info("lock_queues_full"), 3);
    assert_eq!(scene.client.call("LOCK.RELEASE k c"), nil());
    let next = "LOCK.ACQUIRE l d QUEUE 60000 ch";
    assert_eq!(scene.ears.call(next), int(0));
}

#[test]
fn a_request_that_finds_the_queue_full_leaves_its_place() {
    for setting in ["max-places", "max-waiters"] {
        let mut scene = Held::start();
        for place in ["a", "b", "c"] {
            scene.place(place, "");
        }
        configure(&mut scene.client, setting, "1");
        let error = scene.ears.error("LOCK.ACQUIRE k a SHARED QUEUE 60000 ch");
        assert!(error.starts_with("QUEUEFULL "), "{error}");
        assert_eq!(line(&mut scene.client), ["a", "b", "c"], "{setting}");
        assert_eq!(scene.ears.told_so_far(), []);
    }
}

#[test]
fn who_waits_for_what_becomes_no_lock_is_told_so() {
    for (make, code) in [
        ("SET k x", "-WRONGTYPE "),
        (
            "EVAL redis.call('DEL','k');redis.call('HSET','k','f','x') 0",
            "-NOTALOCK ",
        ),
    ] {
        let mut scene = Held::start();
        configure(&mut scene.client, "recheck-interval", "500");
        for place in ["a", "b"] {
            scene.place(place, "");
        }
        scene.client.call(make);
        for owner in ["a", "b"] {
            let told = scene.ears.told();
            assert_eq!(told.owner, owner);
            assert!(told.result.starts_with(code), "{told:?}");
        }
        assert_eq!(scene.client.info("lock_places"), 0);
        assert_eq!(scene.client.info("lock_waits_refused"), 2);
        let again = scene.ears.error("LOCK.ACQUIRE k a QUEUE 60000 ch");
        assert!(again.starts_with(&code[1..]), "{again}");
    }
}

#[test]
fn a_lock_that_comes_free_by_other_hands_goes_to_its_first_place() {
    for free in [
        "DEL k",
        "UNLINK k",
        "RENAME k elsewhere",
        "MOVE k 5",
        "HDEL k holder @fence",
        "FLUSHDB",
        "FLUSHALL",
        "SWAPDB 0 5",
        "LOCK.BREAK k",
        "PEXPIRE k 1",
        "LOCK.RENEW k holder LEASE 1",
    ] {
        let mut scene = Held::start();
        scene.place("a", "");
        scene.place("b", "");
        scene.client.call(free);
        let fence = scene.ears.granted("a");
        assert_eq!(scene.client.call("HGET k a"), text("1"), "{free}");
        assert_eq!(scene.client.bulk("HGET k @fence"), fence.to_string());
        assert_eq!(line(&mut scene.client), ["b"], "{free}");
        assert_eq!(scene.ears.told_so_far(), []);
        scene.release("a");
        scene.ears.granted("b");
        scene.server.assert_sound();
    }
}

#[test]
fn places_are_shown_as_waiters_with_their_channel() {
    let mut scene = Held::start();
    let mut blocked = scene.server.client();
    blocked.send_and_block(&mut scene.client, "LOCK.ACQUIRE k b BLOCK 0");
    scene.place("a", "LIMIT 3");
    let info = scene.client.call("LOCK.INFO k");
    assert_eq!(field(&info, "waiting"), &int(2));
    let Value::Array(waiters) = field(&info, "waiters") else {
        panic!("{info:?}");
    };
    let [other, place] = &waiters[..] else {
        panic!("{waiters:?}");
    };
    assert_eq!(field(other, "channel"), &nil());
    assert_ne!(field(other, "client"), &nil());
    for (name, value) in [
        ("owner", text("a")),
        ("mode", text("limited")),
        ("limit", int(3)),
        ("client", nil()),
        ("addr", nil()),
        ("channel", text("ch")),
    ] {
        assert_eq!(field(place, name), &value, "{name}");
    }
    let Value::Int(left) = field(place, "timeout") else {
        panic!("{place:?}");
    };
    assert!((1..=600_000).contains(left), "{left}");
    blocked.send_bytes(b"");
    let Value::Array(list) = scene.client.call("LOCK.LIST") else {
        panic!("no list");
    };
    assert_eq!(field(&list[0], "key"), &text("k"));
    assert_eq!(field(&list[0], "waiting"), &int(2));
}

#[test]
fn the_module_is_not_unloaded_while_there_are_places() {
    let mut scene = Held::start();
    scene.place("a", "");
    let error = scene.client.error("MODULE UNLOAD lock");
    assert!(error.starts_with("ERR "), "{error}");
    assert_eq!(scene.client.call("LOCK.RELEASE k a"), nil());
    assert_eq!(scene.ears.told(), ended("a", "0"));
    eventually("the module is unloaded", || {
        scene.client.call("MODULE UNLOAD lock") == status("OK")
    });
    scene.server.assert_sound();
}

#[test]
fn what_is_wrong_about_a_place_is_refused_and_nothing_changes() {
    let mut scene = Held::start();
    for (words, code) in [
        ("QUEUE 0 ch", "ERR QUEUE must"),
        ("QUEUE -1 ch", "ERR QUEUE must"),
        ("QUEUE 86400001 ch", "ERR QUEUE must"),
        (
            "QUEUE 9223372036854775808 ch",
            "ERR value is not an integer",
        ),
        ("QUEUE 1.5 ch", "ERR value is not an integer"),
        ("QUEUE ch 1000", "ERR value is not an integer"),
        ("QUEUE", "ERR syntax error"),
        ("QUEUE 1000", "ERR syntax error"),
        ("QUEUE 1000 ch QUEUE 1000 ch", "ERR syntax error"),
        ("QUEUE 1000 ch BLOCK 0", "ERR syntax error"),
        ("BLOCK 0 QUEUE 1000 ch", "ERR syntax error"),
        ("QUEUE 1000 ch SHARED LIMIT 2", "ERR syntax error"),
        ("QUEUE 1000 ch more", "ERR syntax error"),
    ] {
        let error = scene.ears.error(&format!("LOCK.ACQUIRE k a {words}"));
        assert!(error.starts_with(code), "{words}: {error}");
    }
    assert_eq!(scene.client.info("lock_places"), 0);
    let day = "LOCK.ACQUIRE k a queue 86400000 ch lease 1 hold 1";
    assert_eq!(scene.ears.call(day), int(0));
    assert_eq!(line(&mut scene.client), ["a"]);
}

#[test]
fn a_channel_is_any_string_of_1024_bytes_at_most() {
    let mut scene = Held::start();
    let too_long = [b'c'; 1025];
    let long = &too_long[..1024];
    for channel in [&b""[..], b"\0\r\n\xff", long] {
        let mut ears = Subscriber::at(scene.server.client());
        ears.send_words(&[b"SUBSCRIBE", channel]);
        ears.pushed();
        let place = [
            b"LOCK.ACQUIRE",
            &b"k"[..],
            b"a",
            b"QUEUE",
            b"60000",
            channel,
        ];
        ears.send_words(&place);
        assert_eq!(ears.reply(), int(0));
        scene.release("holder");
        let fence = ears.told().token();
        assert_eq!(
            scene
                .client
                .call(&format!("LOCK.RELEASE k a FENCE {fence}")),
            int(1)
        );
        token(&scene.client.call(&format!("LOCK.ACQUIRE k holder {LONG}")));
    }
    let mut client = Subscriber::at(scene.server.client());
    client.send_words(&[b"LOCK.ACQUIRE", b"k", b"a", b"QUEUE", b"60000", &too_long]);
    let refused = client.reply();
    assert!(matches!(refused, Value::ServerError(_)), "{refused:?}");
    assert_eq!(scene.server.info("lock_places"), 0);
    scene.server.assert_sound();
}
