//! A client goes on to its next command, or ends, in the turn of the event loop in which it
//! is told of its grant.

use redis_lock_testing::{Play, Server};

/// `h` holds `k` and `j`. The client `a` waits for `k`, asks for that with these options, and
/// sends more behind that; `next` stands behind it. `b` waits for `j`, and sends more, too.
#[track_caller]
fn lined_up(server: Server, before: &str, options: &str, behind_a: &str, behind_b: &str) -> Play {
    let mut play = Play::on(server).and_held();
    play.run(&format!(
        "h > LOCK.ACQUIRE j h LONG -> token
        {before}
        a > PING -> PONG
        a sends LOCK.ACQUIRE k a BLOCKED {options} | {behind_a}
        until queue k = a
        next > LOCK.ACQUIRE k next BLOCKED -> ..
        b sends LOCK.ACQUIRE j b BLOCKED | {behind_b}
        until queue j = b"
    ));
    play
}

/// Both locks come free in one turn.
const RELEASE: &str = "h >> LOCK.RELEASE k h | LOCK.RELEASE j h -> 1 | 1";

const A_KEEPS_THE_LOCK: &str = "o > HGET k a -> '1'
    o > HGET k @fence -> '$A'
    queue k = next";

#[test]
fn who_has_sent_quit_is_told_and_keeps_the_lock_though_its_session_is_ended_before() {
    let session = "a > LOCK.ACQUIRE m a SESSION -> token";
    lined_up(Server::start(), session, "", "QUIT", "LOCK.ACQUIRE m a").run(&format!(
        "{RELEASE}
        a < A
        b < token
        b < token
        {A_KEEPS_THE_LOCK}"
    ));
}

#[test]
fn who_is_told_during_a_long_script_keeps_the_lock_though_it_goes() {
    let script = "local function now() local t = redis.call('TIME') return t[1] + t[2] / 1000000 end \
                  local start = now() while now() - start < 1 do end return 1";
    let server = Server::start_with(&["--busy-reply-threshold", "20"]);
    let long = format!("EVAL \"{script}\" 0");
    lined_up(server, "", "", "PING", &long).run(&format!(
        "h sends MULTI | LOCK.RELEASE k h | LOCK.RELEASE j h | EXEC
        a < A
        a drops
        b < token
        b < 1
        {A_KEEPS_THE_LOCK}"
    ));
}

#[test]
fn a_session_that_is_killed_before_it_is_told_leaves_nothing_whatever_it_has_sent() {
    for behind in [
        "PING",
        "LOCK.ACQUIRE k a SESSION",
        "LOCK.ACQUIRE k a HOLD 1 SESSION",
        "LOCK.RENEW k a",
    ] {
        lined_up(Server::start(), "", "SESSION", behind, "CLIENT KILL ID $a").run(&format!(
            "{RELEASE}
            a < closed
            next < token
            o > HGET k a -> null"
        ));
    }
}

#[test]
fn who_goes_on_to_its_next_wait_is_told_of_both() {
    let other = "h > LOCK.ACQUIRE l h LONG -> token";
    let next = "LOCK.ACQUIRE l a BLOCK 0 SESSION";
    lined_up(Server::start(), other, "SESSION", next, "PING").run(&format!(
        "{RELEASE}
        a < token
        h > LOCK.RELEASE l h -> 1
        a < token
        a drops
        next < token"
    ));
}
