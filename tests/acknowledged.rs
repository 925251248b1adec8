//! `lock.min-replicas`: nothing is told before this many replicas have acknowledged it.

use redis::Value;
use redis_lock_testing::scene::await_replicas;
use redis_lock_testing::{Client, Play, Server, eventually};

/// Nothing is left, and nobody crashed.
#[track_caller]
fn assert_over(play: &mut Play) {
    play.run("until lock_replies_withheld = 0");
    play.run("in step");
}

/// Plays a scene on a server whose replica `r` has to acknowledge.
#[track_caller]
fn check(lines: &str) {
    let mut play = Play::acknowledged();
    play.run(lines);
    assert_over(&mut play);
}

/// Nothing is on its way to the replica, or back from it.
#[track_caller]
fn await_all_acknowledged(observer: &mut Client) {
    eventually("all is acknowledged", || {
        let info = observer.bulk("INFO replication");
        let mut lines = info.lines();
        let written = lines.find_map(|line| line.strip_prefix("master_repl_offset:"));
        written.is_some_and(|written| info.contains(&format!(",offset={written},")))
    });
}

#[test]
fn in_any_database_a_grant_is_told_when_it_is_acknowledged() {
    check(
        "a > SELECT 3
        a > LOCK.ACQUIRE k a LONG -> A
        a > LOCK.RENEW k a FENCE $A -> 1
        a > LOCK.RELEASE k a -> 1",
    );
}

#[test]
fn a_server_that_is_demoted_misses_no_replicas_any_more() {
    let mut play = Play::start();
    play.run("primary starts");
    play.run(
        "o > CONFIG SET lock.min-replicas 2
        until lock_replicas_missing = 2
        o > REPLICAOF 127.0.0.1 $primary -> OK
        until lock_replicas_missing = 0",
    );
}

#[test]
fn a_grant_is_told_after_a_replica_has_acknowledged_it() {
    check(
        "a > LOCK.ACQUIRE k a LONG -> A
        o > LOCK.RELEASE k a -> 1
        r stops
        a > LOCK.ACQUIRE k a LONG -> ..
        o > HGET k a -> '1'
        o > LOCK.ACQUIRE k b -> null
        o > BLPOP none 0.3 -> null
        lock_replies_withheld = 1
        r goes on
        a < B",
    );
}

#[test]
fn what_is_not_acknowledged_in_time_is_given_back_and_the_next_is_asked() {
    check(
        "o > CONFIG SET lock.replicas-timeout 300
        r stops
        a > LOCK.ACQUIRE k a LONG HOLD 1 -> ..
        b > LOCK.ACQUIRE k b BLOCKED -> ..
        o > CONFIG SET lock.replicas-timeout 600000
        a < !NOREPLICAS not known to be safe
        until o > HGET k b -> '1'
        o > HGET k a -> null
        a > LOCK.ACQUIRE k a BLOCKED HOLD 1 -> ..
        r goes on
        b < B
        b > LOCK.RELEASE k b -> 1
        a < A",
    );
}

#[test]
fn nothing_that_was_acknowledged_before_confirms_a_hold() {
    let mut play = Play::acknowledged();
    play.run("a > LOCK.ACQUIRE k a LONG HOLD 1 -> A");
    for lease in ["LEASE 60000", "LEASE 50000"] {
        await_all_acknowledged(play.client("o"));
        play.run(&format!(
            "r stops
            a > LOCK.ACQUIRE k a {lease} HOLD 1 -> ..
            o > BLPOP none 0.2 -> null
            lock_replies_withheld = 1
            r goes on
            a < A"
        ));
    }
    await_all_acknowledged(play.client("o"));
    play.run(
        "o > CONFIG SET lock.replicas-timeout 100
        r stops
        a > LOCK.ACQUIRE k a LEASE 60000 HOLD 1 -> !NOREPLICAS
        o > HGET k a -> '1'
        r goes on",
    );
    assert_over(&mut play);
}

#[test]
fn a_renewal_is_withheld_and_a_release_is_not() {
    check(
        "r stops
        a > LOCK.ACQUIRE k a LEASE 60000 -> ..
        b > LOCK.RENEW k a LONG -> ..
        o > PTTL k -> 60001..
        o > LOCK.RENEW k b -> 0
        r goes on
        a < token
        b < 1
        o > HGET k a -> '1'
        r stops
        b > LOCK.RENEW k a LEASE 700000 -> ..
        a > LOCK.RELEASE k a -> 1
        r goes on
        b < 0",
    );
}

