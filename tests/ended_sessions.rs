//! Sessions that have ended, and what the next command sees of their locks.

use redis::Value;
use redis_lock_testing::{Play, module, stay_on_one_processor};

const ASKS: [&str; 4] = ["", "HOLD 1", "SESSION", "HOLD 1 SESSION"];

/// `s` holds `k` by its connection.
#[track_caller]
fn uncontended() -> Play {
    let mut play = Play::start();
    play.run("s > LOCK.ACQUIRE k s LONG SESSION -> S");
    play
}

/// The session ends, and in the same transaction somebody asks. Then the one who waited has
/// the lock, alone.
#[track_caller]
fn check_contended(command: &str, reply: &str) {
    uncontended().run(&format!(
        "next > LOCK.ACQUIRE k next BLOCKED -> ..
        o >> CLIENT KILL ID $s | {command} -> 1 | {reply}
        next < N
        settled
        o > HLEN k -> 2
        o > HGET k next -> '1'
        o > HGET k @fence -> '$N'
        s < closed"
    ));
}

/// The same where nobody waits, and then this is so.
#[track_caller]
fn check_uncontended(command: &str, reply: &str, then: &str) {
    uncontended().run(&format!(
        "o >> CLIENT KILL ID $s | {command} -> 1 | {reply}
        settled
        {then}"
    ));
}

#[test]
fn its_owner_does_not_pass_those_who_wait() {
    for options in ASKS {
        check_contended(&format!("LOCK.ACQUIRE k s LONG {options}"), "null");
    }
}

#[test]
fn its_owner_gets_a_new_hold_that_lasts() {
    let asks = ASKS.map(|options| ("s", options));
    for (owner, options) in [&asks[..], &[("another", "")]].concat() {
        check_uncontended(
            &format!("LOCK.ACQUIRE k {owner} LONG {options}"),
            "T",
            &format!("o > HLEN k -> 2 \n o > HGET k {owner} -> '1' \n o > HGET k @fence -> '$T'"),
        );
    }
}

#[test]
fn its_hold_can_neither_be_renewed_nor_given_back_nor_broken() {
    for (command, reply) in [
        ("LOCK.RENEW k s LONG", "0"),
        ("LOCK.RENEW k s LONG FENCE $S", "0"),
        ("LOCK.RELEASE k s", "null"),
        ("LOCK.RELEASE k s ALL", "null"),
        ("LOCK.RELEASE k s FENCE $S", "null"),
        ("LOCK.BREAK k FENCE $S", "0"),
    ] {
        check_contended(command, reply);
        check_uncontended(command, reply, "o > EXISTS k -> 0");
    }
}

#[test]
fn its_lock_is_not_shown_as_held_by_it() {
    for (command, waits) in [("INFO k", true), ("INFO k", false), ("LIST", true)] {
        let mut play = uncontended();
        if waits {
            play.run("next > LOCK.ACQUIRE k next BLOCKED -> ..");
        }
        play.run(&format!(
            "o >> CLIENT KILL ID $s | LOCK.{command} -> 1 | :shown"
        ));
        let shown = play.with_names("$shown");
        assert!(!shown.contains("'s'"), "{shown}");
        assert!(waits || shown.contains("'free'"), "{shown}");
    }
}

