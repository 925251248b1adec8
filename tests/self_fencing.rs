//! A primary that its replicas may have left grants nothing, by no road.
//!
//! The server counts its good replicas once a second, in its own clockwork. A server
//! that was stopped and goes on serves what lies in its sockets before that turns. So
//! in that moment its own count is as old as the pause.

use redis::Value;
use redis_lock_testing::scene::assert_none_granted;
use redis_lock_testing::{LONG, Nil, Play, eventually, info_field};

/// A primary that demands its replica `r`. These locks are held with this lease, and
/// somebody waits for each.
#[track_caller]
fn lined_up(locks: &[(&str, &str)]) -> Play {
    let mut play = Play::start().with_replica();
    play.run(&format!(
        "o > CONFIG SET min-replicas-to-write 1 min-replicas-max-lag 1 -> OK
        until o > INFO replication -> {COUNTED}"
    ));
    for (key, lease) in locks {
        play.run(&format!(
            "until o > LOCK.ACQUIRE {key} holder {lease} HOLD 1 -> token
            w{key} > LOCK.ACQUIRE {key} waiter BLOCKED -> .."
        ));
    }
    play
}

/// The server counts one good replica by itself.
const COUNTED: &str = "~min_slaves_good_slaves:1";

/// The primary is stopped for three seconds. It finds what was sent when it goes on.
const PAUSE: &str = "3000 ms pass \n server goes on";

/// The replica acknowledges what it had, and leaves.
const LEAVE: &str = "1500 ms pass \n there at r \n there > REPLICAOF NO ONE -> OK";

/// Those who wait have the locks now.
#[track_caller]
fn assert_granted(play: &mut Play, keys: &[&str]) {
    for key in keys {
        play.run(&format!(
            "w{key} < :granted \n o > HGET {key} @fence -> '$granted'"
        ));
    }
    play.run("sound");
}

#[test]
fn a_primary_whose_replica_has_fallen_silent_hands_nothing_on_whatever_its_own_count() {
    let keys = ["released", "deleted", "broken", "ended"];
    let mut play = lined_up(&keys.map(|key| match key {
        "ended" => (key, "LEASE 1500"),
        _ => (key, LONG),
    }));
    // No event tells that a replica is back. The server's own count is an old one.
    play.run(&format!(
        "o > CONFIG SET lock.recheck-interval 500
        r stops
        server stops
        o sends INFO replication | LOCK.RELEASE released holder | DEL deleted | LOCK.BREAK broken
        o sends LOCK.ACQUIRE free holder | INFO replication
        {PAUSE}
        o < {COUNTED}
        each 1 2 3: o < 1
        o < !NOREPLICAS
        o < {COUNTED}"
    ));
    assert_none_granted(play.client("o"), &keys);
    play.run("r goes on");
    assert_granted(&mut play, &keys);
}

#[test]
fn a_primary_whose_replica_has_fallen_silent_renews_nothing() {
    let mut play = lined_up(&[("held", LONG)]);
    play.run(&format!(
        "o > PEXPIRETIME held -> :end
        r stops
        server stops
        o sends INFO replication | LOCK.RENEW held holder LEASE 900000
        o sends LOCK.ACQUIRE held holder LEASE 900000
        o sends LOCK.ACQUIRE held holder LEASE 900000 HOLD 1 | PEXPIRETIME held
        {PAUSE}
        o < {COUNTED}
        each 1 2 3: o < !NOREPLICAS
        o < $end
        r goes on
        until o > LOCK.RENEW held holder LONG -> 1
        o > LOCK.RELEASE held holder -> 1"
    ));
    assert_granted(&mut play, &["held"]);
}

#[test]
fn a_primary_whose_replica_has_fallen_silent_guards_nothing() {
    let mut play = lined_up(&[("held", LONG)]);
    let token = play.client("o").bulk("HGET held @fence");
    let guarded = format!("LOCK.GUARD held {token} GET x");
    play.run(&format!(
        "until o > {guarded} -> null
        r stops
        server stops
        o sends INFO replication | {guarded}
        {PAUSE}
        o < {COUNTED}
        o < !NOREPLICAS
        r goes on
        until o > {guarded} -> null
        o > LOCK.RELEASE held holder -> 1"
    ));
    assert_granted(&mut play, &["held"]);
}

#[test]
fn acknowledgements_that_lay_in_the_socket_during_a_pause_are_no_new_ones() {
    let mut play = lined_up(&[("ended", "LEASE 1500")]);
    play.run(&format!(
        "server stops
        o sends LOCK.ACQUIRE free holder
        {LEAVE}
        {PAUSE}
        o < !NOREPLICAS"
    ));
    assert_none_granted(play.client("o"), &["ended"]);
    play.run("o > CONFIG SET min-replicas-to-write 0 -> OK");
    assert_granted(&mut play, &["ended"]);
}