#[test]
fn a_client_that_goes_or_is_unblocked_gives_back_what_was_withheld() {
    for asks in ["LONG", "BLOCKED"] {
        for (how, reply) in [
            ("", "!NOREPLICAS"),
            (" TIMEOUT", "!NOREPLICAS"),
            (" ERROR", "!UNBLOCKED"),
        ] {
            check(&format!(
                "r stops
                a > LOCK.ACQUIRE k a {asks} -> ..
                o > CLIENT UNBLOCK $a{how} -> 1
                a < {reply}
                until o > HGET k a -> null
                a > LOCK.ACQUIRE k a {asks} -> ..
                a closes
                until lock_replies_withheld = 0
                until o > HGET k a -> null
                r goes on"
            ));
        }
    }
}

#[test]
fn what_is_handed_to_a_waiter_is_withheld_longer_than_it_would_wait() {
    check(
        "a > LOCK.ACQUIRE k a LONG -> A
        b > LOCK.ACQUIRE k b BLOCK 50 -> null
        b > LOCK.ACQUIRE k b LONG BLOCK 500 -> ..
        r stops
        a > LOCK.RELEASE k a -> 1
        until lock_replies_withheld = 1
        o > BLPOP none 0.6 -> null
        lock_replies_withheld = 1
        r goes on
        b < B",
    );
}

#[test]
fn writes_that_are_paused_bring_nobody_down_and_all_is_told_after() {
    let mut play = Play::acknowledged();
    // One turn reads both, so that the pause comes before the replica is asked.
    play.run(
        "each o a sleeper: # > PING -> PONG
        sleeper sends DEBUG SLEEP 0.1
        a sends LOCK.ACQUIRE k a LONG
        o > CLIENT PAUSE 1500 WRITE -> OK
        sleeper < OK
        a < A
        r stops
        o > CLIENT UNPAUSE
        a > LOCK.ACQUIRE l a LONG -> ..
        o > CLIENT PAUSE 500 WRITE
        r goes on
        a < B
        o > CLIENT UNPAUSE",
    );
    assert_over(&mut play);
}

#[test]
fn a_planned_fail_over_brings_nobody_down_while_a_grant_is_withheld() {
    let mut play = Play::acknowledged();
    play.run(
        "r stops
        a > LOCK.ACQUIRE k a LONG -> ..
        b > LOCK.ACQUIRE k b BLOCKED -> ..
        o > FAILOVER -> OK
        r goes on",
    );
    match play.client("a").reply() {
        Value::Int(_) => {}
        other => assert!(format!("{other:?}").contains("UNBLOCKED"), "{other:?}"),
    }
    // A hold that may have been told.
    play.run(
        "b < !UNBLOCKED
        new at r
        until new > SET x 1 -> OK
        new > HGET k a -> '1'",
    );
    play.run("sound");
}

#[test]
fn a_primary_that_steps_down_tells_nobody_of_a_hold() {
    let mut play = Play::acknowledged();
    play.run("other starts");
    play.run(
        "r stops
        a > LOCK.ACQUIRE k a LONG -> ..
        o > REPLICAOF 127.0.0.1 $other -> OK
        a < !UNBLOCKED
        until lock_replies_withheld = 0
        r goes on",
    );
    play.run("sound");
}

#[test]
fn where_the_client_cannot_wait_nothing_is_granted_or_renewed() {
    let refused = "!NOREPLICAS nothing was done: a client that can't block can't wait";
    check(&format!(
        "a > LOCK.ACQUIRE k a LONG -> A
        o >> LOCK.ACQUIRE k a | LOCK.RENEW k a LEASE 1 -> {refused} | {refused}
        o >> LOCK.ACQUIRE l b BLOCK 0 | LOCK.ACQUIRE k b BLOCK 0 -> {refused} | null
        o >> LOCK.RENEW k b | HGET k a -> 0 | '1'
        o > EVAL \"return redis.pcall('LOCK.ACQUIRE','l','b')\" 0 -> !NOREPLICAS
        o > EVAL \"return redis.pcall('LOCK.RENEW','k','a')\" 0 -> !NOREPLICAS
        o > PTTL k -> 500000..
        o > EXISTS l -> 0
        a > LOCK.RELEASE k a -> 1"
    ));
}