/// Of 300; another reader is left, or none.
#[test]
fn a_crowd_of_readers_ends_with_its_connection() {
    let script = "EVAL return(redis.call('LOCK.ACQUIRE','k','x')) 0";
    for (is_left, command, reply, x, z, fields) in [
        (false, "LOCK.ACQUIRE k x", "token", "'1'", "null", 2),
        (false, script, "token", "'1'", "null", 2),
        (false, "LOCK.BREAK k", "0", "null", "null", 0),
        (true, "LOCK.ACQUIRE k x", "null", "null", "'1'", 3),
        (true, "LOCK.ACQUIRE k x LIMIT 2", "token", "'1'", "'1'", 5),
        (true, "LOCK.BREAK k", "1", "null", "null", 0),
    ] {
        let mut play = Play::start();
        play.run("each 0..149: s > LOCK.ACQUIRE k n# LONG SHARED SESSION -> token");
        if is_left {
            play.run("o > LOCK.ACQUIRE k z LONG SHARED -> token");
        }
        let is_broken = i64::from(reply == "1");
        play.run(&format!(
            "each 150..299: s > LOCK.ACQUIRE k n# LONG SHARED SESSION -> token
            o >> CLIENT KILL ID $s | {command} -> 1 | {reply}
            until lock_sessions = 0
            until o > HLEN k -> {fields}
            o > HGET k x -> {x}
            o > HGET k z -> {z}
            lock_releases_session = 300
            until lock_hold_count = 300
            lock_releases_broken = {is_broken}"
        ));
    }
}

/// Its connection ends while the server must not write, and its owner asks on
/// a new one.
#[test]
fn its_owner_asks_again_after_a_pause_of_the_server() {
    let mut play = uncontended();
    play.run(
        "next > LOCK.ACQUIRE k next BLOCKED -> ..
        again > PING -> PONG
        o > CLIENT PAUSE 60000 WRITE -> OK
        s closes
        again sends LOCK.ACQUIRE k s LONG HOLD 1
        o > PING -> PONG
        o > CLIENT UNPAUSE -> OK",
    );
    match play.client("again").reply() {
        Value::Nil => play.run("settled \n next < token"),
        Value::Int(token) => play.run(&format!(
            "settled
            o > HGET k @fence -> '{token}'
            o > HGET k s -> '1'"
        )),
        other => panic!("{other:?}"),
    };
}

/// How a session ends, and what is left to do.
const CLOSES: [&str; 2] = ["s drops", ""];
const QUITS: [&str; 2] = ["s sends QUIT", "s drops"];

/// What keeps the server from reading while a session ends.
const ASLEEP: &str = "busy sends DEBUG SLEEP 0.005";
const IN_A_SCRIPT: &str =
    "busy sends EVAL \"local n = 0 for i = 1, 500000 do n = n + i end return 1\" 0";

/// Ends sessions again and again while their owner asks on a connection that is
/// open already. Whoever is told that it holds the lock must still hold it.
#[track_caller]
fn check_rounds([ends, after]: [&str; 2], busy: &[&str]) {
    stay_on_one_processor();
    let mut play = Play::start();
    play.run("each pooled busy: # > PING -> PONG");
    for round in 0..200 {
        let ask = [
            "LOCK.ACQUIRE k owner LONG",
            "LOCK.ACQUIRE k owner LONG HOLD 1",
            "LOCK.ACQUIRE k owner LONG SESSION",
            "LOCK.RENEW k owner LONG",
        ][round % 4];
        let busy = busy[round / 4 % busy.len()];
        let awake = if busy.is_empty() { "" } else { "busy < _" };
        play.run(&format!(
            "s > CLIENT ID -> :id
            s > LOCK.ACQUIRE k owner LONG SESSION -> T{round}
            next > LOCK.ACQUIRE k next BLOCKED -> ..
            {busy}
            {ends}
            pooled > {ask} -> :told
            {awake}
            until o > CLIENT LIST ID $id -> ''
            settled
            {after}"
        ));
        let told = match play.with_names("$told").as_str() {
            "null" | "0" => None,
            "1" => Some(play.token(&format!("T{round}")).to_string()),
            token => Some(token.to_owned()),
        };
        // Told, and not taken then.
        if let Some(told) = told {
            play.run(&format!(
                "o > HEXISTS k owner -> 1
                o > HGET k @fence -> '{told}'
                queue k = next
                pooled > LOCK.RELEASE k owner ALL -> 1"
            ));
        }
        play.run(&format!(
            "next < N{round}\n next > LOCK.RELEASE k next -> 1"
        ));
    }
    play.run("o > EXISTS k -> 0 \n lock_sessions = 0");
}

