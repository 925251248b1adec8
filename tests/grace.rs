//! After a start or a promotion, nothing is granted for a time.

use std::time::{Duration, Instant};

use redis::Value;
use redis_lock_testing::scene::field;
use redis_lock_testing::{Client, Clock, LONG, Nil, Okay, Play, Server, module};

/// A grace period that a test ends itself.
const LONG_GRACE: [&str; 2] = ["--lock.grace-period", "600000"];
const END: &str = "o > CONFIG SET lock.grace-period 0 -> OK";

/// In the grace period.
fn in_grace() -> Play {
    Play::on(Server::start_with(&LONG_GRACE))
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
fn store(key: &str) -> String {
    format!("o > HSET {key} h 1 @fence 7 -> 2 \n o > PEXPIRE {key} 600000 -> 1 \n")
}

#[test]
fn in_the_grace_period_no_acquire_is_answered_with_a_token() {
    let mut play = in_grace();
    play.run(&store("held"));
    for options in [
        "", "SHARED", "LIMIT 3", "SESSION", "HOLD 1", "HOLD 2", "BLOCK 1",
    ] {
        for key in ["free", "held"] {
            play.run(&format!("o > LOCK.ACQUIRE {key} h LONG {options} -> null"));
        }
    }
    play.run(
        "o >> LOCK.ACQUIRE free h BLOCKED -> null
        o > EVAL \"return redis.call('LOCK.ACQUIRE','free','h')\" 0 -> null
        o > EXISTS free -> 0
        o > HGET held h -> '1'",
    );
    assert!(left_ms(play.client("o")) > 0);
    play.run(END);
    assert_eq!(left_ms(play.client("o")), 0);
    // The owner has its old token, once it may be told.
    play.run(
        "o > LOCK.ACQUIRE held h HOLD 1 -> 7
        o > LOCK.ACQUIRE free h -> token",
    );
}

#[test]
fn in_the_grace_period_holds_are_renewed_released_and_broken() {
    in_grace().run(&(store("a") + &store("b"))).run(
        "o > LOCK.RENEW a h LEASE 5000 FENCE 7 -> 1
        o > PTTL a -> 1..5000
        o > LOCK.RELEASE a h FENCE 7 -> 1
        o > LOCK.BREAK b -> 1
        o > EXISTS a b -> 0",
    );
}

/// Locks that come free by different ends, each with two who wait.
#[test]
fn nothing_is_handed_on_before_the_end_and_then_all_in_order() {
    let keys = "released broken deleted renamed ended held";
    let mut play = in_grace();
    for key in keys.split(' ') {
        play.run(&store(key));
    }
    play.run(&format!(
        "each {keys}: #1 > LOCK.ACQUIRE # first BLOCKED -> .. ; #2 > LOCK.ACQUIRE # second BLOCKED -> ..
        o > LOCK.RELEASE released h -> 1
        o > LOCK.BREAK broken -> 1
        o > DEL deleted -> 1
        o > RENAME renamed away -> OK
        o > LOCK.RENEW ended h LEASE 1 -> 1
        until o > EXISTS ended -> 0"
    ));
    // It is the absence of an event that is observed. Nobody passes those who wait.
    play.run(&format!(
        "300 ms pass
        each {keys}: queue # = first second
        {END}
        o > LOCK.ACQUIRE deleted newcomer -> null
        o > LOCK.RELEASE held h -> 1
        each {keys}: #1 < token ; o > LOCK.RELEASE # first -> 1 ; #2 < token
        sound"
    ));
}

#[test]
fn who_has_a_place_is_served_in_order_when_it_ends_and_forgotten_by_a_restart() {
    let mut play = in_grace();
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
    play.run("crash");
    play.run("lock_places = 0");
}

#[test]
fn it_ends_by_itself_and_not_before() {
    let server = Server::start_with(&["--lock.grace-period", "3000"]);
    let (mut client, mut waiter) = (server.client(), server.client());
    let start = Instant::now();
    let left = left_ms(&mut client);
    waiter.int(&format!("LOCK.ACQUIRE k owner {LONG} BLOCK 0"));
    let waited = i64::try_from(start.elapsed().as_millis()).unwrap();
    assert!(waited + 1 >= left, "granted after {waited} ms of {left}");
    assert_eq!(left_ms(&mut client), 0);
    let log = server.log();
    let begins = "grace period begins with the start: no lock is granted for 3000 ms";
    assert!(log.contains(begins), "{log}");
    assert!(log.contains("grace period ends"), "{log}");
}

#[test]
fn a_promotion_begins_one_and_a_replica_has_none() {
    let mut play = in_grace();
    let replica = play.server.replica(true);
    play.others.insert("r".into(), replica);
    play.run(END).run(
        "new at r
        new > CONFIG SET lock.grace-period 600000
        o > LOCK.ACQUIRE k h LONG -> H",
    );
    play.run("in step");
    assert_eq!(left_ms(play.client("new")), 0);
    // In one turn.
    play.run("new > REPLICAOF NO ONE | LOCK.ACQUIRE k h | LOCK.ACQUIRE free h -> OK | null | null");
    assert!(left_ms(play.client("new")) > 0);
    let log = play.others["r"].log();
    let has_begun = log.contains("grace period begins with the promotion");
    assert!(has_begun, "{log}");
    let port = play.server.port;
    play.run(&format!(
        "new > LOCK.RENEW k h LONG -> 1
        new > REPLICAOF 127.0.0.1 {port} -> OK"
    ));
    assert_eq!(left_ms(play.client("new")), 0);
    play.run(
        "new > REPLICAOF NO ONE -> OK
        new > LOCK.ACQUIRE k h -> null
        new > CONFIG SET lock.grace-period 0
        new > LOCK.ACQUIRE k h -> H",
    );
}

#[test]
fn a_server_that_starts_as_a_replica_has_none_before_its_promotion() {
    let primary = Server::start();
    let port = primary.port.to_string();
    let options = [&LONG_GRACE[..], &["--replicaof", "127.0.0.1", &port]].concat();
    let mut play = Play::on(Server::start_with(&options));
    play.await_link().unwrap();
    play.run(
        "lock_grace_ms = 0
        o > REPLICAOF NO ONE -> OK
        lock_grace_ms = 1..",
    );
}

#[test]
fn it_counts_from_the_end_of_loading() {
    let mut play = Play::on(Server::start_with(&["--appendonly", "yes"]));
    play.run("o > LOCK.ACQUIRE k h LONG -> H");
    play.server
        .setup
        .options
        .extend(LONG_GRACE.map(String::from));
    play.run("crash");
    play.run("o > LOCK.ACQUIRE k h -> null");
    let told = play.log().matches("grace period begins").count();
    assert_eq!(told, 1, "{}", play.log());
    play.run(END).run(
        "o > LOCK.ACQUIRE k h -> H
        o > CONFIG SET lock.grace-period 600000
        o > DEBUG RELOAD -> OK
        o > LOCK.ACQUIRE k h -> null",
    );
}

/// It goes with the module.
#[test]
fn a_module_that_is_loaded_later_begins_one() {
    let load = format!("o > MODULE LOAD {}", module().display());
    Play::on(Server::start_plain(&[])).run(&format!(
        "{load} grace-period 600000 -> OK
        o > LOCK.ACQUIRE k h -> null
        lock_grace_ms = 1..
        o > MODULE UNLOAD lock -> OK
        {load} -> OK
        lock_grace_ms = 0
        o > LOCK.ACQUIRE k h -> token"
    ));
}

#[test]
fn time_in_which_the_server_is_stopped_counts_and_what_its_clock_shows_does_not() {
    let clock = Clock::new();
    let server = clock.server_with(&["--lock.grace-period", "60000"]);
    let mut client = server.client();
    for ahead in [3600, -3600, 0] {
        clock.set_ahead(ahead);
        assert_eq!(client.call("LOCK.ACQUIRE k owner"), Nil);
        let left = left_ms(&mut client);
        assert!((1..=60_000).contains(&left), "{left}");
    }
    let start = Instant::now();
    let left = left_ms(&mut client);
    server.stop().unwrap();
    // It is the passing of time that is tested.
    std::thread::sleep(Duration::from_millis(500));
    server.go_on().unwrap();
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
        let server = Server::start_with(&[&own, options].concat());
        let log = server.log();
        for text in [not_fenced, short] {
            assert_eq!(log.contains(text), warning == Some(text), "{grace}: {log}");
        }
    }
    let server = Server::start_with(&fenced);
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
        assert_eq!(client.call(&format!("CONFIG SET {set}")), Okay);
        assert_eq!(warnings(), count, "{set}");
    }
}