#[test]
fn a_session_is_kept_up_while_its_leases_are_acknowledged() {
    check(
        "a > LOCK.ACQUIRE k a LEASE 3000 SESSION -> A
        o > BLPOP none 4 -> null
        a > PING -> PONG
        o > HGET k a -> '1'",
    );
}

#[test]
fn a_session_that_ends_while_its_owner_asks_elsewhere_is_over_if_that_is_not_told() {
    for end in [
        "r goes on
        b < A
        b > LOCK.RELEASE k a -> 1",
        "b closes
        until o > HGET k a -> null
        r goes on",
    ] {
        check(&format!(
            "a > LOCK.ACQUIRE k a LONG SESSION -> A
            r stops
            b > LOCK.ACQUIRE k a LONG HOLD 1 -> ..
            a closes
            until lock_sessions = 0
            o > HGET k a -> '1'
            {end}"
        ));
    }
}

#[test]
fn a_grant_behind_the_leases_of_a_crowd_of_sessions_is_told_when_it_is_acknowledged() {
    const CROWD: usize = 4000;
    let mut play = Play::acknowledged();
    let all: Vec<String> = (1..=CROWD)
        .map(|nth| format!("LOCK.ACQUIRE k{nth} a LEASE 12000 SESSION"))
        .collect();
    play.run(&format!(
        "o > CONFIG SET lock.replicas-timeout 2000
        o > CONFIG SET lock.min-replicas 0
        a sends {}
        each 1..{CROWD}: a < token
        o > CONFIG SET lock.min-replicas 1",
        all.join(" | ")
    ));
    await_all_acknowledged(play.client("o"));
    // All are renewed. From then on the server has nothing else to do.
    play.run(&format!(
        "o > PEXPIRETIME k1 -> :first
        o > PEXPIRETIME k{CROWD} -> :last
        r stops
        until o > PEXPIRETIME k1 -> $first+1..
        until o > PEXPIRETIME k{CROWD} -> $last+1..
        a sends LOCK.ACQUIRE l a LONG
        r goes on
        a < token"
    ));
}

#[test]
fn a_session_whose_leases_are_not_acknowledged_is_closed() {
    check(
        "a > LOCK.ACQUIRE k a LEASE 3000 SESSION -> A
        r stops
        a < closed
        until o > HGET k a -> null
        r goes on",
    );
}

#[test]
fn a_lease_that_nobody_acknowledges_costs_the_turns_after_it_nothing() {
    let mut play = Play::acknowledged();
    play.run(
        "a > LOCK.ACQUIRE k a LEASE 3000 SESSION -> A
        r stops
        o > CLIENT KILL TYPE replica
        a < closed",
    );
    let calls_of_info = |observer: &mut Client| {
        let stats = observer.bulk("INFO commandstats");
        let line = stats.lines().find(|line| line.starts_with("cmdstat_info:"));
        let calls = line.and_then(|line| line.split(['=', ',']).nth(1));
        calls.map_or(0, |calls| calls.parse::<i64>().unwrap())
    };
    let observer = play.client("o");
    let before = calls_of_info(observer);
    for _ in 0..50 {
        observer.call("PING");
    }
    let asked = calls_of_info(observer) - before;
    assert!(asked < 25, "INFO was called {asked} times");
    play.run("r goes on");
}

#[test]
fn a_hold_that_is_over_by_then_is_not_told() {
    // So a key expires when the module looks at it, at the end of a turn.
    let unseen = "DEBUG SET-ACTIVE-EXPIRE 0";
    for (lease, end) in [
        ("600000", "DEL k"),
        ("600000", "LOCK.BREAK k"),
        ("600000", "SET k v"),
        ("600000", "FLUSHALL"),
        ("300", "BLPOP none 0.4"),
    ] {
        check(&format!(
            "o > {unseen}
            r stops
            a > LOCK.ACQUIRE k a LEASE {lease} -> ..
            o > {end}
            r goes on
            a < null
            o > EXISTS k -> 0..1"
        ));
    }
}

#[test]
fn all_is_told_when_no_replica_is_needed_any_more() {
    check(
        "r stops
        a > LOCK.ACQUIRE k a LONG -> ..
        o > CONFIG SET lock.min-replicas 0
        a < A
        o > LOCK.ACQUIRE l a -> token
        r goes on",
    );
}

