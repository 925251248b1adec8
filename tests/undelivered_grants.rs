//! Grants that could not be told: what they added is taken back, and nothing else.

use redis::Value;
use redis_lock_testing::{Play, Server};

/// `h` holds `k`, `a` waits for it with these options, and `next` behind that.
#[track_caller]
fn lined_up(options: &str) -> Play {
    let mut play = Play::held();
    play.run(&format!(
        "a > LOCK.ACQUIRE k a BLOCKED {options} -> ..
        next > LOCK.ACQUIRE k next BLOCKED -> .."
    ));
    play
}

const PASSED_ON: &str = "settled
    o > HGET k a -> null
    o > HGET k next -> '1'
    next < token";

#[test]
fn one_who_resends_and_one_who_closes_its_socket_then() {
    let mut play = Play::start();
    play.run("each leaves sleeper: # > PING -> PONG");
    for round in 0..100 {
        // While the server sleeps both arrive, so that one turn reads both.
        let [sleeps, awake] = match round % 2 {
            0 => ["sleeper sends DEBUG SLEEP 0.005", "sleeper < OK"],
            _ => [""; 2],
        };
        play.run(&format!(
            "h > LOCK.ACQUIRE k before LONG
            leaves > CLIENT ID -> :id
            leaves > LOCK.ACQUIRE k owner BLOCKED HOLD 1 -> ..
            stays > LOCK.ACQUIRE k owner BLOCKED HOLD 1 -> ..
            leaves < !SUPERSEDED
            next > LOCK.ACQUIRE k next BLOCKED -> ..
            {sleeps}
            h sends LOCK.RELEASE k before
            leaves drops
            h < 1
            {awake}
            stays < T{round}
            until o > CLIENT LIST ID $id -> ''
            settled
            o > HGET k @fence -> '$T{round}'
            stays > LOCK.RELEASE k owner -> 1
            next < N{round}
            next > LOCK.RELEASE k next -> 1"
        ));
    }
}

/// Another connection of the owner hears of the hold before its own is gone.
#[test]
fn a_hold_that_another_connection_was_told_of_stands() {
    for command in ["ACQUIRE k a LONG HOLD 1", "RENEW k a LONG"] {
        lined_up("HOLD 1").run(&format!(
            "o >> LOCK.RELEASE k h | LOCK.{command} | CLIENT KILL ID $a -> 1 | token | 1
            settled
            o > HGET k a -> '1'
            queue k = next"
        ));
    }
}

/// The waiter is gone before another connection of its owner asks. Whichever
/// comes first, what the owner is told is so.
#[test]
fn who_asks_after_the_waiter_has_gone_keeps_what_it_is_told_of() {
    for command in [
        "ACQUIRE k a LONG HOLD 1",
        "ACQUIRE k a LONG",
        "ACQUIRE k a LONG HOLD 1 SESSION",
        "RENEW k a LONG",
    ] {
        for options in ["HOLD 1", ""] {
            let mut play = lined_up(options);
            play.run("o sends MULTI | LOCK.RELEASE k h | CLIENT KILL ID $a");
            play.run(&format!("o sends LOCK.{command} | EXEC"));
            for reply in ["OK", "QUEUED", "QUEUED", "QUEUED"] {
                play.run(&format!("o < {reply}"));
            }
            let Value::Array(replies) = play.client("o").reply() else {
                panic!("EXEC did not answer a list");
            };
            play.run(match replies[2] {
                Value::Nil | Value::Int(0) => PASSED_ON,
                // Told, and not taken.
                _ => "settled \n o > HEXISTS k a -> 1 \n queue k = next",
            });
        }
    }
}

/// While a script takes long the server answers others. One that hears of its
/// grant then and closes its connection holds the lock until its lease ends.
#[test]
fn one_told_in_a_long_script_keeps_the_lock_though_it_goes() {
    let server = Server::start_with(&["--busy-reply-threshold", "20"]);
    let script = "local released = redis.call('LOCK.RELEASE', 'k', 'h') \
        local function now() local time = redis.call('TIME') return time[1] + time[2] / 1000000 end \
        local start = now() while now() - start < 1 do end return released";
    Play::on(server).and_held().run(&format!(
        "a > LOCK.ACQUIRE k a BLOCKED -> ..
        next > LOCK.ACQUIRE k next BLOCKED -> ..
        o sends EVAL \"{script}\" 0
        a < A
        a drops
        o < 1
        settled
        o > HGET k a -> '1'
        o > HGET k @fence -> '$A'
        queue k = next"
    ));
}

/// Redis 7.0 sends both replies to a client that is unblocked in the turn of its
/// grant, so there the session is that client's. Else it lives on, and keeps nothing up.
#[test]
fn who_is_unblocked_with_an_error_has_no_session() {
    let mut play = lined_up("SESSION");
    let hears_both = play.version() < (7, 2);
    play.run("o >> LOCK.RELEASE k h | CLIENT UNBLOCK $a ERROR -> 1 | 1 \n settled");
    match hears_both {
        true => play.run("a < token \n a < !UNBLOCKED \n o > HGET k a -> '1' \n queue k = next"),
        false => play.run(&format!("a < !UNBLOCKED \n {PASSED_ON}")),
    };
}

#[test]
fn who_reads_a_grant_and_closes_at_once_was_told() {
    let mut play = Play::start();
    let sets = ["SET x yyyyyyyy"; 20]
        .join(" | ")
        .replace('y', &"y".repeat(250));
    for nth in 0..30 {
        // What is released at the end of a pause is answered in a busy turn.
        play.run(&format!(
            "h > LOCK.ACQUIRE k{nth} h LONG
            w > LOCK.ACQUIRE k{nth} w BLOCKED -> ..
            each 0..19: other# > PING -> PONG
            o > CLIENT PAUSE 60 WRITE
            h sends LOCK.RELEASE k{nth} h
            each 0..19: other# sends {sets}
            w < token
            w drops
            settled
            o > HGET k{nth} w -> '1'
            each 0..19: other# drops
            h < 1"
        ));
    }
}