/// The server would write to it by itself, unless it is to do so seldom.
#[test]
fn after_a_pause_a_replica_that_stays_is_asked_and_grants_go_on() {
    for (locks, keys, ping) in [
        (&[("ended", "LEASE 1500")][..], &["ended"][..], 10),
        (&[], &[], 3600),
    ] {
        let mut play = lined_up(locks);
        play.run(&format!(
            "o > CONFIG SET repl-ping-replica-period {ping} -> OK
            server stops
            o sends LOCK.ACQUIRE free holder
            {PAUSE}
            o < !NOREPLICAS
            until o > LOCK.ACQUIRE free holder -> token"
        ));
        assert_granted(&mut play, keys);
    }
}

/// So many commands that the server does not read what came after them before it has run
/// them.
#[test]
fn what_a_replica_that_left_in_a_pause_had_acknowledged_counts_for_no_command_after_it() {
    let mut play = lined_up(&[("held", LONG)]);
    let many = ["LOCK.ACQUIRE free holder"; 500].join(" | ");
    // The observer took the lock, so it is this that is waited for.
    play.run(&format!(
        "client > PING -> PONG
        o > WAIT 1 0 -> 1
        server stops
        {LEAVE}
        client sends {many}
        {PAUSE}
        each 1..500: client < !NOREPLICAS"
    ));
    assert_none_granted(play.client("o"), &["held"]);
}

/// A machine that stalls is a pause, too.
#[test]
fn a_server_at_which_nobody_has_asked_for_a_while_was_not_paused() {
    let mut play = lined_up(&[]);
    eventually("the first one after a while is granted", || {
        play.run("o > BLPOP none 1 -> null");
        matches!(
            play.client("o").call("LOCK.ACQUIRE k holder"),
            Value::Int(_)
        )
    });
}

#[test]
fn a_server_whose_clockwork_turns_slowly_was_not_paused() {
    let mut play = lined_up(&[]);
    play.run("o > CONFIG SET hz 1 repl-ping-replica-period 3600 -> OK");
    let mut observer = play.server.client();
    let mut written = || {
        let info = play.client("o").bulk("INFO replication");
        info_field(&info, "master_repl_offset").unwrap().to_owned()
    };
    // Where there was a pause, replicas are asked. A machine that stalls is one, too.
    eventually("no replica is asked for a while", || {
        let before = written();
        assert_eq!(observer.call("BLPOP none 2.5"), Nil);
        written() == before
    });
}

#[test]
fn a_server_that_was_stopped_while_writes_are_paused_asks_after_that() {
    let mut play = lined_up(&[]);
    play.run(&format!(
        "o > CLIENT PAUSE 600000 WRITE -> OK
        server stops
        {PAUSE}
        uptime_in_seconds = :up
        until uptime_in_seconds = $up+2..
        o > CLIENT UNPAUSE -> OK
        until o > LOCK.ACQUIRE k holder -> token
        sound"
    ));
}

#[test]
fn without_a_replica_left_a_lock_is_not_handed_on_at_the_end_of_its_lease() {
    let mut play = lined_up(&[("ended", "LEASE 2500")]);
    play.others.get_mut("r").unwrap().crash();
    play.run(
        "until o > LOCK.ACQUIRE another holder LEASE 1 -> !NOREPLICAS
        until o > HGET ended holder -> null",
    );
    assert_none_granted(play.client("o"), &["ended"]);
    play.others.get_mut("r").unwrap().restart().unwrap();
    assert_granted(&mut play, &["ended"]);
}

#[test]
fn a_holder_is_confirmed_or_refused_at_the_moment_when_its_replica_falls_silent() {
    let mut play = lined_up(&[]);
    // It takes a while to read them, between the beginning of a command and its answer.
    let holders: Vec<String> = (0..400)
        .map(|n| format!("LOCK.ACQUIRE k holder{n} {LONG} LIMIT 400 HOLD 1"))
        .collect();
    for take in &holders {
        play.run(&format!("until o > {take} -> token"));
    }
    let confirm = &holders[0];
    let batch = format!("{confirm}\r\n").repeat(200);
    for _ in 0..3 {
        play.run("r stops");
        let mut is_refused = false;
        while !is_refused {
            play.client("o")
                .connection
                .send_bytes(batch.as_bytes())
                .unwrap();
            for _ in 0..200 {
                match play.client("o").reply() {
                    Value::Int(_) => {}
                    Value::ServerError(error) if error.code() == "NOREPLICAS" => is_refused = true,
                    other => panic!("{other:?}"),
                }
            }
        }
        play.run("r goes on");
        play.run(&format!("until o > {confirm} -> token"));
    }
}