#[test]
fn as_many_replicas_as_asked_for_have_to_acknowledge_it() {
    let mut play = Play::acknowledged();
    let second = play.server.replica(false);
    await_replicas(play.client("o"), 2);
    play.others.insert("second".into(), second);
    play.run(
        "o > CONFIG SET lock.min-replicas 2
        a > LOCK.ACQUIRE l a -> token
        second stops
        a > LOCK.ACQUIRE k a LONG -> ..
        o > BLPOP none 0.2 -> null
        lock_replies_withheld = 1
        second goes on
        a < token",
    );
    assert_over(&mut play);
}

#[test]
fn with_too_few_replicas_nobody_who_waits_is_granted() {
    // A replica that is online may acknowledge nothing for another second.
    let mut play = Play::start();
    play.run(
        "a > LOCK.ACQUIRE k a LONG -> A
        o > CONFIG SET lock.min-replicas 1
        o > CONFIG SET lock.replicas-timeout 600000
        a > LOCK.ACQUIRE l a -> !NOREPLICAS
        a > LOCK.RENEW k a -> !NOREPLICAS
        a > LOCK.ACQUIRE k a -> !NOREPLICAS
        a > LOCK.ACQUIRE k a HOLD 1 BLOCK 0 -> !NOREPLICAS
        until lock_replicas_missing = 1
        o > LOCK.ACQUIRE k b -> null
        b > LOCK.ACQUIRE k b BLOCKED -> ..
        a > LOCK.RELEASE k a -> 1
        c > LOCK.ACQUIRE l c BLOCKED -> ..
        queue k = b
        o > EXISTS k l -> 0",
    );
    let _replica = play.server.replica(false);
    play.run("b < token \n c < token");
    play.run("sound");
}

/// Valkey 8.1.1 and later block no client that has subscribed.
#[test]
fn who_subscribes_is_told_what_is_safe_or_that_it_is_not_known() {
    let mut play = Play::acknowledged();
    play.run("ears hears ch");
    match play.client("ears").call("LOCK.ACQUIRE k a") {
        Value::Int(_) => play.run("o > HGET k a -> '1'"),
        Value::ServerError(error) if error.code() == "NOREPLICAS" => {
            play.run("until o > HGET k a -> null")
        }
        other => panic!("{other:?}"),
    };
    assert_over(&mut play);
}

#[test]
fn the_append_only_file_holds_no_question_to_replicas() {
    let server = Server::start_with(&["--appendonly", "yes"]);
    let mut play = Play::on(server).with_replica();
    play.run(
        "o > CONFIG SET lock.min-replicas 1
        each 60000 50000 60000 50000: o > LOCK.ACQUIRE k a LEASE # HOLD 1 -> A
        o > LOCK.ACQUIRE l a -> B",
    );
    let mut written = String::new();
    eventually("the file is written", || {
        written.clear();
        for file in std::fs::read_dir(play.dir.join("appendonlydir")).unwrap() {
            let bytes = std::fs::read(file.unwrap().path()).unwrap();
            written.push_str(&String::from_utf8_lossy(&bytes));
        }
        written.matches("@fence").count() == 2
    });
    assert!(!written.contains("GETACK") && !written.contains("PING"));
    play.run("in step");
}

/// A client is told of one when replicas have it, and goes on to the next in that turn.
#[test]
fn commands_that_come_in_one_write_are_told_one_after_another_and_end_with_the_session() {
    let mut play = Play::acknowledged();
    for (command, reply) in [("ACQUIRE", "token"), ("RENEW", "1")] {
        let lock = |nth| format!("LOCK.{command} k{nth} o{nth} LONG");
        let session = if command == "ACQUIRE" { " SESSION" } else { "" };
        let all: Vec<String> = (0..10).map(|nth| lock(nth) + session).collect();
        let replies = [reply; 10].join(" | ");
        play.run(&format!("a > {} -> {replies}", all.join(" | ")));
    }
    let again = ["LOCK.ACQUIRE k0 o0 SESSION"; 3].join(" | ");
    play.run(&format!(
        "a > {again} -> token | token | token
        o > HGET k0 o0 -> '4'
        a closes
        until o > DBSIZE -> 0"
    ));
}
