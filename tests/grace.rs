//! After a start or a promotion, nothing is granted for a time.

use std::time::{Duration, Instant};

use redis::Value;
use redis_lock_testing::scene::{await_waiting, field, transaction};
use redis_lock_testing::{
    Client, Clock, LONG, Play, TestServer, eventually, int, nil, status, token,
};

/// A grace period that a test ends itself.
const LONG_GRACE: [&str; 2] = ["--lock.grace-period", "600000"];

fn in_grace() -> TestServer {
    TestServer::start_with(&LONG_GRACE)
}

fn set_grace(client: &mut Client, ms: i64) {
    let set = format!("CONFIG SET lock.grace-period {ms}");
    assert_eq!(client.call(&set), status("OK"));
}

/// What is left of it, as all who are asked say.
#[track_caller]
fn left_ms(client: &mut Client) -> i64 {
    let left = client.info("lock_grace_ms");
    let info = client.call("LOCK.INFO k");
    let shown = match field(&info, "grace") {
        Value::Int(shown) => *shown,
        other => panic!("{other:?} is no number"),
    };
    assert!(shown <= left && (left == 0) == (shown == 0) || left < 1000);
    left
}

/// A lock that was taken before the server started.
fn store(client: &mut Client, key: &str, owner: &str) {
    assert_eq!(client.int(&format!("HSET {key} {owner} 1 @fence 7")), 2);
    assert_eq!(client.int(&format!("PEXPIRE {key} 600000")), 1);
}

#[test]
fn in_the_grace_period_no_acquire_is_answered_with_a_token() {
    let server = in_grace();
    let mut client = server.client();
    store(&mut client, "held", "owner");
    for options in [
        "", " SHARED", " LIMIT 3", " SESSION", " HOLD 1", " HOLD 2", " BLOCK 1",
    ] {
        for key in ["free", "held"] {
            let command = format!("LOCK.ACQUIRE {key} owner {LONG}{options}");
            assert_eq!(client.call(&command), nil(), "{command}");
        }
    }
    let acquire = format!("LOCK.ACQUIRE free owner {LONG} BLOCK 0");
    assert_eq!(transaction(&mut client, &[&acquire]), [nil()]);
    let script = "return redis.call('LOCK.ACQUIRE', KEYS[1], 'owner')";
    let words: [&[u8]; 4] = [b"EVAL", script.as_bytes(), b"1", b"free"];
    assert_eq!(client.words(&words), nil());
    assert_eq!(client.int("EXISTS free"), 0);
    assert_eq!(
        client.call("HGET held owner"),
        redis_lock_testing::text("1")
    );
    assert!(left_ms(&mut client) > 0);
    set_grace(&mut client, 0);
    assert_eq!(left_ms(&mut client), 0);
    // The owner has its old token, once it may be told.
    assert_eq!(client.call("LOCK.ACQUIRE held owner HOLD 1"), int(7));
    token(&client.call("LOCK.ACQUIRE free owner"));
}

#[test]
fn in_the_grace_period_holds_are_renewed_released_and_broken() {
    let server = in_grace();
    let mut client = server.client();
    for key in ["a", "b"] {
        store(&mut client, key, "owner");
    }
    assert_eq!(client.call("LOCK.RENEW a owner LEASE 5000 FENCE 7"), int(1));
    assert!(client.int("PTTL a") <= 5000);
    assert_eq!(client.call("LOCK.RELEASE a owner FENCE 7"), int(1));
    assert_eq!(client.call("LOCK.BREAK b"), int(1));
    assert_eq!(client.int("EXISTS a b"), 0);
}

