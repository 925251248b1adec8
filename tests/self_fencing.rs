//! A primary that its replicas may have left grants nothing, by no road.
//!
//! The server counts its good replicas once a second, in its own clockwork. A server
//! that was stopped and goes on serves what lies in its sockets before that turns. So
//! in that moment its own count is as old as the pause.

use std::time::Duration;

use redis::Value;
use redis_lock_testing::scene::assert_none_granted;
use redis_lock_testing::{Client, LONG, Play, eventually, info_field, int, nil, reply_text, token};

/// A primary that demands its replica `r`. These locks are held with this lease, and
/// somebody waits for each.
#[track_caller]
fn lined_up(locks: &[(&str, &str)]) -> Play {
    let mut play = Play::start().with_replica();
    play.run("o > CONFIG SET min-replicas-to-write 1 min-replicas-max-lag 1 -> OK");
    eventually("the server counts it", || own_count(play.client("o")) == 1);
    for (key, lease) in locks {
        play.run(&format!(
            "until o > LOCK.ACQUIRE {key} holder {lease} HOLD 1 -> token
            w{key} > LOCK.ACQUIRE {key} waiter BLOCKED -> .."
        ));
    }
    play
}

/// Stops the primary for three seconds. It finds these commands when it goes on. Returns
/// their replies.
#[track_caller]
fn pause_primary(
    play: &mut Play,
    commands: &[&str],
    meanwhile: impl FnOnce(&mut Play),
) -> Vec<Value> {
    play.run("server stops");
    for command in commands {
        play.client("o").send(command);
    }
    meanwhile(play);
    // It is the passing of time that is tested.
    std::thread::sleep(Duration::from_millis(3000));
    play.run("server goes on");
    commands.iter().map(|_| play.client("o").reply()).collect()
}

/// Those who wait have the locks now.
#[track_caller]
fn assert_granted(play: &mut Play, keys: &[&str]) {
    for key in keys {
        let granted = token(&play.client(&format!("w{key}")).reply());
        play.run(&format!("o > HGET {key} @fence -> '{granted}'"));
    }
    play.run("sound");
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
    let keys = ["released", "deleted", "broken", "ended"];
    let mut play = lined_up(&keys.map(|key| match key {
        "ended" => (key, "LEASE 1500"),
        _ => (key, LONG),
    }));
    // No event tells that a replica is back.
    play.run("o > CONFIG SET lock.recheck-interval 500 \n r stops");
    let turn = [
        "INFO replication",
        "LOCK.RELEASE released holder",
        "DEL deleted",
        "LOCK.BREAK broken",
        "LOCK.ACQUIRE free holder",
        "INFO replication",
    ];
    let replies = pause_primary(&mut play, &turn, |_| {});
    for info in [&replies[0], &replies[5]] {
        assert_eq!(own_count_in(info.clone()), 1, "its own count is an old one");
    }
    assert_eq!(replies[1..4], [int(1), int(1), int(1)]);
    assert_refused(&replies[4]);
    assert_none_granted(play.client("o"), &keys);
    play.run("r goes on");
    assert_granted(&mut play, &keys);
}

#[test]
fn a_primary_whose_replica_has_fallen_silent_renews_nothing() {
    let mut play = lined_up(&[("held", LONG)]);
    let ends = play.client("o").int("PEXPIRETIME held");
    play.run("r stops");
    let turn = [
        "INFO replication",
        "LOCK.RENEW held holder LEASE 900000",
        "LOCK.ACQUIRE held holder LEASE 900000",
        "LOCK.ACQUIRE held holder LEASE 900000 HOLD 1",
        "PEXPIRETIME held",
    ];
    let replies = pause_primary(&mut play, &turn, |_| {});
    assert_eq!(own_count_in(replies[0].clone()), 1);
    replies[1..4].iter().for_each(assert_refused);
    assert_eq!(replies[4], int(ends));
    play.run("r goes on");
    play.run(
        "until o > LOCK.RENEW held holder LONG -> 1
        o > LOCK.RELEASE held holder -> 1",
    );
    assert_granted(&mut play, &["held"]);
}

#[test]
fn a_primary_whose_replica_has_fallen_silent_guards_nothing() {
    let mut play = lined_up(&[("held", LONG)]);
    let token = play.client("o").bulk("HGET held @fence");
    let guarded = format!("LOCK.GUARD held {token} GET x");
    eventually("it is guarded", || play.client("o").call(&guarded) == nil());
    play.run("r stops");
    let replies = pause_primary(&mut play, &["INFO replication", &guarded], |_| {});
    assert_eq!(own_count_in(replies[0].clone()), 1);
    assert_refused(&replies[1]);
    play.run("r goes on");
    eventually("it is guarded again", || {
        play.client("o").call(&guarded) == nil()
    });
    assert_eq!(play.client("o").int("LOCK.RELEASE held holder"), 1);
    assert_granted(&mut play, &["held"]);
}