#[test]
fn who_asks_after_a_close_keeps_what_it_is_told_of() {
    check_rounds(CLOSES, &[""]);
}

#[test]
fn who_asks_after_a_close_of_which_a_busy_server_hears_late() {
    check_rounds(CLOSES, &[ASLEEP, IN_A_SCRIPT]);
}

#[test]
fn who_asks_after_quit_keeps_what_it_is_told_of() {
    check_rounds(QUITS, &["", ASLEEP, IN_A_SCRIPT]);
}

/// The hold of a session was deleted, another holds the lock, and the owner
/// waits for it again. The old renewal and the end of the other's lease fall
/// due while the server sleeps.
#[test]
fn a_lost_hold_does_not_unbind_the_next_one_of_its_owner() {
    let mut play = Play::start();
    // A third of the session's lease is 2000 ms, so both are due at its end.
    play.run(
        "s > LOCK.ACQUIRE k s SESSION LEASE 6000 -> S
        o > DEL k -> 1
        o > LOCK.ACQUIRE k other LEASE 1900 -> token
        second > LOCK.ACQUIRE k s SESSION LEASE 2000 BLOCK 0 -> ..
        next > LOCK.ACQUIRE k next BLOCKED -> ..
        until o > PTTL k -> ..600
        o > DEBUG SLEEP 1.5 -> OK
        second < token
        settled
        o > LOCK.INFO k -> {holders.0.client $second}",
    );
    // The lease is kept up.
    play.run(
        "o > PEXPIRETIME k -> :end
        until o > PEXPIRETIME k -> $end+2001..
        o > HEXISTS k s -> 1
        queue k = next
        second drops
        next < token",
    );
}

/// The server has stood still, and closes a connection whose session it could not keep up. In
/// the same turn its client is handed another lock, and hears no more of it.
#[test]
fn who_is_closed_for_a_lost_session_keeps_no_other_lock() {
    Play::start().run(
        "h > LOCK.ACQUIRE k h LONG -> token
        s > LOCK.ACQUIRE l s LEASE 300 SESSION -> token
        s > LOCK.ACQUIRE k s BLOCKED -> ..
        next > LOCK.ACQUIRE k next BLOCKED -> ..
        o >> PEXPIRE k 1 | DEBUG SLEEP 0.4 -> 1 | OK
        next < token",
    );
}

#[test]
fn sessions_end_also_after_a_demotion_and_a_load_of_the_module() {
    let mut play = Play::start();
    play.run("primary starts");
    play.run(&format!(
        "before > LOCK.ACQUIRE before s SESSION LEASE 2000 -> token
        o > REPLICAOF 127.0.0.1 $primary -> OK
        until lock_sessions = 0
        until o > MODULE UNLOAD lock -> OK
        o > MODULE LOAD {} -> OK
        o > REPLICAOF NO ONE -> OK
        s > LOCK.ACQUIRE k s SESSION LONG -> token
        s closes
        settled
        o > EXISTS k -> 0
        lock_sessions = 0",
        module().display()
    ));
}

/// Of a session's lock that was moved elsewhere, nothing follows it there.
#[test]
fn a_lock_that_moved_is_a_plain_hold_where_it_is() {
    for (command, db, key) in [
        ("SWAPDB 0 1", 1, "k"),
        ("RENAME k moved", 0, "moved"),
        ("RENAMENX k moved", 0, "moved"),
        ("MOVE k 1", 1, "k"),
    ] {
        let mut play = Play::start();
        play.run(&format!(
            "s > LOCK.ACQUIRE k s SESSION LEASE 1500 -> S
            o > {command}
            o > SELECT {db}"
        ));
        let ends = format!("PEXPIRETIME {key}");
        let end = play.client("o").int(&ends);
        play.run("until lock_sessions = 0");
        let now = play.client("o").int(&ends);
        assert!(now == end || now == -2, "{command}: {now}");
        play.run(&format!(
            "s closes
            next > SELECT {db}
            next > LOCK.ACQUIRE {key} next BLOCK 0 -> token"
        ));
    }
}