/// Locks that come free by different ends, each with two who wait.
fn wait_in_line(server: &TestServer, client: &mut Client, keys: &[&'static str]) -> Vec<Client> {
    let mut line = Vec::new();
    for key in keys {
        store(client, key, "holder");
        for (place, owner) in [(1, "first"), (2, "second")] {
            let mut waiter = server.client();
            waiter.send(&format!("LOCK.ACQUIRE {key} {owner} {LONG} BLOCK 0"));
            await_waiting(client, key, place);
            line.push(waiter);
        }
    }
    line
}

#[test]
fn nothing_is_handed_on_before_the_end_and_then_all_in_order() {
    let server = in_grace();
    let mut client = server.client();
    let keys = ["released", "broken", "deleted", "renamed", "ended", "held"];
    let mut line = wait_in_line(&server, &mut client, &keys);
    assert_eq!(client.call("LOCK.RELEASE released holder"), int(1));
    assert_eq!(client.call("LOCK.BREAK broken"), int(1));
    assert_eq!(client.int("DEL deleted"), 1);
    assert_eq!(client.call("RENAME renamed away"), status("OK"));
    assert_eq!(client.call("LOCK.RENEW ended holder LEASE 1"), int(1));
    eventually("its lease is over", || client.int("EXISTS ended") == 0);
    // It is the absence of an event that is observed.
    std::thread::sleep(Duration::from_millis(300));
    assert!(line.iter().all(|waiter| !waiter.has_reply()));
    // Nobody passes those who wait.
    set_grace(&mut client, 0);
    assert_eq!(client.call("LOCK.ACQUIRE deleted newcomer"), nil());
    for (waiters, key) in line.chunks_mut(2).zip(keys) {
        if key == "held" {
            assert_eq!(client.call("LOCK.RELEASE held holder"), int(1));
        }
        let first = token(&waiters[0].reply());
        assert_eq!(client.call(&format!("LOCK.RELEASE {key} first")), int(1));
        assert!(token(&waiters[1].reply()) > first, "{key}");
    }
    server.assert_sound();
}

#[test]
fn who_has_a_place_is_served_in_order_when_it_ends_and_forgotten_by_a_restart() {
    let mut play = Play::on(in_grace());
    play.run(
        "ears hears ch
        ears > LOCK.ACQUIRE k a PLACED -> 0
        ears > LOCK.ACQUIRE k b PLACED -> 0
        ears heard nothing
        queue k = a b
        o > CONFIG SET lock.grace-period 0
        ears heard a token
        o > LOCK.RELEASE k a -> 1
        ears heard b token
        ears > LOCK.ACQUIRE k c PLACED -> 0",
    );
    play.crash_and_restart();
    play.run("lock_places = 0");
}

#[test]
fn an_owner_that_asks_again_behind_others_is_no_deadlock() {
    let server = in_grace();
    let mut client = server.client();
    let mut line = wait_in_line(&server, &mut client, &["k"]);
    let mut again = server.client();
    again.send("LOCK.ACQUIRE k holder LEASE 600000 BLOCK 0 HOLD 1");
    await_waiting(&mut client, "k", 3);
    set_grace(&mut client, 0);
    assert_eq!(again.reply(), int(7));
    assert_eq!(client.call("LOCK.RELEASE k holder"), int(1));
    assert!(token(&line[0].reply()) > 7);
}

#[test]
fn it_ends_by_itself_and_not_before() {
    let server = TestServer::start_with(&["--lock.grace-period", "3000"]);
    let (mut client, mut waiter) = (server.client(), server.client());
    let start = Instant::now();
    let left = left_ms(&mut client);
    token(&waiter.call(&format!("LOCK.ACQUIRE k owner {LONG} BLOCK 0")));
    let waited = i64::try_from(start.elapsed().as_millis()).unwrap();
    assert!(waited + 1 >= left, "granted after {waited} ms of {left}");
    assert_eq!(left_ms(&mut client), 0);
    let log = server.log();
    let begins = "grace period begins with the start: no lock is granted for 3000 ms";
    assert!(log.contains(begins), "{log}");
    assert!(log.contains("grace period ends"), "{log}");
}

#[test]
fn another_length_counts_from_its_beginning_and_none_brings_it_back() {
    let server = in_grace();
    let mut client = server.client();
    set_grace(&mut client, 1_200_000);
    let left = left_ms(&mut client);
    assert!((600_001..=1_200_000).contains(&left), "{left}");
    set_grace(&mut client, 300_000);
    let left = left_ms(&mut client);
    assert!((1..=300_000).contains(&left), "{left}");
    assert_eq!(client.call("LOCK.ACQUIRE k owner"), nil());
    set_grace(&mut client, 0);
    assert_eq!(left_ms(&mut client), 0);
    set_grace(&mut client, 600_000);
    assert_eq!(left_ms(&mut client), 0);
    token(&client.call("LOCK.ACQUIRE k owner"));
}

#[test]
fn a_promotion_begins_one_and_a_replica_has_none() {
    let primary = in_grace();
    let replica = primary.replica(true);
    let (mut old, mut new) = (primary.client(), replica.client());
    set_grace(&mut new, 600_000);
    assert_eq!(left_ms(&mut new), 0);
    set_grace(&mut old, 0);
    let fence = old.int(&format!("LOCK.ACQUIRE k owner {LONG}"));
    primary.assert_same_data(&replica);
    // In one turn.
    new.send_bytes(b"REPLICAOF NO ONE\r\nLOCK.ACQUIRE k owner\r\nLOCK.ACQUIRE free owner\r\n");
    assert_eq!(
        [new.reply(), new.reply(), new.reply()],
        [status("OK"), nil(), nil()]
    );
    assert!(left_ms(&mut new) > 0);
    assert!(
        replica
            .log()
            .contains("grace period begins with the promotion")
    );
    assert_eq!(new.call("LOCK.RENEW k owner LEASE 600000"), int(1));
    let port = primary.addr().port();
    assert_eq!(
        new.call(&format!("REPLICAOF 127.0.0.1 {port}")),
        status("OK")
    );
    assert_eq!(left_ms(&mut new), 0);
    assert_eq!(new.call("REPLICAOF NO ONE"), status("OK"));
    assert_eq!(new.call("LOCK.ACQUIRE k owner"), nil());
    set_grace(&mut new, 0);
    assert_eq!(new.call("LOCK.ACQUIRE k owner"), int(fence));
}

#[test]
fn a_server_that_starts_as_a_replica_has_none_before_its_promotion() {
    let primary = TestServer::start();
    let port = primary.addr().port().to_string();
    let options = [&LONG_GRACE[..], &["--replicaof", "127.0.0.1", &port]].concat();
    let replica = TestServer::start_with(&options);
    replica.await_link().unwrap();
    let mut client = replica.client();
    assert_eq!(left_ms(&mut client), 0);
    assert_eq!(client.call("REPLICAOF NO ONE"), status("OK"));
    assert!(left_ms(&mut client) > 0);
}

#[test]
fn it_counts_from_the_end_of_loading() {
    let mut server = TestServer::start_with(&["--appendonly", "yes"]);
    let mut client = server.client();
    let fence = client.int(&format!("LOCK.ACQUIRE k owner {LONG}"));
    server.setup.options.extend(LONG_GRACE.map(String::from));
    server.crash_and_restart();
    let mut client = server.client();
    assert_eq!(client.call("LOCK.ACQUIRE k owner"), nil());
    let told = server.log().matches("grace period begins").count();
    assert_eq!(told, 1, "{}", server.log());
    set_grace(&mut client, 0);
    assert_eq!(client.call("LOCK.ACQUIRE k owner"), int(fence));
    set_grace(&mut client, 600_000);
    assert_eq!(client.call("DEBUG RELOAD"), status("OK"));
    assert_eq!(client.call("LOCK.ACQUIRE k owner"), nil());
}

#[test]
fn a_module_that_is_loaded_later_begins_one() {
    let server = TestServer::start_plain(&[]);
    let mut client = server.client();
    let module = redis_lock_testing::module();
    let load = format!("MODULE LOAD {} grace-period 600000", module.display());
    assert_eq!(client.call(&load), status("OK"));
    assert_eq!(client.call("LOCK.ACQUIRE k owner"), nil());
    assert!(left_ms(&mut client) > 0);
    // It goes with the module.
    assert_eq!(client.call("MODULE UNLOAD lock"), status("OK"));
    let load = format!("MODULE LOAD {}", module.display());
    assert_eq!(client.call(&load), status("OK"));
    assert_eq!(left_ms(&mut client), 0);
    client.int("LOCK.ACQUIRE k owner");
}

#[test]
fn time_in_which_the_server_is_stopped_counts_and_what_its_clock_shows_does_not() {
    let clock = Clock::new();
    let server = clock.server_with(&["--lock.grace-period", "60000"]);
    let mut client = server.client();
    for ahead in [3600, -3600, 0] {
        clock.set_ahead(ahead);
        assert_eq!(client.call("LOCK.ACQUIRE k owner"), nil());
        let left = left_ms(&mut client);
        assert!((1..=60_000).contains(&left), "{left}");
    }
    let start = Instant::now();
    let left = left_ms(&mut client);
    server.stop();
    // It is the passing of time that is tested.
    std::thread::sleep(Duration::from_millis(500));
    server.go_on();
    let now_left = client.info("lock_grace_ms");
    assert!(left - now_left >= 500, "{left} ms, then {now_left} ms");
    let passed = i64::try_from(start.elapsed().as_millis()).unwrap();
    assert!(left - now_left <= passed + 1);
}

#[test]
fn the_log_warns_of_settings_that_do_not_add_up() {
    let fenced = [
        "--min-replicas-to-write",
        "1",
        "--min-replicas-max-lag",
        "3",
    ];
    let (not_fenced, short) = (
        "min-replicas-to-write is not",
        "is shorter than lock.max-lease",
    );
    for (grace, max_lease, options, warning) in [
        ("0", "1000", &[][..], None),
        ("600000", "1000", &[], Some(not_fenced)),
        ("5999", "1000", &fenced, Some(short)),
        ("6000", "1000", &fenced, None),
    ] {
        let own = ["--lock.grace-period", grace, "--lock.max-lease", max_lease];
        let server = TestServer::start_with(&[&own, options].concat());
        let log = server.log();
        for text in [not_fenced, short] {
            assert_eq!(log.contains(text), warning == Some(text), "{grace}: {log}");
        }
    }
    let server = TestServer::start_with(&fenced);
    let mut client = server.client();
    let warnings = || server.log().matches("lock.grace-period is").count();
    for (set, count) in [
        ("lock.max-lease 1000", 0),
        ("lock.grace-period 6000", 0),
        ("lock.max-lease 1001", 1),
        ("lock.max-lease 1000", 1),
        ("lock.grace-period 5000", 2),
        ("lock.grace-period 6000", 2),
        ("min-replicas-max-lag 4", 3),
        ("min-replicas-to-write 0", 4),
    ] {
        assert_eq!(client.call(&format!("CONFIG SET {set}")), status("OK"));
        assert_eq!(warnings(), count, "{set}");
    }
}