#[test]
fn acknowledgements_that_lay_in_the_socket_during_a_pause_are_no_new_ones() {
    let mut play = lined_up(&[("ended", "LEASE 1500")]);
    let promote = |play: &mut Play| {
        // It has acknowledged meanwhile what it had.
        std::thread::sleep(Duration::from_millis(1500));
        play.run("there at r \n there > REPLICAOF NO ONE -> OK");
    };
    let replies = pause_primary(&mut play, &["LOCK.ACQUIRE free holder", "PING"], promote);
    assert_refused(&replies[0]);
    assert_none_granted(play.client("o"), &["ended"]);
    play.run("o > CONFIG SET min-replicas-to-write 0 -> OK");
    assert_granted(&mut play, &["ended"]);
}

#[test]
fn after_a_pause_a_replica_that_stays_is_asked_and_grants_go_on() {
    let mut play = lined_up(&[("ended", "LEASE 1500")]);
    let replies = pause_primary(&mut play, &["LOCK.ACQUIRE free holder"], |_| {});
    assert_refused(&replies[0]);
    play.run("until o > LOCK.ACQUIRE free holder -> token");
    assert_granted(&mut play, &["ended"]);
}

/// Enough that the server does not read what came after them before it has run them.
const MANY: usize = 500;

#[test]
fn what_a_replica_that_left_in_a_pause_had_acknowledged_counts_for_no_command_after_it() {
    let mut play = lined_up(&[("held", LONG)]);
    // The observer took the lock, so it is this that is waited for.
    assert_eq!(play.client("o").int("WAIT 1 0"), 1);
    let mut client = play.server.client();
    let leave_and_ask = |play: &mut Play| {
        // It acknowledges once a second what it has.
        std::thread::sleep(Duration::from_millis(1500));
        play.run("there at r \n there > REPLICAOF NO ONE -> OK");
        let batch = "LOCK.ACQUIRE free holder\r\n".repeat(MANY);
        client.send_bytes(batch.as_bytes());
    };
    pause_primary(&mut play, &[], leave_and_ask);
    for _ in 0..MANY {
        assert_refused(&client.reply());
    }
    assert_none_granted(play.client("o"), &["held"]);
}

#[test]
fn after_a_pause_in_which_nothing_was_written_a_replica_that_stays_is_asked() {
    let mut play = lined_up(&[]);
    // The server would write to it by itself.
    play.run("o > CONFIG SET repl-ping-replica-period 3600 -> OK");
    let replies = pause_primary(&mut play, &["LOCK.ACQUIRE free holder"], |_| {});
    assert_refused(&replies[0]);
    play.run("until o > LOCK.ACQUIRE free holder -> token");
}

/// This much time passes on the server, while nobody asks for a lock.
fn let_pass(observer: &mut Client, seconds: &str) {
    assert_eq!(observer.call(&format!("BLPOP none {seconds}")), nil());
}

#[test]
fn a_server_at_which_nobody_has_asked_for_a_while_was_not_paused() {
    let mut play = lined_up(&[]);
    // A machine that stalls is a pause, too.
    eventually("the first one after a while is granted", || {
        let_pass(play.client("o"), "1");
        let reply = play.client("o").call("LOCK.ACQUIRE k holder");
        matches!(reply, Value::Int(_))
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
        let_pass(&mut observer, "2.5");
        written() == before
    });
}

#[test]
fn a_server_that_was_stopped_while_writes_are_paused_asks_after_that() {
    let mut play = lined_up(&[]);
    play.run("o > CLIENT PAUSE 600000 WRITE -> OK");
    pause_primary(&mut play, &["PING"], |_| {});
    let up_s = play.client("o").info("uptime_in_seconds");
    eventually("its clockwork has turned", || {
        play.client("o").info("uptime_in_seconds") >= up_s + 2
    });
    play.run("o > CLIENT UNPAUSE -> OK");
    play.run("until o > LOCK.ACQUIRE k holder -> token");
    play.run("sound");
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
    play.others.get_mut("r").unwrap().restart();
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
            play.client("o").send_bytes(batch.as_bytes());
            for _ in 0..200 {
                match play.client("o").reply() {
                    Value::Int(_) => {}
                    reply => {
                        assert_refused(&reply);
                        is_refused = true;
                    }
                }
            }
        }
        play.run("r goes on");
        play.run(&format!("until o > {confirm} -> token"));
    }
}
